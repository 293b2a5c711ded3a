package remat

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// multilevelRuns carries out schedules of HRevolve on chains: they take as many
// forward steps, and as many bytes in the tier, as the schedule says.
func multilevelRuns(t *rapid.T) {
	n := rapid.IntRange(1, 12).Draw(t, "stages")
	l := Levels{Memory: rapid.IntRange(0, 4).Draw(t, "memory"), Disk: rapid.IntRange(1, 4).Draw(t, "disk")}
	l.Write, l.Read = rapid.Float64Range(0, 3).Draw(t, "write"), rapid.Float64Range(0, 3).Draw(t, "read")
	p, err := HRevolve(n, l)
	require.NoError(t, err)
	want, err := p.Simulate(l)
	require.NoError(t, err)
	tier := rapid.SampledFrom([]Tier{Host, Disk}).Draw(t, "tier")
	plan, err := p.Plan(tier)
	require.NoError(t, err)
	c := withTiers(uniform(n))
	r, err := plan.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, want.Extra, r.Extra)
	copies := r.Host + r.Disk
	require.LessOrEqual(t, copies, int64(want.Disk))
	require.GreaterOrEqual(t, copies, int64(want.Disk-1), "a_0 has no copy")
	// Held are a_0, a gradient, the slots, the working value and the result of a step.
	require.LessOrEqual(t, r.Peak, int64(want.Memory+4))

	h := newHeap()
	_, run, err := fakeChain(h, c).Run(t.Context(), plan, fakeInput(h, c), fakeLoss(h, c, nil))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, r.Timeline, run.Timeline)
}

func TestMultilevelPlanRuns(t *testing.T) { rapid.Check(t, multilevelRuns) }

// TestMultilevelPlanByHand has operations that HRevolve does not make: a load while
// there is a working value, and drops after the backward step that uses a value up.
func TestMultilevelPlanByHand(t *testing.T) {
	p := MultilevelPlan{Name: "hand", Stages: 3, Ops: []LevelOp{
		{StoreMemory, 0}, {Advance, 0}, {StoreMemory, 1}, {StoreDisk, 1}, {Advance, 1}, {StoreMemory, 2}, {StoreDisk, 2},
		{LoadMemory, 1}, {LoadDisk, 2}, {Reverse, 2}, {LoadDisk, 1}, {Reverse, 1}, {DropMemory, 2}, {DropDisk, 2},
		{LoadMemory, 0}, {DropMemory, 1}, {DropDisk, 1}, {DropMemory, 0}, {Reverse, 0},
	}}
	plan, err := p.Plan(Disk)
	require.NoError(t, err)
	require.Equal(t, "F0 D0 F1 D1 S2 B2 S1 B1 -F0 -C0 S0 B0", plan.String())
	require.NoError(t, plan.Validate())
	_, err = p.Plan(Packed)
	require.ErrorIs(t, err, snug.ErrConfig)
	p.Ops = p.Ops[:5]
	_, err = p.Plan(Host)
	require.ErrorIs(t, err, snug.ErrConfig)
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
			var l Levels
			_, err := fmt.Sscanf(f.name(i), "hrevolve(%d,%d)", &l.Memory, &l.Disk)
			require.NoError(t, err)
			l.Write, l.Read = 2, 0.5
			schedule, err := HRevolve(n, l)
			require.NoError(t, err)
			want := must(schedule.Plan(Host))
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
