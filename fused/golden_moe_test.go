package fused

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// goldenMoE is what testdata/moe/make.py writes.
type goldenMoE struct {
	Routers []struct {
		Name                   string
		Low                    float32
		Bias, Weights, DLogits []float32
		Experts                []int32
	}
	Balance struct {
		Loss    float64
		DLogits [][]float32
	}
	AddRows struct {
		Pairs           []int32
		Y, DX, DWeights []float32
	}
	Clamped struct{ Gate, Up, Out, DGate, DUp []float32 }
}

const moeRows, moeExperts, moeChosen = 9, 16, 4

func readGoldenMoE(t *testing.T) (all goldenMoE) {
	data, err := os.ReadFile("testdata/moe/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	return all
}

// The routers of transformers, with PyTorch's gradients. Where a router leaves the order of its choices open, ours is
// sorted.
//
//check:in tiers arm64 arm64-go
func TestGoldenRouters(t *testing.T) {
	all := readGoldenMoE(t)
	require.Len(t, all.Routers, 8)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, g := range all.Routers {
			r := map[string]Router{
				"mixtral":          {Normalize: true},
				"qwen3":            {},
				"qwen3 normalized": {Normalize: true},
				"gpt-oss":          {Normalize: true},
				"deepseek":         {Sigmoid: true, Normalize: true, Scale: 2.5},
				"deepseek sums":    {Sigmoid: true, Scale: 0.5},
			}[g.Name]
			r.Experts, r.Chosen = moeExperts, moeChosen
			logits := goldenNumbers(t, 1, moeRows*moeExperts, 4, snug.F32)
			for i := range logits {
				logits[i] += g.Low
			}
			experts := make([]int32, moeRows*moeChosen)
			plogits, weights := kerneltest.Put(t, p, logits), kerneltest.Put(t, p, fill(len(experts), untouched))
			require.NoError(t, Route(r, experts, weights.View, plogits.View, g.Bias))
			got := weights.Get()
			theirs := goldenNumbers(t, 2, len(experts), 1, snug.F32) // the gradients of their weights
			dw := make([]float32, len(theirs))
			for at := range experts { // the choice of theirs with the same expert
				row := at / moeChosen * moeChosen
				k := slices.Index(g.Experts[row:row+moeChosen], experts[at])
				require.GreaterOrEqual(t, k, 0, "%s: row %d: experts %v, want %v", g.Name, row, experts[row:row+moeChosen], g.Experts[row:row+moeChosen])
				if !r.Sigmoid {
					require.Equal(t, at-row, k, "order")
				}
				require.InDelta(t, g.Weights[row+k], got[at], 2e-6, g.Name)
				dw[at] = theirs[row+k]
			}
			dlogits := kerneltest.Put(t, p, fill(len(logits), untouched))
			require.NoError(t, RouteBackward(r, dlogits.View, kerneltest.Put(t, p, dw).View, plogits.View, experts, nil))
			require.InDeltaSlice(t, g.DLogits, dlogits.Get(), 2e-6, g.Name)
		}
	})
}

// load_balancing_loss_func of two layers, whose gradient RouteBackward injects.
//
//check:in tiers arm64 arm64-go
func TestGoldenBalance(t *testing.T) {
	g := readGoldenMoE(t).Balance
	r := Router{Experts: moeExperts, Chosen: moeChosen}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		counts := make([]int64, moeExperts)
		sums, ws := kerneltest.Put(t, p, make([]float32, moeExperts)), kerneltest.Put(t, p, make([]float32, r.WorkspaceLen(moeRows)))
		experts, starts, scratch := make([]int32, moeRows*moeChosen), make([]int32, moeExperts+1), make([]int32, 2*moeRows*moeChosen)
		layer := func(i int) snug.View {
			return kerneltest.Put(t, p, goldenNumbers(t, 3+i, moeRows*moeExperts, 4, snug.F32)).View
		}
		weights := kerneltest.Put(t, p, make([]float32, len(experts))).View
		for i := range 2 {
			require.NoError(t, Route(r, experts, weights, layer(i), nil))
			require.NoError(t, Group(scratch[:len(experts)], scratch[len(experts):], starts, experts, moeChosen))
			for e := range counts {
				counts[e] += int64(starts[e+1] - starts[e])
			}
			require.NoError(t, AddScores(r, sums.View, layer(i), ws.View))
		}
		aux := make([]float32, moeExperts)
		loss, err := AuxLoss(aux, sums.Get(), counts, 2*moeRows, 0.5)
		require.NoError(t, err)
		require.InEpsilon(t, g.Loss, loss, 1e-6)
		for i, want := range g.DLogits {
			dlogits := kerneltest.Put(t, p, fill(len(want), untouched))
			require.NoError(t, RouteBackward(r, dlogits.View, snug.View{}, layer(i), experts, aux))
			require.InDeltaSlice(t, want, dlogits.Get(), 1e-7)
		}
	})
}

// index_add of rows times weights.
//
//check:in tiers arm64 arm64-go
func TestGoldenAddRows(t *testing.T) {
	const cols = 5
	g := readGoldenMoE(t).AddRows
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(number, n int) *kerneltest.Buf[float32] {
			return kerneltest.Put(t, p, goldenNumbers(t, number, n, 1, snug.F32))
		}
		y, x, weights, dy := put(5, moeRows*cols), put(6, 3*cols), put(7, moeRows*moeChosen), put(8, moeRows*cols)
		require.NoError(t, AddRows(y.View, x.View, weights.View, g.Pairs, moeChosen, cols))
		require.InDeltaSlice(t, g.Y, y.Get(), 2e-7)
		dx, dweights := kerneltest.Put(t, p, fill(3*cols, untouched)), kerneltest.Put(t, p, make([]float32, moeRows*moeChosen))
		require.NoError(t, AddRowsBackward(dx.View, dweights.View, dy.View, x.View, weights.View, g.Pairs, moeChosen, cols))
		require.InDeltaSlice(t, g.DX, dx.Get(), 2e-7)
		require.InDeltaSlice(t, g.DWeights, dweights.Get(), 5e-7)
	})
}

// GptOssExperts._apply_gate, also at the limit.
//
//check:in tiers arm64 arm64-go
func TestGoldenClampedSwiGLU(t *testing.T) {
	g := readGoldenMoE(t).Clamped
	n := len(g.Gate)
	require.Equal(t, float32(3), g.Gate[0])
	require.Zero(t, g.DGate[0])
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, x) }
		gate, up, dy := put(g.Gate), put(g.Up), put(goldenNumbers(t, 11, n, 1, snug.F32))
		out, dgate, dup := put(make([]float32, n)), put(make([]float32, n)), put(make([]float32, n))
		require.NoError(t, ClampedSwiGLU(out.View, gate.View, up.View, 1.702, 3))
		require.NoError(t, ClampedSwiGLUBackward(dgate.View, dup.View, dy.View, gate.View, up.View, 1.702, 3))
		for _, c := range []struct{ want, got []float32 }{{g.Out, out.Get()}, {g.DGate, dgate.Get()}, {g.DUp, dup.Get()}} {
			for i, w := range c.want {
				require.InDelta(t, w, c.got[i], 1e-6*max(1, math.Abs(float64(w))))
			}
		}
	})
}
