package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

const testEps = 1e-5

// layerNorm64 is the definition for one row.
func layerNorm64(x, gamma, beta []float64, eps float64) (out []float64, mean, rstd float64) {
	n := float64(len(x))
	for _, v := range x {
		mean += v / n
	}
	var variance float64
	for _, v := range x {
		variance += (v - mean) * (v - mean) / n
	}
	rstd = 1 / math.Sqrt(variance+eps)
	out = make([]float64, len(x))
	for i, v := range x {
		out[i] = (v-mean)*rstd*gamma[i] + beta[i]
	}
	return out, mean, rstd
}

// layerNormGrad64 is the gradient of the input of one row, and for each
// element the magnitude of the terms that it is made of.
func layerNormGrad64(dy, x, gamma []float64, mean, rstd float64) (dx, size []float64) {
	n := float64(len(x))
	var avg, avgX, absAvg, absAvgX float64
	for i := range x {
		g, xhat := dy[i]*gamma[i], (x[i]-mean)*rstd
		avg, absAvg = avg+g/n, absAvg+math.Abs(g)/n
		avgX, absAvgX = avgX+g*xhat/n, absAvgX+math.Abs(g*xhat)/n
	}
	dx, size = make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		g, xhat := dy[i]*gamma[i], (x[i]-mean)*rstd
		dx[i] = rstd * (g - avg - xhat*avgX)
		size[i] = rstd * (math.Abs(g) + absAvg + math.Abs(xhat)*absAvgX)
	}
	return dx, size
}

//check:in tiers arm64
func TestLayerNormGradientOfTheDefinition(t *testing.T) {
	rng := newRand(2)
	for _, n := range []int{1, 2, 9} {
		x, gamma := float64s(normals(rng, snug.F32, n, 1, 2)), float64s(normals(rng, snug.F32, n, 1, 1))
		beta, dy := make([]float64, n), float64s(normals(rng, snug.F32, n, 0, 1))
		loss := func() (s float64) {
			out, _, _ := layerNorm64(x, gamma, beta, 0.1)
			for i, o := range out {
				s += dy[i] * o
			}
			return s
		}
		_, mean, rstd := layerNorm64(x, gamma, beta, 0.1)
		dx, _ := layerNormGrad64(dy, x, gamma, mean, rstd)
		for i := range n {
			require.InDelta(t, slope(loss, x, i), dx[i], 1e-8)
			require.InDelta(t, slope(loss, gamma, i), dy[i]*(x[i]-mean)*rstd, 1e-8)
			require.InDelta(t, slope(loss, beta, i), dy[i], 1e-8)
		}
	}
}

//check:in tiers arm64
func TestLayerNormAgainstDefinition(t *testing.T) {
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(rows*1000 + cols))
		x, gamma, beta := normals(rng, dt, rows*cols, 3, 2), normals(rng, dt, cols, 1, 0.3), normals(rng, dt, cols, 0, 1)
		px, pg, pb := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, gamma), kerneltest.PutFloats(t, p, dt, beta)
		out := kerneltest.PutFloats(t, p, dt, fill(rows*cols, 42))
		mean, rstd := kerneltest.Put(t, p, fill(rows, 42)), kerneltest.Put(t, p, fill(rows, 42))
		require.NoError(t, LayerNorm(out.View, mean.View, rstd.View, px.View, pg.View, pb.View, testEps))

		lanes := (float64(cols)/4 + 4) * u // of every sum over a row
		var want, bound, means, meanBound, rstds, rstdBound []float64
		for r := range rows {
			row := float64s(x[r*cols:][:cols])
			o, m, s := layerNorm64(row, float64s(gamma), float64s(beta), testEps)
			var avgAbs float64
			for _, v := range row {
				avgAbs += math.Abs(v) / float64(cols)
			}
			dm := lanes*avgAbs + u*math.Abs(m)
			ds := lanes + 4*u + dm*dm*s*s // relative
			means, meanBound = append(means, m), append(meanBound, dm)
			rstds, rstdBound = append(rstds, s), append(rstdBound, s*ds)
			for i, w := range o {
				gain := math.Abs(float64(gamma[i])) * s
				d := gain*dm + gain*math.Abs(row[i]-m)*(ds+6*u) + 2*u*math.Abs(float64(beta[i]))
				want, bound = append(want, w), append(bound, d+roundoff(dt, math.Abs(w)+d))
			}
		}
		got := out.Get()
		requireClose(t, "out", want, bound, got)
		requireClose(t, "mean", means, meanBound, mean.Get())
		requireClose(t, "rstd", rstds, rstdBound, rstd.Get())

		// In place, and without statistics.
		require.NoError(t, LayerNorm(px.View, snug.View{}, snug.View{}, px.View, pg.View, pb.View, testEps))
		requireBits(t, "in place", got, px.Get())
	})
}

//check:in tiers arm64 race
func TestLayerNormBackwardAgainstDefinition(t *testing.T) { eachShape(t, layerNormBackwardAgainst64) }

func layerNormBackwardAgainst64(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
	into := GradsInto{Input: snug.Into{Alpha: 2, Beta: 0.5}, Params: snug.Into{Alpha: 0.5, Beta: 0.25}}
	rng := newRand(uint64(rows*1000 + cols))
	x, gamma := normals(rng, dt, rows*cols, 3, 2), normals(rng, dt, cols, 1, 0.3)
	dy, residual := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, rows*cols, 0, 1)
	dgamma0, dbeta0 := normals(rng, snug.F32, cols, 0, 1), normals(rng, snug.F32, cols, 0, 1)
	mean, rstd := make([]float32, rows), make([]float32, rows)
	partSums := (float64(partRows(rows)+parts(rows)) + 6) * u
	rowSums := (float64(cols)/4 + 12) * u

	params := make([]float64, 4*cols) // dgamma, dbeta and the magnitudes of their terms
	var want, bound, added, addedBound []float64
	for r := range rows {
		row, drow := float64s(x[r*cols:][:cols]), float64s(dy[r*cols:][:cols])
		_, m, s := layerNorm64(row, float64s(gamma), float64s(gamma), testEps)
		mean[r], rstd[r] = float32(m), float32(s)
		m, s = float64(mean[r]), float64(rstd[r])
		dx, size := layerNormGrad64(drow, row, float64s(gamma), m, s)
		for i, g := range dx {
			xhat, d := (row[i]-m)*s, rowSums*size[i]
			params[i] += drow[i] * xhat
			params[cols+i] += drow[i]
			params[2*cols+i] += math.Abs(drow[i] * xhat)
			params[3*cols+i] += math.Abs(drow[i])
			want, bound = append(want, g), append(bound, d+roundoff(dt, math.Abs(g)+d))
			old := residual[r*cols+i]
			a, d := into64(into.Input, old, g), intoBound(into.Input, old, g, d)
			added, addedBound = append(added, a), append(addedBound, d+roundoff(dt, math.Abs(a)+d))
		}
	}
	put := func(v []float32) snug.View { return kerneltest.Put(t, p, v).View }
	px, pg := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, gamma)
	pdy, pdx := kerneltest.PutFloats(t, p, dt, dy), kerneltest.PutFloats(t, p, dt, residual)
	pm, ps, ws := put(mean), put(rstd), put(fill(LayerNormWorkspaceLen(rows, cols), float32(math.NaN())))
	dgamma, dbeta := kerneltest.Put(t, p, dgamma0), kerneltest.Put(t, p, dbeta0)

	require.NoError(t, LayerNormBackward(pdx.View, dgamma.View, dbeta.View, pdy.View, px.View, pm, ps, pg.View, into, ws))
	requireClose(t, "dx added", added, addedBound, pdx.Get())
	for i, what := range []string{"dgamma", "dbeta"} {
		old, got := dgamma0, dgamma
		if i == 1 {
			old, got = dbeta0, dbeta
		}
		var want, bound []float64
		for c := range cols {
			g, size := params[i*cols+c], params[(2+i)*cols+c]
			want = append(want, into64(into.Params, old[c], g))
			bound = append(bound, intoBound(into.Params, old[c], g, partSums*size)+0x1p-149)
		}
		requireClose(t, what, want, bound, got.Get())
	}

	// dx in the place of dy, parameters frozen.
	var none snug.View
	require.NoError(t, LayerNormBackward(pdy.View, none, none, pdy.View, px.View, pm, ps, pg.View, GradsInto{}, none))
	requireClose(t, "dx", want, bound, pdy.Get())
}

func TestLayerNormLargeMean(t *testing.T) {
	const cols = 768
	rng := newRand(3)
	x := normals(rng, snug.F32, cols, 1000, 1)
	out, gamma, beta := make([]float32, cols), fill(cols, 1), make([]float32, cols)
	require.NoError(t, LayerNorm(out, noFloats, noFloats, x, gamma, beta, testEps))
	want, _, _ := layerNorm64(float64s(x), float64s(gamma), float64s(beta), testEps)
	for i, w := range want {
		require.InDelta(t, w, out[i], 1e-3)
	}
}

func TestLayerNormNonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{1, 2, nan, 1, 2, 4, 1, -inf, 2, 0x1p-149, 0, 0}
	out, mean, rstd := make([]float32, 12), make([]float32, 4), make([]float32, 4)
	require.NoError(t, LayerNorm(out, mean, rstd, x, fill(3, 1), fill(3, 0), testEps))
	for i, o := range out {
		bad := i < 3 || i >= 6 && i < 9
		require.Equal(t, bad, math.IsNaN(float64(o)), "element %d is %v", i, o)
	}
}
