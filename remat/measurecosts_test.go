package remat

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// paced is a stage that takes its time on a clock of its own, by the number of the
// pass.
type paced struct {
	Stage[*block, *set]
	clock *pacedClock
	i     int
}

type pacedClock struct {
	now  time.Time
	pass int
}

// take passes base units, in the first pass many more.
func (c *pacedClock) take(base int) {
	factor := []int{100, 1, 9, 3}[c.pass]
	c.now = c.now.Add(time.Duration(base*factor) * time.Millisecond)
}

func (p paced) Forward(ctx context.Context, x *block) (*block, error) {
	p.clock.take(p.i + 1)
	return p.Stage.Forward(ctx, x)
}

func (p paced) ForwardSave(ctx context.Context, x *block) (*block, *set, error) {
	p.clock.take(3 * (p.i + 1))
	return p.Stage.ForwardSave(ctx, x)
}

func (p paced) Backward(ctx context.Context, x *block, s *set, dy *block) (*block, error) {
	p.clock.take(10 * (p.i + 1))
	if p.i == 0 {
		defer func() { p.clock.pass++ }()
	}
	return p.Stage.Backward(ctx, x, s, dy)
}

func TestMeasureCostsTimes(t *testing.T) {
	c := mixed()
	h := newHeap()
	x := fakeInput(h, c)
	chain := fakeChain(h, c)
	clock := &pacedClock{}
	for i, s := range chain.Stages {
		chain.Stages[i] = paced{s, clock, i}
	}
	got, err := chain.measureCosts(t.Context(), x, fakeLoss(h, c, nil), 3, func() time.Time { return clock.now })
	require.NoError(t, err)
	require.Equal(t, 4, clock.pass)
	for i, s := range got.Stages {
		forward := 0.006 // the mean of 3 ms and 3 · 3 ms
		if i == len(got.Stages)-1 {
			forward = 0.009
		}
		require.InDelta(t, forward*float64(i+1), s.ForwardTime, 1e-9, "stage %d", i)
		require.InDelta(t, 0.03*float64(i+1), s.BackwardTime, 1e-9, "stage %d", i)
	}
}

// withoutTimes returns c with times of 0.
func withoutTimes(c Costs) Costs {
	c.Stages = append([]Cost(nil), c.Stages...)
	for i := range c.Stages {
		c.Stages[i].ForwardTime, c.Stages[i].BackwardTime = 0, 0
	}
	return c
}

// measuredAreDeclared measures a random chain of fake stages, and what it takes.
func measuredAreDeclared(t *rapid.T) {
	c := withoutTimes(drawCosts(t, 12))
	n := len(c.Stages)
	c.Stages[n/2].Name = "declared"
	h := newHeap()
	x := fakeInput(h, c)
	got, err := fakeChain(h, c).MeasureCosts(t.Context(), x, fakeLoss(h, c, nil), 1)
	require.NoError(t, err)
	require.NoError(t, got.Validate())
	require.Equal(t, c, withoutTimes(got))
	require.Empty(t, h.Problems)
	require.Equal(t, map[any]int64{x: x.size}, h.live)

	slots := twoSweeps(n)
	require.LessOrEqual(t, slots*slots, 2*n)
	rep, err := must(Revolve(c, slots)).Simulate(c)
	require.NoError(t, err)
	require.LessOrEqual(t, h.peak, rep.Peak)
	require.LessOrEqual(t, rep.Extra, 2*n)

	// What cannot be measured is 0 in a chain that does not declare it.
	chain := fakeChain(h, c)
	chain.Costs = nil
	got, err = chain.MeasureCosts(t.Context(), x, fakeLoss(h, c, nil), 2)
	require.NoError(t, err)
	c.Host, c.Disk = Rates{}, Rates{}
	for i, s := range c.Stages {
		c.Stages[i] = Cost{Output: s.Output, Saved: s.Saved}
	}
	require.Equal(t, c, withoutTimes(got))
	require.Nil(t, chain.Costs)
}

func TestMeasureCosts(t *testing.T) { rapid.Check(t, measuredAreDeclared) }

func FuzzMeasureCosts(f *testing.F) { f.Fuzz(rapid.MakeFuzz(measuredAreDeclared)) }

// named is a stage with a name.
type named struct{ Stage[*block, *set] }

func (named) String() string { return "a name" }

func TestMeasureCostsNames(t *testing.T) {
	c := uniform(2)
	c.Stages[0].Name, c.Stages[1].Name = "declared", "declared, too"
	h := newHeap()
	chain := fakeChain(h, c)
	x := fakeInput(h, c)
	chain.Stages[1] = named{chain.Stages[1]}
	got, err := chain.MeasureCosts(t.Context(), x, fakeLoss(h, c, nil), 1)
	require.NoError(t, err)
	require.Equal(t, "declared", got.Stages[0].Name)
	require.Equal(t, "a name", got.Stages[1].Name)

	chain.Costs = nil
	inner, err := Repeat(1, chain.Stages[1])
	require.NoError(t, err)
	outer, err := Repeat(1, inner...)
	require.NoError(t, err)
	chain.Stages = append(chain.Stages[:1], outer...)
	got, err = chain.MeasureCosts(t.Context(), x, fakeLoss(h, c, nil), 1)
	require.NoError(t, err)
	require.Empty(t, got.Stages[0].Name)
	require.Equal(t, "a name", got.Stages[1].Name)
}

// TestMeasureCostsFaults makes every single call of user code fail in every way.
func TestMeasureCostsFaults(t *testing.T) {
	c := mixed()
	for mode, fail := range map[string]func(cancel func()) error{
		"error":  func(func()) error { return kerneltest.ErrFault },
		"panic":  func(func()) error { panic(kerneltest.ErrFault) },
		"exit":   memtest.Exit,
		"cancel": func(cancel func()) error { cancel(); return context.Canceled },
	} {
		t.Run(mode, func(t *testing.T) {
			reached := true
			for target := 0; reached; target++ {
				reached = false
				ctx, cancel := context.WithCancel(t.Context())
				h := newHeap()
				x := fakeInput(h, c)
				h.Fail = func(i int) error {
					if i != target {
						return nil
					}
					reached = true
					return fail(cancel)
				}
				var got Costs
				err := kerneltest.Recovered(func() (err error) {
					got, err = fakeChain(h, c).MeasureCosts(ctx, x, fakeLoss(h, c, nil), 2)
					return err
				})
				require.Empty(t, h.Problems)
				require.Equal(t, map[any]int64{x: x.size}, h.live, "%s at call %d", mode, target)
				switch {
				case err != nil:
					require.Zero(t, got)
					require.True(t, errors.Is(err, kerneltest.ErrFault) || errors.Is(err, context.Canceled), "%v", err)
				case reached: // cancelled in what follows the last operation's check
					require.GreaterOrEqual(t, target, h.Calls-4)
				default:
					require.Equal(t, withoutTimes(c), withoutTimes(got))
					require.Greater(t, target, 3*6*len(c.Stages))
				}
				cancel()
			}
		})
	}
}

// TestMeasureCostsSizes has values that change in size in the second of three
// passes, or gradients of another size than activations.
func TestMeasureCostsSizes(t *testing.T) {
	for _, tc := range []struct {
		what  func(b *block, s *set) bool
		delta int64
		pass  int // 0: all
		text  string
	}{
		{func(b *block, s *set) bool { return b != nil && !b.gradient && b.index == 0 }, 1, 1, "a0 has 6 bytes, and in a run before 5"},
		{func(b *block, s *set) bool { return b != nil && !b.gradient && b.index == 6 }, -1, 1, "a6 has 3 bytes, and in a run before 4"},
		{func(b *block, s *set) bool { return s != nil && s.stage == 3 }, 2, 1, "s3 has 8 bytes, and in a run before 6"},
		{func(b *block, s *set) bool { return b != nil && b.gradient && b.index == 2 }, 1, 1, "gradient d2 has 8 bytes, its activation 7"},
		{func(b *block, s *set) bool { return b != nil && b.gradient && b.index == 6 }, 1, 0, "gradient d6 has 5 bytes, its activation 4"},
		{func(b *block, s *set) bool { return b != nil && b.gradient && b.index == 0 }, -5, 0, ""},
	} {
		c := mixed()
		h := newHeap()
		x := fakeInput(h, c)
		chain := fakeChain(h, c)
		pass := -1
		loss := fakeLoss(h, c, nil)
		change := func(b *block, s *set) int64 {
			if b == x {
				pass++
			}
			if tc.what(b, s) && (tc.pass == 0 || tc.pass == pass) {
				return tc.delta
			}
			return 0
		}
		chain.Bytes = func(b *block) int64 { return b.size + change(b, nil) }
		chain.SavedBytes = func(s *set) int64 { return s.size + change(nil, s) }
		got, err := chain.MeasureCosts(t.Context(), x, loss, 2)
		require.Empty(t, h.Problems)
		require.Equal(t, map[any]int64{x: x.size}, h.live)
		if tc.text == "" {
			require.NoError(t, err)
			require.Equal(t, withoutTimes(c), withoutTimes(got))
			continue
		}
		require.ErrorIs(t, err, snug.ErrShape)
		require.ErrorContains(t, err, "remat: "+tc.text)
		require.Zero(t, got)
	}
}

func TestMeasureCostsErrors(t *testing.T) {
	c := mixed()
	h := newHeap()
	x := fakeInput(h, c)
	loss := fakeLoss(h, c, nil)
	for _, tc := range []struct {
		change func(chain *Chain[*block, *set])
		runs   int
		want   error
		text   string
	}{
		{func(*Chain[*block, *set]) {}, 0, snug.ErrConfig, "0 runs to measure"},
		{func(*Chain[*block, *set]) {}, math.MinInt, snug.ErrConfig, "runs to measure"},
		{func(ch *Chain[*block, *set]) { ch.Stages = nil }, 1, snug.ErrConfig, "at least one stage"},
		{func(ch *Chain[*block, *set]) { ch.Stages[2] = nil }, 1, snug.ErrConfig, "stage 2 is nil"},
		{func(ch *Chain[*block, *set]) { ch.Bytes = nil }, 1, snug.ErrConfig, "Bytes and SavedBytes"},
		{func(ch *Chain[*block, *set]) { ch.Costs = &Costs{} }, 1, snug.ErrConfig, "costs: want at least one stage"},
		{func(ch *Chain[*block, *set]) { u := uniform(3); ch.Costs = &u }, 1, snug.ErrShape, "chain of 6 stages, costs of 3"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			chain := fakeChain(h, c)
			tc.change(chain)
			got, err := chain.MeasureCosts(t.Context(), x, loss, tc.runs)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, "remat: ")
			require.ErrorContains(t, err, tc.text)
			require.Zero(t, got)
		})
	}
	chain := fakeChain(h, c)
	var none context.Context
	_, err := chain.MeasureCosts(none, x, loss, 1)
	require.ErrorIs(t, err, errNilContext)
	_, err = chain.MeasureCosts(t.Context(), x, nil, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, map[any]int64{x: x.size}, h.live, "nothing has run")

	// Sizes that are not those of a chain.
	chain.SavedBytes = func(*set) int64 { return 0 }
	_, err = chain.MeasureCosts(t.Context(), x, loss, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "saves 0 bytes: want at least its output")
	require.Equal(t, map[any]int64{x: x.size}, h.live)
}

func TestTwoSweeps(t *testing.T) {
	for n := 1; n < 500; n++ {
		s := twoSweeps(n)
		require.GreaterOrEqual(t, binomial(int64(s+2), 2), int64(n))
		require.True(t, s == 1 || binomial(int64(s+1), 2) < int64(n))
	}
}
