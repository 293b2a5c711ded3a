package quant8

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// newMarks returns the marks of the chunks of a shard of n elements. An empty shard has a
// mark too, because the norms of its parameter are added once in a step.
func (o *Options) newMarks(n int) optim.Marks { return optim.NewMarks(Blocks(n, o.Chunk)) }

// claim holds the chunks of a parameter that a call updates.
type claim struct {
	q           *param
	first, last int
}

// claimOf returns the chunks of n elements from element lo.
func (a *Optimizer) claimOf(q *param, lo, n int) claim {
	return claim{q, lo / a.o.Chunk, max(1, Blocks(lo+n, a.o.Chunk))}
}

// claim reserves n elements from element lo for a call: no other call of this step may
// update them. Its result goes to settle.
func (a *Optimizer) claim(q *param, lo, n int) (claim, error) {
	c := a.claimOf(q, lo, n)
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := q.marks.Claim(c.first, c.last); i >= 0 {
		return c, fmt.Errorf("parameter %q: element %d already has an update in step %d: call Advance first: %w",
			q.name, i*a.o.Chunk, a.t, snug.ErrConfig)
	}
	return c, nil
}

// note marks the chunks of a claim.
func (a *Optimizer) note(c claim, m optim.Mark) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.q.marks.Set(c.first, c.last, m)
}

// settle ends a claim, also when the call panics. Chunks that it has not begun may be
// repeated. If it stopped half-way through a chunk, the optimizer cannot be used any
// more.
func (a *Optimizer) settle(c claim, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.q.marks.Settle(c.first, c.last, ok) {
		a.invalid = fmt.Sprintf("step %d of parameter %q stopped half-way", a.t, c.q.name)
	}
}

// usable returns an error if the optimizer's state cannot be used.
func (a *Optimizer) usable() error {
	if err := a.made(); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.invalid != "" {
		return fmt.Errorf("the optimizer cannot be used: %s: %w", a.invalid, snug.ErrConfig)
	}
	return nil
}

// made returns an error for the zero value.
func (a *Optimizer) made() error {
	if a.params == nil {
		return fmt.Errorf("the optimizer was not made by New: %w", snug.ErrConfig)
	}
	return nil
}

// label names the optimizer in errors.
func (a *Optimizer) label() string {
	if a.o.Title == "" {
		return "optimizer"
	}
	return a.o.Title
}

// midStep says whether some chunks are not yet updated in the current step.
func (a *Optimizer) midStep() bool {
	for _, q := range a.params {
		if a.t > 0 && (q.n > 0 || a.o.joint()) && !q.marks.All(optim.Updated) {
			return true
		}
	}
	return false
}

// updated says whether chunk i of a saved shard was already updated in the step at which
// it was saved. All chunks were if no step was under way.
func (p *savedParam) updated(i int) bool { return p.marks == "" || p.marks[i/8]>>(i%8)&1 == 1 }
