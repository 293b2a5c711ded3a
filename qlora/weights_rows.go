package qlora

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
)

// Rows names Count rows of a weight: row First, row First+Step, and so on. A row is a vector along the last dimension.
// Rows are numbered as if all other dimensions were one.
type Rows struct{ First, Step, Count int }

// LoadRows loads some rows of an MXFP4 weight, as [Weights.Load] loads a whole weight. The result has the shape [Count,
// in], and the codes and scales of the file.
//
// LoadRows is for experts that share a tensor. gpt-oss has the matrices gate and up of all experts in one tensor of
// [experts, 2·width, in], whose rows belong to gate and up by turns. The gate of expert e is Rows{2·width·e, 2, width};
// its up is Rows{2·width·e + 1, 2, width}.
//
// On the CPU LoadRows takes up to 1 MiB of memory in addition to the weight. For another device it takes 1 MiB and the
// size of the weight on the host.
//
// Errors are those of Load. In addition, the error wraps [snug.ErrConfig] for a weight that is not MXFP4, and
// [snug.ErrShape] if there are no rows or the weight does not have them.
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
	switch {
	case t == 0:
		return nil, l.missing()
	case t != MXFP4:
		return nil, fmt.Errorf("it is %s, want %s: %w", t, MXFP4, snug.ErrConfig)
	}
	w := &Weight{t: t, dtype: snug.BF16, shape: codes.Tensor.Shape}
	scales, err := l.shapeMX(w)
	if err != nil {
		return nil, err
	}
	in := w.shape[len(w.shape)-1]
	rows := 0
	if in > 0 {
		rows = w.n / in
	}
	if r.First < 0 || r.Step < 1 || r.Count < 1 || r.First >= rows || r.Count-1 > (rows-1-r.First)/r.Step {
		return nil, fmt.Errorf("%d rows from %d on, every %d, and it has %d: %w", r.Count, r.First, r.Step, rows, snug.ErrShape)
	}
	w.shape, w.n = []int{r.Count, in}, r.Count*in
	packed, bytes := make([]uint8, w.n/2), make([]uint8, w.n/mxBlock)
	if err := errors.Join(l.readRows(packed, codes, r), l.readRows(bytes, scales, r)); err != nil {
		return nil, err
	}
	swapHalves(packed)
	whole := false
	defer func() {
		if !whole { // also when the reader panics
			err = errors.Join(err, w.Close())
		}
	}()
	if w.packed, err = put(l.dev, packed); err != nil {
		return nil, err
	}
	if err := l.scalesMX(w, bytes); err != nil {
		return nil, err
	}
	whole = true
	return w, nil
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
