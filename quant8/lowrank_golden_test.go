package quant8

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/lowrank"
	"github.com/snug-ml/snug/internal/philox"
)

// lowRankRuns is what testdata/lowrank/make.py wrote.
type lowRankRuns struct {
	Shapes    map[string][]int
	Start     map[string][]float32
	Gradients map[string][][]float32
	Runs      map[string]map[string]struct {
		After      [][]float32 // steps 1, 2, 10 and 20
		Directions [][]float32 // of the periods
	}
}

func readLowRankRuns(t *testing.T) (r lowRankRuns) {
	data, err := os.ReadFile("testdata/lowrank/runs.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	return r
}

// goldenLowRank has the constants of the script. Its mini.front is mini: that the scale comes before the limiter does
// not matter.
var goldenLowRank = map[string]Rule{
	"apollo":           Apollo{Rank: 3, Gap: 4, WeightDecay: 0.1},
	"apollo.unlimited": Apollo{Rank: 2, Gap: 4, Scale: 4, NoLimit: true},
	"mini":             Apollo{Tensor: true, Gap: 4, WeightDecay: 0.1},
	"mini.front":       Apollo{Tensor: true, Gap: 4, WeightDecay: 0.1},
	"galore":           GaLore{Rank: 3, Gap: 4, WeightDecay: 0.1},
	"galore.other":     GaLore{Rank: 4, Scale: 1, Gap: 4},
}

// TestLowRankGolden makes the runs of the authors' packages with their directions, in memory and in chunks of a
// Storage, with 32-bit state.
//
//check:in tiers arm64 arm64-go
func TestLowRankGolden(t *testing.T) {
	r, compared := readLowRankRuns(t), 0
	require.Len(t, r.Runs, len(goldenLowRank))
	for rule, runs := range r.Runs {
		for name, run := range runs {
			for _, s := range []Options{{Bits: 32, MinSize: 1}, {Bits: 32, MinSize: 1, Block: 32, Chunk: 32, Storage: newFakeStorage()}} {
				a, err := New(goldenLowRank[rule], s)
				require.NoError(t, err)
				a.directions = func(_ string, period int) []float32 { return run.Directions[period] }
				shape, p := r.Shapes[name], append([]float32(nil), r.Start[name]...)
				if len(shape) == 2 {
					require.NoError(t, a.AddMatrix(name, shape[0], shape[1]))
					require.IsType(t, new(lowRank), a.params[name].engine)
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
					for k, at := range []int{1, 2, 10, 20} {
						if i+1 == at {
							require.Zero(t, outliers(run.After[k], p, 1e-6, 1e-5), "%s %s, step %d", rule, name, at)
							compared++
						}
					}
				}
			}
		}
	}
	require.Equal(t, 6*4*2*4, compared)
}

// TestBasisGolden compares the bases of GaLore's authors with those of the same gradients, up to signs.
//
//check:in tiers arm64 arm64-go
func TestBasisGolden(t *testing.T) {
	r := readLowRankRuns(t)
	for _, rule := range []string{"galore", "galore.other"} {
		for name, run := range r.Runs[rule] {
			if len(r.Shapes[name]) != 2 {
				require.Empty(t, run.Directions)
				continue
			}
			rank := goldenLowRank[rule].(GaLore).Rank
			for period, want := range run.Directions {
				g := lowrank.Matrix{Data: snug.ViewOf(r.Gradients[name][4*period]), Rows: r.Shapes[name][0], Cols: r.Shapes[name][1]}
				floats, sums := lowrank.BasisWork(g.Rows, g.Cols, rank)
				got := make([]float32, len(want))
				lowrank.Basis(got, g, rank, philox.Stream{}, make([]float32, floats), make([]float64, sums))
				short := len(want) / rank
				for k := range rank {
					w, x, sign := want[k*short:][:short], got[k*short:][:short], 0.0
					for i := range w {
						sign += float64(w[i] * x[i])
					}
					require.InDelta(t, 1, math.Abs(sign), 1e-5)
					for i := range w {
						require.InDelta(t, w[i], math.Copysign(1, sign)*float64(x[i]), 1e-5, "%s %s", rule, name)
					}
				}
			}
		}
	}
}
