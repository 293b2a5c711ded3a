package attention

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var dtypes = []snug.DType{snug.F32, snug.F16, snug.BF16}

// masks are the three visibility rules.
var masks = []struct {
	name   string
	causal bool
	align  Align
}{{"full", false, BottomRight}, {"bottomright", true, BottomRight}, {"topleft", true, TopLeft}}

// The lengths and head dimensions of FlashAttention's tests, and some more: every one of
// both, and every pair of lengths with three dimensions. Masks, types and head groups
// rotate.
func TestAgainstReference(t *testing.T) {
	lengths := [][2]int{
		{1, 239}, {239, 1}, {3, 799}, {799, 3}, {127, 513}, {1, 1}, {2, 5}, {17, 97}, {97, 97}, {200, 257}, {257, 200}, {1023, 129}, {130, 1025},
	}
	dims := []int{1, 8, 16, 32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256, 320, 512}
	groups := [][2]int{{1, 1}, {2, 0}, {2, 1}, {4, 2}, {3, 1}}
	for i := range 3 * len(lengths) {
		if !kerneltest.Full() && i%3 > 0 {
			continue
		}
		n, dim := lengths[i%len(lengths)], dims[i*5%len(dims)]
		if n[0]*n[1]*dim > 1<<24 {
			dim = 8
		}
		c := Options{Batch: 1, Heads: 1, SeqQ: n[0], SeqK: n[1], Dim: dim, Causal: masks[i%3].causal, Align: masks[i%3].align}
		if group := groups[i%5]; n[0]*n[1]*dim <= 3e5 {
			c.Heads, c.KVHeads = group[0], group[1]
		}
		if i%4 == 3 {
			c.DimV = dims[i%len(dims)]
		}
		dt := dtypes[i/3%3]
		t.Run(shapeName(c, dt), func(t *testing.T) { newProblem(t, c, dt, uint64(i)).check(t, kerneltest.Backend{}, dt) })
	}
}

// As long as FlashAttention tests.
func TestLong(t *testing.T) {
	kerneltest.Slow(t) // takes seconds
	c := Options{Batch: 1, Heads: 1, SeqQ: 4224, SeqK: 4224, Dim: 8, Causal: true}
	newProblem(t, c, snug.BF16, 1).check(t, kerneltest.Backend{}, snug.BF16)
}

// Every kind of memory, with rows apart and head dimensions that differ.
//
//check:in tiers arm64
func TestBackends(t *testing.T) {
	c := Options{
		Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 67, SeqK: 131, Dim: 7, DimV: 5, Causal: true, Scale: -0.4,
		Q:   Strides{Batch: 4 * 67 * 9, Head: 9, Row: 4 * 9},
		K:   Strides{Batch: 11, Head: 131 * 23, Row: 23},
		V:   Strides{Batch: 2000, Head: 6, Row: 13},
		Out: Strides{Batch: 4 * 67 * 5, Head: 67 * 5, Row: 5},
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		c := c
		if backend.Emulated {
			c.Heads, c.KVHeads = 2, 1 // in the same strides
		}
		for _, dt := range dtypes {
			t.Run(dt.String(), func(t *testing.T) { newProblem(t, c, dt, 3).check(t, backend, dt) })
		}
	})
}

// The layout of a tensor changes no bit of the results.
func TestLayouts(t *testing.T) {
	for _, dt := range dtypes {
		p := newProblem(t, Options{Batch: 2, Heads: 6, KVHeads: 2, SeqQ: 70, SeqK: 70, Dim: 9, DimV: 4, Causal: true}, dt, 5)
		want := p.run(t, kerneltest.Backend{}, dt)
		for name, layout := range map[string]func(Options) Options{"sequence-major": SequenceMajor, "packed": PackedQKV} {
			other := *p
			other.c = layout(p.c)
			require.Equal(t, want, other.run(t, kerneltest.Backend{}, dt), "%s %v", name, dt)
		}
	}
}

// One vector for q, k and v and one for their gradients.
func TestPackedInPlace(t *testing.T) {
	c := Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 33, SeqK: 33, Dim: 6, DimV: 5, Causal: true}
	p := newProblem(t, c, snug.F32, 6)
	want := p.run(t, kerneltest.Backend{}, snug.F32)
	c = PackedQKV(c)
	o := c.operands()
	starts := []int{0, 4 * 6, 4*6 + 2*6}
	row := 4*6 + 2*6 + 2*5
	qkv, dqkv := make([]float32, 2*33*row), make([]float32, 2*33*row)
	for n, x := range [][]float32{p.q, p.k, p.v} {
		o[n].each(func(i, at int) { qkv[starts[n]+at] = x[i] })
	}
	out, dout := make([]float32, o[3].size()), make([]float32, o[3].size())
	o[3].each(func(i, at int) { dout[at] = p.dout[i] })
	lse, ws := make([]float32, c.WorkspaceLen()), make([]float32, c.WorkspaceLen())
	k, v := starts[1], starts[2]
	require.NoError(t, Forward(out, lse, qkv, qkv[k:], qkv[v:], c))
	require.NoError(t, Backward(dqkv, dqkv[k:], dqkv[v:], dout, qkv, qkv[k:], qkv[v:], out, lse, c, ws))
	o[3].each(func(i, at int) { require.Equal(t, want.out[i], out[at]) })
	for n, x := range [][]float32{want.dq, want.dk, want.dv} {
		o[n].each(func(i, at int) { require.Equal(t, x[i], dqkv[starts[n]+at]) })
	}
}

func TestRowsThatSeeNothing(t *testing.T) {
	const blind = 257 - 100
	c := Options{Batch: 1, Heads: 2, SeqQ: 257, SeqK: 100, Dim: 8, Causal: true}
	p := newProblem(t, c, snug.F32, 7)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		p.check(t, backend, snug.F32)
		got := p.run(t, backend, snug.F32)
		for h := range 2 {
			for i := range blind {
				row := h*257 + i
				require.Equal(t, make([]float32, 8), part(got.out, row, 8))
				require.Equal(t, make([]float32, 8), part(got.dq, row, 8))
				require.Equal(t, float32(math.Inf(-1)), got.lse[row])
			}
			require.NotZero(t, got.out[(h*257+blind)*8])
		}
	})
}

func TestZeroLengths(t *testing.T) {
	full := Options{Batch: 2, Heads: 2, SeqQ: 3, SeqK: 5, Dim: 4}
	for name, change := range map[string]func(*Options){
		"no keys":    func(c *Options) { c.KLens = []int{0, 0} },
		"no queries": func(c *Options) { c.SeqQ = 0 },
		"no batch":   func(c *Options) { c.Batch = 0 },
		"no heads":   func(c *Options) { c.Heads = 0 },
		"keys only":  func(c *Options) { c.Heads, c.KVHeads = 0, 2 },
	} {
		c := full
		change(&c)
		for _, mask := range masks {
			c.Causal, c.Align = mask.causal, mask.align
			kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
				got := newProblem(t, c, snug.F32, 8).run(t, backend, snug.F32)
				for _, x := range append(append(append(got.out, got.dq...), got.dk...), got.dv...) {
					require.Zero(t, x, name)
				}
				for _, x := range got.lse {
					require.Equal(t, float32(math.Inf(-1)), x, name)
				}
			})
		}
	}
}

// Finite inputs whose scores overflow to −Inf count as unseen.
func TestScoresOfMinusInfinity(t *testing.T) {
	c := Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 2, Dim: 1, Scale: 1}
	p := &problem{c: c, q: []float32{1e38, 0}, k: []float32{-10, -10}, v: []float32{2, 3}, dout: []float32{1, 1}}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		got := p.run(t, backend, snug.F32)
		require.Equal(t, []float32{0, 2.5}, got.out)
		require.Equal(t, []float32{float32(math.Inf(-1)), math.Ln2}, got.lse)
		require.Zero(t, got.dq[0])
		require.Equal(t, []float32{0.5, 0.5}, got.dv)
	})
}

// A value that is not finite reaches exactly the results that the definition
// says, also inside the tiles that the mask cuts.
func TestNonFiniteStaysWithRowsThatSeeIt(t *testing.T) {
	shape := Options{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 90, SeqK: 150, Dim: 3}
	for _, mask := range masks {
		shape.Causal, shape.Align = mask.causal, mask.align
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for target := range 4 {
				for _, at := range []float64{0, 0.3, 0.99} {
					newProblem(t, shape, snug.F32, 9).checkNonFinite(t, kerneltest.Backend{}, snug.F32, target, at, bad)
				}
			}
		}
	}
}

// checkNonFinite puts a value into an input, at a fraction of its length, and
// compares what follows with the reference.
func (p *problem) checkNonFinite(t *testing.T, backend kerneltest.Backend, dt snug.DType, target int, at, bad float64) {
	t.Helper()
	x := [][]float32{p.q, p.k, p.v, p.dout}[target]
	x[int(at*float64(len(x)))] = float32(bad)
	want, bound := p.reference(t, backend, dt)
	got := p.run(t, backend, dt)
	name := fmt.Sprintf("%v: %g at %g of %s, ", p.c.Align, bad, at, []string{"q", "k", "v", "dout"}[target])
	sameWhereFinite(t, dt, name+"out", want.out, bound.out, got.out)
	sameWhereFinite(t, dt, name+"dq", want.dq, bound.dq, got.dq)
	sameWhereFinite(t, dt, name+"dk", want.dk, bound.dk, got.dk)
	sameWhereFinite(t, dt, name+"dv", want.dv, bound.dv, got.dv)
}

func sameWhereFinite(t *testing.T, dt snug.DType, name string, want, bound []float64, got []float32) {
	t.Helper()
	for i, w := range want {
		g, limit := float64(got[i]), bound[i]
		if limit-limit != 0 { // what is not finite has reached the bound
			limit = 1e-5 * (1 + math.Abs(w))
			limit += 2 * eps[dt] * (1 + math.Abs(w))
		}
		switch {
		case w-w != 0 && g-g == 0:
			t.Fatalf("%s[%d] is %g, want %g", name, i, g, w)
		case w-w == 0 && g != w && !(math.Abs(g-w) <= limit):
			t.Fatalf("%s[%d] is %g, want %g within %g", name, i, g, w, limit)
		}
	}
}

// Results have the same bits for any number of workers, hence also with one
// pass of the backward kernel (as many key heads as workers) and with two.
//
//check:in race
func TestDeterministic(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, dt := range dtypes {
		for _, mask := range masks {
			for _, dim := range []int{12, 64} { // of a last tile with few queries, which the others of its head may be with or not
				c := Options{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 130, SeqK: 260, Dim: dim, Causal: mask.causal, Align: mask.align}
				p := newProblem(t, c, dt, 10)
				p.k[150*dim], p.v[250*dim], p.dout[40*dim] = float32(math.NaN()), float32(math.NaN()), float32(math.Inf(1))
				var want values[uint32]
				for i, procs := range []int{1, 2, 3} {
					runtime.GOMAXPROCS(procs)
					got := bitsOf(p.run(t, kerneltest.Backend{}, dt))
					if i == 0 {
						want = got
					}
					require.Equal(t, want, got, "%s %v dim=%d GOMAXPROCS=%d", mask.name, dt, dim, procs)
				}
			}
		}
	}
}

// The same with features, also of many repeats.
//
//check:in race
func TestFeaturesDeterministic(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	seeds := uint64(12)
	if !kerneltest.Full() {
		seeds = 3
	}
	for seed := range seeds {
		p, dt := combination(t, 1000+seed)
		var want values[uint32]
		for i := range 12 {
			runtime.GOMAXPROCS(1 + i%5)
			got := bitsOf(p.run(t, kerneltest.Backend{}, dt))
			if i == 0 {
				want = got
			}
			require.Equal(t, want, got, "seed %d GOMAXPROCS=%d", seed, 1+i%5)
		}
	}
}

// As FlashAttention's test of races: 250 repeats of the backward pass.
//
//check:in race
func TestRepeats(t *testing.T) {
	c := Options{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 130, SeqK: 190, Dim: 8, Causal: true, Dropout: Dropout{P: 0.1}}
	p := newProblem(t, c, snug.F32, 4)
	want := bitsOf(p.run(t, kerneltest.Backend{}, snug.F32))
	repeats := 250
	if !kerneltest.Full() {
		repeats = 10
	}
	for range repeats {
		require.Equal(t, want, bitsOf(p.run(t, kerneltest.Backend{}, snug.F32)))
	}
}

func bitsOf(v values[float32]) values[uint32] {
	of := func(x []float32) []uint32 {
		b := make([]uint32, len(x))
		for i, f := range x {
			b[i] = math.Float32bits(f)
		}
		return b
	}
	return values[uint32]{of(v.out), of(v.lse), of(v.dq), of(v.dk), of(v.dv), of(v.dbias), of(v.dsinks)}
}

// Without lse the output is the same.
func TestForwardWithoutLSE(t *testing.T) {
	c := Options{Batch: 1, Heads: 1, SeqQ: 5, SeqK: 6, Dim: 4}
	p := newProblem(t, c, snug.F32, 11)
	want := p.run(t, kerneltest.Backend{}, snug.F32).out
	out := make([]float32, len(want))
	require.NoError(t, Forward(out, []float32(nil), p.q, p.k, p.v, c))
	require.Equal(t, want, out)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		want := p.run(t, backend, snug.F32).out
		put := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, backend, x) }
		out := put(make([]float32, len(want)))
		require.NoError(t, Forward(out.View, snug.View{}, put(p.q).View, put(p.k).View, put(p.v).View, c))
		require.Equal(t, want, out.Get())
	})
}
