package quant8

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestRulesOnDevices has every rule, width, type and alignment of operands, and
// blocks of all sizes, with a partial one, on devices other than the CPU. Trust ratios
// may differ there in the last bits of float64, which float32 does not show here.
func TestRulesOnDevices(t *testing.T) {
	for _, backend := range kerneltest.Backends(t)[2:] {
		for i, c := range []ruleCase{
			{8, 32, 64, snug.F32, snug.BF16, 257, 9},
			{8, 33, 132, snug.F16, snug.F32, 300, 9},
			{8, 36, 72, snug.BF16, snug.F32, 199, 0},
			{8, 256, 512, snug.BF16, snug.BF16, 1300, 9},
			{8, 256, 1024, snug.F32, snug.F32, 1, 9},
			{8, 4096, 4096, snug.F16, snug.F16, 4100 + 31, 9},
			{32, 32, 1024, snug.F32, snug.F16, 2100, 9},
			{32, 33, 1056, snug.BF16, snug.F32, 2000 + 7, 0},
			{32, 256, 512, snug.F16, snug.BF16, 1023, 9},
			{4, 32, 64, snug.F32, snug.BF16, 257, 9},
			{4, 96, 192, snug.F16, snug.F32, 302, 0},
			{4, 128, 512, snug.BF16, snug.BF16, 1300, 9},
			{4, 160, 320, snug.F32, snug.F32, 1, 9},
			{4, 4096, 4096, snug.F16, snug.F16, 4096 + 35, 9},
			{16, 32, 1024, snug.F32, snug.F16, 2100, 9},
			{16, 33, 1056, snug.BF16, snug.F32, 2000 + 7, 0},
			{16, 256, 512, snug.F16, snug.BF16, 1023, 9},
		} {
			for j, name := range slices.Sorted(maps.Keys(rules)) {
				if !kerneltest.Taken(i+j, 3) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%v", backend.Name, name, c), func(t *testing.T) {
					s := Options{NearestCodes: i%2 == 1, Bits: c.bits, MinSize: 1, Block: c.block, Chunk: c.chunk}
					ruleDefinition(t, backend, newOf(t, name, s, map[string]int{"w": c.n}), c)
				})
			}
		}
	}
}

// TestTrustNonFinite: nothing is written when a norm is not finite.
func TestTrustNonFinite(t *testing.T) {
	const n = 1500
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, name := range []string{"LAMB", "LARS", "Adafactor", "AdafactorMomentum"} {
			for _, bits := range widths {
				for _, bad := range []float32{float32(math.Inf(-1)), float32(math.NaN())} {
					a, x := newOf(t, name, Options{Bits: bits, MinSize: 1}, map[string]int{"w": n}), kerneltest.Normal(1, n)
					g := kerneltest.Put(t, backend, kerneltest.Normal(2, n))
					advance(a)
					require.NoError(t, a.Step("w", kerneltest.Put(t, backend, x).View, g.View, 1))
					x[n-1] = bad
					p := kerneltest.Put(t, backend, x)
					advance(a)
					before := stateOf(t, a)
					err := a.Step("w", p.View, g.View, 1)
					require.ErrorIs(t, err, snug.ErrNonFinite)
					require.ErrorContains(t, err, `parameter "w": a norm`)
					require.Equal(t, fmt.Sprint(x), fmt.Sprint(p.Get()))
					require.Equal(t, before, stateOf(t, a))
				}
			}
		}
	})
}

// TestMeasure: the sums of devices are those of the definition.
//
//check:in ordered
//check:not checked
func TestMeasure(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for name := range rules {
			for i, c := range []ruleCase{
				{8, 32, 1024, snug.F32, snug.BF16, 50_001, 9},
				{8, 33, 132, snug.F16, snug.F32, 9000, 0},
				{8, 4096, 4096, snug.BF16, snug.F32, 4100, 9},
				{32, 256, 1024, snug.BF16, snug.F16, 30_000, 9},
				{32, 33, 132, snug.F32, snug.F32, 1000, 9},
				{4, 32, 1024, snug.F32, snug.BF16, 20_001, 9},
				{4, 96, 192, snug.F16, snug.F32, 9000, 0},
				{4, 4096, 4096, snug.BF16, snug.F32, 4101, 9},
				{16, 256, 1024, snug.BF16, snug.F16, 10_000, 9},
				{16, 33, 132, snug.F32, snug.F32, 1003, 9},
			} {
				if !kerneltest.Full() && i%3 > 0 {
					continue
				}
				s := Options{Bits: c.bits, MinSize: 1, Block: c.block, Chunk: c.chunk}
				measureRule(t, backend, newOf(t, name, s, map[string]int{"w": c.n}), c)
			}
		}
	})
}

func measureRule(t *testing.T, backend kerneltest.Backend, a *Optimizer, c ruleCase) {
	p := kerneltest.PutFloats(t, backend, c.pt, kerneltest.Normal(1, c.skip+c.n))
	g := kerneltest.PutFloats(t, backend, c.gt, gradient(c.skip+c.n, 2))
	advance(a)
	require.NoError(t, a.Step("w", after(t, p.View, c.skip), after(t, g.View, c.skip), 0.5))

	h, q := a.o.hyper, a.params["w"]
	h.LR, h.Step, h.GradScale = float64(a.lr), 2, 0.5
	coef, states := h.Measure(), statesOf(t, a, "w")
	wantP, wantU := coef.Squares(p.Get()[c.skip:], g.Get()[c.skip:], [3][]float32(append(states, nil, nil)[:3]))
	sums := new(squares)
	require.NoError(t, a.run(p.Device(), q, 0, stepJob{
		p: after(t, p.View, c.skip), g: after(t, g.View, c.skip), layout: q.layout, chunk: c.chunk,
		m: a.maps.m, v: a.maps.v, rule: coef, signed: q.signs(h.Rule), sums: sums,
	}))
	require.InEpsilon(t, wantP, sums.parameter, 1e-12)
	require.InEpsilon(t, wantU, sums.update, 1e-12)
}

// TestMaxUpdateOnDevices: limited steps have the CPU's parameters, codes and absmax, also
// where AdamW has loops of its own there.
func TestMaxUpdateOnDevices(t *testing.T) {
	const n = 1601
	for name := range rules {
		if o := newOf(t, name, Options{}, nil).o; o.hyper.Rule.Trust() || o.Averages {
			continue // have no limit
		}
		for _, bits := range widths {
			s := Options{Bits: bits, MinSize: 1, Block: 64, Chunk: 256, Seed: 5, MaxUpdate: 0.125, NonFinite: SkipElement}
			var params []float32
			var state []byte
			kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
				a := newOf(t, name, s, map[string]int{"w": n})
				p := kerneltest.Put(t, backend, kerneltest.Normal(1, n))
				for i := range 4 {
					g := gradient(n, uint64(i))
					if i == 3 {
						g[7], g[n-1] = inf, nan
					}
					advance(a)
					require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, g).View, 100))
				}
				if params == nil {
					params, state = p.Get(), stateOf(t, a)
				}
				require.True(t, equal(params, p.Get()), "%s, %d bits", name, bits)
				require.Equal(t, state, stateOf(t, a), "%s, %d bits", name, bits)
			})
		}
	}
}

// TestMaxUpdateKeepsDecay: decoupled decay is lr·wd also where the update is shortened,
// before and after the update, with states of all widths, on every device.
func TestMaxUpdateKeepsDecay(t *testing.T) {
	const n, lr, wd, share = 300, 0.01, 0.5, 0.02
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, name := range []string{"Adam decoupled", "AdEMAMix", "Lion"} {
			for _, bits := range widths {
				for _, nearest := range []bool{true, false} {
					a := newOf(t, name, Options{
						Bits:         bits,
						NearestCodes: nearest,
						MinSize:      1,
						Block:        64,
						Chunk:        128,
						MaxUpdate:    share,
						Params:       func(string) ParamOptions { return ParamOptions{WeightDecay: wd} },
					}, map[string]int{"w": n})
					before := kerneltest.Normal(1, n)
					p := kerneltest.Put(t, backend, before)
					a.Advance(lr)
					require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, gradient(n, 2)).View, 1))
					update, start, along := make([]float64, n), make([]float64, n), 0.0
					for i, x := range p.Get() {
						start[i] = float64(before[i])
						if update[i] = float64(x) - (1-lr*wd)*start[i]; !a.o.hyper.DecayFirst {
							update[i] = float64(x)/(1-lr*wd) - start[i]
						}
						along += update[i] * start[i]
					}
					require.InEpsilon(t, lr*share*norm(start), norm(update), 1e-3, "%s, %d bits, nearest codes %v", name, bits, nearest)
					// lr·wd·p is 25 times as long as the update.
					require.Less(t, math.Abs(along), 0.3*norm(start)*norm(update), "%s, %d bits, nearest codes %v", name, bits, nearest)
				}
			}
		}
	})
}

// TestShardsOnDevices: shards and ranges of them have the bits of whole vectors on the
// CPU, with the random numbers of all widths.
func TestShardsOnDevices(t *testing.T) {
	const n, chunk, cut = 1001, 128, 384
	for _, bits := range widths {
		s := Options{Bits: bits, MinSize: 1, Block: 64, Chunk: chunk, Stochastic: true, Seed: 5}
		whole, want := newOf(t, "AdEMAMix", s, map[string]int{"w": n}), kerneltest.PutFloats(t, kerneltest.Backend{}, snug.BF16, kerneltest.Normal(1, n))
		for i := range 3 {
			advance(whole)
			require.NoError(t, whole.Step("w", want.View, snug.ViewOf(gradient(n, uint64(i))), 1))
		}
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			var state []byte
			for _, bound := range [][2]int{{0, cut}, {cut, n}} {
				a := newOf(t, "AdEMAMix", s, nil)
				require.NoError(t, a.AddShard("w", n, bound[0], bound[1]))
				p := kerneltest.PutFloats(t, backend, snug.BF16, kerneltest.Normal(1, n)[bound[0]:bound[1]])
				for i := range 3 {
					advance(a)
					g := kerneltest.Put(t, backend, gradient(n, uint64(i))[bound[0]:bound[1]])
					for lo := 0; lo < p.Len(); lo += 2 * chunk {
						part, err := p.Slice(lo, min(lo+2*chunk, p.Len()))
						require.NoError(t, err)
						from, err := g.Slice(lo, min(lo+2*chunk, p.Len()))
						require.NoError(t, err)
						require.NoError(t, a.StepRange("w", lo, part, from, 1))
					}
				}
				require.True(t, equal(want.Get()[bound[0]:bound[1]], p.Get()), "%d bits", bits)
				state = append(state, stateOf(t, a)...)
			}
			require.Equal(t, stateOf(t, whole), state, "%d bits", bits)
		})
	}
}
