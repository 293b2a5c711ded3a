package fused

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// imageNorm is a norm of images with what makes it this norm: which statistics an element belongs to.
type imageNorm struct {
	name     string
	stats    func(s Image, groups int) (n int, at func(b, c, p int) int)
	forward  func(ws room, out, mean, rstd, x, gamma, beta snug.View, s Image, groups int) error
	backward func(ws room, dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, s Image, groups int, into GradsInto) error
}

// room makes workspace.
type room func(n int) snug.View

func wsView(n int) snug.View { return snug.SliceView(fill(n, float32(math.NaN()))) }

var imageNorms = []imageNorm{
	{
		"GroupNorm",
		func(s Image, groups int) (int, func(b, c, p int) int) {
			return s.Batch * groups, func(b, c, _ int) int { return b*groups + c/(s.Channels/groups) }
		},
		func(ws room, out, mean, rstd, x, gamma, beta snug.View, s Image, groups int) error {
			return GroupNorm(out, mean, rstd, x, gamma, beta, s, groups, testEps, ws(GroupNormWorkspaceLen(s)))
		},
		func(ws room, dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, s Image, groups int, into GradsInto) error {
			return GroupNormBackward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma, s, groups, into, ws(GroupNormWorkspaceLen(s)))
		},
	},
	{
		"BatchNorm",
		func(s Image, _ int) (int, func(b, c, p int) int) {
			return s.Channels, func(_, c, _ int) int { return c }
		},
		func(ws room, out, mean, rstd, x, gamma, beta snug.View, s Image, _ int) error {
			n := s.Batch * s.Positions
			return errors.Join(
				BatchMoments(mean, rstd, x, s, ws(BatchNormWorkspaceLen(s))),
				BatchRstd(rstd, rstd, max(n, 1), testEps),
				BatchNorm(out, x, mean, rstd, gamma, beta, s))
		},
		func(ws room, dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, s Image, _ int, into GradsInto) error {
			sums := ws(2 * s.Channels)
			return errors.Join(
				BatchNormSums(sums, dgamma, dbeta, dy, x, mean, rstd, s, into.Params, ws(BatchNormWorkspaceLen(s))),
				BatchNormBackward(dx, dy, x, mean, rstd, sums, gamma, s, max(1, s.Batch*s.Positions), into.Input))
		},
	},
	{
		"ChannelNorm",
		func(s Image, _ int) (int, func(b, c, p int) int) {
			return s.Batch * s.Positions, func(b, _, p int) int { return b*s.Positions + p }
		},
		func(ws room, out, mean, rstd, x, gamma, beta snug.View, s Image, _ int) error {
			return ChannelNorm(out, mean, rstd, x, gamma, beta, s, testEps)
		},
		func(ws room, dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, s Image, _ int, into GradsInto) error {
			return ChannelNormBackward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma, s, into, ws(ChannelNormWorkspaceLen(s)))
		},
	},
}

// normed is what the definition gives, in float64 and in the order [batch, channel, position].
type normed struct {
	out, mean, rstd, dx, dgamma, dbeta []float64
	size                               []float64 // of what adds up to each dx
	sizeGamma, sizeBeta                []float64
}

func normalize64(s Image, n int, at func(b, c, p int) int, x, dy, gamma, beta []float64) (y normed) {
	y = normed{make([]float64, len(x)), make([]float64, n), make([]float64, n), make([]float64, len(x)), make([]float64, s.Channels),
		make([]float64, s.Channels), make([]float64, len(x)), make([]float64, s.Channels), make([]float64, s.Channels)}
	count, g, gx := make([]float64, n), make([]float64, n), make([]float64, n)
	each := func(do func(i, c, at int)) {
		for i := range x {
			p, c, b := i%s.Positions, i/s.Positions%s.Channels, i/s.Positions/s.Channels
			do(i, c, at(b, c, p))
		}
	}
	each(func(i, _, k int) { count[k]++; y.mean[k] += x[i] })
	for k := range n {
		y.mean[k] /= count[k]
	}
	each(func(i, _, k int) { y.rstd[k] += (x[i] - y.mean[k]) * (x[i] - y.mean[k]) })
	for k := range n {
		y.rstd[k] = 1 / math.Sqrt(y.rstd[k]/count[k]+testEps)
	}
	absG, absX := make([]float64, n), make([]float64, n)
	each(func(i, c, k int) {
		xhat := (x[i] - y.mean[k]) * y.rstd[k]
		y.out[i] = xhat*gamma[c] + beta[c]
		y.dgamma[c] += dy[i] * xhat
		y.dbeta[c] += dy[i]
		y.sizeGamma[c] += math.Abs(dy[i]) * (math.Abs(xhat) + math.Abs(y.mean[k])*y.rstd[k])
		y.sizeBeta[c] += math.Abs(dy[i])
		g[k] += dy[i] * gamma[c] / count[k]
		gx[k] += dy[i] * gamma[c] * xhat / count[k]
		absG[k] += math.Abs(dy[i]*gamma[c]) / count[k]
		absX[k] += math.Abs(dy[i]*gamma[c]) * (math.Abs(xhat) + math.Abs(y.mean[k])*y.rstd[k]) / count[k]
	})
	each(func(i, c, k int) {
		xhat := (x[i] - y.mean[k]) * y.rstd[k]
		y.dx[i] = y.rstd[k] * (dy[i]*gamma[c] - g[k] - xhat*gx[k])
		y.size[i] = y.rstd[k] * (math.Abs(dy[i]*gamma[c]) + absG[k] + (math.Abs(xhat)+math.Abs(y.mean[k])*y.rstd[k])*absX[k])
	})
	return y
}

// The definition's gradients are its derivatives.
func TestImageNormDefinition(t *testing.T) {
	s := Image{Batch: 2, Channels: 4, Positions: 3}
	rng := newRand(1)
	numbers := func(n int) []float64 { return float64s(normals(rng, snug.F32, n, 0.5, 1)) }
	x, dy, gamma, beta := numbers(24), numbers(24), numbers(4), numbers(4)
	for _, norm := range imageNorms {
		n, at := norm.stats(s, 2)
		loss := func() (sum float64) {
			for i, y := range normalize64(s, n, at, x, dy, gamma, beta).out {
				sum += y * dy[i]
			}
			return sum
		}
		y := normalize64(s, n, at, x, dy, gamma, beta)
		for i := range x {
			require.InDelta(t, slope(loss, x, i), y.dx[i], 1e-5, norm.name)
		}
		for c := range gamma {
			require.InDelta(t, slope(loss, gamma, c), y.dgamma[c], 1e-5, norm.name)
			require.InDelta(t, slope(loss, beta, c), y.dbeta[c], 1e-5, norm.name)
		}
	}
}

// laid puts numbers of the order [batch, channel, position] into that of s, and back if asked.
func laid[T any](s Image, v []T, back bool) []T {
	if !s.ChannelsLast {
		return v
	}
	w := make([]T, len(v))
	for i := range v {
		p, c, b := i%s.Positions, i/s.Positions%s.Channels, i/s.Positions/s.Channels
		at := (b*s.Positions+p)*s.Channels + c
		if back {
			w[i] = v[at]
		} else {
			w[at] = v[i]
		}
	}
	return w
}

var imageShapes = []struct {
	s      Image
	groups int
	slow   bool
}{
	{Image{0, 4, 3, false}, 2, false}, {Image{1, 1, 1, false}, 1, false}, {Image{3, 6, 1, false}, 3, false}, {Image{2, 6, 5, false}, 2, false},
	{Image{3, 32, 49, false}, 8, false}, {Image{2, 4, 3001, false}, 2, false}, {Image{2, 520, 9, false}, 4, false}, {Image{70, 3, 16, false}, 3, false},
	{Image{1, 2100, 70, false}, 1, false}, {Image{1, 3, 40000, false}, 1, false},
}

//check:in tiers arm64
func TestImageNormsAgainstDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, b kerneltest.Backend) {
		for _, norm := range imageNorms {
			for _, dt := range floatTypes {
				for _, last := range []bool{false, true} {
					t.Run(fmt.Sprint(norm.name, dt, last), func(t *testing.T) { norm.compareAll(t, b, dt, last) })
				}
			}
		}
	})
}

func (norm imageNorm) compareAll(t *testing.T, b kerneltest.Backend, dt snug.DType, last bool) {
	for i, shape := range imageShapes {
		s := shape.s
		s.ChannelsLast = last
		if s.Batch*s.Positions == 0 && norm.name == "BatchNorm" {
			continue // has no mean
		}
		if b.Emulated && (s.Len() > 30000 || s.Len() > 4000 && dt != snug.F32) {
			continue
		}
		if i < 4 || dt == snug.F32 || i%3 == int(dt)%3 {
			norm.compare(t, b, s, shape.groups, dt, []float64{0, 30}[i%2])
		}
	}
}

func (norm imageNorm) compare(t *testing.T, b kerneltest.Backend, s Image, groups int, dt snug.DType, mean float64) {
	rng := newRand(uint64(s.Len() + groups))
	len := s.Len()
	x, dy := normals(rng, dt, len, mean, 2), normals(rng, dt, len, 0.1, 1)
	gamma, beta := normals(rng, dt, s.Channels, 1, 0.5), normals(rng, dt, s.Channels, 0, 1)
	n, at := norm.stats(s, groups)
	want := normalize64(s, n, at, float64s(x), float64s(dy), float64s(gamma), float64s(beta))
	put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, b, dt, v) }
	put32 := func(v []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, b, v) }
	ws := func(n int) snug.View { return put32(fill(n, float32(math.NaN()))).View }
	px, pdy, pg, pb := put(laid(s, x, false)), put(laid(s, dy, false)), put(gamma), put(beta)
	out, pm, pr := put(fill(len, 42)), put32(fill(n, 42)), put32(fill(n, 42))
	require.NoError(t, norm.forward(ws, out.View, pm.View, pr.View, px.View, pg.View, pb.View, s, groups))

	what := fmt.Sprintf("%+v in %d groups: ", s, groups)
	var bound [6][]float64
	for i := range n {
		bound[0] = append(bound[0], 2*u*math.Abs(want.mean[i])+1e-6)
		bound[1] = append(bound[1], 2e-6*want.rstd[i]*(1+1e-2*want.rstd[i]))
	}
	requireClose(t, what+"mean", want.mean, bound[0], pm.Get())
	requireClose(t, what+"rstd", want.rstd, bound[1], pr.Get())
	for i, w := range want.out {
		b, c, p := i/s.Positions/s.Channels, i/s.Positions%s.Channels, i%s.Positions
		k := at(b, c, p)
		d := 4*u*math.Abs(float64(gamma[c]))*want.rstd[k]*(math.Abs(want.mean[k])+2) + 4e-6*(math.Abs(w)+math.Abs(float64(beta[c]))+math.Abs(float64(gamma[c])))
		bound[2] = append(bound[2], d+roundoff(dt, math.Abs(w)+d))
	}
	requireClose(t, what+"out", want.out, bound[2], laid(s, out.Get(), true))

	for _, into := range []GradsInto{{}, {snug.Into{Alpha: 0.5, Beta: 2}, snug.Into{Alpha: -2, Beta: 0.5}}} {
		old, oldG := normals(rng, dt, len, 0, 1), normals(rng, snug.F32, s.Channels, 0, 1)
		dx, dgamma, dbeta := put(laid(s, old, false)), put32(oldG), put32(oldG)
		require.NoError(t, norm.backward(ws, dx.View, dgamma.View, dbeta.View, pdy.View, px.View, pm.View, pr.View, pg.View, s, groups, into))
		var w [3][]float64
		var d [3][]float64
		for i, g := range want.dx {
			w[0] = append(w[0], into64(into.Input, old[i], g))
			e := intoBound(into.Input, old[i], g, 6e-6*want.size[i])
			d[0] = append(d[0], e+roundoff(dt, math.Abs(w[0][i])+e))
		}
		for c := range s.Channels {
			w[1], w[2] = append(w[1], into64(into.Params, oldG[c], want.dgamma[c])), append(w[2], into64(into.Params, oldG[c], want.dbeta[c]))
			d[1] = append(d[1], intoBound(into.Params, oldG[c], want.dgamma[c], 4e-6*want.sizeGamma[c]))
			d[2] = append(d[2], intoBound(into.Params, oldG[c], want.dbeta[c], 2e-6*want.sizeBeta[c]))
		}
		requireClose(t, what+"dx", w[0], d[0], laid(s, dx.Get(), true))
		requireClose(t, what+"dgamma", w[1], d[1], dgamma.Get())
		requireClose(t, what+"dbeta", w[2], d[2], dbeta.Get())

		frozen := put(laid(s, old, false))
		require.NoError(t, norm.backward(ws, frozen.View, snug.View{}, snug.View{}, pdy.View, px.View, pm.View, pr.View, pg.View, s, groups, into))
		if norm.name == "ChannelNorm" && s.rows().ChannelsLast && onGPU(b) { // LayerNorm's kernels differ
			requireClose(t, what+"dx of a frozen norm", w[0], d[0], laid(s, frozen.Get(), true))
		} else {
			requireBits(t, what+"dx of a frozen norm", dx.Get(), frozen.Get())
		}
		if into.Input.Beta == 0 {
			alias := put(laid(s, dy, false))
			require.NoError(t, norm.backward(ws, alias.View, snug.View{}, snug.View{}, alias.View, px.View, pm.View, pr.View, pg.View, s, groups, into))
			requireBits(t, what+"dx is dy", frozen.Get(), alias.Get())
		}
	}
	alias := put(laid(s, x, false))
	require.NoError(t, norm.forward(ws, alias.View, pm.View, pr.View, alias.View, pg.View, pb.View, s, groups))
	requireBits(t, what+"out is x", out.Get(), alias.Get())
}

// A mean that is 10,000 times the deviation costs no digits of the variance.
//
//check:in tiers arm64
func TestMomentsDoNotCancel(t *testing.T) {
	for _, s := range []Image{{2, 5, 3000, false}, {2, 5, 3000, true}} {
		x := normals(newRand(4), snug.F32, s.Len(), 1000, 0.1)
		mean, m2, ws := make([]float32, s.Channels), make([]float32, s.Channels), make([]float32, BatchNormWorkspaceLen(s))
		require.NoError(t, BatchMoments(mean, m2, laid(s, x, false), s, ws))
		_, at := imageNorms[1].stats(s, 1)
		want := normalize64(s, s.Channels, at, float64s(x), float64s(x), make([]float64, 5), make([]float64, 5))
		for c := range mean {
			require.InDelta(t, want.mean[c], mean[c], 1000*u)
			n := float64(s.Batch * s.Positions)
			require.InEpsilon(t, (1/(want.rstd[c]*want.rstd[c])-testEps)*n, m2[c], 2e-6)
		}
	}
}

// Moments of parts, merged, are those of the whole; an empty part changes nothing.
func mergedMoments(t *rapid.T) {
	s := Image{Channels: rapid.IntRange(1, 9).Draw(t, "channels"), Positions: rapid.IntRange(1, 40).Draw(t, "positions"), ChannelsLast: rapid.Bool().Draw(t, "last")}
	parts := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 5).Draw(t, "batches")
	rng := newRand(rapid.Uint64().Draw(t, "seed"))
	mean, m2, count := make([]float32, s.Channels), make([]float32, s.Channels), 0
	var all []float32
	for _, s.Batch = range parts {
		x := normals(rng, snug.F32, s.Len(), 3, 1)
		all = append(all, x...)
		otherMean, otherM2 := fill(s.Channels, 42), fill(s.Channels, 42)
		require.NoError(t, BatchMoments(otherMean, otherM2, x, s, make([]float32, BatchNormWorkspaceLen(s))))
		n, err := MergeMoments(mean, m2, count, otherMean, otherM2, s.Batch*s.Positions)
		require.NoError(t, err)
		count = n
	}
	s.Batch = count / s.Positions
	wholeMean, wholeM2 := make([]float32, s.Channels), make([]float32, s.Channels)
	require.NoError(t, BatchMoments(wholeMean, wholeM2, all, s, make([]float32, BatchNormWorkspaceLen(s))))
	require.InDeltaSlice(t, wholeMean, mean, 4e-6)
	for c := range m2 {
		require.InDelta(t, wholeM2[c], m2[c], 4e-6*float64(wholeM2[c])+1e-5)
	}
}

func TestMergedMoments(t *testing.T) { rapid.Check(t, mergedMoments) }
func FuzzMergedMoments(f *testing.F) { f.Fuzz(rapid.MakeFuzz(mergedMoments)) }

// Two ranks that merge moments and add sums have the gradients of one with both batches.
func TestBatchNormOfRanks(t *testing.T) {
	s := Image{Batch: 4, Channels: 3, Positions: 20}
	half := Image{Batch: 2, Channels: 3, Positions: 20}
	rng := newRand(3)
	x, dy, gamma := normals(rng, snug.F32, s.Len(), 1, 2), normals(rng, snug.F32, s.Len(), 0, 1), []float32{1, 2, -1}
	one := make([]float32, s.Len())
	norm, vec := imageNorms[1], func(n int) snug.View { return snug.SliceView(make([]float32, n)) }
	mean, rstd, dgamma, dbeta, view := vec(3), vec(3), vec(3), vec(3), snug.SliceView[float32]
	require.NoError(t, norm.forward(wsView, vec(s.Len()), mean, rstd, view(x), view(gamma), view(gamma), s, 1))
	require.NoError(t, norm.backward(wsView, view(one), dgamma, dbeta, view(dy), view(x), mean, rstd, view(gamma), s, 1, GradsInto{}))

	ws := make([]float32, BatchNormWorkspaceLen(half))
	var means, m2s, sums [2][]float32
	at := func(v []float32, rank int) []float32 { return v[rank*half.Len():][:half.Len()] }
	for r := range means {
		means[r], m2s[r], sums[r] = make([]float32, 3), make([]float32, 3), make([]float32, 6)
		require.NoError(t, BatchMoments(means[r], m2s[r], at(x, r), half, ws))
	}
	count, err := MergeMoments(means[0], m2s[0], 40, means[1], m2s[1], 40)
	require.NoError(t, err)
	require.NoError(t, BatchRstd(m2s[0], m2s[0], count, testEps))
	grad := make([]float32, 3)
	for r := range sums {
		require.NoError(t, BatchNormSums(sums[r], grad, make([]float32, 3), at(dy, r), at(x, r), means[0], m2s[0], half, snug.Into{Beta: 1}, ws))
	}
	for i, v := range sums[1] {
		sums[0][i] += v
	}
	dx := make([]float32, s.Len())
	for r := range sums {
		require.NoError(t, BatchNormBackward(at(dx, r), at(dy, r), at(x, r), means[0], m2s[0], sums[0], gamma, half, count, snug.Into{}))
	}
	require.InDeltaSlice(t, one, dx, 2e-6)
	require.InDeltaSlice(t, dgamma.Float32s(), grad, 2e-5)
}

func TestImageLimits(t *testing.T) {
	for _, b := range extremes {
		for _, n := range extremes {
			for _, last := range []bool{false, true} {
				for _, s := range []Image{{b, n, 2, last}, {2, b, n, last}, {b, 1, n, last}} {
					lens := []int{GroupNormWorkspaceLen(s), BatchNormWorkspaceLen(s), ChannelNormWorkspaceLen(s)}
					for _, l := range lens {
						if s.Len() == 0 {
							require.Zero(t, l, "%+v", s)
						} else {
							require.GreaterOrEqual(t, l, s.Channels, "%+v", s)
						}
					}
					none := []float32{}
					if s.Len() != 0 || s.Batch != 0 {
						require.ErrorIs(t, BatchMoments(none, none, none, s, none), snug.ErrShape)
						require.ErrorIs(t, GroupNorm(none, none, none, none, none, none, s, n, 0, none), snug.ErrShape)
						require.ErrorIs(t, ChannelNorm(none, none, none, none, none, none, s, 0), snug.ErrShape)
					}
				}
			}
		}
	}
}

// PyTorch's norms, in both layouts, and its running statistics.
//
//check:in tiers arm64
func TestGoldenImageNorms(t *testing.T) {
	all := readGoldenCNN(t)
	require.Len(t, all.Norms, 4)
	number := func(number, n int, scale float64) []float32 { return goldenNumbers(t, number, n, scale, snug.F32) }
	x := number(1, 60, 3)
	for i := range x {
		x[i]++
	}
	dy, gamma, beta := number(2, 60, 2), number(3, 4, 1), number(4, 4, 1)
	view := snug.SliceView[float32]
	for i, g := range all.Norms {
		for _, last := range []bool{false, true} {
			t.Run(fmt.Sprint(g.Name, last), func(t *testing.T) {
				s := Image{Batch: 3, Channels: 4, Positions: 5, ChannelsLast: last}
				out, dx, dgamma, dbeta := make([]float32, 60), make([]float32, 60), make([]float32, 4), make([]float32, 4)
				x, dy := view(laid(s, x, false)), view(laid(s, dy, false))
				if g.Name == "evaluated" {
					mean, rstd, variance := number(5, 4, 1), make([]float32, 4), number(6, 4, 1)
					for i, v := range variance {
						variance[i] = max(v, -v)
					}
					require.NoError(t, BatchRstd(rstd, variance, 1, testEps))
					require.NoError(t, BatchNorm(view(out), x, view(mean), view(rstd), view(gamma), view(beta), s))
					require.NoError(t, BatchNormSums(wsView(8), view(dgamma), view(dbeta), dy, x, view(mean), view(rstd), s, snug.Into{}, wsView(BatchNormWorkspaceLen(s))))
					require.NoError(t, BatchNormBackward(view(dx), dy, x, view(mean), view(rstd), snug.View{}, view(gamma), s, 1, snug.Into{}))
				} else {
					norm := imageNorms[i]
					require.Equal(t, g.Name, norm.name)
					n, _ := norm.stats(s, 2)
					mean, rstd := wsView(n), wsView(n)
					require.NoError(t, norm.forward(wsView, view(out), mean, rstd, x, view(gamma), view(beta), s, 2))
					require.NoError(t, norm.backward(wsView, view(dx), view(dgamma), view(dbeta), dy, x, mean, rstd, view(gamma), s, 2, GradsInto{}))
				}
				require.InDeltaSlice(t, g.Y, laid(s, out, true), 2e-6)
				require.InDeltaSlice(t, g.DX, laid(s, dx, true), 2e-6)
				require.InDeltaSlice(t, g.DGamma, dgamma, 2e-5)
				require.InDeltaSlice(t, g.DBeta, dbeta, 2e-5)
				if g.Name == "BatchNorm" {
					mean, m2 := make([]float32, 4), make([]float32, 4)
					runningMean, runningVar := make([]float32, 4), fill(4, 1)
					require.NoError(t, BatchMoments(view(mean), view(m2), x, s, wsView(BatchNormWorkspaceLen(s))))
					require.NoError(t, UpdateRunning(runningMean, runningVar, mean, m2, 15, 0.1))
					require.InDeltaSlice(t, g.RunningMean, runningMean, 1e-6)
					require.InDeltaSlice(t, g.RunningVar, runningVar, 1e-6)
				}
			})
		}
	}
}
