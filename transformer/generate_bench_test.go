package transformer

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
)

// smollm2 is the shape of SmolLM2-135M.
const smollm2 = `{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
	"num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000, "tie_word_embeddings": true}`

// BenchmarkGenerate writes 64 tokens after a prompt of 16 with a model of the shape of SmolLM2-135M, and says how many tokens a
// second it writes and what share of the bytes of all weights that is a second.
func BenchmarkGenerate(b *testing.B) {
	config, err := parseConfig([]byte(smollm2))
	if err != nil {
		b.Fatal(err)
	}
	for _, form := range []struct {
		name string
		dt   snug.DType
		base qlora.Type
	}{{"f32", snug.F32, 0}, {"bf16", snug.BF16, 0}, {"nf4 f32", snug.F32, qlora.NF4}, {"nf4 bf16", snug.BF16, qlora.NF4}} {
		b.Run(form.name, func(b *testing.B) {
			m, err := New(config, Options{DType: form.dt, Base: form.base, Train: func(string) bool { return false }})
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			g, err := m.Generate(GenerateOptions{Context: 128})
			if err != nil {
				b.Fatal(err)
			}
			ctx, best := context.Background(), 0.0
			runtime.GC()
			for b.Loop() {
				g.Reset()
				if err := g.Prompt(ctx, make([]int32, 16)); err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				for range 64 {
					if _, err := g.Next(ctx); err != nil {
						b.Fatal(err)
					}
				}
				best = max(best, 64/time.Since(start).Seconds())
			}
			b.ReportMetric(best, "tokens/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
