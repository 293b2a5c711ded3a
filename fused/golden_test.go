package fused

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// golden is what testdata/torch/make.py writes.
type golden struct {
	Rows, Cols int
	Cases      []struct {
		Form, DType    string
		Out, DX, DBias []float32
	}
	Heads, Probs, Divergences []goldenHead
}

// goldenHead is what PyTorch computes for a linear layer.
type goldenHead struct {
	Cap, Temperature, Smoothing, ZLoss float32
	Bias                               bool
	Targets                            []int32
	Weights                            []float32
	Loss                               float64
	LogP, Lse, DX, DW, DBias           []float32
}

const goldenRows, goldenVocab, goldenCols = 6, 11, 5

// headCall is what a call takes for the layer of a goldenHead.
type headCall struct {
	c        CrossEntropy
	x, w, ws snug.View
	dx, dw   *kerneltest.Buf[float32]
	dbias    *kerneltest.Buf[float32]
}

// newHeadCall returns the layer whose first vector has the number that make.py gives it.
func newHeadCall(t *testing.T, p kerneltest.Backend, g goldenHead, number, cols, tile int) headCall {
	put := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, x) }
	h := headCall{
		c: CrossEntropy{Vocab: goldenVocab, Cols: cols, Chunk: 4, Tile: tile, Cap: g.Cap, Temperature: g.Temperature, Weights: g.Weights,
			Smoothing: g.Smoothing, ZLoss: g.ZLoss},
		x:  put(goldenNumbers(t, number, goldenRows*cols, 2, snug.F32)).View,
		w:  put(goldenNumbers(t, number+1, goldenVocab*cols, 2, snug.F32)).View,
		dx: put(make([]float32, goldenRows*cols)), dw: put(make([]float32, goldenVocab*cols)), dbias: put(make([]float32, goldenVocab)),
	}
	h.ws = put(make([]float32, distillLen(h.c, goldenRows))).View
	h.c.DBias = h.dbias.View
	if g.Bias {
		h.c.Bias = put(goldenNumbers(t, number+2, goldenVocab, 2, snug.F32)).View
	}
	return h
}

func (h headCall) requireGrads(t *testing.T, g goldenHead) {
	require.InDeltaSlice(t, g.DX, h.dx.Get(), 1e-5)
	require.InDeltaSlice(t, g.DW, h.dw.Get(), 1e-5)
	if g.Bias {
		require.InDeltaSlice(t, g.DBias, h.dbias.Get(), 1e-5)
	}
}

func readGolden(t *testing.T) (all golden) {
	data, err := os.ReadFile("testdata/torch/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	return all
}

// goldenNumbers are those that make.py draws, rounded to dt.
func goldenNumbers(t *testing.T, number, n int, scale float64, dt snug.DType) []float32 {
	x := make([]float32, n)
	for i := range x {
		word := (uint64(i)*2654435761 + uint64(number)*97531) % (1 << 32)
		x[i] = float32((float64(word)/(1<<31) - 1) * scale)
	}
	return kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).Get()
}

// The root of the mean square error is no larger than that of PyTorch, apart from chance, and
// in float32 within a few units of the last place of z. PyTorch rounds x + bias to the type,
// and the gradient of the bias.
//
//check:in tiers arm64 arm64-go
func TestGolden(t *testing.T) {
	all := readGolden(t)
	require.Len(t, all.Cases, 9)
	forms := map[string]struct{ value, slope func(float64) float64 }{
		"add":  {func(z float64) float64 { return z }, func(float64) float64 { return 1 }},
		"tanh": {gelu64, geluGrad64},
		"erf":  {geluErf64, geluErfGrad64},
	}
	for _, g := range all.Cases {
		t.Run(g.Form+" "+g.DType, func(t *testing.T) {
			dt := map[string]snug.DType{"f32": snug.F32, "f16": snug.F16, "bf16": snug.BF16}[g.DType]
			n, form := all.Rows*all.Cols, forms[g.Form]
			x, bias, dy := goldenNumbers(t, 1, n, 6, dt), goldenNumbers(t, 2, all.Cols, 1, dt), goldenNumbers(t, 3, n, 2, dt)
			out, dx, dbias := make([]float64, n), make([]float64, n), make([]float64, all.Cols)
			for i, v := range x {
				z := float64(v) + float64(bias[i%all.Cols])
				out[i], dx[i] = form.value(z), float64(dy[i])*form.slope(z)
				dbias[i%all.Cols] += dx[i]
			}
			put := func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x) }
			px, pb, pdy, pout, pdx := put(x), put(bias), put(dy), put(x), put(dy)
			sums, ws := make([]float32, all.Cols), make([]float32, BiasAddWorkspaceLen(all.Rows, all.Cols))
			if g.Form == "add" {
				require.NoError(t, BiasAdd(pout.View, px.View, pb.View))
				require.NoError(t, BiasAddBackward(snug.ViewOf(sums), pdy.View, snug.Into{}, snug.ViewOf(ws)))
			} else {
				gelu := gelus[g.Form]
				require.NoError(t, gelu.forward(pout.View, px.View, pb.View))
				require.NoError(t, gelu.backward(pdx.View, snug.ViewOf(sums), pdy.View, px.View, pb.View, snug.Into{}, snug.ViewOf(ws)))
			}
			for _, c := range []struct {
				name        string
				want        []float64
				got, theirs []float32
			}{{"out", out, pout.Get(), g.Out}, {"dx", dx, pdx.Get(), g.DX}, {"dbias", dbias, sums, g.DBias}} {
				ours, theirs := rootMeanSquare(c.want, c.got), rootMeanSquare(c.want, c.theirs)
				t.Logf("%s: error %.1e, torch's %.1e", c.name, ours, theirs)
				limit := 1.05 * theirs
				if dt == snug.F32 {
					require.Less(t, theirs, 3e-6, c.name) // the definitions are the same
					limit = 3e-6
				}
				require.LessOrEqual(t, ours, limit, c.name)
			}
		})
	}
}

func rootMeanSquare(want []float64, got []float32) float64 {
	sum := 0.0
	for i, w := range want {
		sum += (float64(got[i]) - w) * (float64(got[i]) - w)
	}
	return math.Sqrt(sum / float64(len(want)))
}

// PyTorch's cross-entropy of a linear layer, with all that changes it.
//
//check:in tiers arm64 arm64-go
func TestGoldenCrossEntropy(t *testing.T) {
	all := readGolden(t)
	require.Len(t, all.Heads, 8)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, g := range all.Heads {
			for _, tile := range []int{0, 4} {
				h := newHeadCall(t, p, g, 4, goldenCols, tile)
				loss, err := CrossEntropyBackward(h.c, h.dx.View, h.dw.View, h.x, h.w, g.Targets, 0.5, snug.Into{}, h.ws)
				require.NoError(t, err)
				require.InEpsilon(t, g.Loss, loss.Sum, 1e-6)
				h.requireGrads(t, g)
			}
		}
	})
}

// log_softmax and gather.
//
//check:in tiers arm64 arm64-go
func TestGoldenLogProbs(t *testing.T) {
	all := readGolden(t)
	require.Len(t, all.Probs, 3)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, g := range all.Probs {
			for _, tile := range []int{0, 4} {
				h := newHeadCall(t, p, g, 4, goldenCols, tile)
				put := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, x) }
				logp, lse := put(make([]float32, 3*goldenRows)), put(make([]float32, goldenRows))
				require.NoError(t, LogProbs(h.c, logp.View, lse.View, h.x, h.w, g.Targets, h.ws))
				require.InDeltaSlice(t, g.LogP, logp.Get(), 3e-6)
				require.InDeltaSlice(t, g.Lse, lse.Get(), 3e-6)
				dlogp, dlse := put(goldenNumbers(t, 8, 3*goldenRows, 1, snug.F32)), put(goldenNumbers(t, 9, goldenRows, 1, snug.F32))
				require.NoError(t, LogProbsBackward(h.c, h.dx.View, h.dw.View, dlogp.View, dlse.View, lse.View, h.x, h.w, g.Targets, snug.Into{}, h.ws))
				h.requireGrads(t, g)
			}
		}
	})
}

// kl_div of the log_softmax of two layers.
//
//check:in tiers arm64 arm64-go
func TestGoldenDistill(t *testing.T) {
	all := readGolden(t)
	require.Len(t, all.Divergences, 3)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, g := range all.Divergences {
			for _, tile := range []int{0, 4} {
				h := newHeadCall(t, p, g, 4, goldenCols, tile)
				teacher := newHeadCall(t, p, goldenHead{Temperature: g.Temperature, Bias: g.Bias}, 10, 3, 0)
				teacher.c.Chunk, teacher.c.DBias = 0, snug.View{}
				loss, err := DistillBackward(h.c, teacher.c, h.dx.View, h.dw.View, h.x, h.w, teacher.x, teacher.w, 0.5, snug.Into{}, h.ws)
				require.NoError(t, err)
				require.InEpsilon(t, g.Loss, loss.Sum, 1e-6)
				h.requireGrads(t, g)
			}
		}
	})
}
