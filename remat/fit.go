package remat

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// BudgetError says that no plan fits. It wraps [snug.ErrNoMemory].
type BudgetError struct {
	Budget   int64 // what was given, in bytes
	Smallest int64 // the smallest budget for which Fit finds a plan
}

// Error returns both budgets.
func (e *BudgetError) Error() string {
	return fmt.Sprintf("remat: no plan fits in %d bytes, the smallest budget that works is %d bytes: %v", e.Budget, e.Smallest, snug.ErrNoMemory)
}

// Unwrap returns [snug.ErrNoMemory].
func (e *BudgetError) Unwrap() error { return snug.ErrNoMemory }

// Fit returns the fastest plan whose simulated peak is at most budget bytes,
// among [Every] for every k and [Revolve] for every number of slots, hence
// [KeepAll], [Chen] and [RecomputeAll] too. Of equally fast plans it takes the
// one with fewer extra forward steps, which also decides when no times are
// declared, and then the one with the smaller peak.
//
// A larger budget never gives a slower plan, and a smaller one never a larger
// peak. When nothing fits the error is a [*BudgetError]; it wraps
// [snug.ErrConfig] when c is not valid or the chain is too long to plan.
//
// Fit simulates 2n plans, which takes O(n²) time and O(n) memory; plans of more
// than 2^22 operations are left out.
func Fit(c Costs, budget int64) (Plan, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, err
	}
	var (
		n        = len(c.Stages)
		smallest = int64(math.MaxInt64)
		trial    = Plan{Stages: n}
		best     func() (Plan, error)
		least    Report
	)
	for _, pl := range [...]*planner{&segments, &revolve} {
		for param := 1; param <= n; param++ {
			if pl.length(n, param) > maxOps {
				continue
			}
			trial.Ops = pl.append(trial.Ops[:0], n, param)
			r, err := trial.simulate(c, nil)
			if err != nil {
				return Plan{}, err
			}
			smallest = min(smallest, r.Peak)
			if r.Peak <= budget && (best == nil || r.better(least)) {
				best, least = func() (Plan, error) { return pl.plan(c, param) }, r
			}
		}
	}
	switch {
	case best != nil:
		return best()
	case smallest == math.MaxInt64:
		return Plan{}, fmt.Errorf("remat: all plans for %d stages have more than %d operations: %w", n, maxOps, snug.ErrConfig)
	}
	return Plan{}, &BudgetError{Budget: budget, Smallest: smallest}
}

// better reports whether Fit prefers r to s.
func (r Report) better(s Report) bool {
	if r.Time != s.Time {
		return r.Time < s.Time
	}
	if r.Extra != s.Extra {
		return r.Extra < s.Extra
	}
	return r.Peak < s.Peak
}
