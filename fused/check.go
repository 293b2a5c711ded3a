package fused

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// operand is a vector with the name that errors give it.
type operand struct {
	name string
	view snug.View
}

// checkFloats reports the first operand that is not floating-point or differs
// in type from those before it. Empty operands pass.
func checkFloats(op string, operands ...operand) error {
	var first operand
	for _, o := range operands {
		dt := o.view.DType()
		switch {
		case o.view.Len() == 0:
		case !dt.IsFloat():
			return fmt.Errorf("fused: %s: %s holds %v, want f32, f16 or bf16: %w", op, o.name, dt, snug.ErrDType)
		case first.name == "":
			first = o
		case dt != first.view.DType():
			return fmt.Errorf("fused: %s: %s holds %v, want %v as %s: %w",
				op, o.name, dt, first.view.DType(), first.name, snug.ErrDType)
		}
	}
	return nil
}

// checkF32 reports the first operand that does not hold float32. Empty
// operands pass.
func checkF32(op string, operands ...operand) error {
	for _, o := range operands {
		if o.view.Len() > 0 && o.view.DType() != snug.F32 {
			return fmt.Errorf("fused: %s: %s holds %v, want f32: %w", op, o.name, o.view.DType(), snug.ErrDType)
		}
	}
	return nil
}

// checkLen reports the first operand that does not have n elements.
func checkLen(op string, n int, operands ...operand) error {
	for _, o := range operands {
		if o.view.Len() != n {
			return fmt.Errorf("fused: %s: %s has %d elements, want %d: %w", op, o.name, o.view.Len(), n, snug.ErrShape)
		}
	}
	return nil
}

// checkMatrix reports the first operand that is not a matrix of rows × cols
// elements.
func checkMatrix(op string, rows, cols int, operands ...operand) error {
	for _, o := range operands {
		if o.view.Len() != product(rows, cols) {
			return fmt.Errorf("fused: %s: %s has %d elements, want %d rows of %d: %w",
				op, o.name, o.view.Len(), rows, cols, snug.ErrShape)
		}
	}
	return nil
}

// checkRows returns how many rows of cols elements an operand has. There must
// be at least one column.
func checkRows(op string, o operand, cols int) (int, error) {
	if cols < 1 {
		return 0, fmt.Errorf("fused: %s: rows of %d elements, want at least 1: %w", op, cols, snug.ErrShape)
	}
	if o.view.Len()%cols != 0 {
		return 0, fmt.Errorf("fused: %s: %s has %d elements, want whole rows of %d: %w",
			op, o.name, o.view.Len(), cols, snug.ErrShape)
	}
	return o.view.Len() / cols, nil
}

// checkWorkspace reports a workspace that is too short.
func checkWorkspace(op string, ws snug.View, n int) error {
	if ws.Len() < n {
		return fmt.Errorf("fused: %s: ws has %d elements, want at least %d: %w", op, ws.Len(), n, snug.ErrShape)
	}
	return nil
}

// checkFinite reports a coefficient that is NaN or infinite.
func checkFinite(op, name string, x float32) error {
	if d := x - x; d != 0 {
		return fmt.Errorf("fused: %s: %s is %v, want a finite number: %w", op, name, x, snug.ErrConfig)
	}
	return nil
}

// resolve returns o with its default in place of an Alpha of 0.
func resolve(op string, o snug.Into) (snug.Into, error) {
	alpha, beta, err := o.Factors()
	if err != nil {
		return o, fmt.Errorf("fused: %s: %w", op, err)
	}
	return snug.Into{Alpha: alpha, Beta: beta}, nil
}

func (g GradsInto) resolve(op string) (_ GradsInto, err error) {
	if g.Input, err = resolve(op, g.Input); err == nil {
		g.Params, err = resolve(op, g.Params)
	}
	return g, err
}

// checkIndices reports the first index outside a table of rows rows. Negative
// ones pass where they mean "ignored".
func checkIndices(op, name string, indices []int32, table string, rows int, ignoreNegative bool) error {
	for i, x := range indices {
		if int(x) >= rows || x < 0 && !ignoreNegative {
			return fmt.Errorf("fused: %s: %s[%d] is %d, %s has %d rows: %w", op, name, i, x, table, rows, snug.ErrShape)
		}
	}
	return nil
}

// commonDevice is snug.CommonDevice with the operation in the error.
func commonDevice(op string, views ...snug.View) (*snug.Device, error) {
	dev, err := snug.CommonDevice(views...)
	if err != nil {
		return nil, fmt.Errorf("fused: %s: %w", op, err)
	}
	return dev, nil
}

// product returns a·b for a, b ≥ 0, or MaxInt, which no vector has, when it
// overflows.
func product(a, b int) int {
	if a != 0 && b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}
