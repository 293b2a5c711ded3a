package remat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// runMatchesSimulation runs a random plan on a random chain and compares the
// heap with the measured report, and that with the simulated one.
func runMatchesSimulation(t *rapid.T) {
	c := drawCosts(t, 9)
	p := drawPlan(t, c)
	want, err := p.Simulate(c)
	require.NoError(t, err)

	h := newHeap()
	x, reserved := fakeInput(h, c), new(byte)
	h.alloc(reserved, c.value(p.Stages))
	dx, got, err := fakeChain(h, c).Run(t.Context(), p, x, fakeLoss(h, c, reserved))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, map[any]int64{x: x.size, dx: dx.size}, h.live)
	require.True(t, dx.gradient)
	require.Zero(t, dx.index)

	require.Equal(t, h.peak, got.Peak)
	require.Empty(t, got.Mismatches)
	got.Time, got.Again, got.Waited = want.Time, want.Again, want.Waited // seconds are not to be compared
	require.Equal(t, want, got)
}

func TestRunMatchesSimulation(t *testing.T) { rapid.Check(t, runMatchesSimulation) }

func FuzzRunMatchesSimulation(f *testing.F) { f.Fuzz(rapid.MakeFuzz(runMatchesSimulation)) }

// mixed returns costs of 6 different stages.
func mixed() Costs {
	c := Costs{Input: 5}
	for i, out := range []int64{3, 7, 1, 6, 2, 4} {
		c.Stages = append(c.Stages, Cost{
			Output: out, Saved: out + int64(i%3)*4, ForwardExtra: int64(i % 2), BackwardExtra: int64(6 - i),
			ForwardTime: float64(i + 1), BackwardTime: float64(2*i + 1),
		})
	}
	return c
}

// TestFaults makes every single call of user code fail in every way.
func TestFaults(t *testing.T) {
	c := withTiers(mixed())
	walk := Plan{Name: "walk", Stages: 6, Ops: parsed(t, "F0 F1 F2 F3 F4 F5 -F5 S5 -F0 B5 S3 -S3 -F4 F3 S4 -F1 S0 F1 B4 -F2 F2 S3 B3 -F1 S1 S2 B2 B1 B0")}
	copies := Plan{Name: "copies", Stages: 6, Ops: parsed(t, "S0 D0 F1 -S0 H1 S2 P2 -F1 S3 H3 -S2 S4 L2 -S3 S5 B5 L3 B4 -C3 B3 L1 B2 L0 S1 B1 B0")}
	for _, p := range []Plan{must(KeepAll(c)), must(RecomputeAll(c)), must(Chen(c)), must(Revolve(c, 2)), walk, copies} {
		t.Run(p.Name, func(t *testing.T) {
			modes := map[string]func(cancel func()) error{
				"error":  func(func()) error { return kerneltest.ErrFault },
				"panic":  func(func()) error { panic(kerneltest.ErrFault) },
				"exit":   memtest.Exit,
				"cancel": func(cancel func()) error { cancel(); return context.Canceled },
			}
			for mode, fail := range modes {
				reached := 0
				for target := 0; reached == target; target++ {
					if faultAt(t, c, p, target, fail) {
						reached++
					}
				}
				require.Greater(t, reached, 6*len(c.Stages), mode)
			}
		})
	}
}

// faultAt fails at one call of user code. It reports whether there was such a
// call.
func faultAt(t *testing.T, c Costs, p Plan, target int, fail func(cancel func()) error) (reached bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := newHeap()
	x := fakeInput(h, c)
	h.Fail = func(i int) error {
		if i != target {
			return nil
		}
		reached = true
		return fail(cancel)
	}
	chain := fakeChain(h, c)
	chain.Hash = func(b *block) (uint64, error) { return uint64(b.size), h.Call() }
	chain.HashSaved = func(s *set) (uint64, error) { return uint64(s.size), h.Call() }
	var resaved []int
	for i, s := range chain.Stages {
		chain.Stages[i] = resaving{s.(fake), &resaved}
	}
	r, err := chain.NewRunner(p)
	require.NoError(t, err)
	var dx *block
	err = kerneltest.Recovered(func() error {
		var rep Report
		var err error
		dx, rep, err = r.Run(ctx, x, fakeLoss(h, c, nil))
		if err != nil {
			require.Zero(t, rep)
			require.Nil(t, dx)
		}
		return err
	})
	require.Empty(t, h.Problems)
	require.Zero(t, h.tiers, "copies are left, call %d", target)
	if err == nil {
		// Only a context that is cancelled within the last operation goes
		// unnoticed: Backward, Bytes, ReleaseSaved, and Stored and Release of a copy.
		last := 3
		if p.copies() {
			last = 5
		}
		require.GreaterOrEqual(t, target, h.Calls-last)
		require.Equal(t, map[any]int64{x: x.size, dx: dx.size}, h.live, "call %d", target)
		return reached
	}
	require.True(t, errors.Is(err, kerneltest.ErrFault) || errors.Is(err, context.Canceled), "%v", err)
	require.Equal(t, map[any]int64{x: x.size}, h.live, "call %d", target)

	// The same Runner works afterwards.
	h.Fail = nil
	dx, rep, err := r.Run(t.Context(), x, fakeLoss(h, c, nil))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, map[any]int64{x: x.size, dx: dx.size}, h.live)
	want, err := p.Simulate(c)
	require.NoError(t, err)
	rep.Time, rep.Again, rep.Waited = want.Time, want.Again, want.Waited
	require.Equal(t, want, rep)
	return reached
}

// TestReleasePanics: releases that panic one after the other stop none.
//
//check:in race
func TestReleasePanics(t *testing.T) {
	c := mixed()
	h := newHeap()
	x := fakeInput(h, c)
	failing := false
	h.Fail = func(i int) error {
		failing = failing || i == 20
		if failing {
			panic(fmt.Errorf("call %d: %w", i, kerneltest.ErrFault))
		}
		return nil
	}
	err := kerneltest.Recovered(func() error {
		_, _, err := fakeChain(h, c).Run(t.Context(), must(KeepAll(c)), x, fakeLoss(h, c, nil))
		return err
	})
	require.ErrorIs(t, err, kerneltest.ErrFault)
	require.Empty(t, h.Problems)
	require.Equal(t, map[any]int64{x: x.size}, h.live)
}

func TestErrorNamesOperation(t *testing.T) {
	c := mixed()
	for target, want := range map[int]string{
		1: "remat: operation 0 (S0): fault",
		// 1 for x, 3 for each of the 6 ForwardSave
		19: "remat: operation 5 (S5): loss: fault",
		21: "remat: operation 6 (B5): fault",
	} {
		h := newHeap()
		h.Fail = func(i int) error {
			if i == target {
				return kerneltest.ErrFault
			}
			return nil
		}
		_, _, err := fakeChain(h, c).Run(t.Context(), must(KeepAll(c)), fakeInput(h, c), fakeLoss(h, c, nil))
		require.EqualError(t, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := newHeap()
	_, _, err := fakeChain(h, c).Run(ctx, must(KeepAll(c)), fakeInput(h, c), fakeLoss(h, c, nil))
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "remat: operation 0 (S0): context canceled")
}

func TestLossCalledOnce(t *testing.T) {
	c := uniform(2)
	h := newHeap()
	calls := 0
	loss := fakeLoss(h, c, nil)
	p := Plan{Stages: 2, Ops: parsed(t, "F0 F1 -F1 S1 -S1 F1 S1 B1 -F0 S0 B0")}
	_, rep, err := fakeChain(h, c).Run(t.Context(), p, fakeInput(h, c), func(y *block) (*block, error) {
		calls++
		require.Nil(t, y.within, "the output of F1")
		return loss(y)
	})
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, 1, calls)
	require.Equal(t, 4, rep.Extra)
}

func TestMismatches(t *testing.T) {
	real := mixed()
	declared := mixed()
	declared.Input++
	declared.Stages[2].Output = 9
	declared.Stages[2].Saved = 100
	declared.Stages[5].Output = 3
	h := newHeap()
	chain := fakeChain(h, real)
	chain.Costs = &declared
	r, err := chain.NewRunner(must(RecomputeAll(real)))
	require.NoError(t, err)
	sim, err := must(RecomputeAll(real)).Simulate(real)
	require.NoError(t, err)
	for range 2 {
		_, rep, err := r.Run(t.Context(), fakeInput(h, real), fakeLoss(h, real, nil))
		require.NoError(t, err)
		require.Equal(t, sim.Peak, rep.Peak, "measured sizes count")
		require.ElementsMatch(t, []Mismatch{
			{Activation, 0, 6, 5}, {Activation, 3, 9, 1}, {SavedSet, 2, 100, 9}, {Activation, 6, 3, 4},
			{Gradient, 6, 3, 4}, {Gradient, 3, 9, 1}, {Gradient, 0, 6, 5},
		}, rep.Mismatches)
		require.Equal(t, "a0: 6 bytes declared, 5 measured", rep.Mismatches[0].String())
	}
	require.Equal(t, "s?", SavedSet.String()+ValueKind(9).String())

	chain.Costs = nil
	_, rep, err := chain.Run(t.Context(), must(KeepAll(real)), fakeInput(h, real), fakeLoss(h, real, nil))
	require.NoError(t, err)
	require.Empty(t, rep.Mismatches)
	for i := range real.Stages {
		real.Stages[i].ForwardExtra, real.Stages[i].BackwardExtra = 0, 0
	}
	sim, err = must(KeepAll(real)).Simulate(real)
	require.NoError(t, err)
	require.Equal(t, sim.Timeline, rep.Timeline, "no costs, no transient bytes")
}

func TestRunErrors(t *testing.T) {
	c := mixed()
	keep := must(KeepAll(c))
	bad := mixed()
	bad.Stages[0].Output = -1
	short := uniform(5)
	for name, tc := range map[string]struct {
		change func(*Chain[*block, *set])
		plan   Plan
		want   error
		text   string
	}{
		"no stages":     {func(c *Chain[*block, *set]) { c.Stages = nil }, keep, snug.ErrConfig, "at least one stage"},
		"nil stage":     {func(c *Chain[*block, *set]) { c.Stages[3] = nil }, keep, snug.ErrConfig, "stage 3 is nil"},
		"no Bytes":      {func(c *Chain[*block, *set]) { c.Bytes = nil }, keep, snug.ErrConfig, "Bytes and SavedBytes"},
		"no SavedBytes": {func(c *Chain[*block, *set]) { c.SavedBytes = nil }, keep, snug.ErrConfig, "Bytes and SavedBytes"},
		"bad costs":     {func(c *Chain[*block, *set]) { c.Costs = &bad }, keep, snug.ErrConfig, "stage 0"},
		"short costs":   {func(c *Chain[*block, *set]) { c.Costs = &short }, keep, snug.ErrShape, "chain of 6 stages, costs of 5"},
		"short plan":    {nil, must(KeepAll(short)), snug.ErrShape, "plan for 5 stages, chain of 6"},
		"invalid plan":  {nil, Plan{Stages: 6, Ops: keep.Ops[1:]}, snug.ErrConfig, "want at least one stage and two operations for each"},
		"dropped value": {nil, Plan{Stages: 6, Ops: append(parsed(t, "F0 -F0 F1"), keep.Ops...)}, snug.ErrConfig, "operation 2 (F1) of a chain of 6 stages: the stage's input is not held"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHeap()
			h.Fail = func(int) error { panic("user code called") }
			chain := fakeChain(h, c)
			if tc.change != nil {
				tc.change(chain)
			}
			_, rep, err := chain.Run(t.Context(), tc.plan, fakeInput(h, c), fakeLoss(h, c, nil))
			require.ErrorIs(t, err, tc.want, name)
			require.ErrorContains(t, err, tc.text, name)
			require.Zero(t, rep, name)
		})
	}

	h := newHeap()
	chain := fakeChain(h, c)
	_, _, err := chain.Run(t.Context(), keep, fakeInput(h, c), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	var none context.Context
	_, _, err = chain.Run(none, keep, fakeInput(h, c), fakeLoss(h, c, nil))
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = chain.Eval(none, fakeInput(h, c))
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = new(Chain[*block, *set]).Eval(t.Context(), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	chain.Stages[2] = nil
	_, err = chain.Eval(t.Context(), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
}

func TestRunnerBusy(t *testing.T) {
	c := mixed()
	h := newHeap()
	chain := fakeChain(h, c)
	r, err := chain.NewRunner(must(Chen(c)))
	require.NoError(t, err)
	loss := fakeLoss(h, c, nil)
	_, _, err = r.Run(t.Context(), fakeInput(h, c), func(y *block) (*block, error) {
		_, _, err := r.Run(t.Context(), y, loss)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "the Runner is running")
		return loss(y)
	})
	require.NoError(t, err)
	require.Empty(t, h.Problems)
}

// TestRunnerKeepsItsOwn: changing the chain and the plan does not reach it.
func TestRunnerKeepsItsOwn(t *testing.T) {
	c := mixed()
	h := newHeap()
	chain := fakeChain(h, c)
	p := must(KeepAll(c))
	want, err := p.Simulate(c)
	require.NoError(t, err)
	r, err := chain.NewRunner(p)
	require.NoError(t, err)
	clear(p.Ops)
	clear(chain.Stages)
	chain.Costs.Stages = nil
	_, rep, err := r.Run(t.Context(), fakeInput(h, c), fakeLoss(h, c, nil))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	rep.Time, rep.Again, rep.Waited = want.Time, want.Again, want.Waited
	require.Equal(t, want, rep)
}

//check:in race
func TestConcurrentRuns(t *testing.T) {
	c := mixed()
	h := newHeap()
	chain := fakeChain(h, c)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := must(Revolve(c, 1+i%4))
			want, _ := p.Simulate(c)
			x := fakeInput(h, c)
			dx, rep, err := chain.Run(t.Context(), p, x, fakeLoss(h, c, nil))
			h.Expect(err == nil && rep.Peak == want.Peak, "run %d: %v", i, err)
			h.free(dx)
			h.free(x)
		})
	}
	wg.Wait()
	require.Empty(t, h.Problems)
	require.Empty(t, h.live)
}

func TestEval(t *testing.T) {
	c := mixed()
	h := newHeap()
	x := fakeInput(h, c)
	chain := fakeChain(h, c)
	chain.Bytes, chain.SavedBytes = nil, nil
	y, err := chain.Eval(t.Context(), x)
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, map[any]int64{x: x.size, y: y.size}, h.live)
	peak := int64(0)
	for i, s := range c.Stages {
		held := c.value(i) + s.Output + s.ForwardExtra
		if i > 0 {
			held += c.Input // the caller's
		}
		peak = max(peak, held)
	}
	require.Equal(t, peak, h.peak)
}

func TestEvalFaults(t *testing.T) {
	c := mixed()
	for target := range 2*len(c.Stages) - 1 { // each Forward, and Release of all but x and y
		for _, mode := range []string{"error", "panic", "cancel"} {
			ctx, cancel := context.WithCancel(t.Context())
			h := newHeap()
			x := fakeInput(h, c)
			h.Fail = func(i int) error {
				switch {
				case i != target:
					return nil
				case mode == "panic":
					panic(kerneltest.ErrFault)
				case mode == "cancel":
					cancel()
					return nil
				}
				return kerneltest.ErrFault
			}
			var y *block
			err := kerneltest.Recovered(func() (err error) {
				y, err = fakeChain(h, c).Eval(ctx, x)
				return err
			})
			cancel()
			require.Empty(t, h.Problems)
			if err == nil { // cancelled within the last stage
				require.Equal(t, "cancel", mode)
				require.GreaterOrEqual(t, target, 2*len(c.Stages)-3)
				require.Equal(t, map[any]int64{x: x.size, y: y.size}, h.live)
				continue
			}
			require.Nil(t, y)
			require.Equal(t, map[any]int64{x: x.size}, h.live, "%s at call %d", mode, target)
		}
	}
}

// counter is a stage that allocates nothing.
type counter struct{}

func (counter) Forward(_ context.Context, x int) (int, error)          { return x + 1, nil }
func (counter) ForwardSave(_ context.Context, x int) (int, int, error) { return x + 1, x, nil }
func (counter) Backward(_ context.Context, _, _, dy int) (int, error)  { return dy - 1, nil }

func TestRunnerAllocatesNothing(t *testing.T) {
	c := uniform(20)
	chain := Chain[int, int]{
		Bytes:      func(int) int64 { return 1 },
		SavedBytes: func(int) int64 { return 1 },
		Costs:      &c,
	}
	for range c.Stages {
		chain.Stages = append(chain.Stages, counter{})
	}
	r, err := chain.NewRunner(must(Revolve(c, 3)))
	require.NoError(t, err)
	ctx := t.Context()
	loss := func(y int) (int, error) { return y, nil }
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if dx, _, err := r.Run(ctx, 7, loss); err != nil || dx != 7 {
			panic("wrong")
		}
	}))
}
