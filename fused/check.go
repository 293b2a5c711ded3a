package fused

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// operand is a vector with the name that errors give it.
type operand struct {
	name string
	view snug.View
}

// checks are the checks of one operation, in order. It keeps the first error; the checks after it do nothing.
type checks struct {
	op  string
	err error
}

// failf keeps an error that wraps kind.
func (c *checks) failf(kind error, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("fused: %s: %s: %w", c.op, fmt.Sprintf(format, args...), kind)
	}
}

// floats wants operands that are floating-point and all of one type. Empty operands pass.
func (c *checks) floats(operands ...operand) {
	var first operand
	for _, o := range operands {
		dt := o.view.DType()
		switch {
		case o.view.Len() == 0:
		case !dt.IsFloat():
			c.failf(snug.ErrDType, "%s holds %v, want f32, f16 or bf16", o.name, dt)
		case first.name == "":
			first = o
		case dt != first.view.DType():
			c.failf(snug.ErrDType, "%s holds %v, want %v as %s", o.name, dt, first.view.DType(), first.name)
		}
	}
}

// f32 wants operands that hold float32. Empty operands pass.
func (c *checks) f32(operands ...operand) {
	for _, o := range operands {
		if o.view.Len() > 0 && o.view.DType() != snug.F32 {
			c.failf(snug.ErrDType, "%s holds %v, want f32", o.name, o.view.DType())
		}
	}
}

// len wants operands of n elements.
func (c *checks) len(n int, operands ...operand) {
	for _, o := range operands {
		if o.view.Len() != n {
			c.failf(snug.ErrShape, "%s has %d elements, want %d", o.name, o.view.Len(), n)
		}
	}
}

// matrix wants operands of rows × cols elements.
func (c *checks) matrix(rows, cols int, operands ...operand) {
	for _, o := range operands {
		if o.view.Len() != product(rows, cols) {
			c.failf(snug.ErrShape, "%s has %d elements, want %d rows of %d", o.name, o.view.Len(), rows, cols)
		}
	}
}

// lenIfAny and matrixIfAny are len and matrix for an operand that may be empty.
func (c *checks) lenIfAny(n int, o operand) {
	if o.view.Len() > 0 {
		c.len(n, o)
	}
}

func (c *checks) matrixIfAny(rows, cols int, o operand) {
	if o.view.Len() > 0 {
		c.matrix(rows, cols, o)
	}
}

// rows returns how many rows of cols elements an operand has, 0 after an error. There must be at least one column.
func (c *checks) rows(o operand, cols int) int {
	switch {
	case cols < 1:
		c.failf(snug.ErrShape, "rows of %d elements, want at least 1", cols)
	case o.view.Len()%cols != 0:
		c.failf(snug.ErrShape, "%s has %d elements, want whole rows of %d", o.name, o.view.Len(), cols)
	}
	if c.err != nil {
		return 0
	}
	return o.view.Len() / cols
}

// same wants a slice of as many elements as another, whose name is as.
func (c *checks) same(name string, len int, as string, want int) {
	if len != want {
		c.failf(snug.ErrShape, "%s has %d elements, want %d as %s", name, len, want, as)
	}
}

// workspace wants one of at least n elements.
func (c *checks) workspace(ws snug.View, n int) {
	if ws.Len() < n {
		c.failf(snug.ErrShape, "ws has %d elements, want at least %d", ws.Len(), n)
	}
}

// finite wants a coefficient that is neither NaN nor infinite.
func (c *checks) finite(name string, x float32) {
	if x-x != 0 {
		c.failf(snug.ErrConfig, "%s is %v, want a finite number", name, x)
	}
}

// allFinite wants elements that are neither NaN nor infinite.
func (c *checks) allFinite(name string, x []float32) {
	for i, v := range x {
		if v-v != 0 {
			c.failf(snug.ErrConfig, "%s[%d] is %v, want a finite number", name, i, v)
		}
	}
}

// into returns o with its default in place of an Alpha of 0.
func (c *checks) into(o snug.Into) snug.Into {
	alpha, beta, err := o.Factors()
	if err != nil && c.err == nil {
		c.err = fmt.Errorf("fused: %s: %w", c.op, err)
	}
	return snug.Into{Alpha: alpha, Beta: beta}
}

// indices wants indices of a table of rows rows. Negative ones pass where they mean "ignored".
func (c *checks) indices(name string, indices []int32, table string, rows int, ignoreNegative bool) {
	for i, x := range indices {
		if int(x) >= rows || x < 0 && !ignoreNegative {
			c.failf(snug.ErrShape, "%s[%d] is %d, %s has %d rows", name, i, x, table, rows)
		}
	}
}

// device returns the device of all operands, nil after an error.
func (c *checks) device(views ...snug.View) *snug.Device {
	if c.err != nil {
		return nil
	}
	dev, err := snug.CommonDevice(views...)
	if err != nil {
		c.err = fmt.Errorf("fused: %s: %w", c.op, err)
	}
	return dev
}

// run runs a job whose checks have passed on the device of its operands.
func run[J interface{ Run() }, P interface {
	*J
	driver.Job
}](c *checks, job J, views ...snug.View) error {
	dev := c.device(views...)
	if c.err != nil {
		return c.err
	}
	return device.Run[J, P](dev, job)
}

// product returns a·b for a, b ≥ 0, or MaxInt, which no vector has, when it
// overflows.
func product(a, b int) int {
	if a != 0 && b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}
