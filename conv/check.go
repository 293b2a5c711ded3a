package conv

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// operand is a vector with the name that errors give it.
type operand struct {
	name string
	view snug.View
}

// length is an operand and how many elements it should have.
type length struct {
	name string
	view snug.View
	want int
}

// checkFloats reports the first operand that is not floating-point or differs in type from those before it. Empty
// operands pass.
func checkFloats(op string, operands ...operand) error {
	var first operand
	for _, o := range operands {
		dt := o.view.DType()
		switch {
		case o.view.Len() == 0:
		case !dt.IsFloat():
			return fmt.Errorf("conv: %s: %s holds %v, want f32, f16 or bf16: %w", op, o.name, dt, snug.ErrDType)
		case first.name == "":
			first = o
		case dt != first.view.DType():
			return fmt.Errorf("conv: %s: %s holds %v, want %v as %s: %w", op, o.name, dt, first.view.DType(), first.name, snug.ErrDType)
		}
	}
	return nil
}

// checkF32 reports the first operand that does not hold float32. Empty operands pass.
func checkF32(op string, operands ...operand) error {
	for _, o := range operands {
		if o.view.Len() > 0 && o.view.DType() != snug.F32 {
			return fmt.Errorf("conv: %s: %s holds %v, want f32: %w", op, o.name, o.view.DType(), snug.ErrDType)
		}
	}
	return nil
}

// checkLens reports the first operand of another length.
func checkLens(op string, operands ...length) error {
	for _, o := range operands {
		if o.view.Len() != o.want {
			return fmt.Errorf("conv: %s: %s has %d elements, want %d: %w", op, o.name, o.view.Len(), o.want, snug.ErrShape)
		}
	}
	return nil
}

// checkOptional is checkLens for operands that may be empty.
func checkOptional(op string, operands ...length) error {
	for _, o := range operands {
		if o.view.Len() != 0 && o.view.Len() != o.want {
			return fmt.Errorf("conv: %s: %s has %d elements, want %d or none: %w", op, o.name, o.view.Len(), o.want, snug.ErrShape)
		}
	}
	return nil
}

// checkApart reports that a result overlaps one of the others.
func checkApart(op string, result operand, others ...operand) error {
	for _, o := range others {
		if device.Mem(&result.view).Overlaps(*device.Mem(&o.view)) {
			return fmt.Errorf("conv: %s: %s overlaps %s: %w", op, result.name, o.name, snug.ErrConfig)
		}
	}
	return nil
}

// resolve checks the shape and the factors, and returns these with their defaults.
func resolve(op string, s *Shape, o snug.Into) (snug.Into, error) {
	if err := s.check(); err != nil {
		return o, fmt.Errorf("conv: %s: %w", op, err)
	}
	alpha, beta, err := o.Factors()
	if err != nil {
		return o, fmt.Errorf("conv: %s: %w", op, err)
	}
	return snug.Into{Alpha: alpha, Beta: beta}, nil
}

// commonDevice is snug.CommonDevice with the operation in the error.
func commonDevice(op string, views ...snug.View) (*snug.Device, error) {
	dev, err := snug.CommonDevice(views...)
	if err != nil {
		return nil, fmt.Errorf("conv: %s: %w", op, err)
	}
	return dev, nil
}
