package fused

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// router64 is the definition of a Router in float64, for one row.
type router64 struct{ Router }

func (r router64) scores(z []float64) []float64 {
	s := make([]float64, len(z))
	total := 0.0
	for e, x := range z {
		if r.Sigmoid {
			s[e] = 1 / (1 + math.Exp(-x))
		} else {
			s[e] = math.Exp(x - slices.Max(z))
		}
		total += s[e]
	}
	for e := range s {
		if !r.Sigmoid {
			s[e] /= total
		}
	}
	return s
}

// choose sorts all experts.
func (r router64) choose(ranks []float64) []int32 {
	all := make([]int32, len(ranks))
	for e := range all {
		all[e] = int32(e)
	}
	slices.SortStableFunc(all, func(a, b int32) int {
		switch {
		case ranks[a] > ranks[b]:
			return -1
		case ranks[a] < ranks[b]:
			return 1
		}
		return 0
	})
	return all[:r.Chosen]
}

func (r router64) weights(z []float64, experts []int32) []float64 {
	s, w, total := r.scores(z), make([]float64, len(experts)), 0.0
	for k, e := range experts {
		w[k] = s[e]
		total += s[e]
	}
	scale := float64(r.Scale)
	if scale == 0 {
		scale = 1
	}
	for k := range w {
		if w[k] *= scale; r.Normalize {
			w[k] /= total
		}
	}
	return w
}

// loss is a function whose gradient is that of dweights and aux.
func (r router64) loss(z []float64, experts []int32, dweights, aux []float32) (sum float64) {
	for k, w := range r.weights(z, experts) {
		if len(dweights) > 0 {
			sum += float64(dweights[k]) * w
		}
	}
	if len(aux) > 0 {
		for e, s := range r.scores(z) {
			sum += float64(aux[e]) * s
		}
	}
	return sum
}

// gradient is the derivative of loss, and the size of what it is a sum of.
func (r router64) gradient(z []float64, experts []int32, dweights, aux []float32) (dz, size []float64) {
	dz, size = make([]float64, len(z)), make([]float64, len(z))
	s, scale := r.scores(z), float64(r.Scale)
	if scale == 0 {
		scale = 1
	}
	ds, dsize := make([]float64, len(z)), make([]float64, len(z)) // in the scores
	for e := range aux {
		ds[e] = float64(aux[e])
		dsize[e] = math.Abs(ds[e])
	}
	if len(dweights) > 0 {
		w, total, mean, meanSize := r.weights(z, experts), 0.0, 0.0, 0.0
		for k, e := range experts {
			total += s[e]
			mean += float64(dweights[k]) * w[k]
			meanSize += math.Abs(float64(dweights[k]) * w[k])
		}
		for k, e := range experts {
			d, size := scale*float64(dweights[k]), math.Abs(scale*float64(dweights[k]))
			if r.Normalize {
				d, size = (d-mean)/total, (size+meanSize)/total
			}
			ds[e] += d
			dsize[e] += size
		}
	}
	mean, meanSize := 0.0, 0.0
	for e := range s {
		mean += s[e] * ds[e]
		meanSize += s[e] * dsize[e]
	}
	for e := range s {
		if r.Sigmoid {
			dz[e], size[e] = ds[e]*s[e]*(1-s[e]), dsize[e]*s[e]*(1-s[e])
		} else {
			dz[e], size[e] = s[e]*(ds[e]-mean), s[e]*(dsize[e]+meanSize)
		}
	}
	return dz, size
}

var routers = []Router{
	{Experts: 1, Chosen: 1}, {Experts: 8, Chosen: 2, Normalize: true}, {Experts: 33, Chosen: 4},
	{Experts: 128, Chosen: 8, Normalize: true, Scale: 0.5}, {Experts: 7, Chosen: 7, Scale: 2},
	{Experts: 8, Chosen: 3, Sigmoid: true}, {Experts: 65, Chosen: 6, Sigmoid: true, Normalize: true, Scale: 2.5},
}

//check:in tiers arm64
func TestRouterGradientOfTheDefinition(t *testing.T) {
	rng := newRand(3)
	for _, r := range routers {
		h := router64{r}
		z := float64s(normals(rng, snug.F32, r.Experts, 0, 2))
		dw, aux := normals(rng, snug.F32, r.Chosen, 0, 1), normals(rng, snug.F32, r.Experts, 0, 1)
		experts := h.choose(z)
		dz, _ := h.gradient(z, experts, dw, aux)
		for e := range z {
			require.InDelta(t, slope(func() float64 { return h.loss(z, experts, dw, aux) }, z, e), dz[e], 1e-8, r)
		}
	}
}

//check:in tiers arm64
func TestRouteAgainstDefinition(t *testing.T) {
	for _, dt := range floatTypes {
		t.Run(dt.String(), func(t *testing.T) {
			kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
				for _, r := range routers {
					for _, rows := range rowCounts {
						for _, biased := range []bool{false, true} {
							testRoute(t, p, dt, r, rows, biased)
						}
					}
				}
			})
		})
	}
}

func testRoute(t *testing.T, p kerneltest.Backend, dt snug.DType, r Router, rows int, biased bool) {
	n, k, h := r.Experts, r.Chosen, router64{r}
	rng := newRand(uint64(rows*1000 + n))
	logits := normals(rng, dt, rows*n, 0, 3)
	dweights, aux := normals(rng, snug.F32, rows*k, 0, 1), normals(rng, snug.F32, n, 0, 1)
	var bias []float32
	if biased {
		bias = quarters(rng, n)
	}
	plogits := kerneltest.PutFloats(t, p, dt, logits)
	experts, weights := make([]int32, rows*k), kerneltest.Put(t, p, fill(rows*k, untouched))
	require.NoError(t, Route(r, experts, weights.View, plogits.View, bias))

	var want, bound, wantD, boundD []float64
	for i := range rows {
		z := float64s(logits[i*n:][:n])
		ranks := z
		if biased {
			if ranks = h.scores(z); !r.Sigmoid {
				for e, s := range ranks { // as in float32
					ranks[e] = float64(float32(s))
				}
			}
			for e, b := range bias {
				ranks[e] += float64(b)
			}
		}
		got := experts[i*k:][:k]
		requireChoice(t, ranks, got, biased)
		for _, w := range h.weights(z, got) {
			want, bound = append(want, w), append(bound, float64(k+n/32+20)*u*math.Abs(w)+0x1p-140)
		}
		dz, size := h.gradient(z, got, dweights[i*k:][:k], aux)
		for e := range dz {
			d := float64(2*k+n/16+40)*u*size[e] + 0x1p-140
			wantD, boundD = append(wantD, dz[e]), append(boundD, d+roundoff(dt, math.Abs(dz[e])+d))
		}
	}
	requireClose(t, "weights", want, bound, weights.Get())
	pdw, dlogits := kerneltest.Put(t, p, dweights), kerneltest.PutFloats(t, p, dt, fill(rows*n, untouched))
	require.NoError(t, RouteBackward(r, dlogits.View, pdw.View, plogits.View, experts, aux))
	requireClose(t, "dlogits", wantD, boundD, dlogits.Get())
	require.NoError(t, RouteBackward(r, plogits.View, pdw.View, plogits.View, experts, aux))
	requireBits(t, "dlogits are logits", dlogits.Get(), plogits.Get())
}

// quarters returns n multiples of 1/4, from -1/4 to 1/4.
func quarters(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.IntN(3)-1) / 4
	}
	return x
}

// requireChoice checks that experts have the greatest ranks, in descending order. With near, neighbours of almost equal
// rank may be exchanged.
func requireChoice(t *testing.T, ranks []float64, experts []int32, near bool) {
	t.Helper()
	want := router64{Router{Chosen: len(experts)}}.choose(ranks)
	if !near {
		require.Equal(t, want, experts)
		return
	}
	seen := map[int32]bool{}
	for k, e := range experts {
		require.False(t, seen[e])
		seen[e] = true
		require.InDelta(t, ranks[want[k]], ranks[e], 1e-6)
	}
}

// Any router, logits and bias: the experts are distinct and in range, in the declared order, and their weights add up.
func routeProperty(t *rapid.T) {
	r := Router{
		Experts: rapid.IntRange(1, 70).Draw(t, "experts"), Sigmoid: rapid.Bool().Draw(t, "sigmoid"),
		Normalize: rapid.Bool().Draw(t, "normalize"), Scale: rapid.SampledFrom([]float32{0, 1, -0.5, 16}).Draw(t, "scale"),
	}
	r.Chosen = rapid.IntRange(1, r.Experts).Draw(t, "chosen")
	rows := rapid.IntRange(0, 5).Draw(t, "rows")
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	logit := rapid.OneOf(rapid.Float32(), rapid.SampledFrom([]float32{0, float32(math.Copysign(0, -1)), 1, 1, -1000, -1001, 1000, inf, -inf, nan}))
	logits := rapid.SliceOfN(logit, rows*r.Experts, rows*r.Experts).Draw(t, "logits")
	var bias []float32
	if rapid.Bool().Draw(t, "biased") {
		bias = rapid.SliceOfN(rapid.SampledFrom([]float32{0, 1, -1, 0.5}), r.Experts, r.Experts).Draw(t, "bias")
	}
	experts, weights := make([]int32, rows*r.Chosen), make([]float32, rows*r.Chosen)
	require.NoError(t, Route(r, experts, weights, logits, bias))
	for i := range rows {
		z, chosen, w := logits[i*r.Experts:][:r.Experts], experts[i*r.Chosen:][:r.Chosen], weights[i*r.Chosen:][:r.Chosen]
		sorted := slices.Sorted(slices.Values(chosen))
		require.Len(t, slices.Compact(sorted), r.Chosen, "distinct")
		require.True(t, sorted[0] >= 0 && int(sorted[len(sorted)-1]) < r.Experts, "in range")
		if bias == nil {
			for k := range chosen[1:] {
				a, b := z[chosen[k]], z[chosen[k+1]]
				require.True(t, a > b || a != a || a == b && chosen[k] < chosen[k+1], "%v before %v", a, b)
			}
			for e, x := range z {
				least := z[chosen[r.Chosen-1]]
				require.True(t, slices.Contains(chosen, int32(e)) || !(x > least) && (x == x || least != least), "%v is not chosen", x)
			}
		}
		if finite := !slices.ContainsFunc(z, func(x float32) bool { return x-x != 0 }); finite && r.Normalize {
			sum, scale := float32(0), r.Scale
			if scale == 0 {
				scale = 1
			}
			for _, x := range w {
				sum += x
			}
			require.InEpsilon(t, scale, sum, 1e-5)
		}
	}
	dlogits := slices.Clone(logits)
	require.NoError(t, RouteBackward(r, dlogits, weights, logits, experts, bias))
	requireGrouped(t, experts, r)
}

// requireGrouped checks the groups of a choice.
func requireGrouped(t require.TestingT, experts []int32, r Router) {
	rows, pairs, starts := make([]int32, len(experts)), make([]int32, len(experts)), make([]int32, r.Experts+1)
	require.NoError(t, Group(rows, pairs, starts, experts, r.Chosen))
	require.Zero(t, starts[0])
	require.Equal(t, len(experts), int(starts[r.Experts]))
	for e := range r.Experts {
		last := int32(-1)
		for at := starts[e]; at < starts[e+1]; at++ {
			p := pairs[at]
			require.Equal(t, int32(e), experts[p])
			require.Equal(t, p/int32(r.Chosen), rows[at])
			require.Greater(t, p, last)
			last = p
		}
	}
}

//check:in tiers
func TestRouteProperty(t *testing.T) { rapid.Check(t, routeProperty) }
func FuzzRoute(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(routeProperty)) }
