package qlora

import (
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
)

// Merge writes W + s·B·A, the weight of a layer with its adapter, to dst: [out, in]
// elements of any floating-point type on the weight's device. If a has a Magnitude, each
// row is scaled to that norm, as in [DoRA]. Merge decodes one tile of rows at a time, like
// [NewLinear], adds in float32 and rounds once. It takes up to 12 bytes more for each element of a tile, and with magnitudes
// 8 bytes for each row. A and B of a are f32.
//
// lost counts the elements whose change by the adapter rounding loses: in the type of dst, the sum is what the weight alone
// is. Updates are the elements that change in float32.
//
// For a result in 4 bits make a [NewWeight] of dst; [Weight.Deviation] measures the loss.
// Errors: the errors of NewLinear, [snug.ErrShape], [snug.ErrDType], [snug.ErrDevice], [snug.ErrConfig], and
// [snug.ErrNonFinite] for a sum that the type of dst cannot hold, with a part of dst written.
func Merge(dst snug.View, w *Weight, a *LoRA, tile int) (lost amp.LostUpdates, err error) {
	l, err := NewLinear(w, snug.F32, tile)
	if err != nil {
		return lost, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if a == nil {
		return lost, fmt.Errorf("qlora: merge: the adapter is nil: %w", snug.ErrConfig)
	}
	if _, err := a.check("merge", part(a.A, 0, 0), snug.View{}, snug.View{}); err != nil {
		return lost, err
	}
	switch {
	case a.In != l.in || a.Out != l.out:
		return lost, fmt.Errorf("qlora: merge: an adapter of %d to %d, a weight of shape %v: %w", a.In, a.Out, w.shape, snug.ErrShape)
	case dst.Len() != w.n:
		return lost, fmt.Errorf("qlora: merge: dst has %d elements, the weight %d: %w", dst.Len(), w.n, snug.ErrShape)
	case !dst.DType().IsFloat() || a.A.DType() != snug.F32 || a.B.DType() != snug.F32:
		return lost, fmt.Errorf("qlora: merge: dst holds %s, A %s and B %s, want f32, f16 or bf16, and f32: %w", dst.DType(), a.A.DType(), a.B.DType(), snug.ErrDType)
	}
	_, err = snug.CommonDevice(dst, a.A, a.B, w.Packed())
	if err == nil && a.Magnitude.Len() > 0 {
		_, err = snug.CommonDevice(dst, a.Magnitude)
	}
	if err != nil {
		return lost, fmt.Errorf("qlora: merge: %w", err)
	}
	scales := snug.View{}
	if a.Magnitude.Len() > 0 {
		var free func() error
		if scales, free, err = snug.MakeView(w.Device(), snug.F32, 2*l.rows); err != nil {
			return lost, fmt.Errorf("qlora: merge: %w", err)
		}
		defer func() { err = errors.Join(err, free()) }()
	}
	count, err := newMergeCount(w.Device(), dst.DType(), l.rows*l.in)
	if err != nil {
		return lost, err
	}
	defer func() { err = errors.Join(err, count.close()) }()
	err = l.each(func(lo, hi int, rows snug.View) error {
		if err := count.begin(rows); err != nil {
			return err
		}
		if err := a.addTo(rows, lo, hi); err != nil {
			return err
		}
		if scales.Len() > 0 {
			n, c := part(scales, 0, hi-lo), part(scales, l.rows, l.rows+hi-lo)
			if err := device.Run(w.Device(), normsJob{n, c, part(a.Magnitude, lo, hi), rows, l.in}); err != nil {
				return err
			}
			if err := device.Run(w.Device(), blendJob{dst: rows, src: rows, scale: c, cols: l.in, byRow: true}); err != nil {
				return err
			}
		}
		return count.end(part(dst, lo*l.in, hi*l.in), rows, lo*l.in)
	})
	return count.LostUpdates, err
}

// Deviation is the difference between a [Weight] and its original.
type Deviation struct {
	RMS      float64 // root of the mean square of the differences
	Max      float64 // largest magnitude of a difference
	Relative float64 // RMS divided by the root mean square of the original; 0 if both are 0
}

// Deviation compares w with src, its original elements, of any floating-point type on any
// device. It works on 64 Ki elements at a time, or on 256 blocks if they are larger, and
// needs them as float32 once on the weight's device and twice in host memory. Errors:
// [snug.ErrShape], [snug.ErrDType], [snug.ErrNoMemory], the errors of [Weight.Absmax], and
// errors of the device.
func (w *Weight) Deviation(src snug.View) (Deviation, error) {
	if err := w.usable(); err != nil {
		return Deviation{}, fmt.Errorf("qlora: deviation: %w", err)
	}
	switch {
	case src.Len() != w.n:
		return Deviation{}, fmt.Errorf("qlora: deviation: %d elements, the weight has %d: %w", src.Len(), w.n, snug.ErrShape)
	case !src.DType().IsFloat():
		return Deviation{}, fmt.Errorf("qlora: deviation: the original holds %s, want f32, f16 or bf16: %w", src.DType(), snug.ErrDType)
	}
	unit := w.unit()
	step := max(1, 1<<16/unit) * unit
	tile, free, err := snug.MakeView(w.Device(), snug.F32, min(step, w.n))
	if err != nil {
		return Deviation{}, fmt.Errorf("qlora: deviation: %w", err)
	}
	c := comparison{decoded: make([]float32, tile.Len()), original: make([]float32, tile.Len())}
	for lo := 0; lo < w.n && err == nil; lo += step {
		hi := min(lo+step, w.n)
		if err = w.dequantizeRange(part(tile, 0, hi-lo), lo); err == nil {
			err = c.add(part(tile, 0, hi-lo), part(src, lo, hi))
		}
	}
	if e := free(); err == nil {
		err = e
	}
	if err != nil {
		return Deviation{}, fmt.Errorf("qlora: deviation: %w", err)
	}
	return c.deviation(w.n), nil
}

// comparison is the sums of a Deviation.
type comparison struct {
	decoded, original   []float32
	difference, squares float64
	most                float64
}

func (c *comparison) add(decoded, original snug.View) error {
	d, o := c.decoded[:decoded.Len()], c.original[:original.Len()]
	if err := snug.Copy(d, decoded); err != nil {
		return err
	}
	host, _, err := snug.MakeView(snug.CPU(), original.DType(), original.Len())
	if err != nil {
		return err
	}
	if err := snug.Copy(host, original); err != nil {
		return err
	}
	if err := amp.Cast(snug.ViewOf(o), host); err != nil {
		return err
	}
	for i, v := range o {
		e := float64(v) - float64(d[i])
		c.difference += e * e
		c.squares += float64(v) * float64(v)
		c.most = max(c.most, math.Abs(e))
	}
	return nil
}

func (c *comparison) deviation(n int) Deviation {
	e := Deviation{RMS: math.Sqrt(c.difference / float64(max(n, 1))), Max: c.most}
	if c.difference > 0 {
		e.Relative = math.Sqrt(c.difference / c.squares)
	}
	return e
}
