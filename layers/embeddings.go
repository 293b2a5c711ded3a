package layers

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
)

// Embeddings are vectors in place of the embeddings of some tokens of a batch, such as the output of a tower of images. The
// zero value has none. An [Embedding] computes
//
//	y[Rows[i]] = Values[i] + Scale·position    without the position, if it has no Positions
//
// As in transformers, Scale does not multiply the vectors. The tokens there have to be in the table; their rows of the table are
// not read, and get no gradient from there.
//
// Values are not checked for NaN and infinities. They make a loss and gradients that are not finite, as such weights do.
type Embeddings struct {
	Rows []int32 // rows of the batch, in ascending order, each once
	// Values is [len(Rows), width] on the device of the model, in the type of activations, or in float32, which is rounded.
	Values snug.View
	// Grad, unless it is empty, is [len(Rows), width] on the device of the model, in float32 or in the type of activations,
	// apart from Values. A backward pass sets it to the gradient of the vectors, whatever it held. The gradient has the
	// factors of the loss in it, such as the loss scale. Other passes leave Grad alone.
	Grad snug.View

	first int32 // row of the batch that is row 0 here
}

// Check returns an error unless the vectors are of rows of a batch of so many rows, and of that width, type and device, nil
// for the CPU. It wraps [snug.ErrShape], [snug.ErrDType], [snug.ErrDevice], or [snug.ErrConfig] if Values and Grad share memory.
func (e Embeddings) Check(rows, width int, dt snug.DType, dev *snug.Device) (err error) {
	defer fault.Named(&err, "layers: Embeddings")
	dev = cmp.Or(dev, snug.CPU())
	last := int32(-1)
	for i, r := range e.Rows {
		if r -= e.first; r <= last || int(r) >= rows {
			return fmt.Errorf("row %d of the embeddings is %d, want more than the row before it, and less than %d: %w", i, r, rows, snug.ErrShape)
		}
		last = r
	}
	for _, v := range [...]struct {
		name     string
		of       snug.View
		optional bool
	}{{"Values", e.Values, false}, {"Grad", e.Grad, true}} {
		switch n := v.of.Len(); {
		case n == 0 && (v.optional || len(e.Rows) == 0):
		case len(e.Rows) == 0 || n%len(e.Rows) != 0 || n/len(e.Rows) != width:
			return fmt.Errorf("the %s of the embeddings has %d elements, want %d rows of %d: %w", v.name, n, len(e.Rows), width, snug.ErrShape)
		case v.of.DType() != dt && v.of.DType() != snug.F32:
			return fmt.Errorf("the %s of the embeddings is %s, want %s or f32: %w", v.name, v.of.DType(), dt, snug.ErrDType)
		case v.of.Device() != dev:
			return fmt.Errorf("the %s of the embeddings is on %s, and the model on %s: %w", v.name, v.of.Device().Name(), dev.Name(), snug.ErrDevice)
		}
	}
	if e.Grad.Len() > 0 && device.Mem(&e.Grad).Overlaps(*device.Mem(&e.Values)) {
		return fmt.Errorf("the Values and the Grad of the embeddings share memory: %w", snug.ErrConfig)
	}
	return nil
}

// Part returns the vectors among n rows from lo on, whose row 0 is lo.
func (e Embeddings) Part(lo, n int) Embeddings {
	first := e.first + int32(lo)
	from, _ := slices.BinarySearch(e.Rows, first)
	to, _ := slices.BinarySearch(e.Rows, first+int32(n))
	if from == to {
		return Embeddings{}
	}
	of := Embeddings{Rows: e.Rows[from:to], first: first}
	of.Values = rowsOf(e.Values, len(e.Rows), from, to-from)
	of.Grad = rowsOf(e.Grad, len(e.Rows), from, to-from)
	return of
}

// ZeroGrad sets Grad to zeros: the gradient of a loss without labels.
func (e Embeddings) ZeroGrad() error {
	if e.Grad.Len() == 0 {
		return nil
	}
	return multiply(e.Grad, e.Grad.Len(), 0)
}

// rowsOf returns n rows from lo on of a vector of so many rows, which may be empty.
func rowsOf(v snug.View, rows, lo, n int) snug.View {
	width := v.Len() / max(1, rows)
	return part(v, lo*width, n*width)
}

// runs calls do for ranges of rows that follow each other: n vectors from vector i on, in rows from row on.
func (e Embeddings) runs(do func(i, row, n int) error) error {
	for i := 0; i < len(e.Rows); {
		n := 1
		for i+n < len(e.Rows) && e.Rows[i+n] == e.Rows[i]+int32(n) {
			n++
		}
		if err := do(i, int(e.Rows[i]-e.first), n); err != nil {
			return err
		}
		i += n
	}
	return nil
}

// copyTo writes the vectors to their rows of y, or adds them to what is there.
func (e Embeddings) copyTo(p *Pass, y snug.View, add bool) error {
	return e.runs(func(i, row, n int) error {
		to, from := rowsOf(y, p.rows, row, n), rowsOf(e.Values, len(e.Rows), i, n)
		switch {
		case !add:
			return assign(to, from)
		case to.DType() == from.DType():
			return fused.Add(to, to, from)
		}
		return p.addWide(to, from)
	})
}

// AddTo adds the vectors to their rows of y, [rows of the batch, width].
func (e Embeddings) AddTo(p *Pass, y *Tensor) {
	if len(e.Rows) > 0 && p.made() {
		p.Do(func() error { return e.copyTo(p, y.View, true) })
	}
}

// TakeGrad sets Grad to the gradient of vectors that AddTo has added, their rows of dy.
func (e Embeddings) TakeGrad(p *Pass, dy *Tensor) {
	if e.Grad.Len() > 0 && p.made() {
		p.Do(func() error { return e.takeGrad(p, dy.View) })
	}
}

// takeGrad sets Grad to rows of dy, the gradient of an Embedding's output.
func (e Embeddings) takeGrad(p *Pass, dy snug.View) error {
	if e.Grad.Len() == 0 {
		return nil
	}
	return e.runs(func(i, row, n int) error {
		return assign(rowsOf(e.Grad, len(e.Rows), i, n), rowsOf(dy, p.rows, row, n))
	})
}

// clearRows sets the rows of the vectors in dy to zeros, so that they add nothing to the table.
func (e Embeddings) clearRows(p *Pass, dy snug.View) error {
	return e.runs(func(_, row, n int) error {
		v := rowsOf(dy, p.rows, row, n)
		return multiply(v, v.Len(), 0)
	})
}

// assign computes to = from, in the type of to.
func assign(to, from snug.View) error {
	if to.DType() == from.DType() {
		return snug.Copy(to, from)
	}
	return amp.Cast(to, from)
}

// addWide adds float32 numbers to 16-bit ones, in the workspace, a part at a time.
func (p *Pass) addWide(to, from snug.View) error {
	ws, err := p.Workspace(1)
	if err != nil {
		return err
	}
	for lo := 0; lo < to.Len(); lo += ws.Len() {
		n := min(ws.Len(), to.Len()-lo)
		sum, into := part(ws, 0, n), part(to, lo, n)
		if err := amp.Cast(sum, into); err != nil {
			return err
		}
		if err := fused.Add(sum, sum, part(from, lo, n)); err != nil {
			return err
		}
		if err := amp.Cast(into, sum); err != nil {
			return err
		}
	}
	return nil
}
