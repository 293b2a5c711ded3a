package remat

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// These values of callers and of damaged files are at the edges of what types hold.
var (
	edgeInts  = []int{math.MinInt, -1, 0, 1, 2, 3, 7, math.MaxInt32, math.MaxInt - 1, math.MaxInt}
	edgeSizes = []int64{math.MinInt64, -1, 0, 1, 2, 1000, 1 << 31, 1 << 53, 1<<60 + 1, math.MaxInt64 / 3, math.MaxInt64 - 1, math.MaxInt64}
	edgeTimes = []float64{math.Inf(-1), -1, 0, 5e-324, minRate, 1, 1e30, maxTime, math.MaxFloat64, math.Inf(1), math.NaN()}
)

// drawEdges draws costs whose sizes and times are mostly within what is valid, and else
// anything.
func drawEdges(t *rapid.T, most int) Costs {
	sizes, times := rapid.SampledFrom(edgeSizes), rapid.SampledFrom(edgeTimes)
	if rapid.IntRange(0, 4).Draw(t, "valid") > 0 {
		large := math.MaxInt64 / int64(8*most+8)
		sizes = rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(large-3, large), rapid.Int64Range(0, large))
		times = rapid.SampledFrom([]float64{0, 5e-324, 1e-3, 1, 3, 1e30, maxTime})
	}
	rates := func(name string) Rates {
		if rapid.Bool().Draw(t, name) {
			return Rates{}
		}
		return Rates{times.Draw(t, name), times.Draw(t, name)}
	}
	c := Costs{Input: sizes.Draw(t, "input"), Host: rates("host"), Disk: rates("disk")}
	c.Stages = make([]Cost, rapid.IntRange(0, most).Draw(t, "stages"))
	for i := range c.Stages {
		s := &c.Stages[i]
		*s = Cost{
			Output: sizes.Draw(t, "output"), Saved: sizes.Draw(t, "saved"), Packed: sizes.Draw(t, "packed"),
			ForwardExtra: sizes.Draw(t, "forward extra"), BackwardExtra: sizes.Draw(t, "backward extra"),
			ForwardTime: times.Draw(t, "forward"), BackwardTime: times.Draw(t, "backward"),
			PackTime: times.Draw(t, "pack"), UnpackTime: times.Draw(t, "unpack"),
		}
		s.Saved = max(s.Saved, s.Output)
	}
	return c
}

// drawBudget draws a budget around what some plan takes, or at the edges.
func drawBudget(t *rapid.T, c Costs) int64 {
	if p, err := KeepAll(c); err == nil && rapid.Bool().Draw(t, "near") {
		r, err := p.Simulate(c)
		require.NoError(t, err)
		return rapid.Int64Range(0, r.Peak).Draw(t, "budget")
	}
	return rapid.SampledFrom(edgeSizes).Draw(t, "edge budget")
}

// requireTyped requires an error of this library.
func requireTyped(t require.TestingT, err error) {
	for _, sentinel := range []error{snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrConfig, snug.ErrNoMemory, snug.ErrCorrupt, snug.ErrNotBuilt} {
		if errors.Is(err, sentinel) {
			return
		}
	}
	require.Fail(t, "an error that wraps no sentinel", "%v", err)
}

// TestPlannersAtEdges: whatever the numbers are, planners return a valid plan that
// fits, with a finite time that is not below its bound, or an error.
func TestPlannersAtEdges(t *testing.T) {
	for name, most := range map[string]int{"short": 5, "long": 30} {
		t.Run(name, func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { checkPlanners(t, most) }) })
	}
}

func checkPlanners(t *rapid.T, most int) {
	begin := time.Now()
	c := drawEdges(t, most)
	budget := drawBudget(t, c)
	k := rapid.SampledFrom(edgeInts).Draw(t, "k")
	check := func(p Plan, err error) {
		if err != nil {
			requireTyped(t, err)
			require.Zero(t, p)
			return
		}
		r, err := p.Simulate(c)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Peak, int64(0))
		require.False(t, math.IsNaN(r.Time+r.Again+r.Waited) || math.IsInf(r.Time, 0))
	}
	check(KeepAll(c))
	check(RecomputeAll(c))
	check(Chen(c))
	check(Every(c, k))
	check(Revolve(c, k))
	check(HRevolve(c, k, rapid.SampledFrom(edgeInts).Draw(t, "copies"), Tier(rapid.IntRange(0, 3).Draw(t, "tier"))))
	check(Rotor(c, budget))
	if len(c.Stages) <= 5 {
		check(Exact(c, budget))
	}
	check(Fit(c, budget))
	tiers := Tiers{
		Host: rapid.SampledFrom(edgeSizes).Draw(t, "host bytes"), Disk: rapid.SampledFrom(edgeSizes).Draw(t, "disk bytes"),
		Lossy: rapid.Bool().Draw(t, "lossy"),
	}
	for m := range methods + 1 {
		p := Planner{Method: m, States: 2000}
		plan, r, err := p.Plan(c, budget)
		check(plan, err)
		if err == nil {
			require.LessOrEqual(t, r.Peak, budget)
			require.LessOrEqual(t, r.Bound, r.Time)
			require.GreaterOrEqual(t, r.Gap(), 0.0)
		}
	}
	if len(c.Stages) <= 5 {
		for _, m := range []Method{MethodFit, MethodHRevolve} {
			plan, r, err := Planner{Method: m, Tiers: tiers}.Plan(c, budget)
			check(plan, err)
			if err == nil {
				require.LessOrEqual(t, r.Bound, r.Time)
				require.True(t, r.Peak <= budget && r.Host <= tiers.Host && r.Disk <= tiers.Disk)
			}
		}
	}
	require.Less(t, time.Since(begin), 20*time.Second)
}

// TestOptionsAtEdges: what is not a planner takes numbers at the edges too.
func TestOptionsAtEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ints, sizes, times := rapid.SampledFrom(edgeInts), rapid.SampledFrom(edgeSizes), rapid.SampledFrom(edgeTimes)
		n := rapid.OneOf(ints, rapid.IntRange(1, 20)).Draw(t, "n")
		typed := func(err error) {
			if err != nil {
				requireTyped(t, err)
			}
		}
		l := levels{memory: ints.Draw(t, "memory"), disk: ints.Draw(t, "disk"), write: times.Draw(t, "write"), read: times.Draw(t, "read")}
		p, err := planLevels(n, l)
		typed(err)
		if err == nil {
			r, err := p.simulate(l)
			require.NoError(t, err)
			require.False(t, math.IsNaN(r.makespan) || math.IsInf(r.makespan, 0))
		}

		c := drawEdges(t, 3)
		looped, err := c.Repeat(n)
		typed(err)
		require.Equal(t, err == nil, looped.Stages != nil)
		ops := Plan{Stages: n, Ops: []Op{{Kind(rapid.Byte().Draw(t, "op")), ints.Draw(t, "at")}, {Backward, 0}}}
		typed(ops.Validate())
		_, err = ops.Simulate(c)
		typed(err)
		_, err = ops.MarshalJSON()
		typed(err)
		report := Report{Peak: sizes.Draw(t, "peak"), Timeline: make([]Bytes, 2), Bound: times.Draw(t, "bound"), Time: times.Draw(t, "time")}
		report.Timeline[0].Peak = sizes.Draw(t, "bytes")
		report.Gap()
		require.NoError(t, report.WriteCSV(io.Discard, ops))
		require.NoError(t, report.WriteSVG(io.Discard, ops, "\x00"))
	})
}

// TestLargestBudgets has sizes that fill an int64, budgets beyond them, and more amounts
// of memory than tables have entries.
func TestLargestBudgets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := Costs{Input: 1, Stages: make([]Cost, 60)}
	rest, large := int64(math.MaxInt64-2), math.MaxInt64/int64(len(c.Stages))
	for i := range c.Stages {
		c.Stages[i] = Cost{Output: 1 + rng.Int64N(10), Saved: large - 100 - rng.Int64N(large/1000), ForwardTime: 1 + rng.Float64()}
		rest -= 2*c.Stages[i].Output + c.Stages[i].Saved
	}
	c.Stages[30].Saved += rest
	keepAll := must(KeepAll(c))
	most, err := keepAll.Simulate(c)
	require.NoError(t, err)
	for _, budget := range []int64{most.Peak, math.MaxInt64 - 1, math.MaxInt64} {
		p, err := Rotor(c, budget)
		require.NoError(t, err)
		require.Equal(t, keepAll.Ops, p.Ops)
		_, r, err := Planner{}.Plan(c, budget)
		require.NoError(t, err)
		require.Zero(t, r.Extra)
		require.Zero(t, r.Gap())
	}
	c.Host = Rates{1, 1}
	_, r, err := Planner{Tiers: Tiers{Host: math.MaxInt64}}.Plan(c, math.MaxInt64)
	require.NoError(t, err)
	require.Zero(t, r.Extra)
	for _, budget := range []int64{most.Peak / 2, most.Peak - 1<<40, most.Peak - 1} {
		_, err = Rotor(c, budget)
		require.NoError(t, err)
	}
	for _, budget := range []int64{math.MinInt64, -1, 0} {
		_, _, err := Planner{}.Plan(c, budget)
		require.ErrorIs(t, err, snug.ErrNoMemory)
	}
}

// TestLongChains: planners of chains of many stages try fewer plans, not all.
func TestLongChains(t *testing.T) {
	for _, n := range []int{1, 2, 4096, 4097, 1 << 20} {
		f := segments.family(n, 1, n)
		count := f.last - f.first + 1
		require.Equal(t, "keep-all", f.name(f.first))
		require.Equal(t, segmentsName(n), f.name(f.last))
		require.LessOrEqual(t, count, max(n, familyOps/4/n+2))
		if n <= 4096 {
			require.Equal(t, n, count)
		}
		items := 0
		for p := range boundStages(n) {
			items += p
		}
		require.LessOrEqual(t, items, 2*boundItems)
		if n <= 2048 {
			require.Equal(t, n*(n-1)/2, items)
		}
	}
	require.Equal(t, []int{1, 2, 3, 4, 5}, spread(1, 5, 5))
	require.Equal(t, []int{1, 2, 3, 5, 8, 10}, spread(1, 10, 5))
	require.Equal(t, []int{3}, spread(3, 3, 2))

	// More stages than there are plans for.
	tooLong := Costs{Stages: make([]Cost, maxStages+1)}
	methods := []Method{MethodFit, MethodExact, MethodRotor, MethodEvery, MethodChen, MethodKeepAll, MethodRecomputeAll}
	if !kerneltest.Full() {
		methods = methods[:3]
	}
	for _, m := range methods {
		begin := time.Now()
		_, _, err := Planner{Method: m}.Plan(tooLong, 0)
		require.ErrorIs(t, err, snug.ErrConfig, m)
		require.Less(t, time.Since(begin), 20*time.Second, m) // a third of a second without a race detector; squares of stages take hours
	}
}
