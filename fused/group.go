package fused

import (
	"fmt"
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
	const op = "Group"
	if chosen < 1 {
		return fmt.Errorf("fused: %s: chosen is %d, want at least 1: %w", op, chosen, snug.ErrShape)
	}
	if len(starts) < 2 {
		return fmt.Errorf("fused: %s: starts has %d elements, want one more than experts, at least 2: %w", op, len(starts), snug.ErrShape)
	}
	if len(experts)%chosen != 0 || len(experts) > math.MaxInt32 {
		return fmt.Errorf("fused: %s: experts has %d elements, want a multiple of %d up to %d: %w", op, len(experts), chosen, math.MaxInt32, snug.ErrShape)
	}
	for _, o := range []struct {
		name string
		len  int
	}{{"rows", len(rows)}, {"pairs", len(pairs)}} {
		if o.len != len(experts) {
			return fmt.Errorf("fused: %s: %s has %d elements, want %d as experts: %w", op, o.name, o.len, len(experts), snug.ErrShape)
		}
	}
	if err := checkIndices(op, "experts", experts, "starts", len(starts)-1, false); err != nil {
		return err
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
