package attention

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
	Torch string
	Cases []struct {
		Name, DType       string
		KV, Queries, Keys int
		Dim               int // 0: 5
		Config            struct {
			Causal bool
			Bias   []int
		}
		Results map[string][]float32
	}
}

// numbers are those that make.py draws, rounded to dt.
func numbers(t testing.TB, number, n int, dt snug.DType) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(float64((uint64(i)*2654435761+uint64(number)*97531)%(1<<32))/(1<<30) - 2)
	}
	return kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).Get()
}

// The results of PyTorch, of which those of 16 bits have an error of their own: snug's is no
// larger, apart from chance. With a bias PyTorch stores the weights in float32 for the backward
// pass; against that the gradients in q, k and v may have twice the error in bfloat16, since
// processors that multiply that round the weights. The gradient in the bias has no more than
// PyTorch's, also in rows of 512, whose products with a rounded out would be far worse.
//
//check:in tiers arm64
func TestGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/golden.json")
	require.NoError(t, err)
	var all golden
	require.NoError(t, json.Unmarshal(data, &all))
	require.NotEmpty(t, all.Cases)
	for _, g := range all.Cases {
		t.Run(g.Name+" "+g.DType, func(t *testing.T) {
			dt := map[string]snug.DType{"f32": snug.F32, "f16": snug.F16, "bf16": snug.BF16}[g.DType]
			const batch, heads = 2, 2
			dim := max(g.Dim, 5)
			p := &problem{c: Options{Batch: batch, Heads: heads, KVHeads: g.KV, SeqQ: g.Queries, SeqK: g.Keys, Dim: dim, Causal: g.Config.Causal, Align: TopLeft}}
			p.c = resolved(t, p.c)
			for i, x := range []*[]float32{&p.q, &p.k, &p.v, nil, nil, nil, nil, nil, &p.dout} {
				if x != nil {
					*x = numbers(t, i+1, batch*[]int{heads, g.KV, g.KV, 0, 0, 0, 0, 0, heads}[i]*[]int{g.Queries, g.Keys, g.Keys, 0, 0, 0, 0, 0, g.Queries}[i]*dim, dt)
				}
			}
			p.addGolden(t, g.Name, g.Config.Bias, dt)
			got := p.run(t, kerneltest.Backend{}, dt)
			want, _ := p.reference(t, kerneltest.Backend{}, dt)
			for name, x := range map[string]struct {
				got  []float32
				want []float64
			}{
				"out": {got.out, want.out}, "lse": {got.lse, want.lse}, "dq": {got.dq, want.dq}, "dk": {got.dk, want.dk},
				"dv": {got.dv, want.dv}, "dbias": {got.dbias, want.dbias},
			} {
				t.Run(name, func(t *testing.T) {
					torch, ok := g.Results[name]
					if !ok {
						require.True(t, g.Dim > 0 || name == "lse" || name == "dbias", name)
						return
					}
					require.Len(t, x.got, len(torch), name)
					ours, theirs := rmsError(x.want, x.got), rmsError(x.want, torch)
					t.Logf("%s: error %.1e, torch's %.1e", name, ours, theirs)
					limit := 1.2 * theirs
					switch {
					case dt == snug.F32 && g.Dim == 0:
						require.Less(t, theirs, 1e-6, name) // the definitions are the same
						limit = 1e-6
					case dt == snug.F32: // for large scores the rounding of lse counts
						limit = 3 * theirs
					case name == "dbias":
						limit = theirs
					case p.bias != nil && name != "out" && dt == snug.BF16:
						limit = 2 * theirs
					}
					require.LessOrEqual(t, ours, limit, name)
				})
			}
		})
	}
}

// addGolden adds the feature that a case has.
func (p *problem) addGolden(t testing.TB, name string, bias []int, dt snug.DType) {
	c := &p.c
	lse := true // is in the loss
	switch name {
	case "softcap":
		c.Softcap = 1.5
	case "alibi":
		p.slopes = []float32{0.5, 0.25}
		c.Slopes = snug.SliceView(p.slopes)
	case "window":
		c.Window = slidingWindow(4, 2)
	case "documents":
		p.shows = func(b, h, i, j int) bool { return i/5 == j/5 }
		c.Causal = true
		c.Mask, _ = NewMask(1, 1, c.SeqQ, c.SeqK, p.shows)
	case "score":
		c.Score = func(score float32, b, h, i, j int) (value, slope float32) {
			factor := 1 + 0.125*float64(h)
			sin, cos := math.Sincos(float64(score))
			return float32(sin * factor), float32(cos * factor)
		}
	case "sdpa":
		lse = false
	}
	if len(bias) > 0 {
		n := 1
		for d, m := range bias {
			c.Bias.Dims[d] = m
			n *= m
		}
		p.bias, p.biasType = numbers(t, 4, n, dt), dt
		c.Bias.X, c.Bias.Grad = snug.SliceView(p.bias), snug.SliceView(make([]float32, n))
	}
	if lse {
		p.dlse = make([]float32, c.queries())
		fill(p.dlse, 1)
		c.GradLSE = snug.SliceView(p.dlse)
	}
}

// rmsError returns the root of the mean of the squared differences.
func rmsError(want []float64, got []float32) float64 {
	sum := 0.0
	for i, w := range want {
		d := float64(got[i]) - w
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(want)))
}
