package quant8

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// format is an element type of parameters, whose bits are in uint32.
type format struct {
	put    func(t testing.TB, backend kerneltest.Backend, bits []uint32) (snug.View, func() []uint32)
	widen  func(bits uint32) float32
	narrow func(x []float32) []uint32
	random func(x []float32, draws []uint16) []uint32
}

// formatOf makes a format of conversions between T and its bits.
func formatOf[T snug.Element](to func(uint32) T, from func(T) uint32, widen func(T) float32, narrow func([]T, []float32), random func([]T, []float32, []uint16)) format {
	all := func(x []T) []uint32 {
		bits := make([]uint32, len(x))
		for i, v := range x {
			bits[i] = from(v)
		}
		return bits
	}
	return format{
		put: func(t testing.TB, backend kerneltest.Backend, bits []uint32) (snug.View, func() []uint32) {
			x := make([]T, len(bits))
			for i, b := range bits {
				x[i] = to(b)
			}
			there := kerneltest.Put(t, backend, x)
			return there.View, func() []uint32 { return all(there.Get()) }
		},
		widen: func(bits uint32) float32 { return widen(to(bits)) },
		narrow: func(x []float32) []uint32 {
			y := make([]T, len(x))
			narrow(y, x)
			return all(y)
		},
		random: func(x []float32, draws []uint16) []uint32 {
			y := make([]T, len(x))
			random(y, x, draws)
			return all(y)
		},
	}
}

// formats have no rounding for float32.
func formats() map[snug.DType]format {
	k := half.Registry.Best()
	same := func(y, x []float32) { copy(y, x) }
	return map[snug.DType]format{
		snug.F32: formatOf(math.Float32frombits, math.Float32bits, func(x float32) float32 { return x }, same,
			func(y, x []float32, _ []uint16) { same(y, x) }),
		snug.F16: formatOf(func(b uint32) snug.Float16 { return snug.Float16(b) }, func(x snug.Float16) uint32 { return uint32(x) },
			half.F16ToFloat32, k.F32ToF16, k.F32ToF16Stochastic),
		snug.BF16: formatOf(func(b uint32) snug.BFloat16 { return snug.BFloat16(b) }, func(x snug.BFloat16) uint32 { return uint32(x) },
			snug.BFloat16.Float32, k.F32ToBF16, k.F32ToBF16Stochastic),
	}
}

// TestOptionsOnDevices makes steps of every rule that leave elements alone and round at
// random, on GPUs.
func TestOptionsOnDevices(t *testing.T) {
	for _, backend := range kerneltest.Backends(t)[3:] {
		for i, c := range []ruleCase{
			{8, 32, 64, snug.BF16, snug.F32, 257, 9},
			{8, 33, 132, snug.F16, snug.BF16, 300, 0},
			{8, 256, 512, snug.F32, snug.BF16, 600, 9},
			{32, 33, 1056, snug.F16, snug.F32, 1500, 0},
			{32, 256, 1024, snug.BF16, snug.F16, 1500, 9},
			{32, 256, 1024, snug.F32, snug.F32, 1027, 9},
			{4, 32, 64, snug.BF16, snug.F32, 257, 9},
			{4, 96, 192, snug.F16, snug.BF16, 301, 0},
			{4, 256, 512, snug.F32, snug.BF16, 600, 9},
			{16, 33, 1056, snug.F16, snug.F32, 1500, 0},
			{16, 256, 1024, snug.BF16, snug.F16, 1500, 9},
			{16, 256, 1024, snug.F32, snug.F32, 1027, 9},
		} {
			for j, name := range slices.Sorted(maps.Keys(rules)) {
				if !kerneltest.Taken(i+j, 3) {
					continue
				}
				if strings.HasPrefix(name, "Adafactor") {
					continue // it refuses SkipElement
				}
				t.Run(fmt.Sprintf("%s/%s/%v", backend.Name, name, c), func(t *testing.T) {
					s := Options{NearestCodes: i%2 == 1, Bits: c.bits, MinSize: 1, Block: c.block, Chunk: c.chunk}
					for _, options := range [][2]bool{{true, false}, {false, true}, {true, true}} {
						stepOptions(t, backend, newOf(t, name, s, map[string]int{"w": c.n}), c, options[0], options[1])
					}
				})
			}
		}
	}
}

// stepOptions makes a step that has states, then one with the options.
func stepOptions(t *testing.T, backend kerneltest.Backend, a *Optimizer, c ruleCase, skip, random bool) {
	f := formats()[c.pt]
	p, get := f.put(t, backend, f.narrow(kerneltest.Normal(1, c.skip+c.n)))
	p = after(t, p, c.skip)
	g := kerneltest.Normal(2, c.skip+c.n)
	advance(a)
	require.NoError(t, a.Step("w", p, after(t, kerneltest.PutFloats(t, backend, c.gt, g).View, c.skip), 0.5))
	bits := get()

	advance(a)
	h, q := a.o.hyper, a.params["w"]
	h.LR, h.Step, h.GradScale = float64(a.lr), a.Steps(), 0.5
	coef, states := h.Coef(), statesOf(t, a, "w")
	if skip {
		signaling := f.narrow([]float32{float32(math.Inf(1))})[0] | 1
		for i := c.skip; i < len(g); i += 5 {
			g[i] = []float32{float32(math.NaN()), float32(math.Inf(-1)), float32(math.Inf(1)), 0x1p64}[i%4]
			if i%7 == 0 {
				bits[i] = signaling
			}
		}
	}
	p, get = f.put(t, backend, bits)
	p = after(t, p, c.skip)
	there := kerneltest.PutFloats(t, backend, c.gt, g)
	j := stepJob{
		p: p, g: after(t, there.View, c.skip), layout: q.layout, chunk: c.chunk, m: a.maps.m, v: a.maps.v,
		signed: q.signs(h.Rule), rule: coef, skip: skip, random: random, draw: philox.Stream{Seed: 3<<40 + 1, Tensor: 4<<40 + 2}, first: 1<<33 - 3,
	}
	require.NoError(t, a.run(backend.Dev, q, 0, j))
	wantBits, wantStates := optionsReference(f, bits[c.skip:], there.Get()[c.skip:], states, j)
	require.Equal(t, wantBits, get()[c.skip:])
	for i, got := range statesOf(t, a, "w") {
		wanted := wantStates[i]
		switch signed := q.signs(h.Rule)[i]; c.bits {
		case 8:
			wanted = quantized8(wanted, signed, a.o.NearestCodes, c.block)
		case 4:
			wanted = quantized4(wanted, signed, c.block)
		case 16:
			wanted = quantized16By(wanted, philox.Stream{Seed: rounding.Seed(j.draw.Seed, uint64(i)), Tensor: j.draw.Tensor}, j.first)
		}
		require.True(t, equal(wanted, got), "state %d", i)
	}
}

// optionsReference returns the new bits of parameters and their new states.
func optionsReference(f format, bits []uint32, g []float32, states [][]float32, j stepJob) ([]uint32, [][]float32) {
	var good []int
	var x, y []float32
	var draws []uint16
	var all [3][]float32
	halves := j.draw.Halves(make([]uint32, len(bits)/2+2), j.first/2)[j.first%2:]
	for i, b := range bits {
		if scaled := g[i] * 0.5; j.skip && !(math.Abs(float64(scaled)) < 0x1p63) {
			continue
		}
		good, x, y, draws = append(good, i), append(x, f.widen(b)), append(y, g[i]), append(draws, halves[i])
		for k := range states {
			all[k] = append(all[k], states[k][i])
		}
	}
	j.rule.Update(x, y, all)
	rounded := f.narrow(x)
	if j.random {
		rounded = f.random(x, draws)
	}
	bits = slices.Clone(bits)
	news := make([][]float32, len(states))
	for k := range news {
		news[k] = make([]float32, len(bits))
	}
	for n, i := range good {
		bits[i] = rounded[n]
		for k := range news {
			news[k][i] = all[k][n]
		}
	}
	return bits, news
}

// TestMeasureOptions: what a step leaves alone counts in the norm of the parameter only.
func TestMeasureOptions(t *testing.T) {
	const n = 1000
	for _, backend := range kerneltest.Backends(t)[3:] {
		for name := range rules {
			for _, bits := range widths {
				a := newOf(t, name, Options{Bits: bits, MinSize: 1}, map[string]int{"w": n})
				p, g := kerneltest.Put(t, backend, kerneltest.Normal(1, n)), kerneltest.Normal(2, n)
				advance(a)
				require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, g).View, 1))
				h, q := a.o.hyper, a.params["w"]
				h.LR, h.Step, h.GradScale = float64(a.lr), 2, 1
				coef, wantP, wantU := h.Measure(), 0.0, 0.0
				states := append(statesOf(t, a, "w"), nil, nil)
				for i, x := range p.Get() {
					var one [3][]float32
					for k, s := range states[:3] {
						if s != nil {
							one[k] = s[i : i+1]
						}
					}
					dp, du := coef.Squares([]float32{x}, g[i:i+1], one)
					wantP += dp
					if i%3 == 0 {
						g[i] = float32(math.Inf(1))
					} else {
						wantU += du
					}
				}
				sums := new(squares)
				require.NoError(t, a.run(backend.Dev, q, 0, stepJob{
					p: p.View, g: kerneltest.Put(t, backend, g).View, layout: q.layout, chunk: a.o.Chunk,
					m: a.maps.m, v: a.maps.v, rule: coef, signed: q.signs(h.Rule), skip: true, sums: sums,
				}))
				require.InEpsilon(t, wantP, sums.parameter, 1e-12)
				require.InEpsilon(t, wantU, sums.update, 1e-12)
			}
		}
	}
}

// TestStepOptionsOnDevices: what a step passes over, and how it rounds, is the same
// everywhere, in all bytes of the state.
func TestStepOptionsOnDevices(t *testing.T) {
	const n = 700
	g := gradient(n, 3)
	g[5], g[400] = float32(math.NaN()), float32(math.Inf(1))
	for name := range rules {
		if strings.HasPrefix(name, "Adafactor") {
			continue // it refuses SkipElement
		}
		for _, bits := range widths {
			var want []float32
			var state []byte
			kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
				s := Options{Bits: bits, MinSize: 1, Block: 64, Chunk: 256, NonFinite: SkipElement, Stochastic: true, Seed: 5}
				a := newOf(t, name, s, map[string]int{"w": n})
				p := kerneltest.PutFloats(t, backend, snug.BF16, kerneltest.Normal(1, n))
				there := kerneltest.PutFloats(t, backend, snug.F32, g)
				for range 2 {
					advance(a)
					require.NoError(t, a.Step("w", p.View, there.View, 1))
					require.Len(t, a.Skipped(), 1)
					require.Equal(t, 2, a.Skipped()[0].Count)
				}
				if want == nil {
					want, state = p.Get(), stateOf(t, a)
				}
				require.True(t, equal(want, p.Get()), "%s, %d bits", name, bits)
				require.Equal(t, state, stateOf(t, a), "%s, %d bits", name, bits)
			})
		}
	}
}
