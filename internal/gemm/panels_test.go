package gemm

import (
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// MulRows of rows, of columns and of panels that a caller packed is their product.
//
//check:in tiers arm64 arm64-go
func TestMulRows(t *testing.T) {
	for tier, k := range Registry.All() {
		for _, rows := range []int{1, k.MR, k.MR + 1, k.StripRows(), 2*k.MR + 1} {
			for _, cols := range []int{1, k.NR, 2*k.NR + 3} {
				for _, depth := range []int{1, 7, 40} {
					x, y, old := kerneltest.Normal(1, rows*depth), kerneltest.Normal(2, depth*cols), kerneltest.Normal(3, rows*cols)
					b := make([]float32, (cols+k.NR)*depth)
					want := make([]float32, rows*cols)
					for j := range cols {
						for d := range depth {
							b[j/k.NR*k.NR*depth+d*k.NR+j%k.NR] = y[d*cols+j]
						}
						for i := range rows {
							var sum float64
							for d := range depth {
								sum += float64(x[i*depth+d]) * float64(y[d*cols+j])
							}
							want[i*cols+j] = float32(0.5*sum) + 2*old[i*cols+j]
						}
					}
					turned, pitch := make([]float32, rows*depth), k.Pitch()
					panels := make([]float32, k.Panels(rows)*pitch*depth)
					for p := range k.Panels(rows) {
						lo, hi := k.PanelOf(rows, p)
						for i := lo; i < hi; i++ {
							for d := range depth {
								turned[d*rows+i] = x[i*depth+d]
								panels[(p*depth+d)*pitch+i-lo] = x[i*depth+d]
							}
						}
					}
					for name, a := range map[string]Rows{
						"rows": {X: x, Row: depth, Col: 1}, "columns": {X: turned, Row: 1, Col: rows},
						"panels": {X: panels, Row: 1, Col: pitch, Panel: pitch * depth},
					} {
						got := append([]float32(nil), old...)
						k.MulRows(rows, cols, depth, 0.5, a, b, 2, got, cols)
						for i := range want {
							require.InDelta(t, want[i], got[i], 1e-4, "%v %s %d×%d×%d, element %d", tier, name, rows, cols, depth, i)
						}
					}
				}
			}
		}
	}
}
