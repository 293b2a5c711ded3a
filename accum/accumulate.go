package accum

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
)

// Accumulate computes, in float32,
//
//	acc = alpha·g + beta·acc
//
// with both products rounded, for loops that keep sums of their own and for a [Reducer] that adds on a device. acc is
// not read for a beta of 0. acc holds float32 and g float32, float16 or bfloat16. They are of one length, lie on one
// device and do not overlap. It allocates nothing on the CPU; on another device the work is queued. Errors, with nothing
// written: [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice], and [snug.ErrConfig] for an overlap.
func Accumulate[A snug.Vector32, G snug.Vector](acc A, g G, alpha, beta float32) error {
	return fault.Of(accumulate(snug.ViewOf(acc), snug.ViewOf(g), alpha, beta), "accum: Accumulate")
}

func accumulate(acc, g snug.View, alpha, beta float32) error {
	switch {
	case acc.DType() != snug.F32:
		return fmt.Errorf("acc is %s, want f32: %w", acc.DType(), snug.ErrDType)
	case !g.DType().IsFloat():
		return fmt.Errorf("g is %s, want f32, f16 or bf16: %w", g.DType(), snug.ErrDType)
	case acc.Len() != g.Len():
		return fmt.Errorf("acc has %d elements, g has %d: %w", acc.Len(), g.Len(), snug.ErrShape)
	}
	dev, err := snug.CommonDevice(acc, g)
	if err != nil {
		return err
	}
	if device.Mem(&acc).Overlaps(*device.Mem(&g)) {
		return fmt.Errorf("acc and g overlap: %w", snug.ErrConfig)
	}
	if acc.Len() == 0 { // the job would take an empty g for zeros
		return nil
	}
	return accumulateJob{acc: acc, g: g, alpha: alpha, beta: beta}.launch(dev)
}
