package remat

import (
	"context"
	"fmt"
	"time"

	"github.com/snug-ml/snug"
)

// Copy is a copy of a value, an activation or a saved set, in a tier. Transfers run while
// other stages compute; the executor waits for a transfer when the plan's next operation
// needs it. It calls the methods from one goroutine.
type Copy[V any] interface {
	// Bytes returns the size of the copy in its tier.
	Bytes() int64
	// Stored waits until the copy is complete. Then the value can be released.
	Stored(ctx context.Context) error
	// Load allocates a value in device memory, begins to fill it, and hands it to the
	// executor. The executor may call it again after it has released that value. A Load
	// that fails leaves nothing behind.
	Load(ctx context.Context) (V, error)
	// Loaded waits until the value of the last Load is complete.
	Loaded(ctx context.Context) error
	// Release frees the copy. It stops its running transfers or waits for them,
	// because the executor releases their values next.
	Release()
}

// copies is the state of a slot outside of its own value.
type copies[A, S any] struct {
	copied  form
	tier    Tier
	output  Copy[A] // output or saved, by copied
	saved   Copy[S]
	bytes   int64
	loading bool // the value comes from the copy and may not be complete
}

func (c *copies[A, S]) stored(ctx context.Context) error {
	if c.copied == output {
		return c.output.Stored(ctx)
	}
	return c.saved.Stored(ctx)
}

func (c *copies[A, S]) loaded(ctx context.Context) error {
	c.loading = false
	if c.copied == output {
		return c.output.Loaded(ctx)
	}
	return c.saved.Loaded(ctx)
}

// checkCopies reports whether c has the functions that the plan's copies need.
func (c *Chain[A, S]) checkCopies(plan Plan) error {
	s := newState(plan.Stages)
	for i, op := range plan.Ops {
		before, problem := s.apply(op)
		if problem != "" {
			return nil // which Validate reports
		}
		if op.Kind < Pack || op.Kind > PageDisk {
			continue
		}
		switch {
		case before.form == output && c.Store == nil:
			return fmt.Errorf("remat: plan: operation %d (%v): the chain has no function Store: %w", i, op, snug.ErrConfig)
		case before.form == saved && (c.StoreSaved == nil || c.Output == nil):
			return fmt.Errorf("remat: plan: operation %d (%v): the chain has no functions StoreSaved and Output: %w", i, op, snug.ErrConfig)
		}
	}
	return nil
}

// ready waits until the loads of the result of stage i are complete.
func (r *Runner[A, S]) ready(ctx context.Context, i int) error {
	if i < 0 || !r.slots[i].loading {
		return nil
	}
	begin := time.Now()
	err := r.slots[i].loaded(ctx)
	r.waited += time.Since(begin)
	if err != nil {
		return fmt.Errorf("load of stage %d: %w", i, err)
	}
	return nil
}

// settle waits for the transfers of the result of stage i.
func (r *Runner[A, S]) settle(ctx context.Context, i int) error {
	if r.slots[i].copied == absent {
		return nil
	}
	if err := r.ready(ctx, i); err != nil {
		return err
	}
	begin := time.Now()
	err := r.slots[i].stored(ctx)
	r.waited += time.Since(begin)
	if err != nil {
		return fmt.Errorf("copy of stage %d: %w", i, err)
	}
	return nil
}

var errNilCopy = fmt.Errorf("remat: Store or StoreSaved returned no error and a nil Copy: %w", snug.ErrConfig)

// store begins to copy the result of stage i.
func (r *Runner[A, S]) store(ctx context.Context, i int, t Tier) error {
	if err := r.ready(ctx, i); err != nil {
		return err
	}
	var (
		v   = &r.slots[i]
		err error
	)
	if v.form == output {
		if v.output, err = r.chain.Store(ctx, t, v.y); err != nil {
			return err
		}
		if v.output == nil {
			return errNilCopy
		}
		v.copied, v.tier = output, t
		v.copies.bytes = v.output.Bytes()
	} else {
		if v.copies.saved, err = r.chain.StoreSaved(ctx, t, v.s); err != nil {
			return err
		}
		if v.copies.saved == nil {
			return errNilCopy
		}
		v.copied, v.tier = saved, t
		v.copies.bytes = v.copies.saved.Bytes()
	}
	if t == Packed {
		r.packed++
		r.ledger.step(0, v.copies.bytes, 0, 0)
	} else {
		r.ledger.copy(t, v.copies.bytes)
	}
	return nil
}

// fetch begins to load the copy of the result of stage i.
func (r *Runner[A, S]) fetch(ctx context.Context, i int) error {
	v := &r.slots[i]
	if v.copied == output {
		y, err := v.output.Load(ctx)
		if err != nil {
			return err
		}
		v.form, v.y = output, y
		v.bytes = r.chain.Bytes(y)
		r.compare(Activation, i+1, v.bytes)
	} else {
		s, err := v.copies.saved.Load(ctx)
		if err != nil {
			return err
		}
		v.form, v.s = saved, s
		v.y = r.chain.Output(s)
		v.bytes = r.chain.SavedBytes(s)
		r.compare(SavedSet, i, v.bytes)
	}
	v.loading = true
	v.lossy = v.lossy || v.tier == Packed
	r.ledger.step(0, v.bytes, 0, 0)
	return nil
}

// dropCopy releases the copy of the result of stage i and returns how many bytes of
// device memory it had.
func (r *Runner[A, S]) dropCopy(i int) (device int64) {
	v := r.slots[i].copies
	r.slots[i].copies = copies[A, S]{} // first, so that nothing is released twice
	switch v.copied {
	case output:
		v.output.Release()
	case saved:
		v.saved.Release()
	default:
		return 0
	}
	if v.tier == Packed {
		return v.bytes
	}
	r.ledger.uncopy(v.tier, v.bytes)
	return 0
}
