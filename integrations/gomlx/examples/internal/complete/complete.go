// Package complete is the Go backend of GoMLX v0.26.0 with operations that it lacks, made of those that it has. Models of
// GoMLX's examples run on it unchanged.
package complete

import (
	"slices"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
)

// New returns the backend. It runs operations one after the other, so that the panic of one is an error.
func New() (backends.Backend, error) {
	b, err := simplego.New("ops_sequential")
	return backend{b}, err
}

type backend struct{ backends.Backend }

func (b backend) Builder(name string) backends.Builder { return builder{b.Backend.Builder(name)} }

type builder struct{ backends.Builder }

// part is x from lo up to hi along an axis.
func (b builder) part(x backends.Op, axis, lo, hi int) (backends.Op, error) {
	shape, err := b.OpShape(x)
	if err != nil {
		return nil, err
	}
	start, end := make([]int, shape.Rank()), slices.Clone(shape.Dimensions)
	start[axis], end[axis] = lo, hi
	return b.Slice(x, start, end, slices.Repeat([]int{1}, shape.Rank()))
}

// parts are the slices of width 1 along an axis.
func (b builder) parts(x backends.Op, axis int) (list []backends.Op, err error) {
	shape, err := b.OpShape(x)
	if err != nil {
		return nil, err
	}
	for i := range shape.Dimensions[axis] {
		p, err := b.part(x, axis, i, i+1)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// Reverse joins the slices in the opposite order.
func (b builder) Reverse(x backends.Op, axes ...int) (backends.Op, error) {
	for _, axis := range axes {
		parts, err := b.parts(x, axis)
		if err != nil {
			return nil, err
		}
		slices.Reverse(parts)
		if x, err = b.Concatenate(axis, parts...); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Pad joins the slices with constants before, between and behind them. A negative number of elements before or behind cuts
// them off.
func (b builder) Pad(x, fill backends.Op, axes ...backends.PadAxis) (backends.Op, error) {
	for axis, pad := range axes {
		if pad == (backends.PadAxis{}) {
			continue
		}
		shape, err := b.OpShape(x)
		if err != nil {
			return nil, err
		}
		filled := func(n int) (backends.Op, error) {
			s := shape.Clone()
			s.Dimensions[axis] = n
			return b.BroadcastInDim(fill, s, nil)
		}
		list := []backends.Op{x}
		if pad.Interior > 0 {
			parts, err := b.parts(x, axis)
			if err != nil {
				return nil, err
			}
			list = nil
			for i, p := range parts {
				if i > 0 {
					between, err := filled(pad.Interior)
					if err != nil {
						return nil, err
					}
					list = append(list, between)
				}
				list = append(list, p)
			}
		}
		for at, n := range []int{pad.Start, pad.End} {
			if n <= 0 {
				continue
			}
			outer, err := filled(n)
			if err != nil {
				return nil, err
			}
			list = slices.Insert(list, at*len(list), outer)
		}
		if len(list) > 1 {
			if x, err = b.Concatenate(axis, list...); err != nil {
				return nil, err
			}
		}
		if pad.Start < 0 || pad.End < 0 {
			if shape, err = b.OpShape(x); err != nil {
				return nil, err
			}
			if x, err = b.part(x, axis, max(0, -pad.Start), shape.Dimensions[axis]+min(0, pad.End)); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

// ConvGeneral sets strides and dilations that are left out, which the backend takes for 0.
func (b builder) ConvGeneral(input, kernel backends.Op, axes backends.ConvolveAxesConfig, strides []int, paddings [][2]int,
	inputDilations, kernelDilations []int, channelGroups, batchGroups int) (backends.Op, error) {
	for _, list := range []*[]int{&strides, &inputDilations, &kernelDilations} {
		if len(*list) == 0 {
			*list = slices.Repeat([]int{1}, len(axes.InputSpatial))
		}
	}
	return b.Builder.ConvGeneral(input, kernel, axes, strides, paddings, inputDilations, kernelDilations, channelGroups, batchGroups)
}
