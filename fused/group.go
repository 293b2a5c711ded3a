package fused

import (
	"math"

	"github.com/snug-ml/snug"
)

// Group sorts the choices of [Route] by expert. A pair is one choice of one row: choice k of row i has the number
// i·chosen + k, which is also the index of the choice in experts and in the weights. Group fills rows, pairs and
// starts. The group of expert e has the bounds b = starts[e] and c = starts[e+1]:
//
//	pairs[b:c]   the numbers of the pairs whose expert is e, in ascending order
//	rows[b:c]    the rows of these pairs: rows[i] = pairs[i]/chosen
//
// [Embedding] gathers the inputs of the expert by rows[b:c]. [AddRows] adds the outputs of the expert to their rows by
// pairs[b:c]. The expert gets c − b rows; no row is padded or dropped.
//
// All slices are in host memory. experts, pairs and rows have the same length, a multiple of chosen and at most 2³¹−1.
// starts has one element more than there are experts, so at least 2. chosen is at least 1. The error wraps
// [snug.ErrShape]; for an expert out of range it names the index. The call runs on one core and takes no memory.
func Group(rows, pairs, starts, experts []int32, chosen int) error {
	check := &checks{op: "Group"}
	switch {
	case chosen < 1:
		check.failf(snug.ErrShape, "chosen is %d, want at least 1", chosen)
	case len(starts) < 2:
		check.failf(snug.ErrShape, "starts has %d elements, want one more than experts, at least 2", len(starts))
	case len(experts)%chosen != 0 || len(experts) > math.MaxInt32:
		check.failf(snug.ErrShape, "experts has %d elements, want a multiple of %d up to %d", len(experts), chosen, math.MaxInt32)
	}
	check.same("rows", len(rows), "experts", len(experts))
	check.same("pairs", len(pairs), "experts", len(experts))
	check.indices("experts", experts, "starts", len(starts)-1, false)
	if check.err != nil {
		return check.err
	}
	clear(starts)
	for _, e := range experts {
		starts[e+1]++
	}
	for e := range starts[1:] {
		starts[e+1] += starts[e]
	}
	for p, e := range experts { // moves starts[e] to the end of the group
		at := starts[e]
		pairs[at], rows[at] = int32(p), int32(p/chosen)
		starts[e]++
	}
	copy(starts[1:], starts[:len(starts)-1])
	starts[0] = 0
	return nil
}
