package quant8

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/rounding"
)

// statesOf returns all states of a parameter, decoded.
func statesOf(t testing.TB, a *Optimizer, name string) [][]float32 {
	t.Helper()
	q := a.params[name]
	m, v := a.Maps()
	all := make([][]float32, q.states)
	for chunk := range q.chunks(a.o.Chunk) {
		n := min(a.o.Chunk, q.held(q.n)-chunk*a.o.Chunk)
		require.NoError(t, a.withBlob(q, chunk, false, func(blob []byte) error {
			for i, signed := range q.signs(a.o.hyper.Rule) {
				if q.bits != 8 {
					all[i] = append(all[i], decoded(q.layout, blob, n, i, signed)...)
					continue
				}
				x, of := make([]float32, n), counted(v)
				if signed {
					of = m
				}
				s := q.split8(blob, n)
				if err := Dequantize(x, s.codes[i], s.absmax[i], of, q.block); err != nil {
					return err
				}
				all[i] = append(all[i], x...)
			}
			return nil
		}))
	}
	return all
}

func step(t testing.TB, a *Optimizer, name string, p, g []float32, scale float32) {
	t.Helper()
	require.NoError(t, a.Step(name, snug.ViewOf(p), snug.ViewOf(g), scale))
}

// TestRulesGolden makes 20 steps with float32 state. Parameters are those of torch and
// of bitsandbytes within the bounds of its tests, 1e-6 and 1e-5.
//
//check:in tiers arm64 arm64-go
func TestRulesGolden(t *testing.T) {
	var golden struct {
		Start     []float32
		Gradients [][]float32
		After     map[string][][]float32 // steps 1, 2, 10 and 20
	}
	data, err := os.ReadFile("../internal/optim/testdata/rules.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	require.Len(t, golden.After, len(rules)-5) // and those of trust_test.go, matrix_test.go and schedulefree_test.go
	for name, after := range golden.After {
		a := newOf(t, name, Options{NearestCodes: true}, map[string]int{"w": len(golden.Start)})
		p := append([]float32(nil), golden.Start...)
		for i, g := range golden.Gradients {
			a.Advance(1e-2)
			step(t, a, "w", p, g, 1)
			for k, at := range []int{1, 2, 10, 20} {
				if i+1 == at {
					require.Zero(t, outliers(after[k], p, 1e-6, 1e-5), "%s: step %d", name, at)
				}
			}
		}
	}
}

// TestRulesAgainstDefinition compares with decoding, an update, and the nearest codes
// by brute force or the same random numbers, of whole vectors.
//
//check:in tiers arm64
//check:not checked
func TestRulesAgainstDefinition(t *testing.T) {
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, nearest := range []bool{false, true} {
			for _, dt := range floatTypes {
				for _, n := range []int{257, 1500} {
					for _, s := range []Options{{Block: 33}, {Block: 256}, {Bits: 4, Block: 96}, {Bits: 16, Seed: 3}} {
						s.NearestCodes, s.MinSize, s.Chunk = nearest, 1, 4*cmp.Or(s.Block, 256)
						a := build(s, map[string]int{"w": n})
						for _, backend := range kerneltest.Backends(t)[:2] { // in CPU memory
							ruleDefinition(t, backend, a, ruleCase{pt: dt, gt: dt, n: n})
						}
					}
				}
			}
		}
	})
}

// ruleCase is the operands of steps of an optimizer.
type ruleCase struct {
	bits, block, chunk int
	pt, gt             snug.DType
	n, skip            int // elements, and how many of the buffer come before
}

// ruleDefinition makes steps in which the second block is 0.
func ruleDefinition(t *testing.T, backend kerneltest.Backend, a *Optimizer, c ruleCase) {
	withZeros := func(x []float32) []float32 {
		clear(x[min(c.skip+a.o.Block, len(x)):min(c.skip+2*a.o.Block, len(x))])
		return x
	}
	p := kerneltest.PutFloats(t, backend, c.pt, withZeros(kerneltest.Normal(1, c.skip+c.n)))
	want := p.Get()
	for range 3 {
		g := kerneltest.PutFloats(t, backend, c.gt, withZeros(gradient(c.skip+c.n, uint64(a.Steps()))))
		states := statesOf(t, a, "w")
		advance(a)
		require.NoError(t, a.Step("w", after(t, p.View, c.skip), after(t, g.View, c.skip), 0.5))

		h := a.o.hyper
		h.LR, h.Step, h.GradScale = float64(a.lr), a.Steps(), 0.5
		h = a.o.method.constants(h)
		all, x, y := [3][]float32(append(slices.Clone(states), nil, nil)[:3]), want[c.skip:], g.Get()[c.skip:]
		if h.Rule.Trust() {
			coef := h.Coef()
			norm, update := coef.Squares(x, y, all)
			h = h.Sized(norm, update, len(x))
		}
		coef := h.Coef()
		coef.Update(x, y, all)
		want = kerneltest.PutFloats(t, kerneltest.Backend{}, c.pt, want).Get()
		require.True(t, equal(want, p.Get()), "parameters after step %d", a.Steps())
		for i, got := range statesOf(t, a, "w") {
			wanted := stored(a, "w", states[i], i)
			require.True(t, equal(wanted, got), "state %d after step %d", i, a.Steps())
		}
	}
}

// stored returns x after it was stored as a state of a parameter in the current step.
func stored(a *Optimizer, name string, x []float32, state int) []float32 {
	switch signed := a.params[name].signs(a.o.hyper.Rule)[state]; a.params[name].bits {
	case 32:
		return x
	case 4:
		return quantized4(x, signed, a.o.Block)
	case 16:
		return quantized16(x, rounding.Seed(rounding.Seed(a.o.Seed, uint64(a.t)), uint64(state)), name)
	default:
		return quantized8(x, signed, a.o.NearestCodes, a.o.Block)
	}
}

// quantized8 returns x after it was stored in 8 bits.
func quantized8(x []float32, signed, nearest bool, block int) []float32 {
	m, values := unsignedMap, counted(unsignedMap)
	if signed {
		m, values = signedMap, signedMap
	}
	codes, absmax := quantizeReference(x, m, block)
	y := make([]float32, len(x))
	for i, c := range codes {
		if signed && !nearest && x[i] < 0 && m[c] == 0 {
			c--
		}
		y[i] = values[c] * absmax[i/block]
	}
	return y
}

// counted returns what the codes of a map of second moments count as: those of 0 as the
// largest float32 that is not nearer to the next entry.
func counted(m *Map) *Map {
	values, next := *m, float32(0)
	for c := len(m) - 1; c >= 0; c-- {
		if m[c] == 0 {
			values[c] = next / 2
		} else {
			next = m[c]
		}
	}
	return &values
}

// TestRulesAgainst32 is bitsandbytes' test of 8-bit state for all optimizers: step
// both, compare, and set the 32-bit run to the 8-bit one, fifty times.
func TestRulesAgainst32(t *testing.T) {
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		r := newPair(t, build, 0.1)
		for i := range 50 {
			r.step(i)
			require.Zero(t, outliers(r.p32, r.p8, 1e-5, 1e-3), "step %d: p", i+1)
			abs, rel := r.distance()
			require.Less(t, abs, 6e-5, "step %d: p", i+1)
			require.Less(t, rel, 6e-4, "step %d: p", i+1)
			wanted := statesOf(t, r.a32, "w")
			for k, got := range statesOf(t, r.a8, "w") {
				require.Less(t, outliers(wanted[k], got, 3e-3, 1e-3), 20, "step %d: state %d", i+1, k)
			}
			r.sync()
		}
	})
}

// TestRulesDrift lets both runs go on their own for 10 steps, five times. That costs
// parameters less than 2 % of 10 times the learning rate.
func TestRulesDrift(t *testing.T) {
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		r := newPair(t, build, 1)
		for i := range 50 {
			if r.step(i); (i+1)%10 == 0 {
				abs, rel := r.distance()
				require.Less(t, abs, 2e-4, "step %d", i+1)
				require.Less(t, rel, 2e-3, "step %d", i+1)
				r.sync()
			}
		}
	})
}

// pair is a run with 8-bit state and one with 32 bits.
type pair struct {
	t       testing.TB
	a8, a32 *Optimizer
	p8, p32 []float32
	lr      float32
}

// newPair has 4096 normal parameters times scale.
func newPair(t testing.TB, build func(Options, map[string]int) *Optimizer, scale float32) *pair {
	params := map[string]int{"w": 1 << 12}
	r := &pair{t: t, a8: build(Options{}, params), a32: build(Options{Bits: 32}, params), p8: kerneltest.Normal(1, params["w"]), lr: 1e-3}
	if r.a8.o.Title == "Lion" {
		r.lr = 1e-4
	}
	for i := range r.p8 {
		r.p8[i] *= scale
	}
	r.p32 = append(r.p32, r.p8...)
	return r
}

// step makes step i of both, with gradients of 0.01.
func (r *pair) step(i int) {
	g := kerneltest.Normal(uint64(i+2), len(r.p8))
	r.a8.Advance(r.lr)
	r.a32.Advance(r.lr)
	step(r.t, r.a8, "w", r.p8, g, 0.01)
	step(r.t, r.a32, "w", r.p32, g, 0.01)
}

// distance returns the mean of the differences of the parameters.
func (r *pair) distance() (abs, rel float64) { return apart(r.p32, r.p8) }

// sync sets the 32-bit run to the other.
func (r *pair) sync() {
	copy(r.p32, r.p8)
	q := r.a32.params["w"]
	s := q.split32(q.state.Host(), q.n)
	for k, x := range statesOf(r.t, r.a8, "w") {
		copy(s[k], x)
	}
}

// TestRulesStepRange: ranges in any order are the whole.
func TestRulesStepRange(t *testing.T) {
	const n, chunk = 5000, 1024
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range widths {
			if build(Options{}, nil).o.hyper.Rule.Trust() {
				continue
			}
			whole := build(Options{Bits: bits, Chunk: chunk}, map[string]int{"w": n})
			parts := build(Options{Bits: bits, Chunk: chunk, Storage: newFakeStorage()}, map[string]int{"w": n})
			p, q := kerneltest.Normal(1, n), kerneltest.Normal(1, n)
			for i := range 3 {
				g := kerneltest.Normal(uint64(i+2), n)
				advance(whole)
				advance(parts)
				step(t, whole, "w", p, g, 1)
				for _, lo := range []int{2048, 0, 4096} { // 2048 elements, or to the end
					hi := min(lo+2048, n)
					require.NoError(t, parts.StepRange("w", lo, snug.ViewOf(q[lo:hi]), snug.ViewOf(g[lo:hi]), 1))
				}
			}
			require.True(t, equal(p, q))
			require.Equal(t, stateOf(t, whole), stateOf(t, parts))
		}
	})
}

//check:in race
func TestRulesWorkersDoNotMatter(t *testing.T) {
	const n = 70_001
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range widths {
			run := func(workers int) ([]float32, []byte) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
				o := Options{Bits: bits, Block: 100}
				if bits == 4 {
					o.Block = 96
				}
				a, p := build(o, map[string]int{"w": n}), kerneltest.Normal(1, n)
				for i := range 2 {
					advance(a)
					step(t, a, "w", p, kerneltest.Normal(uint64(i), n), 1)
				}
				return p, stateOf(t, a)
			}
			p1, s1 := run(1)
			p2, s2 := run(2)
			require.True(t, equal(p1, p2))
			require.Equal(t, s1, s2)
		}
	})
}

func TestRulesNoAllocations(t *testing.T) {
	const n = 20_000
	p, g := snug.ViewOf(kerneltest.Normal(1, n)), snug.ViewOf(kerneltest.Normal(2, n))
	bf16 := snug.SliceView(make([]snug.BFloat16, n))
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, s := range []Options{{}, {Bits: 4}, {Bits: 16}, {Bits: 32}, {Storage: &oneBlob{}}} {
			a := build(s, map[string]int{"w": n})
			kerneltest.NoAllocs(t, func() {
				advance(a)
				require.NoError(t, a.Step("w", p, g, 1))
				advance(a)
				require.NoError(t, a.Step("w", bf16, g, 1))
			})
		}
	})
}

// TestRulesNonFinite: the error is AdamW's, and nothing is written.
func TestRulesNonFinite(t *testing.T) {
	const n = 5000
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range widths {
			a, p, g := build(Options{Bits: bits}, map[string]int{"w": n}), kerneltest.Normal(1, n), kerneltest.Normal(2, n)
			advance(a)
			step(t, a, "w", p, g, 1)
			before, params := stateOf(t, a), append([]float32(nil), p...)
			advance(a)
			for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e19} {
				g[4097], g[4999] = bad, bad
				err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
				require.ErrorIs(t, err, snug.ErrNonFinite)
				require.ErrorContains(t, err, "quant8: "+a.o.Title+`: parameter "w": gradient 4097`)
				require.Equal(t, before, stateOf(t, a))
				require.Equal(t, params, p)
			}
		}
	})
}

// TestRulesInfiniteParameters: without coupled decay states do not see parameters.
func TestRulesInfiniteParameters(t *testing.T) {
	a, err := New(SGD{}, Options{})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", 2))
	advance(a)
	step(t, a, "w", []float32{float32(math.Inf(1)), 1}, []float32{2, 3}, 1)
	require.Equal(t, [][]float32{{2, 3}}, statesOf(t, a, "w"))
}

// TestRulesDevices: every rule steps on another device, with any width of its states.
func TestRulesDevices(t *testing.T) {
	backend := kerneltest.Backends(t)[2]
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range []int{4, 8, 16, 32} {
			a := build(Options{Bits: bits}, map[string]int{"w": 5000})
			p, g := kerneltest.Put(t, backend, kerneltest.Normal(1, 5000)), kerneltest.Put(t, backend, kerneltest.Normal(2, 5000))
			advance(a)
			require.NoError(t, a.Step("w", p.View, g.View, 1))
		}
	})
}

// TestWarmup: with α and β3 that grow, AdEMAMix of constant ones gives each step.
func TestWarmup(t *testing.T) {
	const n = 100
	a, err := New(AdEMAMix{AlphaWarmup: 4, Beta3Warmup: 1}, Options{})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", n))
	p, want := kerneltest.Normal(1, n), kerneltest.Normal(1, n)
	var states [3][]float32
	for i := range states {
		states[i] = make([]float32, n)
	}
	for i, alpha := range []float64{1.25, 2.5, 3.75, 5, 5} {
		g := kerneltest.Normal(uint64(i), n)
		advance(a)
		step(t, a, "w", p, g, 1)
		h := a.o.hyper
		h.LR, h.Step, h.GradScale, h.Alpha, h.AlphaWarmup = float64(a.lr), i+1, 1, alpha, 0
		c := h.Coef()
		c.Update(want, g, states)
		require.True(t, equal(want, p), "step %d", i+1)
	}
}
