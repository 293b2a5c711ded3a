package remat

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// exactStages is the longest chain that Exact plans, exactNodes the largest
// number of states that it visits.
const (
	exactStages = 24
	exactNodes  = 1 << 20
)

// Exact returns the fastest plan of a chain of up to 24 stages whose simulated peak is at
// most budget bytes. The plans include non-persistent ones, which drop a value, compute it
// again and store it again before its backward step. Of equally fast plans it returns one
// with the fewest forward steps.
//
// It is an A* search over the sets of values held between two operations. Values are
// dropped only when the next operation does not fit otherwise. The lower bound of the
// remaining time is a knapsack: saved sets that do not fit next to the needs of a later
// backward step are computed again. Chains of 16 random stages take seconds at the smallest
// budgets, and milliseconds at half of the memory of [KeepAll] or more.
//
// The error is a [*BudgetError] when no plan fits; it wraps [snug.ErrConfig]
// when c is not valid, has more than 24 stages, or leads to more than 2^20 states,
// which take 250 MiB. A [Planner] returns the best plan known then.
//
// Hart, Nilsson and Raphael, "A Formal Basis for the Heuristic Determination of
// Minimum Cost Paths", IEEE Trans. Systems Science and Cybernetics 4(2), 1968.
func Exact(c Costs, budget int64) (Plan, error) {
	s, err := exact(c, budget, exactNodes)
	if err != nil {
		return Plan{}, err
	}
	if !s.complete {
		return Plan{}, fmt.Errorf("remat: plan exact for %d stages: the search is not complete after %d states: %w", len(c.Stages), exactNodes, snug.ErrConfig)
	}
	return s.plan, nil
}

// solution is the best plan that was found under a budget.
type solution struct {
	plan       Plan
	lowerBound int64 // lower bound of the work of all plans
	complete   bool  // plan has the least work
}

// exact searches up to limit states.
func exact(c Costs, budget int64, limit int) (solution, error) {
	if err := c.Validate(); err != nil {
		return solution{}, err
	}
	n := len(c.Stages)
	if n > exactStages {
		return solution{}, fmt.Errorf("remat: plan exact for %d stages: want %d at most: %w", n, exactStages, snug.ErrConfig)
	}
	r, err := newRotor(c)
	if err != nil {
		return solution{}, err
	}
	f := newForwards(c)
	s := solution{lowerBound: noPlan}
	if p, err := quickest(c, budget, everyFamily(n)); err == nil { // to beat
		s.plan, s.lowerBound = p, f.of(p)
	}
	if budget >= r.smallest() {
		r.solve(r.amountLimit(), budget)
		if p := r.plan(budget); f.of(p) < s.lowerBound {
			s.plan, s.lowerBound = p, f.of(p)
		}
	} else if smallest := minPeak(c, r.smallest(), limit); budget < smallest {
		return solution{}, &BudgetError{Budget: budget, Minimum: smallest}
	}
	lowerBound, ops := newSearch(c, budget, f, s.lowerBound, limit).run()
	s.complete = ops != nil || lowerBound == s.lowerBound
	s.lowerBound = lowerBound
	if ops != nil {
		s.plan = Plan{Stages: n, Ops: dropEarly(ops, n)}
	}
	if s.plan.Ops == nil {
		return solution{}, fmt.Errorf("remat: plan exact for %d stages: no plan after %d states: %w", n, limit, snug.ErrConfig)
	}
	s.plan.Name = "exact"
	return s, nil
}

// minPeak returns the smallest peak of all plans, or known, the smallest known one, if
// there are more than limit states. It searches the path whose largest cost is smallest.
func minPeak(c Costs, known int64, limit int) int64 {
	var (
		open  openNodes
		index nodeIndex
		nodes []holding
	)
	push := func(h holding, peak int64) {
		slot := index.at(h)
		if peak >= known || slot.node != 0 && slot.cost <= peak {
			return
		}
		node := slot.node - 1
		if slot.node == 0 {
			node = int32(len(nodes))
			nodes = append(nodes, h)
		}
		index.set(slot, h, peak, node)
		open.push(openNode{peak, node})
	}
	start := holding(len(c.Stages)) << nextShift
	push(start, start.bytes(c))
	for len(open) > 0 && len(nodes) < limit {
		top := open.pop()
		h := nodes[top.node]
		if h.next() < 0 {
			return top.lowerBound
		}
		held := h.bytes(c)
		for i := range h.next() + 1 {
			stage := &c.Stages[i]
			if f := h.form(i); f != absent {
				push(h.with(i, absent), top.lowerBound)
				if f == saved && i == h.next() && h.hasInput(i) {
					push(h.after(Op{Backward, i}), max(top.lowerBound, held-stage.Output+c.value(i)+stage.BackwardExtra))
				}
				if f == output && h.hasInput(i) {
					push(h.with(i, saved), max(top.lowerBound, held-stage.Output+stage.Saved+stage.ForwardExtra))
				}
			} else if h.hasInput(i) {
				push(h.with(i, output), max(top.lowerBound, held+stage.Output+stage.ForwardExtra))
				push(h.with(i, saved), max(top.lowerBound, held+stage.Saved+stage.ForwardExtra))
			}
		}
	}
	return known
}

// dropEarly returns the operations with every drop moved right after the last use of
// the dropped value.
func dropEarly(ops []Op, stages int) []Op {
	lastUse := make([]int, stages)  // of the values held of each stage's output
	drops := make([][]Op, len(ops)) // to follow each operation
	for i, op := range ops {
		if op.Kind == DropOutput || op.Kind == DropSaved {
			drops[lastUse[op.Stage]] = append(drops[lastUse[op.Stage]], op)
			continue
		}
		lastUse[op.Stage] = i
		if op.Stage > 0 {
			lastUse[op.Stage-1] = i
		}
	}
	var early []Op
	for i, op := range ops {
		if op.Kind != DropOutput && op.Kind != DropSaved {
			early = append(append(early, op), drops[i]...)
		}
	}
	return slices.Clip(early)
}
