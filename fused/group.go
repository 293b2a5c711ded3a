package fused

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Group sorts the choices of [Route] by expert. Choice k of row i is the pair i·chosen + k, which is also its index in
// experts and in the weights. With b = starts[e] and c = starts[e+1],
//
//	pairs[b:c]   are the pairs whose expert is e, in ascending order
//	rows[b:c]    are their rows, pairs[…]/chosen
//
// so that [Embedding] gathers the expert's inputs by rows[b:c], and [AddRows] adds its outputs to their rows by pairs[b:c].
// c − b is how many rows the expert gets; nothing is padded or dropped.
//
// All are in host memory: experts, pairs and rows have one length, a multiple of chosen and at most 2³¹−1; starts has one
// element more than there are experts, at least 2. A chosen below 1 gives an error that wraps [snug.ErrConfig]; an expert out
// of range gives one that wraps [snug.ErrShape] and names its index. The call takes no memory, and time for
// len(experts) + len(starts) elements on one core.
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
