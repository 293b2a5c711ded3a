package quant8

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

var signedMap, unsignedMap = DynamicMap(true), DynamicMap(false)

// model is the definition of the 8-bit step on whole vectors: decode, update,
// encode, with the nearest codes by brute force.
type model struct {
	rule   AdamW
	o      Options
	m1, m2 *Map
	t      int
	c1, c2 []uint8
	a1, a2 []float32
}

func newModel(n int, rule AdamW, o Options) *model {
	b := Blocks(n, o.Block)
	m1, m2 := cmp.Or(o.Map1, signedMap), cmp.Or(o.Map2, unsignedMap)
	return &model{rule, o, m1, m2, 0, make([]uint8, n), make([]uint8, n), make([]float32, b), make([]float32, b)}
}

// adamWStep is the definition of step t, with every product and sum rounded to float32. The corrections of the bias,
// c1 = 1-β1^t and c2 = √(1-β2^t), are in the size of the step and in eps:
//
//	m = β1·m + (1-β1)·g
//	v = β2·v + (1-β2)·g²
//	p = p - rate·c2/c1 · m/(√v + eps·c2)
//
// and p is multiplied by 1 - rate·decay, before it changes or after.
func adamWStep(rule AdamW, rate, scale float32, t int, p, g, m, v []float32) {
	beta1, beta2, eps := float64(float32(0.9)), float64(float32(0.999)), float64(float32(1e-8))
	power1, power2 := 1.0, 1.0
	for range t {
		power1, power2 = power1*beta1, power2*beta2
	}
	c1, c2 := 1-power1, math.Sqrt(1-power2)
	size, small := float32(float64(rate)*c2/c1), float32(eps*c2)
	decay := float32(1 - float64(rate)*float64(rule.WeightDecay))
	for i := range p {
		gi := float32(g[i] * scale)
		m[i] = float32(float32(beta1)*m[i]) + float32(float32(1-beta1)*gi)
		v[i] = float32(float32(beta2)*v[i]) + float32(float32(float32(1-beta2)*gi)*gi)
		change := float32(size * float32(m[i]/(float32(math.Sqrt(float64(v[i])))+small)))
		if rule.DecayFirst {
			p[i] = float32(p[i]*decay) - change
		} else {
			p[i] = float32((p[i] - change) * decay)
		}
	}
}

func (w *model) moments() (m, v []float32) {
	m, v = make([]float32, len(w.c1)), make([]float32, len(w.c1))
	for i := range m {
		m[i] = w.m1[w.c1[i]] * w.a1[i/w.o.Block]
		v[i] = counted(w.m2)[w.c2[i]] * w.a2[i/w.o.Block]
	}
	return m, v
}

func (w *model) step(p, g []float32, scale float32) {
	w.t++
	m, v := w.moments()
	adamWStep(w.rule, testRates["AdamW"], scale, w.t, p, g, m, v)
	w.c1, w.a1 = quantizeReference(m, w.m1, w.o.Block)
	w.c2, w.a2 = quantizeReference(v, w.m2, w.o.Block)
	for i, x := range m {
		if !w.o.NearestCodes && x < 0 && w.m1[w.c1[i]] == 0 {
			w.c1[i]--
		}
	}
}

// moments returns both moments of a parameter, decoded.
func moments(t testing.TB, a *Optimizer, name string) (m, v []float32) {
	t.Helper()
	q := a.params[name]
	m1, m2 := a.Maps()
	for chunk := range Blocks(q.n, a.o.Chunk) {
		n := min(a.o.Chunk, q.n-chunk*a.o.Chunk)
		require.NoError(t, a.withBlob(q, chunk, false, func(blob []byte) error {
			if q.bits == 32 {
				s := q.split32(blob, n)
				m, v = append(m, s[0]...), append(v, s[1]...)
				return nil
			}
			s := q.split8(blob, n)
			x := make([]float32, 2*n)
			if err := Dequantize(x[:n], s.codes[0], s.absmax[0], m1, a.o.Block); err != nil {
				return err
			}
			m, v = append(m, x[:n]...), append(v, x[n:]...)
			return Dequantize(v[len(v)-n:], s.codes[1], s.absmax[1], counted(m2), a.o.Block)
		}))
	}
	return m, v
}

//check:in tiers arm64
func TestStepAgainstDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, dt := range floatTypes {
			for _, nearest := range []bool{false, true} {
				for _, n := range []int{1, 255, 256, 257, 1500} {
					for _, block := range []int{33, 256} {
						t.Run(fmt.Sprintf("%v/%v/%d/%d", dt, nearest, n, block), func(t *testing.T) {
							o := Options{NearestCodes: nearest, MinSize: 1, Block: block, Chunk: 4 * block}
							definition(t, backend, dt, snug.F32, n, 0, AdamW{WeightDecay: 0.1, DecayFirst: nearest}, o)
						})
					}
				}
			}
		}
	})
}

// TestStepOperands has all types and alignments of operands, and blocks of all
// sizes.
func TestStepOperands(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, pt := range floatTypes {
			for _, gt := range floatTypes {
				for _, skip := range skips {
					o := Options{MinSize: 1, Block: 64, Chunk: 128}
					definition(t, backend, pt, gt, 1000, skip, AdamW{WeightDecay: 0.1}, o)
				}
			}
		}
		for _, block := range []int{32, 36, 100, 512, 1000, 2048, 4096} {
			o := Options{MinSize: 1, Block: block, Chunk: 2 * block}
			for _, n := range []int{2*block + 20, 3*block + 3} {
				for _, skip := range skips {
					definition(t, backend, snug.F32, snug.BF16, n, skip, AdamW{}, o)
				}
			}
		}
	})
}

// TestStepMaps has other maps than the dynamic ones. Some devices refuse those
// that are not mirrored.
func TestStepMaps(t *testing.T) {
	scaled := DynamicMap(true)
	for c := range scaled {
		scaled[c] *= 0.75
	}
	quantiles, err := QuantileMap(kerneltest.Normal(1, 3000))
	require.NoError(t, err)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, nearest := range []bool{false, true} {
			for _, block := range []int{64, 100} {
				o := Options{NearestCodes: nearest, MinSize: 1, Block: block, Chunk: 4 * block}
				o.Map1, o.Map2 = scaled, LinearMap(false)
				definition(t, backend, snug.F32, snug.F32, 1000, 0, AdamW{DecayFirst: nearest}, o)
				for _, m := range []*Map{LinearMap(true), quantiles} {
					if o.Map1 = m; onCPU(backend) {
						definition(t, backend, snug.F32, snug.F32, 1000, 0, AdamW{DecayFirst: nearest}, o)
						continue
					}
					p := kerneltest.Put(t, backend, make([]float32, 50))
					a := newAdamW(t, o, map[string]int{"w": 50})
					advance(a)
					err := a.Step("w", p.View, kerneltest.Put(t, backend, make([]float32, 50)).View, 1)
					require.ErrorIs(t, err, snug.ErrConfig)
					require.ErrorContains(t, err, "Map1")
				}
			}
		}
	})
}

func definition(t *testing.T, backend kerneltest.Backend, pt, gt snug.DType, n, skip int, rule AdamW, o Options) {
	a, w := newWith(t, rule, o, map[string]int{"w": n}), newModel(n, rule, o)
	p := kerneltest.PutFloats(t, backend, pt, kerneltest.Normal(1, skip+n))
	want := p.Get()
	for i := range 3 {
		g := kerneltest.PutFloats(t, backend, gt, gradient(skip+n, uint64(i+2)))
		advance(a)
		require.NoError(t, a.Step("w", after(t, p.View, skip), after(t, g.View, skip), 0.5))
		w.step(want[skip:], g.Get()[skip:], 0.5)
		want = kerneltest.PutFloats(t, kerneltest.Backend{}, pt, want).Get()
		require.True(t, equal(want, p.Get()), "parameters after step %d", i+1)
		m, v := moments(t, a, "w")
		wantM, wantV := w.moments()
		require.True(t, equal(wantM, m), "m after step %d", i+1)
		require.True(t, equal(wantV, v), "v after step %d", i+1)
	}
}

// gradient returns normally distributed numbers; some are 0, tiny or large.
func gradient(n int, seed uint64) []float32 {
	g := kerneltest.Normal(seed, n)
	for i := range g {
		switch (uint64(i) + seed) % 11 {
		case 0:
			g[i] = 0
		case 1:
			g[i] *= 1e-9
		case 2:
			g[i] *= 0x1p-130
		case 3:
			g[i] *= 1e3
		}
	}
	return g
}

// TestStep32 compares 32-bit state with the definition on whole vectors.
func TestStep32(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, pt := range floatTypes {
			for _, gt := range floatTypes {
				for _, n := range []int{0, 1, 1023, 9001, 8192 + 12} {
					for _, skip := range skips {
						step32(t, backend, pt, gt, n, skip)
					}
				}
			}
		}
	})
}

func step32(t *testing.T, backend kerneltest.Backend, pt, gt snug.DType, n, skip int) {
	a := newAdamW(t, Options{Bits: 32, Chunk: 2048}, map[string]int{"w": n})
	p := kerneltest.PutFloats(t, backend, pt, kerneltest.Normal(1, skip+n))
	want, m, v := p.Get(), make([]float32, n), make([]float32, n)
	for i := 1; i <= 3; i++ {
		g := kerneltest.PutFloats(t, backend, gt, gradient(skip+n, uint64(i)))
		a.Advance(0.1)
		require.NoError(t, a.Step("w", after(t, p.View, skip), after(t, g.View, skip), 1))
		adamWStep(AdamW{}, 0.1, 1, i, want[skip:], g.Get()[skip:], m, v)
		want = kerneltest.PutFloats(t, kerneltest.Backend{}, pt, want).Get()
		require.True(t, equal(want, p.Get()))
	}
	gotM, gotV := moments(t, a, "w")
	require.True(t, equal(m, append([]float32{}, gotM...)))
	require.True(t, equal(v, append([]float32{}, gotV...)))
}

// TestSignIsKept sets one large and one tiny negative gradient.
func TestSignIsKept(t *testing.T) {
	for nearest, want := range map[bool]uint8{false: 126, true: 127} {
		a := newAdamW(t, Options{NearestCodes: nearest, MinSize: 1}, map[string]int{"w": 3})
		advance(a)
		require.NoError(t, a.Step("w", snug.ViewOf(make([]float32, 3)), snug.ViewOf([]float32{1, -1e-9, 1e-9}), 1))
		s := a.params["w"].split8(a.params["w"].state.Host(), 3)
		require.Equal(t, []uint8{255, want, 127}, s.codes[0])
	}
}

func TestStepRange(t *testing.T) {
	const n, chunk = 5000, 1024
	whole := newAdamW(t, Options{Chunk: chunk}, map[string]int{"w": n})
	parts := newAdamW(t, Options{Chunk: chunk}, map[string]int{"w": n})
	p, q := kerneltest.Normal(1, n), kerneltest.Normal(1, n)
	for i := range 3 {
		g := kerneltest.Normal(uint64(i+2), n)
		advance(whole)
		advance(parts)
		require.NoError(t, whole.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
		var wg sync.WaitGroup
		for _, lo := range []int{2048, 0, 4096} { // 2048 elements, or to the end
			hi := min(lo+2048, n)
			wg.Go(func() {
				require.NoError(t, parts.StepRange("w", lo, snug.ViewOf(q[lo:hi]), snug.ViewOf(g[lo:hi]), 1))
			})
		}
		wg.Wait()
	}
	require.True(t, equal(p, q))
	require.Equal(t, whole.params["w"].state.Host(), parts.params["w"].state.Host())
}

func TestStepErrors(t *testing.T) {
	nan := float32(math.NaN())
	f := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	dev := kerneltest.Backends(t)[2].Dev
	there, err := snug.Make[float32](dev, 5000)
	require.NoError(t, err)
	a := newAdamW(t, Options{Chunk: 1024}, map[string]int{"w": 5000})
	require.ErrorIs(t, a.Step("w", f(5000), f(5000), 1), snug.ErrConfig, "before Advance")
	advance(a)
	require.ErrorIs(t, a.Step("x", f(5000), f(5000), 1), snug.ErrConfig)
	require.ErrorIs(t, a.Step("w", f(5000), f(5000), nan), snug.ErrConfig)
	require.ErrorIs(t, a.Step("w", snug.View{}, f(5000), 1), snug.ErrDType)
	require.ErrorIs(t, a.StepRange("w", 0, snug.View{}, snug.View{}, 1), snug.ErrDType)
	require.ErrorIs(t, a.Step("w", f(5000), snug.SliceView(make([]int32, 5000)), 1), snug.ErrDType)
	require.ErrorIs(t, a.Step("w", f(5000), f(4999), 1), snug.ErrShape)
	require.ErrorIs(t, a.Step("w", f(1024), f(1024), 1), snug.ErrShape)
	require.ErrorIs(t, a.StepRange("w", -1024, f(1024), f(1024), 1), snug.ErrShape)
	require.ErrorIs(t, a.StepRange("w", 512, f(1024), f(1024), 1), snug.ErrShape)
	require.ErrorIs(t, a.StepRange("w", 0, f(1000), f(1000), 1), snug.ErrShape)
	require.ErrorIs(t, a.StepRange("w", 4096, f(1024), f(1024), 1), snug.ErrShape)
	require.ErrorIs(t, a.StepRange("w", math.MaxInt/1024*1024, f(1024), f(1024), 1), snug.ErrShape)
	require.ErrorIs(t, a.Step("w", there.View(), f(5000), 1), snug.ErrDevice)
	require.NoError(t, a.StepRange("w", 1024, f(0), f(0), 1))
	a.Advance(nan)
	require.ErrorIs(t, a.Step("w", f(5000), f(5000), 1), snug.ErrConfig)

	stored := newAdamW(t, Options{Storage: newFakeStorage()}, map[string]int{"w": 5000})
	advance(stored)
	require.ErrorIs(t, stored.Step("w", there.View(), there.View(), 1), snug.ErrDevice)
}

func TestNonFiniteGradient(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e19, -0x1p63} {
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			for _, gt := range floatTypes {
				if gt != snug.F16 || !finite(bad) { // 1e19 is infinite in f16
					for _, skip := range skips {
						nonFiniteGradient(t, backend, gt, bad, skip)
					}
				}
			}
		})
	}
}

func nonFiniteGradient(t *testing.T, backend kerneltest.Backend, gt snug.DType, bad float32, skip int) {
	a := newAdamW(t, Options{Chunk: 1024}, map[string]int{"w": 5000})
	p, g := kerneltest.Put(t, backend, kerneltest.Normal(1, 5000)), kerneltest.Normal(2, skip+5000)
	put := func() snug.View { return after(t, kerneltest.PutFloats(t, backend, gt, g).View, skip) }
	advance(a)
	require.NoError(t, a.Step("w", p.View, put(), 1))
	before, params := stateOf(t, a), p.Get()
	g[skip+4097], g[skip+4999] = bad, bad
	advance(a)
	err := a.Step("w", p.View, put(), 1)
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, `"w": gradient 4097`)
	err = a.StepRange("w", 4096, after(t, p.View, 4096), after(t, put(), 4096), 1)
	require.ErrorContains(t, err, `"w": gradient 4097`)
	require.Equal(t, params, p.Get())
	require.Equal(t, before, stateOf(t, a))
	if finite(bad) {
		require.NoError(t, a.Step("w", p.View, put(), 0.25), "a scale can make it finite")
	}
}

// TestLargestGradient steps with the largest magnitude that is accepted.
func TestLargestGradient(t *testing.T) {
	a := newAdamW(t, Options{MinSize: 1}, map[string]int{"w": 40})
	p, g := make([]float32, 40), make([]float32, 40)
	for i := range g {
		g[i] = math.Nextafter32(0x1p63, 0)
	}
	for range 100 {
		advance(a)
		require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
	}
	require.InDelta(t, -0.1, p[0], 0.01)
	_, v := moments(t, a, "w")
	require.True(t, finite(v[0]))
}

// stateOf returns the bytes of all state.
func stateOf(t testing.TB, a *Optimizer) []byte {
	t.Helper()
	var all []byte
	require.NoError(t, a.eachBlob(false, func(blob []byte) error {
		all = append(all, blob...)
		return nil
	}))
	return all
}

//check:in race
func TestStepWorkersDoNotMatter(t *testing.T) {
	run := func(workers int) ([]float32, []byte) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
		a := newAdamW(t, Options{Block: 100}, map[string]int{"w": 70_001})
		p := kerneltest.Normal(1, 70_001)
		for i := range 3 {
			advance(a)
			require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(kerneltest.Normal(uint64(i), 70_001)), 1))
		}
		return p, stateOf(t, a)
	}
	p1, s1 := run(1)
	p2, s2 := run(2)
	require.Equal(t, p1, p2)
	require.Equal(t, s1, s2)
}

// TestStateFollowsTheParameter moves a parameter between devices.
func TestStateFollowsTheParameter(t *testing.T) {
	backends := kerneltest.Backends(t)
	another, err := snug.Open("opaque:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, another.Close()) }()
	route := append([]kerneltest.Backend{backends[0], backends[2], {Name: "another", Dev: another}, backends[0]}, backends[3:]...)
	a := newAdamW(t, Options{}, map[string]int{"w": 5000})
	b := newAdamW(t, Options{}, map[string]int{"w": 5000})
	p, want := kerneltest.Normal(1, 5000), kerneltest.Normal(1, 5000)
	for i, backend := range route {
		g := kerneltest.Normal(uint64(i), 5000)
		there := kerneltest.Put(t, backend, p)
		advance(a)
		advance(b)
		require.NoError(t, a.Step("w", there.View, kerneltest.Put(t, backend, g).View, 1))
		require.NoError(t, b.Step("w", snug.ViewOf(want), snug.ViewOf(g), 1))
		p = there.Get()
		require.True(t, equal(want, p))
	}
	require.Equal(t, stateOf(t, b), stateOf(t, a))
}

func TestStepNoAllocations(t *testing.T) {
	for _, o := range []Options{{}, {Bits: 32}, {NearestCodes: true}, {Storage: &oneBlob{}}} {
		a := newAdamW(t, o, map[string]int{"w": 20_000})
		p, g := snug.ViewOf(kerneltest.Normal(1, 20_000)), snug.ViewOf(kerneltest.Normal(2, 20_000))
		bf16 := snug.SliceView(make([]snug.BFloat16, 20_000))
		kerneltest.NoAllocs(t, func() {
			advance(a)
			require.NoError(t, a.Step("w", p, g, 1))
			advance(a)
			require.NoError(t, a.Step("w", bf16, g, 1))
			advance(a)
			require.NoError(t, a.Step("w", p, bf16, 1))
		})
	}
}

// oneBlob is a Storage of one chunk.
type oneBlob struct{ b []byte }

func (o *oneBlob) Acquire(_ string, size int) ([]byte, error) {
	if o.b == nil {
		o.b = alignedBytes(size)
	}
	return o.b, nil
}

func (o *oneBlob) Release(string, bool) error { return nil }
