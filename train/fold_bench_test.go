package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/transformer"
)

// BenchmarkFold reports the loss on held-out text of a small model that trains on the sources of this module, with the
// gradients of 8 micro-batches added up and folded into the state, and the bytes of gradients. One of b.N is a run of 300
// steps.
func BenchmarkFold(b *testing.B) {
	names, err := filepath.Glob("../*/*.go")
	require.NoError(b, err)
	var text []byte
	for _, name := range names {
		source, err := os.ReadFile(name)
		require.NoError(b, err)
		text = append(text, source...)
	}
	cut := len(text) - 40_000
	for _, rate := range []float32{5e-4, 2e-3} {
		for _, form := range []struct {
			name      string
			bits      int
			gradients plan.Gradient
		}{{"added up", 32, plan.SumF32}, {"folded", 32, plan.Folded}, {"folded, 16 bits", 16, plan.Folded}, {"folded, 8 bits", 8, plan.Folded}} {
			b.Run(fmt.Sprintf("rate %g, %s", rate, form.name), func(b *testing.B) {
				for b.Loop() {
					loss, gradients := foldedRun(b, text[:cut], text[cut:], Options{
						Optimizer: quant8.AdamW{Beta2: 0.95, WeightDecay: 0.1}, StateBits: form.bits, Schedule: Cosine(rate, 20, 300),
						Gradients: form.gradients})
					b.ReportMetric(loss, "nats")
					b.ReportMetric(float64(gradients), "gradient-bytes")
				}
			})
		}
	}
}

func foldedRun(b *testing.B, text, held []byte, o Options) (loss float64, gradients int64) {
	const length = 64
	m, err := transformer.New(&transformer.Config{
		Family: "llama", Vocab: 256, Dim: 96, Hidden: 256, Layers: 3, Heads: 3, KVHeads: 3, HeadDim: 32, Context: length, NormEps: 1e-6,
		Activation: transformer.SiLU, Gated: true, Windows: make([]int, 3), ScoreScale: 0.177, EmbeddingScale: 1, InitStd: 0.02,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: 32},
	}, transformer.Options{Seed: 1})
	require.NoError(b, err)
	defer m.Close()
	t, err := New[transformer.Batch](m, o)
	require.NoError(b, err)
	defer t.Close()
	sample := func(r *rand.Rand, text []byte, n int) transformer.Batch {
		batch := transformer.Batch{Sequences: n}
		for range n {
			at := r.IntN(len(text) - length)
			for i := range length {
				batch.Tokens, batch.Labels = append(batch.Tokens, int32(text[at+i])), append(batch.Labels, int32(text[at+i+1]))
			}
		}
		return batch
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var batches []transformer.Batch
		for range 8 {
			batches = append(batches, sample(r, text, 2))
		}
		_, err := t.Train(context.Background(), batches)
		require.NoError(b, err)
	}
	l, err := m.Evaluate(context.Background(), sample(r, held, 256))
	require.NoError(b, err)
	return l.Mean(), t.Bytes()[meter.Gradients]
}
