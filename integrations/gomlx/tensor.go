package gomlx

import (
	"fmt"
	"unsafe"

	"github.com/gomlx/gomlx/pkg/core/dtypes/bfloat16"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/snug-ml/snug"
)

// View calls use with the elements of a tensor, which holds float32, float16 or bfloat16. It copies nothing where the host
// can address the tensor's memory. use may change the elements; it must not keep the View. GoMLX locks the tensor until
// use returns.
//
// The error wraps [snug.ErrConfig] for a nil tensor and a nil function, [snug.ErrDType] for another element type, or is
// that of GoMLX or of use.
func View(t *tensors.Tensor, use func(snug.View) error) error {
	if t == nil || use == nil {
		return fmt.Errorf("gomlx: View: the tensor or the function is nil: %w", snug.ErrConfig)
	}
	return access(t, t.MutableFlatData, use)
}

// access is View with one of the methods that give access to the elements.
func access(t *tensors.Tensor, by func(func(flat any)) error, use func(snug.View) error) error {
	var used error
	err := by(func(flat any) {
		var v snug.View
		if v, used = viewOf(flat); used == nil {
			used = use(v)
		}
	})
	if err != nil {
		return fmt.Errorf("gomlx: a tensor of %s: %w: %w", t.Shape(), err, snug.ErrConfig)
	}
	return used
}

// viewOf returns the elements of a tensor as snug names them.
func viewOf(flat any) (snug.View, error) {
	switch flat := flat.(type) {
	case []float32:
		return snug.ViewOf(flat), nil
	case []snug.Float16:
		return snug.ViewOf(flat), nil
	case []bfloat16.BFloat16:
		return snug.ViewOf(snug.BFloat16s(flat)), nil
	}
	return snug.View{}, fmt.Errorf("gomlx: a tensor holds %T, want float32, float16 or bfloat16: %w", flat, snug.ErrDType)
}

// address returns where the elements of a view lie.
func address(v snug.View) unsafe.Pointer {
	switch v.DType() {
	case snug.F32:
		return unsafe.Pointer(unsafe.SliceData(v.Float32s()))
	case snug.F16:
		return unsafe.Pointer(unsafe.SliceData(v.Float16s()))
	}
	return unsafe.Pointer(unsafe.SliceData(v.BFloat16s()))
}

// catch returns what GoMLX or a function of the caller throws as an error.
func catch(what string, do func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("%s: %w: %w", what, p, snug.ErrConfig)
		default:
			err = fmt.Errorf("%s: %v: %w", what, p, snug.ErrConfig)
		}
	}()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
