package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// rmsNorm64 is the definition of RMSNorm of a row.
func rmsNorm64(x, gamma []float64, eps float64) (out []float64, rstd float64) {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	rstd = 1 / math.Sqrt(sum/float64(len(x))+eps)
	for i, v := range x {
		out = append(out, v*rstd*gamma[i])
	}
	return out, rstd
}

// rmsNormGrad64 is the gradient of Σ dy·rmsNorm64 in x.
func rmsNormGrad64(dy, x, gamma []float64, rstd float64) (dx []float64) {
	n, avg := float64(len(x)), 0.0
	for i := range x {
		avg += dy[i] * gamma[i] * x[i] * rstd / n
	}
	for i := range x {
		dx = append(dx, rstd*(dy[i]*gamma[i]-x[i]*rstd*avg))
	}
	return dx
}

//check:in tiers arm64
func TestRMSNormGradientOfTheDefinition(t *testing.T) {
	rng := newRand(1)
	x, gamma, dy := float64s(normals(rng, snug.F32, 6, 1, 1)), float64s(normals(rng, snug.F32, 6, 1, 1)), float64s(normals(rng, snug.F32, 6, 0, 1))
	_, rstd := rmsNorm64(x, gamma, testEps)
	dx := rmsNormGrad64(dy, x, gamma, rstd)
	for i := range x {
		require.InDelta(t, slope(func() (s float64) {
			out, _ := rmsNorm64(x, gamma, testEps)
			for i, o := range out {
				s += dy[i] * o
			}
			return s
		}, x, i), dx[i], 1e-8)
	}
}

//check:in tiers arm64
func TestRMSNormAgainstDefinition(t *testing.T) {
	into := GradsInto{Input: snug.Into{Alpha: 0.5, Beta: 0.25}, Params: snug.Into{Alpha: 2, Beta: 1}}
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(rows*1000 + cols))
		x, gamma := normals(rng, dt, rows*cols, 1, 2), normals(rng, dt, cols, 1, 1)
		dy, before := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, rows*cols, 0, 1)
		dgamma0 := normals(rng, snug.F32, cols, 0, 1)
		put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, v) }
		px, pg, pdy, pdx := put(x), put(gamma), put(dy), put(before)
		out := put(fill(rows*cols, 42))
		rstd, dgamma := kerneltest.Put(t, p, fill(rows, 42)), kerneltest.Put(t, p, dgamma0)
		ws := kerneltest.Put(t, p, fill(RMSNormWorkspaceLen(rows, cols), float32(math.NaN())))
		require.NoError(t, RMSNorm(out.View, rstd.View, px.View, pg.View, testEps))
		require.NoError(t, RMSNormBackward(pdx.View, dgamma.View, pdy.View, px.View, rstd.View, pg.View, into, ws.View))

		// The sum of squares is off by less than sums·u of itself, a root
		// halves that; a few roundings follow.
		sums := float64(cols)/4 + 8
		var wantOut, boundOut, wantDx, boundDx []float64
		params, sizes := make([]float64, cols), make([]float64, cols)
		g64 := float64s(gamma)
		got := rstd.Get()
		for r := range rows {
			row, d := float64s(x[r*cols:][:cols]), float64s(dy[r*cols:][:cols])
			o, s := rmsNorm64(row, g64, testEps)
			require.InDelta(t, s, got[r], sums*u*s)
			dx := rmsNormGrad64(d, row, g64, s)
			size := 0.0 // of the terms of the average
			for c := range row {
				size += math.Abs(d[c]*g64[c]*row[c]*s) / float64(cols)
			}
			for c := range row {
				wantOut = append(wantOut, o[c])
				boundOut = append(boundOut, sums*u*math.Abs(o[c])+roundoff(dt, math.Abs(o[c])*1.001))
				old := before[r*cols+c]
				slack := 2 * sums * u * s * (math.Abs(d[c]*g64[c]) + math.Abs(row[c]*s)*size)
				w := into64(into.Input, old, dx[c])
				wantDx = append(wantDx, w)
				boundDx = append(boundDx, intoBound(into.Input, old, dx[c], slack)+roundoff(dt, math.Abs(w)*1.001+slack))
				params[c] += d[c] * row[c] * s
				sizes[c] += math.Abs(d[c] * row[c] * s)
			}
		}
		requireClose(t, "out", wantOut, boundOut, out.Get())
		requireClose(t, "dx", wantDx, boundDx, pdx.Get())
		adds := float64(partRows(rows)+parts(rows)) + sums
		var want, bound []float64
		for c := range cols {
			want = append(want, into64(into.Params, dgamma0[c], params[c]))
			bound = append(bound, intoBound(into.Params, dgamma0[c], params[c], adds*u*sizes[c])+0x1p-149)
		}
		requireClose(t, "dgamma", want, bound, dgamma.Get())

		// In place, frozen, without rstd.
		y := out.Get()
		require.NoError(t, RMSNorm(px.View, snug.View{}, px.View, pg.View, testEps))
		requireBits(t, "in place", y, px.Get())
		px = put(x)
		pdx = put(before)
		require.NoError(t, RMSNormBackward(pdx.View, snug.View{}, pdy.View, px.View, rstd.View, pg.View, GradsInto{}, snug.View{}))
		require.NoError(t, RMSNormBackward(pdy.View, snug.View{}, pdy.View, px.View, rstd.View, pg.View, GradsInto{}, snug.View{}))
		requireBits(t, "dx is dy", pdx.Get(), pdy.Get())
	})
}

func TestRMSNormNonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{1, 2, nan, 1, 2, inf, 1e30, 1, 0, 0x1p-149, 0, 0}
	out, rstd := make([]float32, 12), make([]float32, 4)
	require.NoError(t, RMSNorm(out, rstd, x, fill(3, 1), testEps))
	require.True(t, out[0] != out[0] && out[1] != out[1] && out[2] != out[2])
	require.Equal(t, []float32{0, 0}, out[3:5])
	require.True(t, out[5] != out[5])
	require.Equal(t, []float32{0, 0, 0}, out[6:9], "squares that overflow")
	require.Equal(t, []float32{0, 0, 0}, round(snug.F16, out[9:12]))
}
