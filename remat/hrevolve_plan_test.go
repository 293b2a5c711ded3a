package remat

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// scheduleRuns carries out schedules of HRevolve on chains: they take as many
// forward steps, and as many bytes in the tier, as the schedule says.
func scheduleRuns(t *rapid.T) {
	n := rapid.IntRange(1, 12).Draw(t, "stages")
	l := levels{memory: rapid.IntRange(0, 4).Draw(t, "memory"), disk: rapid.IntRange(1, 4).Draw(t, "disk")}
	l.write, l.read = rapid.Float64Range(0, 3).Draw(t, "write"), rapid.Float64Range(0, 3).Draw(t, "read")
	p, err := planLevels(n, l)
	require.NoError(t, err)
	want, err := p.simulate(l)
	require.NoError(t, err)
	tier := rapid.SampledFrom([]Tier{Host, Disk}).Draw(t, "tier")
	plan := p.plan(tier)
	c := withTiers(uniform(n))
	r, err := plan.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, want.extra, r.Extra)
	copies := r.Host + r.Disk
	require.LessOrEqual(t, copies, int64(want.disk))
	require.GreaterOrEqual(t, copies, int64(want.disk-1), "a_0 has no copy")
	// Held are a_0, a gradient, the slots, the working value and the result of a step.
	require.LessOrEqual(t, r.Peak, int64(want.memory+4))

	h := newHeap()
	_, run, err := fakeChain(h, c).Run(t.Context(), plan, fakeInput(h, c), fakeLoss(h, c, nil))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, r.Timeline, run.Timeline)
}

func TestScheduleRuns(t *testing.T) { rapid.Check(t, scheduleRuns) }

// TestScheduleByHand has operations that HRevolve does not make: a load while
// there is a working value, and drops after the backward step that uses a value up.
func TestScheduleByHand(t *testing.T) {
	p := schedule{name: "hand", stages: 3, ops: []levelOp{
		{storeMemory, 0}, {advance, 0}, {storeMemory, 1}, {storeDisk, 1}, {advance, 1}, {storeMemory, 2}, {storeDisk, 2},
		{loadMemory, 1}, {loadDisk, 2}, {reverse, 2}, {loadDisk, 1}, {reverse, 1}, {dropMemory, 2}, {dropDisk, 2},
		{loadMemory, 0}, {dropMemory, 1}, {dropDisk, 1}, {dropMemory, 0}, {reverse, 0},
	}}
	plan := p.plan(Disk)
	require.Equal(t, "F0 D0 F1 D1 S2 B2 S1 B1 -F0 -C0 S0 B0", plan.String())
	require.NoError(t, plan.Validate())
}

// TestHRevolveOfCosts: HRevolve moves the bytes that the costs name, and refuses tiers and
// slots that no plan has.
func TestHRevolveOfCosts(t *testing.T) {
	c := uniform(31)
	for i := range c.Stages {
		c.Stages[i].Output, c.Stages[i].Saved, c.Stages[i].ForwardTime = 10, 10, 2
	}
	c.Host, c.Disk = Rates{10, 5}, Rates{5, 2.5}
	for tier, transfers := range map[Tier][2]float64{Host: {0.5, 1}, Disk: {1, 2}} {
		p, err := HRevolve(c, 3, 5, tier)
		require.NoError(t, err)
		want, err := planLevels(31, levels{3, 5, transfers[0], transfers[1]})
		require.NoError(t, err)
		require.Equal(t, want.plan(tier), p)
		r, err := p.Simulate(c)
		require.NoError(t, err)
		require.Positive(t, r.Host+r.Disk)
	}
	for _, tc := range []struct {
		c             Costs
		slots, copies int
		tier          Tier
		text          string
	}{
		{Costs{}, 1, 1, Host, "costs"},
		{c, 1, 1, Packed, "tier packed, want host or disk"},
		{c, 1, 1, Tier(9), "want host or disk"},
		{uniform(3), 1, 1, Disk, "no rates for tier disk"},
		{c, 0, 0, Disk, "0 slots in memory, 0 on disk"},
		{c, -1, 1, Disk, "-1 slots in memory"},
		{c, 1, -1, Disk, "-1 on disk"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			p, err := HRevolve(tc.c, tc.slots, tc.copies, tc.tier)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, tc.text)
			require.Zero(t, p)
		})
	}
	alone, err := HRevolve(uniform(9), 2, 0, Host) // needs no rates
	require.NoError(t, err)
	require.Equal(t, must(Revolve(uniform(9), 2)).String(), alone.String())
}

// TestMethodHRevolve: a slow level that is fast enough saves forward steps.
func TestMethodHRevolve(t *testing.T) {
	c := uniform(40)
	c.Disk = Rates{10, 10}
	_, revolve, err := Planner{Method: MethodRevolve}.Plan(c, 6)
	require.NoError(t, err)
	_, levels, err := Planner{Method: MethodHRevolve, Tiers: Tiers{Disk: 100}}.Plan(c, 6)
	require.NoError(t, err)
	require.LessOrEqual(t, levels.Peak, int64(6))
	require.Positive(t, levels.Disk)
	require.Less(t, levels.Extra, revolve.Extra/2)
	require.Less(t, levels.Time, revolve.Time)
	require.LessOrEqual(t, levels.Bound, levels.Time)
	_, fit, err := Planner{Tiers: Tiers{Disk: 100}}.Plan(c, 6)
	require.NoError(t, err)
	require.LessOrEqual(t, fit.Time, levels.Time)
}

// TestHRevolveFamily: the plans that a Planner tries are those of HRevolve, each once.
func TestHRevolveFamily(t *testing.T) {
	for _, n := range []int{1, 2, 7, 40} {
		c := uniform(n)
		c.Host = Rates{0.5, 2}
		f, err := hrevolveFamily(c, Tiers{Host: 1})
		require.NoError(t, err)
		var before []Op
		tried := 0
		for i := range f.last + 1 {
			var l levels
			_, err := fmt.Sscanf(f.name(i), "hrevolve(%d,%d)", &l.memory, &l.disk)
			require.NoError(t, err)
			l.write, l.read = 2, 0.5
			p, err := planLevels(n, l)
			require.NoError(t, err)
			want := p.plan(Host)
			require.Equal(t, f.name(i), want.Name)
			got := f.append(nil, i)
			if got == nil { // more slots on disk are of no use
				require.Equal(t, before, want.Ops)
				continue
			}
			require.Equal(t, want.Ops, got)
			before = got
			tried++
		}
		require.GreaterOrEqual(t, tried, min(n, 3))
	}
	_, err := hrevolveFamily(Costs{Stages: make([]Cost, maxLevelStages+1)}, Tiers{Host: 1})
	require.ErrorIs(t, err, snug.ErrConfig)
}
