package qlora

import (
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// mergeCount counts what rounding takes from the sums of a merge, and refuses sums that the type of the result cannot hold.
type mergeCount struct {
	amp.LostUpdates
	before, after snug.View    // float32: a tile of the weight, and of the sums, as the type of the result holds them
	rounded       snug.View    // a tile in the type of the result
	host          [3][]float32 // copies of tiles on another device
	free          []func() error
}

// newMergeCount makes room for tiles of n elements: 8 to 12 bytes for each.
func newMergeCount(dev *snug.Device, dt snug.DType, n int) (c *mergeCount, err error) {
	c = &mergeCount{}
	c.Remedy = "a type with more digits, float32 at best"
	for _, v := range []struct {
		to *snug.View
		dt snug.DType
	}{{&c.before, snug.F32}, {&c.after, snug.F32}, {&c.rounded, dt}} {
		made, free, err := snug.MakeView(dev, v.dt, n)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("qlora: merge: %w", err), c.close())
		}
		*v.to, c.free = made, append(c.free, free)
	}
	if !dev.IsCPU() {
		for i := range c.host {
			c.host[i] = make([]float32, n)
		}
	}
	return c, nil
}

func (c *mergeCount) close() (err error) {
	for _, free := range c.free {
		err = errors.Join(err, free())
	}
	c.free = nil
	return err
}

// begin keeps a tile of the weight, of any type, before the adapter is added.
func (c *mergeCount) begin(w snug.View) error {
	n := w.Len()
	return errors.Join(amp.Cast(part(c.rounded, 0, n), w), amp.Cast(part(c.before, 0, n), part(c.rounded, 0, n)))
}

// end writes the sums of a tile to dst, and counts. first is the number of the first element.
func (c *mergeCount) end(dst, sums snug.View, first int) error {
	n := sums.Len()
	if err := amp.Cast(dst, sums); err != nil {
		return err
	}
	if err := amp.Cast(part(c.after, 0, n), dst); err != nil {
		return err
	}
	var of [3][]float32
	for i, v := range []snug.View{part(c.before, 0, n), sums, part(c.after, 0, n)} {
		if v.Device().IsCPU() {
			of[i] = v.Float32s()
			continue
		}
		of[i] = c.host[i][:n]
		if err := snug.Copy(of[i], v); err != nil {
			return err
		}
	}
	before, sum, after := of[0], of[1], of[2]
	for i, x := range after {
		if x-x == 0 {
			continue
		}
		switch s := sum[i]; {
		case before[i]-before[i] != 0:
			return fmt.Errorf("element %d of the weight is %v in %s, which goes up to %v: %w", first+i, before[i], dst.DType(), largest(dst.DType()), snug.ErrNonFinite)
		case s-s == 0:
			return fmt.Errorf("element %d of the sum is %v, and %s goes up to %v: merge into a type with a larger range: %w",
				first+i, s, dst.DType(), largest(dst.DType()), snug.ErrNonFinite)
		default:
			return fmt.Errorf("element %d of the sum is %v in float32: the adapter has too large values, or some that are not finite: %w", first+i, s, snug.ErrNonFinite)
		}
	}
	c.Count(before, sum, after)
	return nil
}

// largest is the largest finite number of a type.
func largest(dt snug.DType) float64 {
	switch dt {
	case snug.F16:
		return 65504
	case snug.BF16:
		return 0x1.FEp127
	}
	return math.MaxFloat32
}
