package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// On devices a team of 1, 2, 4, 8 or 16 warps has a row, and wider rows are read twice.
var normWidths = []struct{ rows, cols int }{{50, 520}, {35, 1100}, {40, 2056}, {19, 4100}, {17, 8192}, {18, 8200}}

func eachNormWidth(t *testing.T, run func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int)) {
	for _, dt := range floatTypes {
		for i, w := range normWidths {
			if !kerneltest.Full() && (i%2 == 0) != (dt == snug.BF16) {
				continue
			}
			t.Run(fmt.Sprintf("%v,%d", dt, w.cols), func(t *testing.T) {
				kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) { run(t, p, dt, w.rows, w.cols) })
			})
		}
	}
}

//check:in race
func TestLayerNormBackwardOfWidths(t *testing.T) { eachNormWidth(t, layerNormBackwardAgainst64) }

// TestNormGradientsInPlace: dx has the same bits in the place of dy, and where the rows start does not matter. The sums
// have the same bits then, too.
//
//check:in tiers arm64
func TestNormGradientsInPlace(t *testing.T) {
	eachNormWidth(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(cols))
		n := rows * cols
		x, dy, gamma := normals(rng, dt, n, 3, 2), normals(rng, dt, n, 0, 1), normals(rng, dt, cols, 1, 0.3)
		var want [][]float32
		for _, lead := range []int{0, toAligned} {
			s := &shifted{t, p, lead, map[string]func() []float32{}}
			px, pg := s.put("", dt, x), s.put("", dt, gamma)
			mean, rstd := s.put("", snug.F32, fill(rows, 3)), s.put("", snug.F32, fill(rows, 0.5))
			for _, inPlace := range []bool{false, true} {
				pdy := s.put("dy", dt, dy)
				results := []func() []float32{s.get["dy"]}
				dx := pdy
				if !inPlace {
					dx = s.put("dx", dt, fill(n, float32(math.NaN())))
					results[0] = s.get["dx"]
				}
				result := func() snug.View {
					v := s.put("sum", snug.F32, fill(cols, 2))
					results = append(results, s.get["sum"])
					return v
				}
				ws := s.put("", snug.F32, fill(LayerNormWorkspaceLen(rows, cols), float32(math.NaN())))
				require.NoError(t, LayerNormBackward(dx, result(), result(), pdy, px, mean, rstd, pg, GradsInto{}, ws))
				again := s.put("dy", dt, dy)
				to := again
				if !inPlace {
					to = s.put("dx", dt, fill(n, 7))
					results = append(results, s.get["dx"])
				} else {
					results = append(results, s.get["dy"])
				}
				require.NoError(t, RMSNormBackward(to, result(), again, px, rstd, pg, GradsInto{Params: snug.Into{Beta: 1}}, ws))
				var got [][]float32
				for _, get := range results {
					got = append(got, get())
				}
				if want == nil {
					want = got
				}
				for i := range got {
					requireBits(t, fmt.Sprintf("result %d, in place: %t, %d elements behind the start", i, inPlace, lead), want[i], got[i])
				}
			}
		}
	})
}
