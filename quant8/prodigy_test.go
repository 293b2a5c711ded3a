package quant8

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// prodigyPull is the gradient of the golden runs.
func prodigyPull(p, target []float32) []float32 {
	g := make([]float32, len(p))
	for i := range g {
		g[i] = (p[i] - target[i]) * 0.5
	}
	return g
}

// TestProdigyGolden makes the runs of the authors' package, in memory and in chunks of a Storage. The estimate after each
// step and the parameters are within 2e-5 of theirs, where d begins at 1e-3. They are within 1e-4 in a run that begins
// with rates of 0, and in one that begins with gradients of 0 and where steps lack a parameter: the first steps are
// shorter. Where d begins at 1e-4 and 1e-6 they are within 2e-3 and 5e-2: the first steps are then about as small as the
// rounding of parameters, by which p0 - p differs, and the estimate grows by factors. The authors' own runs in float64
// are 8e-5, 6e-5, 1e-3 and 5e-2 away from those in float32.
//
//check:in tiers arm64 arm64-go
func TestProdigyGolden(t *testing.T) {
	var runs map[string]struct {
		Start, Target []float32
		D             []float64
		After         [][]float32 // steps 1, 10, 30 and 60
	}
	data, err := os.ReadFile("testdata/authors/prodigy.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &runs))
	rules := map[string]Prodigy{
		"plain":   {},
		"decay":   {WeightDecay: 0.1, D0: 1e-4},
		"other":   {WeightDecay: 0.1, D0: 1e-3, DCoef: 2, GrowthRate: 1.1, Beta3: 0.99, SafeguardWarmup: true, BiasCorrection: true, SliceP: 5},
		"warm-up": {WeightDecay: 0.1, D0: 1e-3, BiasCorrection: true},
		"pauses":  {WeightDecay: 0.1, D0: 1e-3, BiasCorrection: true},
	}
	rates := map[string][]float32{"warm-up": {0, 0, 0.5, 1, 0}, "pauses": {1, 1, 1, 1, 0}} // of the first steps
	require.Len(t, runs, len(rules))
	for name, run := range runs {
		bound := map[string]float64{"plain": 5e-2, "decay": 2e-3, "other": 2e-5, "warm-up": 1e-4, "pauses": 1e-4}[name]
		for _, o := range []Options{{}, {Block: 32, Chunk: 32, Storage: newFakeStorage()}} {
			a := newWith(t, rules[name], o, map[string]int{"w": 16, "b": 8})
			p := slices.Clone(run.Start)
			w, b := p[:16], p[16:]
			for i, d := range run.D {
				rate, scale := float32(1), float32(1)
				if i < len(rates[name]) {
					rate = rates[name][i]
				} else if name == "other" {
					rate = 0.5
				}
				if name == "pauses" && i < 3 {
					scale = 0
				}
				a.Advance(rate)
				step(t, a, "w", w, prodigyPull(w, run.Target[:16]), scale)
				if name != "pauses" || !slices.Contains([]int{3, 8, 9}, i) {
					step(t, a, "b", b, prodigyPull(b, run.Target[16:]), scale)
				}
				if at := slices.Index([]int{1, 10, 30, 60}, i+1); at >= 0 {
					for k, x := range run.After[at] {
						require.InDelta(t, x, p[k], bound*math.Max(1, math.Abs(float64(x))), "%s: step %d, element %d", name, i+1, k)
					}
				}
				m := a.o.method.(*estimating)
				sums := m.sums(a)
				require.InEpsilon(t, d, m.next(m.grow, sums[0], sums[1]).D, bound, "%s: d after step %d", name, i+1)
			}
		}
	}
}

// TestProdigy: the order of parameters and of ranges, the number of workers, a Storage and an interruption change no bit,
// with states of every width; and the bytes are those that the comment states.
func TestProdigy(t *testing.T) {
	const n, steps = 9000, 5
	target := kerneltest.Normal(2, n)
	for _, bits := range widths {
		for _, every := range []int{1, 11} {
			run := func(o Options, ranges bool, stop int) (*Optimizer, []float32) {
				o.Bits, o.MinSize, o.Chunk, o.NonFinite = bits, 1, 2048, SkipElement
				params := map[string]int{"w": n, "v": 100}
				a, p, v := newWith(t, Prodigy{SliceP: every, D0: 1e-3}, o, params), kerneltest.Normal(1, n), kerneltest.Normal(3, 100)
				for i := range steps {
					if i == stop {
						saved, err := a.AppendBinary(nil)
						require.NoError(t, err)
						a = newWith(t, Prodigy{SliceP: every, D0: 1e-3}, o, params)
						require.NoError(t, a.UnmarshalBinary(saved))
					}
					a.Advance(1)
					g := prodigyPull(p, target)
					g[77] = float32(math.NaN())
					if !ranges {
						step(t, a, "w", p, g, 1)
					}
					step(t, a, "v", v, prodigyPull(v, target[:100]), 1)
					for lo := 8192; ranges && lo >= 0; lo -= 2048 {
						hi := min(lo+2048, n)
						require.NoError(t, a.StepRange("w", lo, snug.ViewOf(p[lo:hi]), snug.ViewOf(g[lo:hi]), 1))
					}
				}
				return a, append(p, v...)
			}
			a, want := run(Options{}, false, -1)
			require.Greater(t, a.o.method.(*estimating).D, 1e-3)
			require.EqualValues(t, 8*((n+every-1)/every+(100+every-1)/every)+int(StateBytes(AdamW{}, Options{Bits: bits, MinSize: 1}, n)+
				StateBytes(AdamW{}, Options{Bits: bits, MinSize: 1}, 100)), a.StateBytes())
			require.Equal(t, a.StateBytes(), StateBytes(Prodigy{SliceP: every}, Options{Bits: bits, MinSize: 1}, n)+StateBytes(Prodigy{SliceP: every}, Options{Bits: bits, MinSize: 1}, 100))
			start := kerneltest.Normal(1, n)
			require.Equal(t, start[77], want[77], "skipped")
			for _, c := range []struct {
				o      Options
				ranges bool
				stop   int
			}{{Options{}, true, -1}, {Options{Storage: newFakeStorage()}, true, -1}, {Options{}, false, 2}, {Options{}, false, 0}} {
				b, got := run(c.o, c.ranges, c.stop)
				require.True(t, equal(want, got), "%d bits, every %d: %+v", bits, every, c)
				require.Equal(t, a.o.method.numbers(a), b.o.method.numbers(b))
				require.Equal(t, stateOf(t, a), stateOf(t, b))
			}
			procs := runtime.GOMAXPROCS(1)
			_, got := run(Options{}, false, -1)
			runtime.GOMAXPROCS(procs)
			require.True(t, equal(want, got))
		}
	}
}

// TestProdigyErrors has what is refused, and steps that allocate nothing.
func TestProdigyErrors(t *testing.T) {
	for what, err := range map[string]error{
		"GrowthRate is 0.5": errorOf(New(Prodigy{GrowthRate: 0.5}, Options{})),
		"SliceP is -1":      errorOf(New(Prodigy{SliceP: -1}, Options{})),
		"D0":                errorOf(New(Prodigy{D0: -1}, Options{})),
		"DCoef":             errorOf(New(Prodigy{DCoef: -1}, Options{})),
		"Beta3":             errorOf(New(Prodigy{Beta3: 1}, Options{})),
		"MaxUpdate is 1":    errorOf(New(Prodigy{}, Options{MaxUpdate: 1})),
		"want all":          newWith(t, Prodigy{}, Options{}, nil).AddShard("w", 1000, 0, 256),
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, err, snug.ErrConfig, what)
			require.ErrorContains(t, err, what)
		})
	}
	require.False(t, TraitsOf(Prodigy{}).Folds)
	a := newWith(t, Prodigy{}, Options{Chunk: 4096}, map[string]int{"w": 5000, "v": 5000})
	p, g := kerneltest.Normal(1, 5000), kerneltest.Normal(2, 5000)
	a.Advance(1)
	step(t, a, "w", p, g, 1)
	require.NoError(t, a.StepRange("v", 0, snug.ViewOf(p[:4096]), snug.ViewOf(g[:4096]), 1))
	_, err := a.AppendBinary(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `a part of parameter "v" is updated`)
	require.NoError(t, a.StepRange("v", 4096, snug.ViewOf(p[4096:]), snug.ViewOf(g[4096:]), 1))
	saved, err := a.AppendBinary(nil)
	require.NoError(t, err)
	require.ErrorIs(t, newWith(t, Prodigy{SliceP: 2}, Options{Chunk: 4096}, map[string]int{"w": 5000, "v": 5000}).UnmarshalBinary(saved), snug.ErrConfig)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		a.Advance(1)
		step(t, a, "w", p, g, 1)
		step(t, a, "v", p, g, 1)
	}))
}

// TestProdigyIdle: a step at the rate 0 changes nothing. One before the first gradient changes only the moments of
// elements that do not count in the sums, and so does the first step with a gradient in chunks that lack one.
func TestProdigyIdle(t *testing.T) {
	rule := Prodigy{D0: 0x1p-10, WeightDecay: 0.5, BiasCorrection: true, SliceP: 2}
	p, g := kerneltest.Normal(1, 1000), kerneltest.Normal(2, 1000)
	odd, part := slices.Clone(g), slices.Clone(g)
	for i := range g {
		if i%2 == 0 {
			odd[i] = 0
		}
		if i/256 == 2 && i%2 == 0 {
			part[i] = 0
		}
	}
	run := func(o Options, ranges bool) (*Optimizer, []float32) {
		o.Chunk, o.MinSize = 256, 1
		a, q := newWith(t, rule, o, map[string]int{"w": 1000}), slices.Clone(p)
		for i, g := range [][]float32{odd, odd, part, part} {
			a.Advance(1)
			require.Equal(t, max(0, i-2), a.o.method.(*estimating).Steps)
			if ranges {
				for _, lo := range []int{768, 0, 512, 256} {
					hi := min(lo+256, 1000)
					require.NoError(t, a.StepRange("w", lo, snug.ViewOf(q[lo:hi]), snug.ViewOf(g[lo:hi]), 1))
				}
			} else {
				step(t, a, "w", q, g, 1)
			}
			require.Equal(t, i < 2, equal(p, q))
			require.Equal(t, i < 3, equal(p[512:768], q[512:768]))
		}
		return a, q
	}
	a, q := run(Options{}, false)
	require.NotZero(t, floats(a.params["w"].state.Host()[a.params["w"].factors:], 2)[0], "absmax of m")
	for _, ranges := range []bool{false, true} {
		b, same := run(Options{Storage: newFakeStorage()}, ranges)
		require.Equal(t, q, same)
		require.Equal(t, stateOf(t, a), stateOf(t, b))
	}
	p = q
	for range 4 {
		a.Advance(1)
		step(t, a, "w", p, g, 1)
	}
	a.Advance(0)
	require.Equal(t, 6, a.o.method.(*estimating).Steps)
	state, numbers, before := stateOf(t, a), a.o.method.numbers(a), slices.Clone(p)
	step(t, a, "w", p, g, 1)
	require.Equal(t, before, p)
	require.Equal(t, state, stateOf(t, a))
	require.Equal(t, numbers, a.o.method.numbers(a))
	a.Advance(1)
	require.Equal(t, numbers, a.o.method.numbers(a))
}

// TestProdigySaves: a run that is restored after Advance, or after a step of some of the parameters, goes on bit for bit.
func TestProdigySaves(t *testing.T) {
	params := map[string]int{"v": 700, "w": 1000, "x": 300, "empty": 0}
	names := []string{"v", "w", "x"}
	run := func(stop, at int) (*Optimizer, map[string][]float32) {
		o := Options{Chunk: 256, MinSize: 1}
		a, p := newWith(t, Prodigy{D0: 1e-3}, o, params), map[string][]float32{}
		for i, name := range names {
			p[name] = kerneltest.Normal(uint64(i), params[name])
		}
		for i := range 6 {
			a.Advance(1)
			for k, name := range names {
				if i == stop && k == at {
					saved, err := a.AppendBinary(nil)
					require.NoError(t, err)
					a = newWith(t, Prodigy{D0: 1e-3}, o, params)
					if i%2 == 0 {
						require.NoError(t, a.UnmarshalBinary(saved))
					} else {
						require.NoError(t, a.ReadShards(bytes.NewReader(saved)))
					}
				}
				if k == 0 || i%3 != 2 { // only the first parameter has a gradient in every step
					step(t, a, name, p[name], prodigyPull(p[name], kerneltest.Normal(9, params[name])), 1)
				}
			}
		}
		return a, p
	}
	a, want := run(-1, 0)
	require.Greater(t, a.o.method.(*estimating).D, 1e-3)
	for _, c := range []struct{ stop, at int }{{0, 0}, {3, 0}, {4, 0}, {2, 1}, {2, 2}, {5, 1}} {
		b, got := run(c.stop, c.at)
		require.Equal(t, want, got, "%+v", c)
		require.Equal(t, a.o.method.numbers(a), b.o.method.numbers(b))
		require.Equal(t, stateOf(t, a), stateOf(t, b))
	}
}

// TestProdigyOverflow: what overflows is an error of the step, which tells the numbers apart.
func TestProdigyOverflow(t *testing.T) {
	build := func(r Prodigy, o Options) *Optimizer {
		a := newWith(t, r, o, map[string]int{"w": 300})
		a.Advance(1)
		return a
	}
	p, g, large := kerneltest.Normal(1, 300), kerneltest.Normal(2, 300), kerneltest.Normal(2, 300)
	large[7] = 0x1p62
	before := slices.Clone(p)
	try := func(a *Optimizer, g []float32, scale float32, what string) {
		err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), scale)
		require.ErrorIs(t, err, snug.ErrNonFinite)
		require.ErrorContains(t, err, what)
		kerneltest.Error(t, "quant8.Prodigy", err)
		require.Equal(t, before, p)
	}
	a := build(Prodigy{D0: 4}, Options{})
	try(a, large, 1, "gradient 7 times 1 times 4 is")
	step(t, a, "w", slices.Clone(p), g, 1)

	a = build(Prodigy{}, Options{})
	a.o.method.(*estimating).D = 0x1p128
	try(a, g, 1, "the estimate d is 3.4")
	_, err := a.AppendBinary(nil)
	require.NoError(t, err)
	a.o.method.(*estimating).D = math.Inf(1)
	_, err = a.AppendBinary(nil)
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "the estimate d is +Inf")

	a = build(Prodigy{D0: 0x1p-126}, Options{})
	a.o.method.(*estimating).D = 0x1p60
	try(a, g, 1, "the rate is")

	a = build(Prodigy{}, Options{}) // Σ|s| overflows
	a.o.method.(*estimating).D = 0x1p50
	try(a, slices.Repeat([]float32{0x1p10}, 300), 1, "to the sum of |s|")
	_, err = a.AppendBinary(nil)
	require.ErrorContains(t, err, "half-way")

	a = build(Prodigy{}, Options{}) // p has diverged
	q := slices.Clone(p)
	step(t, a, "w", q, g, 1)
	q[3] = float32(math.Inf(1))
	a.Advance(1)
	step(t, a, "w", q, g, 1)
	a.Advance(1)
	try(a, g, 1, "to N and")

	for _, c := range []struct{ d0, x float32 }{{4, 0x1p62}, {0x1p-10, 0x1p64}} { // the update and s skip the same elements
		a = build(Prodigy{D0: c.d0}, Options{NonFinite: SkipElement})
		g := slices.Clone(g)
		g[5], g[7] = float32(math.NaN()), c.x
		q := slices.Clone(p)
		step(t, a, "w", q, g, 1)
		kept := floats(a.params["w"].state.Host(), 600)
		require.Zero(t, kept[5])
		require.Equal(t, p[5], q[5])
		require.Equal(t, c.d0 < 1, kept[7] != 0)
		require.Equal(t, c.d0 < 1, p[7] != q[7])
		require.Equal(t, map[bool]int{true: 1, false: 2}[c.d0 < 1], a.Skipped()[0].Count)
	}
}
