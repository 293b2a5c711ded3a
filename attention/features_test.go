package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// feature changes a problem whose Options has its dimensions already.
type feature struct {
	name string
	add  func(t testing.TB, p *problem, rng *rand.Rand)
}

var allFeatures = []feature{
	{"causal", func(t testing.TB, p *problem, rng *rand.Rand) { p.c.Causal, p.c.Align = true, Align(rng.IntN(2)) }},
	{"shifted", func(t testing.TB, p *problem, rng *rand.Rand) {
		p.c.Causal, p.c.Align, p.c.Shift = true, Shifted, rng.IntN(2*p.c.SeqK+1)-p.c.SeqK
	}},
	{"window", func(t testing.TB, p *problem, rng *rand.Rand) {
		p.c.Window = slidingWindow(rng.IntN(p.c.SeqK+2)-1, rng.IntN(p.c.SeqK+2)-1)
	}},
	{"softcap", func(t testing.TB, p *problem, rng *rand.Rand) { p.c.Softcap = 1 + 5*rng.Float32() }},
	{"alibi", func(t testing.TB, p *problem, rng *rand.Rand) {
		n := p.c.Heads
		if rng.IntN(2) == 0 {
			n *= p.c.Batch
		}
		p.slopes = uniform(rng, n, 0.3)
		p.c.Slopes = snug.SliceView(p.slopes)
	}},
	{"bias", func(t testing.TB, p *problem, rng *rand.Rand) { p.addBias(t, rng, false) }},
	{"bias gradient", func(t testing.TB, p *problem, rng *rand.Rand) { p.addBias(t, rng, true) }},
	{"mask", func(t testing.TB, p *problem, rng *rand.Rand) { p.addMask(rng) }},
	{"score", func(t testing.TB, p *problem, rng *rand.Rand) {
		p.c.Score = func(score float32, b, h, i, j int) (value, slope float32) {
			x, bend := float64(score), 0.5/float64(1+(b+2*h+3*i+j)%4)
			sin, cos := math.Sincos(bend * x)
			return float32(sin + 0.2), float32(bend * cos)
		}
	}},
	{"sinks", func(t testing.TB, p *problem, rng *rand.Rand) {
		p.sinks = uniform(rng, p.c.Heads, 3)
		p.c.Sinks = Sinks{X: snug.SliceView(p.sinks), Grad: snug.SliceView(make([]float32, p.c.Heads))}
	}},
	{"dropout", func(t testing.TB, p *problem, rng *rand.Rand) {
		p.c.Dropout = Dropout{P: []float32{0.1, 0.5, 0.9}[rng.IntN(3)], Seed: rng.Uint64(), Query: rng.IntN(5), Key: rng.IntN(5)}
	}},
	{"lengths of keys", func(t testing.TB, p *problem, rng *rand.Rand) {
		for b := range p.c.Batch {
			p.c.KLens = append(p.c.KLens, []int{0, p.c.SeqK, rng.IntN(p.c.SeqK + 1)}[(b+rng.IntN(3))%3])
		}
		if p.c.packed() {
			p.c.KLens = nil
		}
	}},
	{"gradient in lse", func(t testing.TB, p *problem, rng *rand.Rand) {
		p.dlse = uniform(rng, p.c.queries(), 1)
		p.c.GradLSE = snug.SliceView(p.dlse)
	}},
}

// featuresNamed returns those of some names.
func featuresNamed(names ...string) (some []feature) {
	for _, f := range allFeatures {
		if slices.Contains(names, f.name) {
			some = append(some, f)
		}
	}
	return some
}

// uniform returns numbers from -most to most.
func uniform(rng *rand.Rand, n int, most float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = most * (2*rng.Float32() - 1)
	}
	return x
}

func (p *problem) addBias(t testing.TB, rng *rand.Rand, grad bool) {
	queries, keys := p.c.longest()
	dims, n := [4]int{p.c.Batch, p.c.Heads, queries, keys}, 1
	for d := range dims {
		if rng.IntN(2) == 0 {
			dims[d] = 1
		}
		n *= dims[d]
	}
	p.biasType = dtypes[rng.IntN(3)]
	p.bias = kerneltest.PutFloats(t, kerneltest.Backend{}, p.biasType, uniform(rng, n, 2)).Get()
	p.c.Bias = Bias{X: snug.SliceView(p.bias), Dims: dims}
	if grad {
		p.c.Bias.Grad = snug.SliceView(make([]float32, n))
	}
}

// addMask draws tiles that are hidden, seen or seen in part.
func (p *problem) addMask(rng *rand.Rand) {
	batch, heads, seed := 1, 1, rng.Uint64()
	if rng.IntN(2) == 0 {
		batch = p.c.Batch
	}
	if rng.IntN(2) == 0 {
		heads = p.c.Heads
	}
	p.shows = func(b, h, i, j int) bool {
		b, h = min(b, batch-1), min(h, heads-1)
		r := rand.New(rand.NewPCG(seed, uint64(((b*97+h)*97+i/MaskTile)*97+j/MaskTile)))
		switch r.IntN(3) {
		case 0:
			return false
		case 1:
			return true
		}
		return (i*i+3*j+int(seed%7))%5 < 3
	}
	queries, keys := p.c.longest()
	var err error
	if p.c.Mask, err = NewMask(batch, heads, queries, keys, p.shows); err != nil {
		panic(err)
	}
}

// pack cuts the rows of a problem into sequences.
func (p *problem) pack(rng *rand.Rand) {
	starts := func(n int) []int {
		s := make([]int, p.c.Batch+1)
		for b := range p.c.Batch {
			s[b+1] = s[b]
			if rng.IntN(4) > 0 {
				s[b+1] += rng.IntN(n - s[b] + 1)
			}
		}
		return s
	}
	p.c.QStarts = starts(p.c.SeqQ)
	if p.c.SeqQ != p.c.SeqK || rng.IntN(2) == 0 {
		p.c.KStarts = starts(p.c.SeqK)
	}
}

// withFeatures returns a problem of c with some of the features.
func withFeatures(t testing.TB, c Options, dt snug.DType, seed uint64, packed bool, some []feature) *problem {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &problem{c: c}
	if packed {
		p.pack(rng)
	}
	p.c = resolved(t, p.c)
	for _, f := range some {
		f.add(t, p, rng)
	}
	q := newProblem(t, p.c, dt, seed)
	q.features = p.features
	return q
}

// Every feature alone, on every backend and with every type.
//
//check:in checked
//check:not emulated
func TestEachFeature(t *testing.T) {
	c := Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 70, SeqK: 134, Dim: 9, DimV: 6}
	number := 0 // of the backend
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		number++
		for i, f := range allFeatures {
			if !onHost(backend) && f.name == "score" {
				continue // for the CPU
			}
			if !kerneltest.Full() && backend.Emulated && i%2 == number%2 {
				continue // the other language has it
			}
			for n, dt := range dtypes {
				if !kerneltest.Full() && n != i%3 {
					continue
				}
				t.Run(fmt.Sprint(f.name, " ", dt), func(t *testing.T) {
					withFeatures(t, c, dt, uint64(i), n == 2, []feature{f}).check(t, backend, dt)
				})
			}
		}
	})
}

// combination is a small problem with any features.
func combination(t testing.TB, seed uint64) (*problem, snug.DType) {
	rng := rand.New(rand.NewPCG(seed, 3))
	kv := 1 + rng.IntN(2)
	c := Options{
		Batch: 1 + rng.IntN(3), KVHeads: kv, Heads: kv * (1 + rng.IntN(2)),
		SeqQ: rng.IntN(150), SeqK: rng.IntN(300), Dim: 1 + rng.IntN(9), DimV: 1 + rng.IntN(9),
		Scale: []float32{0, 1, -0.5, 0.01}[rng.IntN(4)],
	}
	if rng.IntN(3) == 0 {
		c.SeqK = c.SeqQ
	}
	if rng.IntN(2) == 0 {
		c = SequenceMajor(c)
	}
	var some []feature
	for _, f := range allFeatures {
		if rng.IntN(3) == 0 {
			some = append(some, f)
		}
	}
	dt := dtypes[rng.IntN(3)]
	return withFeatures(t, c, dt, seed, rng.IntN(3) == 0, some), dt
}

func TestCombinations(t *testing.T) {
	n := 500
	if !kerneltest.Full() {
		n = 60
	}
	for seed := range n {
		p, dt := combination(t, uint64(seed))
		t.Run(fmt.Sprint(seed), func(t *testing.T) { p.check(t, kerneltest.Backend{}, dt) })
	}
}

func combinationProperty(t *rapid.T) {
	p, dt := combination(tb{r: t}, rapid.Uint64().Draw(t, "seed"))
	p.check(tb{r: t}, kerneltest.Backend{}, dt)
}

func FuzzCombinations(f *testing.F) { f.Fuzz(rapid.MakeFuzz(combinationProperty)) }

// The gradients of the reference with all features agree with central differences.
func TestFeaturesAgainstFiniteDifferences(t *testing.T) {
	c := Options{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 5, SeqK: 6, Dim: 3, DimV: 2, Scale: 0.7}
	for seed := range uint64(20) {
		p := withFeatures(t, c, snug.F32, seed, seed%2 == 1, allFeatures)
		want, _ := p.reference(t, kerneltest.Backend{}, snug.F32)
		loss := func() float64 {
			got, _ := p.reference(t, kerneltest.Backend{}, snug.F32)
			sum := 0.0
			for i, x := range got.out {
				sum += x * float64(p.dout[i])
			}
			for i, x := range got.lse {
				if !math.IsInf(x, -1) {
					sum += x * float64(p.dlse[i])
				}
			}
			return sum
		}
		for name, pair := range map[string]struct {
			x    []float32
			grad []float64
		}{"dq": {p.q, want.dq}, "dk": {p.k, want.dk}, "dv": {p.v, want.dv}, "dbias": {p.bias, want.dbias}, "dsinks": {p.sinks, want.dsinks}} {
			for i := range pair.x {
				if pair.grad[i] == gap {
					continue // a row of no sequence
				}
				const h = 1.0 / 128
				x := pair.x[i]
				pair.x[i] = x + h
				up, step := loss(), float64(pair.x[i])
				pair.x[i] = x - h
				down := loss()
				step -= float64(pair.x[i])
				pair.x[i] = x
				require.InDelta(t, (up-down)/step, pair.grad[i], 1e-3*(1+math.Abs(pair.grad[i])), "seed %d: %s[%d]", seed, name, i)
			}
		}
	}
}

// What a Mask, a Window or lengths hide does not spread, however a tile is cut.
func TestHiddenNonFinite(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		c := Options{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 140, SeqK: 300, Dim: 3}
		if backend.Emulated {
			c = Options{Batch: 2, Heads: 1, SeqQ: 70, SeqK: 130, Dim: 3}
		}
		for i, f := range featuresNamed("mask", "window", "lengths of keys", "shifted") {
			for target := range 4 {
				for n, bad := range []float64{math.NaN(), math.Inf(1)} {
					if (backend.Emulated || !kerneltest.Full()) && n != target%2 {
						continue // slow
					}
					p := withFeatures(t, c, snug.F32, uint64(i+4*target), false, []feature{f})
					p.checkNonFinite(t, backend, snug.F32, target, []float64{0.3, 0.99}[n], bad)
				}
			}
		}
	})
}

// A query that a Mask leaves nothing has a sink or nothing in its lse.
func TestNothingSeen(t *testing.T) {
	shows := func(b, h, i, j int) bool { return i == 1 }
	mask, err := NewMask(1, 1, 3, 70, shows)
	require.NoError(t, err)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, sink := range []bool{false, true} {
			c := Options{Batch: 1, Heads: 1, SeqQ: 3, SeqK: 70, Dim: 2, Mask: mask}
			want := float32(math.Inf(-1))
			p := newProblem(t, c, snug.F32, 1)
			if p.shows = shows; sink {
				want, p.sinks = 0.5, []float32{0.5}
				p.c.Sinks.X = snug.SliceView(p.sinks)
			}
			got := p.run(t, backend, snug.F32)
			for _, i := range []int{0, 2} {
				if sink {
					require.InDelta(t, want, got.lse[i], 0x1p-23)
				} else {
					require.Equal(t, want, got.lse[i])
				}
				require.Equal(t, []float32{0, 0}, got.out[2*i:2*i+2])
				require.Equal(t, []float32{0, 0}, got.dq[2*i:2*i+2])
			}
			p.check(t, backend, snug.F32)
		}
	})
}

// A NaN or an infinite sink makes NaNs of its head, and one of −Inf is none.
func TestOddSinks(t *testing.T) {
	c := Options{Batch: 1, Heads: 4, SeqQ: 2, SeqK: 3, Dim: 2}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		want := newProblem(t, c, snug.F32, 1).run(t, backend, snug.F32)
		p := newProblem(t, c, snug.F32, 1)
		p.sinks = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), -math.MaxFloat32}
		p.c.Sinks = Sinks{X: snug.SliceView(p.sinks), Grad: snug.SliceView(make([]float32, 4))}
		got := p.run(t, backend, snug.F32)
		for i, x := range got.out {
			if i < 8 {
				require.True(t, x != x)
			} else {
				require.Equal(t, want.out[i], x)
			}
		}
		require.Equal(t, want.lse[4:], got.lse[4:])
		require.Equal(t, []float32{0, 0}, got.dsinks[2:])
	})
}

func TestMaskTiles(t *testing.T) {
	document := func(i int) int { return i / 100 }
	never := func(b, h, i, j int) bool { return false }
	m, err := NewMask(1, 1, 300, 300, func(b, h, i, j int) bool { return document(i) == document(j) })
	require.NoError(t, err)
	none, all, some := m.Tiles()
	require.Equal(t, []int{10, 3, 12}, []int{none, all, some})
	require.EqualValues(t, 25*4+12*512, m.Bytes())
	for _, d := range [][4]int{{-1, 1, 1, 1}, {1, 1, 1, -1}, {1 << 20, 1 << 20, 1, 1}, {1, 1, math.MaxInt, math.MaxInt}} {
		_, err := NewMask(d[0], d[1], d[2], d[3], never)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	_, err = NewTileMask(0, 1, 5, 5, never)
	require.NoError(t, err)
	_, err = NewMask(1, 1, 5, 5, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// A mask of ranges is the mask of a function that says the same.
func TestRangeMask(t *testing.T) {
	ranges := map[string]func(b, h, i int) (lo, hi int){
		"causal":  func(_, _, i int) (lo, hi int) { return 0, i + 1 },
		"window":  func(_, _, i int) (lo, hi int) { return i - 70, i + 1 },
		"spans":   func(b, _, i int) (lo, hi int) { return 0, max(i+1, (i/(50+b)+1)*(50+b)) },
		"none":    func(_, h, i int) (lo, hi int) { return i + h, i },
		"beyond":  func(_, _, _ int) (lo, hi int) { return math.MinInt, math.MaxInt },
		"nowhere": func(_, _, _ int) (lo, hi int) { return math.MaxInt, math.MinInt },
	}
	for name, keys := range ranges {
		for _, n := range [][2]int{{1, 1}, {64, 64}, {65, 130}, {300, 207}, {0, 3}} {
			have, err := NewRangeMask(2, 2, n[0], n[1], keys)
			require.NoError(t, err)
			want, err := NewMask(2, 2, n[0], n[1], func(b, h, i, j int) bool {
				lo, hi := keys(b, h, i)
				return lo <= j && j < hi
			})
			require.NoError(t, err)
			require.Equal(t, want, have, "%s %v", name, n)
		}
	}
	_, err := NewRangeMask(1, 1, 5, 5, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = NewRangeMask(1, 1, -5, 5, ranges["causal"])
	require.ErrorIs(t, err, snug.ErrShape)
}

// Dropout leaves out the share that it says, and keeps the mean.
func TestDropoutShare(t *testing.T) {
	for _, p := range []float32{0.1, 0.5, 0.75} {
		c := Options{Batch: 1, Heads: 2, SeqQ: 64, SeqK: 512, Dim: 1, Dropout: Dropout{P: p, Seed: 9}}
		q, v := make([]float32, 128), make([]float32, 1024)
		fill(v, 1)
		out := make([]float32, 128)
		require.NoError(t, Forward(out, []float32(nil), q, v, v, c)) // the weights are 1/512 each
		sum := 0.0
		for _, x := range out {
			sum += float64(x)
		}
		deviation := math.Sqrt(float64(p) / (1 - float64(p)) / (128 * 512))
		require.InDelta(t, 1, sum/128, 4*deviation, "P = %g", p)
	}
}
