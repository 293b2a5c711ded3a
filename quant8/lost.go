package quant8

import (
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/snug-ml/snug/internal/measure"
)

// LostUpdates counts the updates that rounding has lost. The update of an element is the difference between the value
// that a step computed in float32 and the value that the parameter had before the step. The update is lost if the
// parameter has the same value after the step as before it.
//
// The field Updates counts the updates that are finite and not 0. The field Lost counts the lost updates among them.
// Squares is the sum of the squares of all counted updates; LostSquares is the sum of the squares of the lost updates.
// Stochastic says that the parameter is rounded at random, so that no update is lost on average. Remedy says what would
// keep the lost updates.
//
// Share returns Lost/Updates. NormShare returns √(LostSquares/Squares), the norm of the lost updates as a share of the
// norm of all updates. Both are from 0 to 1. String returns both shares, the number of updates and, if any update is
// lost, the remedy.
type LostUpdates = measure.Lost

// LostUpdates yields the name and the counts of each parameter that was updated, in ascending order of names. The
// counts begin when the optimizer is made or ForgetLostUpdates is called.
//
// There are counts only if Options.CountLost is set, and only for parameters of float16 and bfloat16 on the CPU.
// Matrices of rules whose Unit is Matrix are not counted. Do not make steps during the iteration.
func (a *Optimizer) LostUpdates() iter.Seq2[string, LostUpdates] {
	return func(yield func(string, LostUpdates) bool) {
		for _, name := range slices.Sorted(maps.Keys(a.params)) {
			if q := a.params[name]; q.lost.Updates > 0 && !yield(name, q.lost) {
				return
			}
		}
	}
}

// ForgetLostUpdates sets the counts of all parameters to 0, for example before a step that is to be measured.
func (a *Optimizer) ForgetLostUpdates() {
	for _, q := range a.params {
		q.lost = LostUpdates{}
	}
}

// lostCounts are the counts of one job, one for each item.
type lostCounts struct {
	optimizer *Optimizer
	param     *param
	items     []LostUpdates
}

var lostItems = sync.Pool{New: func() any { return new(lostCounts) }}

// count returns the counts for a job that steps q, or nil if updates are not counted.
func (a *Optimizer) count(q *param) *lostCounts {
	if !a.o.CountLost {
		return nil
	}
	c := lostItems.Get().(*lostCounts)
	c.optimizer, c.param = a, q
	return c
}

// begin prepares the counts of the items of a job.
func (c *lostCounts) begin(items int) {
	c.items = slices.Grow(c.items[:0], items)[:items]
	clear(c.items)
}

// end adds the counts of the items to the counts of the parameter, in the order of the items.
func (c *lostCounts) end() {
	a := c.optimizer
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range c.items {
		l.Stochastic, l.Remedy = a.o.Stochastic, keepBits
		if !l.Stochastic {
			l.Remedy = keepAverage
		}
		c.param.lost.Add(l)
	}
	c.items = c.items[:0]
}

const keepBits = "master weights of package amp: Split24Master, 1 byte an element, or SplitMaster, 2 bytes, which loses none"

const keepAverage = "Stochastic, which keeps them on average, " + keepBits + ", or a larger learning rate"

// release returns c to the pool.
func (c *lostCounts) release() {
	if c != nil {
		c.optimizer, c.param = nil, nil
		lostItems.Put(c)
	}
}
