package remat

import (
	"context"
	"testing"

	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// counting counts the first passes of a stage, as batch norm updates its averages.
type counting struct {
	Stage[*block, *set]
	first, all *int
}

func (s counting) count(ctx context.Context) {
	*s.all++
	if FirstPass(ctx) {
		*s.first++
	}
}

func (s counting) Forward(ctx context.Context, x *block) (*block, error) {
	s.count(ctx)
	return s.Stage.Forward(ctx, x)
}

func (s counting) ForwardSave(ctx context.Context, x *block) (*block, *set, error) {
	s.count(ctx)
	return s.Stage.ForwardSave(ctx, x)
}

func (s counting) Backward(ctx context.Context, x *block, saved *set, dy *block) (*block, error) {
	if FirstPass(ctx) {
		*s.first += 1000
	}
	return s.Stage.Backward(ctx, x, saved, dy)
}

// stopping stops early in recomputations.
type stopping struct{ counting }

func (s stopping) Resave(ctx context.Context, x *block) (*set, error) {
	_, saved, err := s.ForwardSave(ctx, x)
	return saved, err
}

// TestFirstPass: whatever the plan, every stage runs for the first time once.
func TestFirstPass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := withTiers(drawCosts(t, 8))
		plan := drawPlan(t, c)
		h := newHeap()
		chain := fakeChain(h, c)
		first, all := make([]int, len(chain.Stages)), make([]int, len(chain.Stages))
		for i, s := range chain.Stages {
			counts := counting{s, &first[i], &all[i]}
			chain.Stages[i] = counts
			if i%2 == 1 {
				chain.Stages[i] = stopping{counts}
			}
		}
		r, err := chain.NewRunner(plan)
		require.NoError(t, err)
		for step := range 2 {
			_, rep, err := r.Run(context.Background(), fakeInput(h, c), fakeLoss(h, c, nil))
			require.NoError(t, err)
			sum := 0
			for i := range first {
				require.Equal(t, step+1, first[i])
				sum += all[i]
			}
			require.Equal(t, (step+1)*(len(first)+rep.Extra), sum)
		}
	})
	require.True(t, FirstPass(t.Context()))
}

// blocks is a stage that is a chain itself, which runs again for its backward step.
type blocks struct{ *Chain[int, int] }

func (b blocks) Forward(ctx context.Context, x int) (int, error) { return b.Eval(ctx, x) }

func (b blocks) ForwardSave(ctx context.Context, x int) (int, int, error) {
	y, err := b.Eval(ctx, x)
	return y, x, err
}

func (b blocks) Backward(ctx context.Context, _, saved, dy int) (int, error) {
	dx, _, err := b.Run(ctx, Plan{}, saved, func(int) (int, error) { return dy, nil })
	return dx, err
}

// counterStage counts first passes, and adds 1.
type counterStage struct{ first *int }

func (s counterStage) Forward(ctx context.Context, x int) (int, error) {
	if FirstPass(ctx) {
		*s.first++
	}
	return x + 1, nil
}

func (s counterStage) ForwardSave(ctx context.Context, x int) (int, int, error) {
	y, err := s.Forward(ctx, x)
	return y, y, err
}

func (counterStage) Backward(_ context.Context, _, _, dy int) (int, error) { return dy, nil }

// Within loops, chains in chains, and costs that are measured, every stage counts once a pass.
func TestFirstPassWithin(t *testing.T) {
	one := func(int) int64 { return 1 }
	first := 0
	inner := blocks{&Chain[int, int]{Stages: []Stage[int, int]{counterStage{&first}, counterStage{&first}}, Bytes: one, SavedBytes: one}}
	tiles := &Tiles[int, int]{
		Stage: inner, Count: func(int) int { return 1 }, Part: func(x, _ int) int { return x }, Clone: func(x int) (int, error) { return x, nil },
		Output: func(x int) (int, error) { return x, nil }, Put: func(int, int, int) error { return nil }, Keep: func(y int) int { return y },
	}
	stages, err := Repeat(5, Stage[int, int](inner), tiles)
	require.NoError(t, err)
	chain := &Chain[int, int]{Stages: stages, Bytes: one, SavedBytes: one}
	costs := uniform(10)
	for _, plan := range []Plan{{}, must(RecomputeAll(costs)), must(Chen(costs)), {Stages: 10, Ops: must(AllBut(costs)).Ops}} {
		first = 0
		_, _, err := chain.Run(t.Context(), plan, 0, func(int) (int, error) { return 0, nil })
		require.NoError(t, err)
		require.Equal(t, 20, first, plan.Name)
	}
	first = 0
	_, err = chain.MeasureCosts(t.Context(), 0, func(int) (int, error) { return 0, nil }, 3)
	require.NoError(t, err)
	require.Equal(t, 4*20, first)
}

// poolMonitor is a Monitor of a Pool.
type poolMonitor struct {
	*memtest.Pool
	most int64
}

func (m *poolMonitor) Mark() (held, peak int64) {
	m.most = max(m.most, m.Peak)
	held, peak = m.Held, m.Peak
	m.Peak = held
	return held, peak
}

// TestMonitor: with a Monitor the peak of a run is that of the memory, though nobody declares what stages take.
func TestMonitor(t *testing.T) {
	const rows = 10
	monitor := &poolMonitor{Pool: memtest.NewPool()}
	m := newRowMLP(monitor.Pool)
	x := monitor.Get(rows * width)
	chain := m.chain(m, nil)
	chain.Monitor = monitor
	for range 4 {
		chain.Stages = append(chain.Stages, m, m.tiled(m, 3))
	}
	loss := func(y []float32) ([]float32, error) { return monitor.Get(len(y)), nil }
	costs, err := chain.MeasureCosts(t.Context(), x, loss, 1)
	require.NoError(t, err)
	require.Equal(t, int64(4*rows*hidden), costs.Stages[1].ForwardExtra)
	require.Equal(t, int64(4*3*(width+hidden)), costs.Stages[2].ForwardExtra)
	require.Equal(t, int64(4*3*(2*width+hidden)), costs.Stages[2].BackwardExtra)
	for _, plan := range []Plan{{}, must(RecomputeAll(costs)), must(Chen(costs)), must(Revolve(costs, 2))} {
		for _, declared := range []*Costs{nil, &costs} {
			chain.Costs = declared
			monitor.most, monitor.Peak = 0, monitor.Held
			dx, rep, err := chain.Run(t.Context(), plan, x, loss)
			require.NoError(t, err)
			require.Equal(t, monitor.most, rep.Peak, plan.Name)
			require.Empty(t, rep.Mismatches)
			want, err := plan.Simulate(costs)
			require.NoError(t, err)
			require.GreaterOrEqual(t, want.Peak, rep.Peak, "costs have the larger of the two forward steps")
			monitor.Put(dx)
		}
	}
	less := costs
	less.Stages = append([]Cost(nil), costs.Stages...)
	less.Stages[2].ForwardExtra--
	less.Stages[4].BackwardExtra = 0
	chain.Costs = &less
	_, rep, err := chain.Run(t.Context(), must(RecomputeAll(costs)), x, loss)
	require.NoError(t, err)
	require.ElementsMatch(t, []Mismatch{
		{ForwardTransient, 2, 4*3*(width+hidden) - 1, 4 * 3 * (width + hidden)}, {BackwardTransient, 4, 0, 4 * 3 * (2*width + hidden)},
	}, rep.Mismatches)
	require.Equal(t, "f", ForwardTransient.String())
	require.Equal(t, "b", BackwardTransient.String())
}
