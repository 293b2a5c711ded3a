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
	Heads []struct {
		Cap, Loss float64
		Targets   []int32
		Weights   []float32
		DX, DW    []float32
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

// PyTorch's cross-entropy of a linear layer, with its cap of logits and weights of rows.
func TestGoldenCrossEntropy(t *testing.T) {
	const rows, vocab, cols, scale = 6, 11, 5, 0.5
	all := readGolden(t)
	require.Len(t, all.Heads, 4)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		x := kerneltest.Put(t, p, goldenNumbers(t, 4, rows*cols, 2, snug.F32))
		w := kerneltest.Put(t, p, goldenNumbers(t, 5, vocab*cols, 2, snug.F32))
		for _, g := range all.Heads {
			for _, tile := range []int{0, 4} {
				c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: 4, Tile: tile, Cap: float32(g.Cap), Weights: g.Weights}
				dx, dw := kerneltest.Put(t, p, make([]float32, rows*cols)), kerneltest.Put(t, p, make([]float32, vocab*cols))
				ws := kerneltest.Put(t, p, make([]float32, c.WorkspaceLen(rows)))
				loss, err := CrossEntropyBackward(c, dx.View, dw.View, x.View, w.View, g.Targets, scale, snug.Into{}, ws.View)
				require.NoError(t, err)
				require.InEpsilon(t, g.Loss, loss.Sum, 1e-6)
				require.InDeltaSlice(t, g.DX, dx.Get(), 1e-5)
				require.InDeltaSlice(t, g.DW, dw.Get(), 1e-5)
			}
		}
	})
}
