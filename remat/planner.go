package remat

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Method is a way to make a plan that fits in a budget.
type Method uint8

// The methods.
const (
	MethodFit          Method = iota // [Fit]
	MethodExact                      // [Exact], or the best plan known when the search ends early
	MethodRotor                      // [Rotor]
	MethodRevolve                    // [Revolve] with the best number of slots
	MethodHRevolve                   // [HRevolve] with good numbers of slots and copies; it needs Tiers
	MethodEvery                      // [Every] with the best k
	MethodChen                       // [Chen]
	MethodKeepAll                    // [KeepAll]
	MethodRecomputeAll               // [RecomputeAll]
	methods
)

var methodNames = [methods]string{"fit", "exact", "rotor", "revolve", "hrevolve", "every", "chen", "keep-all", "recompute-all"}

// String returns the name of the method, such as "rotor".
func (m Method) String() string {
	if m >= methods {
		return "?"
	}
	return methodNames[m]
}

// ParseMethod is the inverse of [Method.String]. The error wraps [snug.ErrConfig].
func ParseMethod(name string) (Method, error) {
	for m, known := range methodNames {
		if name == known {
			return Method(m), nil
		}
	}
	return 0, fmt.Errorf("remat: method %q: want one of %q: %w", name, methodNames, snug.ErrConfig)
}

// Planner makes plans by one of the methods. The zero Planner uses [Fit].
type Planner struct {
	Method Method
	// States is the number of states after which the search of MethodExact
	// ends, up to 250 bytes each; 0 stands for 2^20. It then returns the best plan
	// known, if there is one, with the bound that has been reached.
	States int
	// Tiers are used by MethodHRevolve, which needs Host or Disk, and by MethodFit if
	// they are not zero. With Tiers, MethodFit tries some thousand placements of saved
	// sets and outputs, in addition to the plans of Fit: for 200 stages this takes up to 2 s
	// with one tier and up to 5 s with all. The placements tried are the same for every
	// budget, so a larger budget, also of a tier, never gives a slower plan. Beyond 512
	// stages it tries fewer, in up to a minute. Of equally fast plans it takes the one
	// with fewer extra forward steps, then the one that packs less, then the one with
	// fewer bytes of copies.
	Tiers Tiers
}

// Plan returns the fastest plan of the method whose simulated peak is at most
// budget bytes, and what it takes by [Plan.Simulate] with [Report.Bound] set.
//
// The error is a [*BudgetError] when no plan of the method fits; it wraps
// [snug.ErrConfig] when c or the Planner is not valid or the method does not plan
// chains of that length.
func (p Planner) Plan(c Costs, budget int64) (Plan, Report, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, Report{}, err
	}
	if p.Method >= methods || p.States < 0 || p.States > math.MaxInt32 {
		return Plan{}, Report{}, fmt.Errorf("remat: planner with method %d and %d states: want a method below %d and up to 2^31-1 states: %w", p.Method, p.States, methods, snug.ErrConfig)
	}
	f := newForwards(c)
	if p.Tiers != (Tiers{}) || p.Method == MethodHRevolve {
		return p.planTiers(c, budget, &f)
	}
	plan, lowerBound, err := p.plan(c, budget, &f)
	if err != nil {
		return Plan{}, Report{}, err
	}
	r, err := plan.Simulate(c)
	if err != nil {
		return Plan{}, Report{}, err
	}
	r.Bound = r.Time
	if f.of(plan) > lowerBound {
		r.Bound = min(r.Time, f.bound(c, lowerBound))
	}
	return plan, r, nil
}

// planTiers is Plan with tiers.
func (p Planner) planTiers(c Costs, budget int64, f *forwards) (Plan, Report, error) {
	if err := p.Tiers.validate(c); err != nil {
		return Plan{}, Report{}, err
	}
	var (
		plan Plan
		err  error
	)
	switch {
	case p.Method == MethodFit:
		plan, err = fitTiers(c, budget, p.Tiers)
	case p.Method != MethodHRevolve:
		err = fmt.Errorf("remat: planner of method %v with tiers: want that of fit or hrevolve: %w", p.Method, snug.ErrConfig)
	case p.Tiers.Host == 0 && p.Tiers.Disk == 0:
		err = fmt.Errorf("remat: planner of method %v: want bytes of host memory or disk: %w", p.Method, snug.ErrConfig)
	default:
		var plans family
		if plans, err = hrevolveFamily(c, p.Tiers); err == nil {
			plan, err = quickestIn(c, budget, p.Tiers, []family{plans})
		}
	}
	if err != nil {
		return Plan{}, Report{}, err
	}
	r, err := plan.Simulate(c)
	if err != nil {
		return Plan{}, Report{}, err
	}
	r.Bound = min(r.Time, tiersBound(c, budget, p.Tiers, f))
	return plan, r, nil
}

// plan returns a plan and a lower bound of the work of all plans.
func (p Planner) plan(c Costs, budget int64, f *forwards) (plan Plan, lowerBound int64, err error) {
	n := len(c.Stages)
	lowerBound = f.minWork(c, budget)
	switch p.Method {
	case MethodFit:
		plan, err = Fit(c, budget)
		if n <= fitStages {
			lowerBound = f.of(plan)
		}
	case MethodExact:
		limit := p.States
		if limit == 0 {
			limit = exactNodes
		}
		var s solution
		s, err = exact(c, budget, limit)
		plan, lowerBound = s.plan, max(lowerBound, s.lowerBound)
	case MethodRotor:
		plan, err = Rotor(c, budget)
	case MethodRevolve:
		plan, err = quickest(c, budget, []family{revolve.family(n, 1, n)})
	case MethodEvery:
		plan, err = quickest(c, budget, []family{segments.family(n, 1, n)})
	case MethodChen:
		chen := periodic.family(n, chenLength(n), chenLength(n))
		chen.name = func(int) string { return "chen" }
		plan, err = quickest(c, budget, []family{chen})
	case MethodKeepAll:
		plan, err = quickest(c, budget, []family{segments.family(n, 1, 1)})
	case MethodRecomputeAll:
		plan, err = quickest(c, budget, []family{revolve.family(n, 1, 1)})
	}
	return plan, lowerBound, err
}

// Gap returns the share by which the time exceeds the bound: 0.1 is 10 %. It is 0
// when the plan is known to be as fast as any, and +Inf when there is no bound.
func (r Report) Gap() float64 {
	if r.Time <= r.Bound {
		return 0
	}
	return r.Time/r.Bound - 1
}
