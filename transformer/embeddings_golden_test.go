package transformer

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// floats are float32 in base64.
type floats []float32

func (f *floats) UnmarshalJSON(text []byte) error {
	var code string
	if err := json.Unmarshal(text, &code); err != nil {
		return err
	}
	raw, err := base64.StdEncoding.DecodeString(code)
	*f = make(floats, len(raw)/4)
	for i := range *f {
		(*f)[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return err
}

// embeddingsGolden is a case of testdata/embeddings.json, see embeddings.py there.
type embeddingsGolden struct {
	Name, Folder            string
	Rope                    json.RawMessage
	Sequences               int
	Tokens, Labels, Rows    []int32
	Positions               [][]int32
	Spans                   [][2]int
	Values, Logits, Vectors floats
	Gradients               map[string][]float64 // norms, and products with signs
	Losses                  []float64
}

func readEmbeddings(t testing.TB) (cases []embeddingsGolden) {
	t.Helper()
	var file struct{ Cases []embeddingsGolden }
	readGolden(t, "embeddings.json", &file)
	require.Len(t, file.Cases, 8)
	return file.Cases
}

// batch returns the batch of a case, with memory for the gradient of the vectors.
func (g *embeddingsGolden) batch() (b Batch, grad []float32) {
	grad = make([]float32, len(g.Values))
	return Batch{Tokens: g.Tokens, Labels: g.Labels, Sequences: g.Sequences, Positions: g.Positions, Spans: g.Spans,
		Embeddings: Embeddings{Rows: g.Rows, Values: snug.ViewOf(g.Values), Grad: snug.ViewOf(grad)}}, grad
}

// open opens the folder of a case, with its rope in config.json.
func (g *embeddingsGolden) open(t testing.TB, o Options) *Model {
	t.Helper()
	dir := filepath.Join("testdata", "models", g.Folder)
	if string(g.Rope) != "null" {
		text, err := os.ReadFile(filepath.Join(dir, "config.json"))
		require.NoError(t, err)
		var fields map[string]any
		require.NoError(t, json.Unmarshal(text, &fields))
		fields["rope_theta"] = fields["rope_parameters"].(map[string]any)["rope_theta"]
		delete(fields, "rope_parameters")
		fields["rope_scaling"] = g.Rope
		text, err = json.Marshal(fields)
		require.NoError(t, err)
		to := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(to, "config.json"), text, 0o600))
		weights, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, "model.safetensors"), weights, 0o600))
		dir = to
	}
	return open32(t, modelGolden{dir: dir}, o)
}

// sign is element i of vector k of signs of embeddings.py.
func sign(i, k int) float64 {
	x := uint64(uint32(uint64(i+1)*2654435761)) >> 16
	return float64(x*x>>(k+8)&1)*2 - 1
}

// requireGradient compares a gradient with its norm and products. A difference enters each product with random signs, so
// that the root of their mean square is about its norm.
func requireGradient(t testing.TB, want []float64, have []float32, name string) float64 {
	t.Helper()
	norm, square := 0.0, 0.0
	for _, x := range have {
		norm += float64(x) * float64(x)
	}
	for k, p := range want[1:] {
		for i, x := range have {
			p -= float64(x) * sign(i, k)
		}
		square += p * p / float64(len(want)-1)
	}
	require.InDelta(t, want[0], math.Sqrt(norm), 1e-5*want[0], name)
	require.LessOrEqual(t, math.Sqrt(square), 1e-5*want[0], name)
	return math.Sqrt(square) / want[0]
}

func TestEmbeddingsAgainstTransformers(t *testing.T) {
	for _, g := range readEmbeddings(t) {
		t.Run(g.Name, func(t *testing.T) {
			m := g.open(t, Options{})
			b, grad := g.batch()
			out := make([]float32, len(g.Logits))
			require.NoError(t, m.Logits(t.Context(), out, b, []int32{0, 2, 4, 6, 9, 12, 16, 19}))
			logits, largest := apart(out, g.Logits)
			require.LessOrEqual(t, logits, 1e-5*largest)
			have, worst := gradients(t, m, b), 0.0
			require.Len(t, have, len(g.Gradients))
			for name, want := range g.Gradients {
				worst = max(worst, requireGradient(t, want, have[name], name))
			}
			vectors, most := apart(grad, g.Vectors)
			require.LessOrEqual(t, vectors, 1e-5*most)
			t.Logf("logits differ by %.1e of the largest, gradients by %.1e of their norms at most, of vectors by %.1e of the largest", logits/largest, worst, vectors/most)
		})
	}
}

// TestEmbeddingsTrainAgainstTransformers trains the parameters and the vectors.
//
//check:not bits32
func TestEmbeddingsTrainAgainstTransformers(t *testing.T) {
	for _, g := range readEmbeddings(t) {
		t.Run(g.Name, func(t *testing.T) {
			m := g.open(t, Options{})
			b, grad := g.batch()
			opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.01, DecayFirst: true}, quant8.Options{Bits: 32})
			require.NoError(t, err)
			require.NoError(t, opt.Add("vectors", len(grad)))
			for _, p := range m.Params() {
				require.NoError(t, opt.Add(p.Name, p.Len()))
			}
			w, worst := newWindow(t, m), 0.0
			for step, want := range g.Losses {
				var loss float64
				w.Reset()
				require.NoError(t, w.Begin(1))
				l, err := m.Backprop(context.Background(), b, 1, w)
				require.NoError(t, err)
				_, err = w.End()
				require.NoError(t, err)
				loss = l.Sum / float64(l.Targets)
				require.InEpsilon(t, want, loss, 1e-5, "step %d", step)
				worst = max(worst, math.Abs(loss/want-1))
				opt.Advance(1e-3)
				require.NoError(t, opt.Step("vectors", b.Embeddings.Values, b.Embeddings.Grad, 1))
				for _, p := range m.Params() {
					grad, err := w.Gradient(p.Name)
					require.NoError(t, err)
					require.NoError(t, opt.Step(p.Name, p.Value, grad, 1))
				}
			}
			t.Logf("losses of 5 steps differ by %.1e at most", worst)
		})
	}
}
