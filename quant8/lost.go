package quant8

import (
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/snug-ml/snug/internal/measure"
)

// LostUpdates counts updates that rounding has lost: the update of an element is the difference between the value
// that a step computed in float32 and the value that the parameter had before. It is lost if the parameter has the same
// value after the step.
//
// Updates counts updates that are finite and not 0, and Lost those of them that are lost. Squares is the sum of the
// squares of the updates and LostSquares of the lost ones. Stochastic says that the parameter is rounded at
// random, so that none is lost on average, and Remedy what would keep them. Share returns Lost as a share of Updates, and
// NormShare the norm of the lost updates as a share of the norm of all, from 0 to 1. String says all of it.
type LostUpdates = measure.Lost

// LostUpdates returns the counts of each parameter, by ascending names, since the optimizer was made or
// ForgetLostUpdates was called, if Options.CountLost is set. It yields the parameters of float16 and bfloat16 on the CPU that
// were updated. It leaves out matrices of Muon, Apollo, GaLore and SOAP. Do not make steps meanwhile.
func (a *Optimizer) LostUpdates() iter.Seq2[string, LostUpdates] {
	return func(yield func(string, LostUpdates) bool) {
		for _, name := range slices.Sorted(maps.Keys(a.params)) {
			if q := a.params[name]; q.lost.Updates > 0 && !yield(name, q.lost) {
				return
			}
		}
	}
}

// ForgetLostUpdates sets the counts to 0, such as before a step that is to be measured.
func (a *Optimizer) ForgetLostUpdates() {
	for _, q := range a.params {
		q.lost = LostUpdates{}
	}
}

// lostCounts are counts of the items of a job.
type lostCounts struct {
	optimizer *Optimizer
	param     *param
	items     []LostUpdates
}

var lostItems = sync.Pool{New: func() any { return new(lostCounts) }}

// count returns what counts the updates of q in a job, nil if they are not counted.
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

// end adds the counts of the items, in order.
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
