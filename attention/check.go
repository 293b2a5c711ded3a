package attention

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// tensor is a vector given for an operand of Options.
type tensor struct {
	name string
	view snug.View
	like operand
	// cached: its type is checked, and it may have elements if like has none, unused pages
	cached bool
}

// rowVector is a float32 vector with one element for every query.
type rowVector struct {
	name string
	view snug.View
	more bool // may be longer

	optional bool // may be empty
}

// checkOperands checks the operands of a call and returns their device.
func checkOperands(c *Options, tensors []tensor, vectors []rowVector) (*snug.Device, error) {
	if err := checkDTypes(tensors, vectors); err != nil {
		return nil, err
	}
	if err := checkLengths(tensors, vectors, c.queries()); err != nil {
		return nil, err
	}
	return commonDevice(c, tensors, vectors)
}

// commonDevice returns the device of all operands, including the operands in c.
func commonDevice(c *Options, tensors []tensor, vectors []rowVector) (*snug.Device, error) {
	var all [20]snug.View
	n := 0
	for _, t := range tensors {
		all[n], n = t.view, n+1
	}
	for _, v := range vectors {
		all[n], n = v.view, n+1
	}
	for _, v := range c.extras() {
		all[n], n = *v, n+1
	}
	dev, err := snug.CommonDevice(all[:n]...)
	return dev, fault.Of(err, "attention")
}

func checkDTypes(tensors []tensor, vectors []rowVector) error {
	want := tensors[0]
	if !want.view.DType().IsFloat() {
		return fmt.Errorf("attention: %s holds %s, want f32, f16 or bf16: %w", want.name, want.view.DType(), snug.ErrDType)
	}
	for _, t := range tensors {
		if t.view.DType() != want.view.DType() && !t.cached {
			return fmt.Errorf("attention: %s holds %s, want %s as %s: %w", t.name, t.view.DType(), want.view.DType(), want.name, snug.ErrDType)
		}
	}
	for _, v := range vectors {
		if v.view.Len() > 0 && v.view.DType() != snug.F32 {
			return fmt.Errorf("attention: %s holds %s, want f32: %w", v.name, v.view.DType(), snug.ErrDType)
		}
	}
	return nil
}

func checkLengths(tensors []tensor, vectors []rowVector, queries int) error {
	for _, t := range tensors {
		if t.like.empty() && t.view.Len() > 0 && !t.cached { // a dimension was forgotten
			return fmt.Errorf("attention: %s holds %d elements, want none: %s: %w", t.name, t.view.Len(), t.like.zeros(), snug.ErrShape)
		}
		if n := t.like.extent(); t.view.Len() < n {
			return fmt.Errorf("attention: %s holds %d elements, want %d for [%d,%d,%d,%d] with strides %+v: %w", t.name, t.view.Len(), n,
				t.like.batch, t.like.heads, t.like.n, t.like.dim, t.like.strides, snug.ErrShape)
		}
	}
	for _, v := range vectors {
		if n := v.view.Len(); (n < queries || n > queries && !v.more) && (n > 0 || !v.optional) {
			return fmt.Errorf("attention: %s holds %d elements, want %d, one for every query: %w", v.name, n, queries, snug.ErrShape)
		}
	}
	return nil
}
