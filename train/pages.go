package train

import (
	"context"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
)

// This file is the steps of ranks that gather their weights from an accum.Pages. All ranks must gather the same pages in the
// same order, so all make as many passes over the model.

// paged reports whether the ranks divide weights.
func (o *Options) paged() bool {
	_, is := o.Reducer.(*accum.Pages)
	return is
}

// intoOnly is a Window without Done: it hands on no gradients before the backward pass has ended.
type intoOnly struct{ Window }

// missingPasses returns how many micro-batches more than n, the number of this rank, the rank with the most has. The error
// is the same on all ranks.
func (t *Trainer[B]) missingPasses(n int) (int, error) {
	if !t.options.paged() {
		return 0, nil
	}
	all, err := t.ranks.each(float64(n))
	if err != nil {
		return 0, err
	}
	most := 0
	for rank, has := range all {
		if has == 0 {
			return 0, fmt.Errorf("rank %d has no micro-batch of a weight above 0, and with an accum.Pages as Reducer each rank needs one in every step: %w", rank, snug.ErrConfig)
		}
		most = max(most, int(has))
	}
	return most - n, nil
}

// emptyPasses runs a micro-batch n times, only to gather its pages with the other ranks. begin begins a micro-batch of the
// window, and end throws it away.
func (t *Trainer[B]) emptyPasses(ctx context.Context, n int, b B, into Window, begin func(b B) error, end func() error) error {
	before, err := t.buffers.copies()
	if err != nil {
		return err
	}
	if _, err := t.collected(t.passes(ctx, slices.Repeat([]B{b}, n), into, begin, end)); err != nil {
		return err
	}
	return before.restore()
}
