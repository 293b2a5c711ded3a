package fused

import (
	"math"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in tiers arm64
func TestBiasAddAgainstDefinition(t *testing.T) {
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(rows*1000 + cols))
		x, bias := normals(rng, dt, rows*cols, 0, 2), normals(rng, dt, cols, 0, 1)
		px, pb := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, bias)
		out := kerneltest.PutFloats(t, p, dt, fill(rows*cols, 42))
		require.NoError(t, BiasAdd(out.View, px.View, pb.View))
		var want, bound []float64
		for i, v := range x {
			w := float64(v) + float64(bias[i%cols])
			want, bound = append(want, w), append(bound, roundoff(dt, math.Abs(w)))
		}
		got := out.Get()
		requireClose(t, "out", want, bound, got)
		require.NoError(t, BiasAdd(px.View, px.View, pb.View))
		requireBits(t, "in place", got, px.Get())
	})
}

//check:in tiers arm64 race
func TestBiasAddBackwardAgainstDefinition(t *testing.T) {
	for _, into := range []snug.Into{{}, {Alpha: 0.5, Beta: 0.25}, {Beta: 1}} {
		eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
			rng := newRand(uint64(rows*1000 + cols))
			dy, dbias0 := normals(rng, dt, rows*cols, 0, 1), normals(rng, snug.F32, cols, 0, 1)
			pdy, dbias := kerneltest.PutFloats(t, p, dt, dy), kerneltest.Put(t, p, dbias0)
			ws := kerneltest.Put(t, p, fill(BiasAddWorkspaceLen(rows, cols), float32(math.NaN())))
			require.NoError(t, BiasAddBackward(dbias.View, pdy.View, into, ws.View))
			sums, sizes := make([]float64, cols), make([]float64, cols)
			for i, g := range dy {
				sums[i%cols] += float64(g)
				sizes[i%cols] += math.Abs(float64(g))
			}
			adds := float64(partRows(rows) + parts(rows))
			var want, bound []float64
			for c, g := range sums {
				want = append(want, into64(into, dbias0[c], g))
				bound = append(bound, intoBound(into, dbias0[c], g, adds*u*sizes[c])+0x1p-149)
			}
			requireClose(t, "dbias", want, bound, dbias.Get())
			requireBits(t, "dy", dy, pdy.Get())
		})
	}
}

// The order of the sums does not depend on GOMAXPROCS.
//
//check:in race
func TestBiasAddIsDeterministic(t *testing.T) {
	const rows, cols = 1000, 77
	for _, dt := range floatTypes {
		dy := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, normals(newRand(1), dt, rows*cols, 0, 1))
		var want []float32
		for _, procs := range []int{1, 2, 3, 8} {
			before := runtime.GOMAXPROCS(procs)
			dbias, ws := make([]float32, cols), make([]float32, BiasAddWorkspaceLen(rows, cols))
			err := BiasAddBackward(snug.ViewOf(dbias), dy.View, snug.Into{}, snug.ViewOf(ws))
			runtime.GOMAXPROCS(before)
			require.NoError(t, err)
			if want == nil {
				want = dbias
			}
			requireBits(t, "dbias", want, dbias)
		}
	}
}
