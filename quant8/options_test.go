package quant8

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

var inf, nan = float32(math.Inf(1)), float32(math.NaN())

// TestSkipElement: elements whose gradient is not finite keep their value and have
// states of 0, or what stands for that in 4 bits. Other blocks do not notice.
func TestSkipElement(t *testing.T) {
	const n, block = 1100, 256
	bad := map[int]float32{300: nan, 301: -inf, n - 1: 1e19}
	for name := range rules {
		for _, bits := range widths {
			s := Options{Bits: bits, Block: block, MinSize: 1, Chunk: 512}
			clean := newOf(t, name, s, map[string]int{"w": n})
			s.NonFinite = SkipElement
			a := newOf(t, name, s, map[string]int{"w": n})
			p := kerneltest.Normal(1, n)
			want := slices.Clone(p)
			for i := range 2 {
				advance(clean)
				advance(a)
				step(t, clean, "w", want, gradient(n, uint64(i)), 2)
				step(t, a, "w", p, gradient(n, uint64(i)), 2)
				require.Empty(t, a.Skipped())
			}
			require.Equal(t, want, p, name)
			before, g := slices.Clone(p), gradient(n, 2)
			advance(clean)
			step(t, clean, "w", want, g, 2)
			for i, x := range bad {
				g[i] = x
			}
			advance(a)
			step(t, a, "w", p, g, 2)
			skipped := a.Skipped()
			require.Len(t, skipped, 1)
			require.True(t, skipped[0].Value != skipped[0].Value)
			skipped[0].Value = 0
			require.Equal(t, []snug.NonFinite{{Name: "w", Count: 3, Index: 300, Micro: -1}}, skipped)

			states, wanted := statesOf(t, a, "w"), statesOf(t, clean, "w")
			for i := range p {
				_, skip := bad[i]
				switch {
				case skip:
					require.Equal(t, before[i], p[i], "%s, %d bits, element %d", name, bits, i)
					for k, state := range states {
						least := float32(0)
						if !a.params["w"].signs(a.o.hyper.Rule)[k] {
							least = slices.Max(state[i/block*block : min(n, (i/block+1)*block)])
							least *= map[int]float32{4: 1.0 / 16, 8: counted(unsignedMap)[0]}[bits]
						}
						require.Equal(t, least, state[i]+0)
					}
				case a.o.hyper.Norms(): // which are those of the others
					require.InDelta(t, want[i], p[i], 1e-3)
				case bits >= 16 || i < block || i >= 2*block && i < 4*block: // no element of the block is skipped
					require.Equal(t, want[i], p[i], "%s, %d bits, element %d", name, bits, i)
					for k := range states {
						require.Equal(t, wanted[k][i], states[k][i])
					}
				default:
					require.Equal(t, want[i], p[i], "the update comes before the states are encoded")
				}
			}
			advance(a)
			require.Empty(t, a.Skipped())
		}
	}
}

// TestSkipStep: the parameter, its state and other parameters' steps are not touched, on
// any device.
func TestSkipStep(t *testing.T) {
	const n = 600
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		a := newAdamW(t, Options{MinSize: 1, NonFinite: SkipStep}, map[string]int{"b": n, "a": n})
		p, g := kerneltest.PutFloats(t, backend, snug.F32, kerneltest.Normal(1, n)), gradient(n, 1)
		advance(a)
		require.NoError(t, a.Step("b", p.View, kerneltest.PutFloats(t, backend, snug.F32, g).View, 1))
		before := p.Get()
		m, v := moments(t, a, "b")
		g[17], g[500] = inf, -inf
		advance(a)
		require.NoError(t, a.Step("b", p.View, kerneltest.PutFloats(t, backend, snug.F32, g).View, 1))
		require.NoError(t, a.Step("a", p.View, kerneltest.PutFloats(t, backend, snug.BF16, g).View, 1))
		require.Equal(t, before, p.Get())
		m1, v1 := moments(t, a, "b")
		require.Equal(t, m, m1)
		require.Equal(t, v, v1)
		require.Equal(t, []snug.NonFinite{{Name: "a", Count: 2, Index: 17, Value: inf, Micro: -1}, {Name: "b", Count: 2, Index: 17, Value: inf, Micro: -1}}, a.Skipped())
		g[17], g[500] = 0, 0
		require.ErrorContains(t, a.Step("a", p.View, p.View, 1), "already has an update", "a step that is skipped is one")
		advance(a)
		require.NoError(t, a.Step("a", p.View, kerneltest.PutFloats(t, backend, snug.F32, g).View, 1))
		require.NotEqual(t, before, p.Get())
	})
}

// TestParams: a parameter's own rate and decay are those of an optimizer of its own.
func TestParams(t *testing.T) {
	const n = 300
	for name := range rules {
		make := func(s Options) *Optimizer {
			s.MinSize = 1
			return newOf(t, name, s, map[string]int{"w": n})
		}
		asked := func(p ParamOptions) *Optimizer {
			return make(Options{Params: func(name string) ParamOptions {
				require.Equal(t, "w", name)
				return p
			}})
		}
		after := func(a *Optimizer, lr float32) []float32 {
			p := kerneltest.Normal(1, n)
			for i := range 3 {
				a.Advance(lr)
				step(t, a, "w", p, gradient(n, uint64(i)), 1)
			}
			return p
		}
		usual := after(make(Options{}), 0.25)
		require.Equal(t, usual, after(asked(ParamOptions{}), 0.25), name)
		require.Equal(t, usual, after(asked(ParamOptions{LR: 0.5}), 0.5), name)
		require.NotEqual(t, usual, after(asked(ParamOptions{LR: 0.5}), 0.25), name)
		own := make(Options{})
		decay := float32(own.o.hyper.WeightDecay)
		require.Equal(t, usual, after(asked(ParamOptions{WeightDecay: decay}), 0.25), name)
		if decay > 0 {
			require.NotEqual(t, usual, after(asked(ParamOptions{WeightDecay: 2 * decay}), 0.25), name)
			none := make(Options{})
			none.params["w"].options.WeightDecay = 0
			require.Equal(t, after(none, 0.25), after(asked(ParamOptions{NoDecay: true}), 0.25), name)
		}
	}
}

// TestMaxUpdate: a step is as long as it may be, and shorter ones are as without.
func TestMaxUpdate(t *testing.T) {
	const n, share = 3000, 0.125
	for name, build := range rules {
		free := newOf(t, name, Options{MinSize: 1, Block: 64, Chunk: 128}, map[string]int{"w": n})
		free.params["w"].options.WeightDecay = 0
		if free.o.hyper.Rule.Trust() || free.o.Averages {
			_, err := build(Options{MaxUpdate: share})
			require.ErrorIs(t, err, snug.ErrConfig, name)
			continue
		}
		limited := newOf(t, name, Options{MinSize: 1, Block: 64, Chunk: 128, MaxUpdate: share}, map[string]int{"w": n})
		limited.params["w"].options.WeightDecay = 0
		for i := range 3 {
			before, g := kerneltest.Normal(1, n), gradient(n, uint64(i))
			for k := range g {
				g[k] *= 100
			}
			start := make([]float64, n)
			for k, x := range before {
				start[k] = float64(x)
			}
			length := func(a *Optimizer) float64 {
				p := slices.Clone(before)
				a.Advance(1e-3)
				step(t, a, "w", p, g, 1)
				change := make([]float64, n)
				for k := range p {
					change[k] = float64(p[k]) - start[k]
				}
				return norm(change)
			}
			long, short, most := length(free), length(limited), 1e-3*share*norm(start)
			require.Greater(t, long, most, name)
			require.InEpsilon(t, most, short, 1e-3, name)
		}
		var after [2][]float32
		for i, most := range []float32{0, 1e9} {
			a := newOf(t, name, Options{MinSize: 1, MaxUpdate: most}, map[string]int{"w": n})
			after[i] = kerneltest.Normal(1, n)
			advance(a)
			step(t, a, "w", after[i], kerneltest.Normal(2, n), 1)
		}
		require.True(t, equal(after[0], after[1]), name)
		p := kerneltest.Normal(1, n)
		require.ErrorIs(t, limited.StepRange("w", 0, snug.ViewOf(p[:128]), snug.ViewOf(p[:128]), 1), snug.ErrShape)
		require.ErrorIs(t, newOf(t, name, limited.o.Options, nil).AddShard("w", n, 0, 128), snug.ErrConfig)
	}
}

// TestStochastic: parameters of 16 bits take the same values by ranges, by shards, with
// a storage, after a restart, and with any number of workers, which a step to nearest
// does not have; parameters of float32 are those of a step to nearest.
func TestStochastic(t *testing.T) {
	const n, steps = 1500, 4
	for name := range rules {
		for _, bits := range widths {
			s := Options{Bits: bits, MinSize: 1, Block: 64, Chunk: 128, Stochastic: true, Seed: 7}
			start := make([]snug.BFloat16, n)
			for i, x := range kerneltest.Normal(1, n) {
				start[i] = snug.ToBFloat16(x)
			}
			run := func(a *Optimizer, p []snug.BFloat16, first, last, lo int) []snug.BFloat16 {
				for i := first; i < last; i++ {
					advance(a)
					require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(gradient(n, uint64(i))[lo:lo+len(p)]), 1))
				}
				return p
			}
			whole := map[string]int{"w": n}
			want := run(newOf(t, name, s, whole), slices.Clone(start), 0, steps, 0)
			other := s
			other.Seed++
			require.NotEqual(t, want, run(newOf(t, name, other, whole), slices.Clone(start), 0, steps, 0), name)
			nearest := s
			nearest.Stochastic = false
			require.NotEqual(t, want, run(newOf(t, name, nearest, whole), slices.Clone(start), 0, steps, 0), name)

			stored := s
			stored.Storage = newFakeStorage()
			require.Equal(t, want, run(newOf(t, name, stored, whole), slices.Clone(start), 0, steps, 0), name)

			saved := newOf(t, name, s, whole)
			p := run(saved, slices.Clone(start), 0, 2, 0)
			data, err := saved.AppendBinary(nil)
			require.NoError(t, err)
			restored := newOf(t, name, s, whole)
			require.NoError(t, restored.UnmarshalBinary(data))
			require.Equal(t, want, run(restored, p, 2, steps, 0), name)

			if !restored.o.hyper.Norms() {
				var got []snug.BFloat16
				for _, part := range [][2]int{{0, 640}, {640, n}} {
					shard := newOf(t, name, s, nil)
					require.NoError(t, shard.AddShard("w", n, part[0], part[1]))
					got = append(got, run(shard, slices.Clone(start[part[0]:part[1]]), 0, steps, part[0])...)
				}
				require.Equal(t, want, got, name)
			}

			exact, rounded := kerneltest.Normal(1, n), kerneltest.Normal(1, n)
			a, b := newOf(t, name, nearest, whole), newOf(t, name, s, whole)
			advance(a)
			advance(b)
			step(t, a, "w", exact, gradient(n, 1), 1)
			step(t, b, "w", rounded, gradient(n, 1), 1)
			require.Equal(t, exact, rounded, name)
		}
	}
}

// TestStochasticIsUnbiased: steps that are far too small for bfloat16 add up.
func TestStochasticIsUnbiased(t *testing.T) {
	const n, steps = 10000, 100
	a, err := New(SGD{}, Options{MinSize: 1, Stochastic: true})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", n))
	p, g := make([]snug.BFloat16, n), make([]float32, n)
	for i := range p {
		p[i], g[i] = snug.ToBFloat16(1), 1
	}
	exact, momentum := 1.0, 0.0
	for i := range steps {
		a.Advance(1e-4)
		require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
		if momentum = 0.9*momentum + 1; i == 0 {
			momentum = 1
		}
		exact -= 1e-4 * momentum
	}
	sum := 0.0
	for _, x := range p {
		sum += float64(x.Float32())
	}
	// Each of the roundings has a variance of up to (2^-9/2)^2 near 1.
	require.InDelta(t, exact, sum/n, 5*math.Sqrt(steps)/512/2/math.Sqrt(n)+1e-3*(1-exact))
}

func TestOptionErrorsOfSteps(t *testing.T) {
	for _, s := range []Options{{NonFinite: 3}, {MaxUpdate: -1}, {MaxUpdate: nan}, {MaxUpdate: inf}} {
		_, err := New(Lion{}, s)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", s)
		_, err = New(AdamW{}, s)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", s)
	}
	for _, p := range []ParamOptions{{LR: -1}, {LR: nan}, {LR: inf}, {WeightDecay: -1}, {WeightDecay: nan}, {WeightDecay: inf}, {NoDecay: true, WeightDecay: 1}} {
		a, err := New(AdamW{}, Options{Params: func(string) ParamOptions { return p }})
		require.NoError(t, err)
		require.ErrorIs(t, a.Add("w", 1), snug.ErrConfig, "%+v", p)
		require.Zero(t, a.StateBytes())
	}
	a, err := New(AdamW{}, Options{Params: func(string) ParamOptions { return ParamOptions{LR: 1e38} }})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", 1))
	a.Advance(1e3)
	require.ErrorIs(t, a.Step("w", snug.ViewOf([]float32{1}), snug.ViewOf([]float32{1}), 1), snug.ErrConfig)
}

// TestOptionsAllocateNothing: skipping may, which is rare.
func TestOptionsAllocateNothing(t *testing.T) {
	const n = 5000
	a := newAdamW(t, Options{Stochastic: true, MaxUpdate: 1e-3, NonFinite: SkipElement}, map[string]int{"w": n})
	p, g := snug.ViewOf(make([]snug.BFloat16, n)), snug.ViewOf(gradient(n, 1))
	advance(a)
	kerneltest.NoAllocs(t, func() {
		advance(a)
		require.NoError(t, a.Step("w", p, g, 1))
	})
}
