package qlora

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/safetensors"
)

// Rows names Count rows of a weight: row First, row First+Step, and so on. A row is a vector along the last dimension.
// Rows are numbered as if all other dimensions were one.
type Rows struct{ First, Step, Count int }

// LoadRows loads some rows of an MXFP4, FP8 or INT8 weight, as [Weights.Load] loads a whole weight. The result has the shape [Count,
// in], and the codes and scales of the file.
//
// LoadRows is for experts that share a tensor, and for weights that are decoded some rows at a time. gpt-oss has the matrices gate
// and up of all experts in one tensor of [experts, 2·width, in], whose rows belong to gate and up by turns. The gate of expert e is
// Rows{2·width·e, 2, width}; its up is Rows{2·width·e + 1, 2, width}. Rows of FP8 and INT8 follow one another, Step 1.
//
// On the CPU LoadRows takes up to 1 MiB of memory in addition to the weight, and 8 bytes for every scale of FP8 and INT8. For another
// device it takes 1 MiB and the size of the weight on the host.
//
// Errors are those of Load. In addition, the error wraps [snug.ErrConfig] for a weight of another type, and
// [snug.ErrShape] if there are no such rows.
func (w *Weights) LoadRows(name string, r Rows, dev *snug.Device) (*Weight, error) {
	if dev == nil {
		dev = snug.CPU()
	}
	if w == nil || w.set == nil {
		return nil, fmt.Errorf("qlora: LoadRows: weight %q: the Weights is nil, or was not made by OpenWeights or NewWeights: %w", name, snug.ErrConfig)
	}
	weight, err := loader{w, name, dev}.loadRows(r)
	if err != nil {
		return nil, fmt.Errorf("qlora: LoadRows: weight %q: %w", name, err)
	}
	return weight, nil
}

func (l loader) loadRows(r Rows) (_ *Weight, err error) {
	t, codes := l.kind()
	switch t {
	case 0:
		return nil, l.missing()
	case Grouped:
		return nil, fmt.Errorf("rows of a grouped weight, want Load: %w", snug.ErrConfig)
	}
	w := &Weight{t: t, dtype: snug.BF16, shape: codes.Tensor.Shape}
	whole := false
	defer func() {
		if !whole { // also when the reader panics
			err = errors.Join(err, w.Close())
		}
	}()
	if t == MXFP4 {
		err = l.rowsMX(w, codes, r)
	} else {
		err = l.rowsOctets(w, codes, r)
	}
	if err != nil {
		return nil, err
	}
	whole = true
	return w, nil
}

// cut sets the shape of w to rows of it.
func (r Rows) cut(w *Weight) error {
	in := w.shape[len(w.shape)-1]
	rows := 0
	if in > 0 {
		rows = w.n / in
	}
	if r.First < 0 || r.Step < 1 || r.Count < 1 || r.First >= rows || r.Count-1 > (rows-1-r.First)/r.Step {
		return fmt.Errorf("%d rows from %d on, every %d, and it has %d: %w", r.Count, r.First, r.Step, rows, snug.ErrShape)
	}
	w.shape, w.n = []int{r.Count, in}, r.Count*in
	return nil
}

func (l loader) rowsMX(w *Weight, codes safetensors.Place, r Rows) error {
	scales, err := l.shapeMX(w)
	if err != nil {
		return err
	}
	if err := r.cut(w); err != nil {
		return err
	}
	packed, bytes := make([]uint8, w.n/2), make([]uint8, w.n/mxBlock)
	if err := errors.Join(l.readRows(packed, codes, r), l.readRows(bytes, scales, r)); err != nil {
		return err
	}
	swapHalves(packed)
	if w.packed, err = put(l.dev, packed); err != nil {
		return err
	}
	return l.scalesMX(w, bytes)
}

func (l loader) rowsOctets(w *Weight, codes safetensors.Place, r Rows) error {
	scales, name, err := l.shapeOctets(w)
	if err != nil {
		return err
	}
	if err := r.cut(w); err != nil {
		return err
	}
	if r.Step != 1 {
		return fmt.Errorf("every %d rows of %s, want Step 1: %w", r.Step, w.t, snug.ErrShape)
	}
	scales = w.cutScales(scales, r)
	packed := make([]uint8, w.n)
	err = l.fillOctets(w, name, scales, r.First*w.shape[1], w.n, func(turn func([]byte)) error {
		err := l.readRows(packed, codes, r)
		turn(packed)
		return err
	})
	if err == nil {
		w.packed, err = put(l.dev, packed)
	}
	return err
}

// cutScales returns the scales of rows of w, which has the grid of the whole weight. If they begin within a block, blocks get fewer rows.
func (w *Weight) cutScales(scales []float32, r Rows) (cut []float32) {
	rows, across := w.grid.rows, cpu.Chunks(w.shape[1], w.grid.cols)
	own := w.grid.rows
	for rest := r.First; rest > 0; { // their common divisor
		own, rest = rest, own%rest
	}
	w.setGrid(grid{own, w.grid.cols})
	for row := r.First; row < r.First+r.Count; row += own {
		cut = append(cut, scales[row/rows*across:][:across]...)
	}
	return cut
}

// readRows reads rows of equal length into dst.
func (l loader) readRows(dst []byte, p safetensors.Place, r Rows) error {
	size := len(dst) / r.Count
	if r.Step == 1 {
		return l.w.set.Read(p, dst, int64(r.First)*int64(size))
	}
	most := max(1, staged/size/r.Step) // rows at a time
	buf := make([]byte, ((min(most, r.Count)-1)*r.Step+1)*size)
	for row := 0; row < r.Count; row += most {
		n := min(most, r.Count-row)
		piece := buf[:((n-1)*r.Step+1)*size]
		if err := l.w.set.Read(p, piece, (int64(r.First)+int64(row)*int64(r.Step))*int64(size)); err != nil {
			return err
		}
		for i := range n {
			copy(dst[(row+i)*size:][:size], piece[i*r.Step*size:])
		}
	}
	return nil
}
