package remat

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// BudgetError says that no plan fits into the budget. It wraps [snug.ErrNoMemory].
type BudgetError struct {
	Budget  int64 // in bytes, as given
	Minimum int64 // the smallest budget in bytes for which the method finds a plan
}

// Error returns both budgets.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("remat: no plan fits in %d bytes, the smallest budget that works is %d bytes: %v", e.Budget, e.Minimum, snug.ErrNoMemory)
}

// Unwrap returns [snug.ErrNoMemory].
func (e *BudgetError) Unwrap() error { return snug.ErrNoMemory }

const (
	// fitStages is the longest chain for which Fit searches all plans. It has less
	// than exactNodes states.
	fitStages = 12
	// fitBudgets is the number of budgets for which Fit makes persistent plans.
	fitBudgets = 128
	// familyOps limits the operations of the plans that Fit tries of one family, where
	// every parameter has a plan of four operations a stage: some seconds.
	familyOps = 1 << 26
)

// Fit returns a fast plan whose simulated peak is at most budget bytes. For up to 12 stages
// it is the fastest plan, as by [Exact]; of equally fast plans, one with the fewest forward
// steps, and of those, the one with the smallest peak. For more stages Fit chooses, by the
// same order, among
//
//   - [Every] for every k,
//   - [Chen] for every length of segments,
//   - [Revolve] for every number of slots, hence also [KeepAll] and [RecomputeAll],
//   - up to 500 stages, [Rotor] for up to 128 budgets in geometric progression, from the
//     smallest that works to the memory of KeepAll, or for all budgets where the sizes have
//     a large common divisor.
//
// A larger budget never gives a slower plan, and a smaller one never a larger
// peak. When nothing fits the error is a [*BudgetError]; it wraps
// [snug.ErrConfig] when c is not valid or the chain is too long to plan.
//
// Times are compared to within 2^-36 of their sum.
//
// Fit takes less than a second for 200 stages and up to 40 MiB, and beyond 500 stages O(n²)
// time and O(n) memory. Beyond 4096 stages it tries 2^24/n numbers of stages, segments and
// slots in geometric progression, which takes some ten seconds for 2^20 stages. Plans of
// more than 2^22 operations are left out. [Planner.Plan] also returns a lower bound of the
// time, and has a choice of methods.
func Fit(c Costs, budget int64) (Plan, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, err
	}
	n := len(c.Stages)
	if n <= fitStages {
		return fitExact(c, budget)
	}
	families := everyFamily(n)
	if n <= rotorStages {
		r, err := newRotor(c)
		if err != nil {
			return Plan{}, err
		}
		families = append(families, r.family())
	}
	return quickest(c, budget, families)
}

// fitExact returns the plan with the least work and, of equal ones, the smallest peak. If a
// simple planner makes an equally good plan, it has the name of that planner.
func fitExact(c Costs, budget int64) (Plan, error) {
	s, err := exact(c, budget, exactNodes)
	if err != nil {
		return Plan{}, err
	}
	f := newForwards(c)
	for {
		r, err := s.plan.simulate(c, nil)
		if err != nil {
			return Plan{}, err
		}
		smaller, err := exact(c, r.Peak-1, exactNodes)
		if err == nil && f.of(smaller.plan) == f.of(s.plan) {
			s = smaller
			continue
		}
		if p, err := quickest(c, r.Peak, everyFamily(len(c.Stages))); err == nil && f.of(p) == f.of(s.plan) {
			return p, nil
		}
		return s.plan, nil
	}
}

// family is plans with one parameter from first to last.
type family struct {
	first, last int
	append      func(ops []Op, param int) []Op // nil: the plan is too long
	name        func(param int) string
}

// family returns the plans for n stages with parameters from first to last, with all of
// them if that takes no more than familyOps.
func (pl *planner) family(n, first, last int) family {
	params := spread(first, last, max(2, familyOps/4/n))
	return family{0, len(params) - 1, func(ops []Op, i int) []Op {
		if pl.length(n, params[i]) > maxOps {
			return nil
		}
		return pl.append(ops, n, params[i])
	}, func(i int) string { return pl.name(params[i]) }}
}

// spread returns the numbers from first to last, or about count of them in geometric
// progression, with the first and the last.
func spread(first, last, count int) []int {
	var list []int
	ratio := 1.0
	if last-first >= count {
		ratio = math.Pow(float64(last)/float64(first), 1/float64(count-1))
	}
	for p := first; p < last; p = max(p+1, int(float64(p)*ratio)) {
		list = append(list, p)
	}
	return append(list, last)
}

// everyFamily returns the families of Every, of Chen for all lengths of segments, and of
// Revolve.
func everyFamily(n int) []family {
	return []family{segments.family(n, 1, n), periodic.family(n, 1, n), revolve.family(n, 1, n)}
}

// family returns the plans of at most fitBudgets budgets, from the smallest budget to the
// memory of the plan that keeps all.
func (r *rotor) family() family {
	smallest, most := r.smallest(), max(r.smallest(), r.c.Input+r.enough(0))
	common := most - smallest
	for _, s := range r.c.Stages {
		for _, size := range [...]int64{s.Output, s.Saved, s.ForwardExtra, s.BackwardExtra, r.c.Input} {
			common = divisor(common, size)
		}
	}
	var budgets []int64
	if common > 0 && (most-smallest)/common < fitBudgets {
		for b := smallest; b < most; b += common {
			budgets = append(budgets, b)
		}
	} else {
		ratio := math.Pow(float64(most)/float64(max(smallest, 1)), 1/float64(fitBudgets-1))
		for b := smallest; b < most; {
			budgets = append(budgets, b)
			next := float64(b) * ratio
			if next >= float64(most) { // perhaps beyond an int64
				break
			}
			b = max(b+1, int64(next))
		}
	}
	budgets = append(budgets, most)
	r.solve(r.amountLimit(), budgets...)
	return family{0, len(budgets) - 1, func(ops []Op, i int) []Op {
		return r.append(ops, 0, r.n-1, budgets[i]-r.c.Input)
	}, func(int) string { return rotorName }}
}

// quickest returns the best plan of families, of equally good ones the first.
func quickest(c Costs, budget int64, families []family) (Plan, error) {
	return quickestIn(c, budget, Tiers{}, families)
}

// quickestIn is quickest for plans that use tiers.
func quickestIn(c Costs, budget int64, t Tiers, families []family) (Plan, error) {
	var (
		n          = len(c.Stages)
		smallest   = int64(math.MaxInt64)
		trial      = Plan{Stages: n}
		best       Plan
		bestReport Report
	)
	for _, f := range families {
		for param := f.first; param <= f.last; param++ {
			ops := f.append(trial.Ops[:0], param)
			if ops == nil {
				continue
			}
			trial.Ops = ops
			r, err := trial.simulate(c, nil)
			if err != nil {
				return Plan{}, err
			}
			if r.Host > t.Host || r.Disk > t.Disk {
				continue
			}
			smallest = min(smallest, r.Peak)
			if r.Peak <= budget && (best.Ops == nil || r.better(bestReport)) {
				best.Name, bestReport = f.name(param), r
				best.Ops, trial.Ops = trial.Ops, best.Ops
			}
		}
	}
	switch {
	case best.Ops != nil:
		best.Stages = n
		return best, nil
	case smallest == math.MaxInt64:
		return Plan{}, fmt.Errorf("remat: all plans for %d stages have more than %d operations: %w", n, maxOps, snug.ErrConfig)
	}
	return Plan{}, &BudgetError{Budget: budget, Minimum: smallest}
}

// better reports whether Fit prefers r to s.
func (r Report) better(s Report) bool {
	order := cmp.Or(
		cmp.Compare(r.Time, s.Time), cmp.Compare(r.Extra, s.Extra), cmp.Compare(r.Packed, s.Packed),
		cmp.Compare(r.Host+r.Disk, s.Host+s.Disk), cmp.Compare(r.Peak, s.Peak))
	return order < 0
}
