package complete

import (
	"cmp"
	"errors"

	"github.com/gomlx/gomlx/backends"
)

// SelectAndScatterMax is the gradient of pooling by maxima, for windows of float32 that touch and do not overlap. Of equal
// maxima the first takes the gradient.
func (b builder) SelectAndScatterMax(x, source backends.Op, window, strides []int, paddings [][2]int) (backends.Op, error) {
	shape, err := b.OpShape(x)
	if err != nil {
		return nil, err
	}
	for axis, n := range shape.Dimensions {
		if window[axis] != strides[axis] || n%window[axis] != 0 || len(paddings) > 0 && paddings[axis] != [2]int{} {
			return nil, errors.New("complete: SelectAndScatterMax is for windows without overlap and padding")
		}
	}
	e := &chain{b: b}
	zero := e.do(b.Constant([]float32{0}))
	zeros := e.do(b.Sub(source, source))
	var parts []backends.Op // for each place in a window, the elements of all windows
	var places [][]int
	for at := range product(window) {
		place := make([]int, len(window))
		for axis, rest := len(window)-1, at; axis >= 0; axis-- {
			place[axis], rest = rest%window[axis], rest/window[axis]
		}
		places = append(places, place)
		parts = append(parts, e.do(b.Slice(x, place, shape.Dimensions, strides)))
	}
	if e.err != nil {
		return nil, e.err
	}
	most := parts[0]
	for _, p := range parts[1:] {
		most = e.do(b.Max(most, p))
	}
	var sum, taken backends.Op
	for i, p := range parts {
		is := e.do(b.Equal(p, most))
		if taken == nil {
			taken = is
		} else {
			is = e.do(b.LogicalAnd(is, e.do(b.LogicalNot(taken))))
			taken = e.do(b.LogicalOr(taken, is))
		}
		pads := make([]backends.PadAxis, len(window))
		for axis, s := range strides {
			pads[axis] = backends.PadAxis{Start: places[i][axis], End: s - 1 - places[i][axis], Interior: s - 1}
		}
		spread := e.do(b.Pad(e.do(b.Where(is, source, zeros)), zero, pads...))
		if sum == nil {
			sum = spread
		} else {
			sum = e.do(b.Add(sum, spread))
		}
		if e.err != nil {
			return nil, e.err
		}
	}
	return sum, e.err
}

// chain keeps the first error of operations.
type chain struct {
	b   builder
	err error
}

func (e *chain) do(op backends.Op, err error) backends.Op {
	e.err = cmp.Or(e.err, err)
	return op
}

func product(list []int) int {
	n := 1
	for _, v := range list {
		n *= v
	}
	return n
}
