package quant8

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenSOAP has the constants of testdata/soap/make.py.
var goldenSOAP = map[string]Rule{
	"soap":       SOAP{WeightDecay: 0.1, Frequency: 3, MaxDim: 8},
	"soap.other": SOAP{Beta1: 0.9, Beta2: 0.99, PreconditionerBeta: 0.8, Eps: 1e-3, Frequency: 1, MaxDim: 8},
}

// TestSOAPGolden makes the runs of the authors' code, in memory and in chunks of a Storage. Parameters do not depend on
// the signs of eigenvectors.
func TestSOAPGolden(t *testing.T) {
	var r struct {
		Shapes    map[string][]int
		Start     map[string][]float32
		Gradients map[string][][]float32
		Runs      map[string]map[string][][]float32 // parameters after steps 1, 2, 3, 10 and 20
	}
	data, err := os.ReadFile("testdata/soap/runs.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	require.Len(t, r.Runs, len(goldenSOAP))
	compared := 0
	for rule, runs := range r.Runs {
		for name, after := range runs {
			for _, s := range []Options{{Bits: 32}, {Bits: 32, Block: 32, Chunk: 32, Storage: newFakeStorage()}} {
				a, err := New(goldenSOAP[rule], s)
				require.NoError(t, err)
				shape, p := r.Shapes[name], append([]float32(nil), r.Start[name]...)
				if len(shape) == 2 {
					require.NoError(t, a.AddMatrix(name, shape[0], shape[1]))
				} else {
					require.NoError(t, a.Add(name, shape[0]))
				}
				for i, g := range r.Gradients[name] {
					scaled := append([]float32(nil), g...)
					for k := range scaled {
						scaled[k] *= 2
					}
					a.Advance(1e-2)
					step(t, a, name, p, scaled, 0.5)
					for k, at := range []int{1, 2, 3, 10, 20} {
						if i+1 == at {
							require.Zero(t, outliers(after[k], p, 1e-6, 1e-5), "%s %s, step %d", rule, name, at)
							compared++
						}
					}
				}
			}
		}
	}
	require.Equal(t, 2*5*2*5, compared)
}
