package remat

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
)

// Smallest returns the plan of the method with the smallest peak that has at most extra more forward
// steps than the chain has stages, and what it takes by [Plan.Simulate]: the least memory for a
// bounded time, where [Planner.Plan] finds the least time for a bounded memory. It makes a
// plan for each of about 40 budgets between 0 and the peak of [KeepAll], which it returns if no plan of
// the method is smaller.
//
// The error wraps [snug.ErrConfig] when c or the Planner is not valid, when extra is negative, or when the
// method does not plan chains of that length.
func (p Planner) Smallest(c Costs, extra int) (Plan, Report, error) {
	if extra < 0 {
		return Plan{}, Report{}, fmt.Errorf("remat: Smallest: %d extra forward steps, want 0 or more: %w", extra, snug.ErrConfig)
	}
	best, err := KeepAll(c)
	if err != nil {
		return Plan{}, Report{}, err
	}
	report, err := best.Simulate(c)
	if err != nil {
		return Plan{}, Report{}, err
	}
	low, high := int64(0), report.Peak // budgets: too small, enough
	for high-low > 1 {
		budget := low + (high-low)/2
		plan, r, err := p.Plan(c, budget)
		switch {
		case errors.Is(err, snug.ErrNoMemory) || err == nil && r.Extra > extra:
			low = budget
		case err != nil:
			return Plan{}, Report{}, err
		default:
			best, report, high = plan, r, r.Peak
		}
	}
	return best, report, nil
}
