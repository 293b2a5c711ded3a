package transformer

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// greedyGolden is what transformers generates after a prompt.
type greedyGolden struct{ Prompt, Tokens []int32 }

func (g modelGolden) greedy(t testing.TB) (want greedyGolden) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "greedy.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	require.NotEmpty(t, want.Tokens)
	return want
}

// filterGolden is testdata/filters.json, which transformers computed.
type filterGolden struct {
	Filters []struct {
		Temperature   float32
		TopK          int     `json:"top_k"`
		TopP          float32 `json:"top_p"`
		Logits        []float32
		Probabilities []float64
	}
}

func newGenerator(t testing.TB, m *Model, o GenerateOptions) *Generator {
	t.Helper()
	g, err := m.Generate(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

func TestGreedyAgainstTransformers(t *testing.T) {
	for _, name := range modelNames {
		golden := readModel(t, name)
		want := golden.greedy(t)
		m := open32(t, golden, Options{})
		for _, chunk := range []int{0, 1, 5} {
			g := newGenerator(t, m, GenerateOptions{Context: len(want.Prompt) + len(want.Tokens), Chunk: chunk})
			for range 2 {
				require.NoError(t, g.Prompt(context.Background(), want.Prompt))
				for i, token := range want.Tokens {
					have, err := g.Next(context.Background())
					require.NoError(t, err)
					require.Equal(t, token, have, "%s, chunk %d, token %d", name, chunk, i)
				}
				require.Equal(t, slices.Concat(want.Prompt, want.Tokens), g.Tokens())
				_, err := g.Next(context.Background())
				require.ErrorIs(t, err, snug.ErrShape)
				require.ErrorContains(t, err, "the Context of 30 tokens is full")
				g.Reset()
			}
		}
	}
}

// The logits of a token are those of the whole text in one pass.
func TestCachedLogitsAgainstTransformers(t *testing.T) {
	for _, name := range modelNames {
		if name == "llama_dynamic" { // whose frequencies depend on the length of the text
			continue
		}
		golden := readModel(t, name)
		want := golden.tensor(t, "logits")
		_, largest := apart(want, want)
		tokens := golden.Tokens[:len(golden.Tokens)/golden.Sequences]
		for dt, bound := range map[snug.DType]float64{snug.F32: 1e-4, snug.BF16: 2e-2} {
			m := open32(t, golden, Options{DType: dt})
			if dt == snug.BF16 && name == "qwen3_5_moe" {
				bound = 3e-2 // as without a cache
			}
			for _, chunk := range []int{3, 64} {
				g := newGenerator(t, m, GenerateOptions{Chunk: chunk})
				worst := 0.0
				for i, token := range tokens {
					g.tokens = append(g.tokens, token)
					if i < 8 {
						continue
					}
					require.NoError(t, g.compute(context.Background(), len(g.tokens)))
					d, _ := apart(g.Logits(), want[i*m.config.Vocab:(i+1)*m.config.Vocab])
					worst = max(worst, d)
				}
				require.Less(t, worst, bound*largest, "%s %s", name, dt)
			}
		}
	}
}

func TestFiltersAgainstTransformers(t *testing.T) {
	var golden filterGolden
	readGolden(t, "filters.json", &golden)
	for i, f := range golden.Filters {
		s := newSampler(Sampling{Temperature: f.Temperature, TopK: f.TopK, TopP: f.TopP}, len(f.Logits))
		sum := s.weigh(f.Logits, slices.Max(f.Logits))
		for token, want := range f.Probabilities {
			require.InDelta(t, want, s.weights[token]/sum, 1e-6, "filter %d, token %d", i, token)
			require.Equal(t, want > 0, slices.Contains(s.kept, int32(token)) && s.weights[token] > 0, "filter %d, token %d", i, token)
		}
	}
}

// Tokens are drawn as often as their probabilities say, and the same again with the same seed.
func TestSampling(t *testing.T) {
	logits := []float32{1, 0, float32(math.Inf(-1)), 2, 0.5}
	s := newSampler(Sampling{Temperature: 1, Seed: 3}, len(logits))
	counts, total := make([]float64, len(logits)), 20000
	for i := range total {
		a, err := s.next(logits, i)
		require.NoError(t, err)
		b, err := s.next(logits, i)
		require.NoError(t, err)
		require.Equal(t, a, b)
		counts[a]++
	}
	sum := s.weigh(logits, 2)
	for i, c := range counts {
		require.InDelta(t, s.weights[i]/sum, c/float64(total), 0.015)
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		_, err := s.next([]float32{1, bad}, 0)
		require.ErrorIs(t, err, snug.ErrNonFinite)
	}
}

// A window's cache stays small, and gives what the whole cache gives.
func TestWindowCache(t *testing.T) {
	golden := readModel(t, "mistral") // windows of 5
	m := open32(t, golden, Options{})
	whole, small := newGenerator(t, m, GenerateOptions{Chunk: 64}), newGenerator(t, m, GenerateOptions{Chunk: 2})
	width := 2 * m.config.KVHeads * m.config.HeadDim * 4 * m.config.Layers
	require.EqualValues(t, 64*width, whole.Bytes())
	require.EqualValues(t, (2*4+2)*width, small.Bytes())
	for _, g := range []*Generator{whole, small} {
		require.NoError(t, g.Prompt(context.Background(), golden.Tokens))
		for range 64 - len(golden.Tokens) {
			_, err := g.Next(context.Background())
			require.NoError(t, err)
		}
	}
	require.Equal(t, whole.Tokens(), small.Tokens())
}

// A cached step has the bits of any chunk, and a text can go on after more of a prompt.
func TestPromptInParts(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU)} {
		m := newTiny(t, c, Options{})
		g, h := newGenerator(t, m, GenerateOptions{Context: 16}), newGenerator(t, m, GenerateOptions{Context: 16, Chunk: 3})
		require.NoError(t, g.Prompt(context.Background(), []int32{1, 2, 3, 4, 5}))
		require.NoError(t, h.Prompt(context.Background(), []int32{1, 2}))
		require.NoError(t, h.Prompt(context.Background(), []int32{3, 4, 5}))
		for range 5 {
			a, err := g.Next(context.Background())
			require.NoError(t, err)
			b, err := h.Next(context.Background())
			require.NoError(t, err)
			require.Equal(t, a, b)
			d, largest := apart(h.Logits(), g.Logits())
			require.Less(t, d, 1e-5*largest)
		}
	}
}

func TestGenerateAllocatesNothing(t *testing.T) {
	for _, s := range []Sampling{{}, {Temperature: 0.8, TopK: 5, TopP: 0.9}} {
		configs := []*Config{tiny(), tinyGPT2(GELUTanh)}
		for _, name := range []string{"falcon_h1", "granitemoehybrid", "lfm2", "qwen3_5"} { // which carry states
			c, err := ReadConfig(filepath.Join("testdata", "models", name))
			require.NoError(t, err)
			configs = append(configs, c)
		}
		for _, c := range configs {
			c.Context = 4096
			g := newGenerator(t, newTiny(t, c, Options{}), GenerateOptions{Context: 4096, Sampling: s})
			require.NoError(t, g.Prompt(context.Background(), []int32{1, 2, 3}))
			g.tokens = slices.Grow(g.tokens, 4096)
			for range 600 { // tables of ropes reach 1024 positions
				_, err := g.Next(context.Background())
				require.NoError(t, err)
			}
			kerneltest.NoAllocs(t, func() {
				_, err := g.Next(context.Background())
				require.NoError(t, err)
			})
		}
	}
}

func TestGenerateErrors(t *testing.T) {
	m := newTiny(t, tiny(), Options{})
	for _, o := range []GenerateOptions{
		{Context: -1}, {Chunk: -1}, {Context: math.MaxInt}, {Sampling: Sampling{Temperature: -1}}, {Sampling: Sampling{Temperature: float32(math.NaN())}},
		{Sampling: Sampling{TopK: -1}}, {Sampling: Sampling{TopP: 1.5}}, {Sampling: Sampling{TopP: float32(math.NaN())}}, {Sampling: Sampling{Temperature: float32(math.Inf(1))}},
	} {
		_, err := m.Generate(o)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", o)
	}
	_, err := newTiny(t, tinyGPT2(GELU), Options{}).Generate(GenerateOptions{Context: 17})
	require.ErrorContains(t, err, "the model has 16 positions")
	_, err = (&Model{}).Generate(GenerateOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = (&Generator{}).Next(context.Background())
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, (&Generator{}).Close())

	g := newGenerator(t, m, GenerateOptions{Context: 4})
	_, err = g.Next(context.Background())
	require.ErrorContains(t, err, "there is no prompt")
	for want, tokens := range map[string][]int32{"no tokens": {}, "token 1 is 11, want 0 to 10": {1, 11}, "5 tokens after 0": {1, 2, 3, 4, 5}} {
		t.Run(want, func(t *testing.T) {
			require.ErrorContains(t, g.Prompt(context.Background(), tokens), want)
			require.Empty(t, g.Tokens())
		})
	}
	require.NoError(t, g.Prompt(context.Background(), []int32{1, 2}))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = g.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = g.Next(context.Background())
	require.NoError(t, err)
	require.NoError(t, g.Close())
	_, err = g.Next(context.Background())
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestOverflowNamesTheRemedy generates with activations that float16 cannot hold, and bfloat16 can.
func TestOverflowNamesTheRemedy(t *testing.T) {
	c := tinyGemma()
	c.EmbeddingScale, c.InitStd = 6e4, 10
	for dt, fails := range map[snug.DType]bool{snug.F16: true, snug.BF16: false} {
		m, err := New(c, Options{DType: dt})
		require.NoError(t, err)
		g, err := m.Generate(GenerateOptions{Context: 8})
		require.NoError(t, err)
		require.NoError(t, g.Prompt(context.Background(), []int32{3, 4, 5}))
		_, err = g.Next(context.Background())
		if fails {
			require.ErrorIs(t, err, snug.ErrNonFinite)
			require.ErrorContains(t, err, "compute in bf16")
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, errors.Join(g.Close(), m.Close()))
	}
}

// TestTextsThatBecomeLong: a text that grows beyond the positions of a longrope's first factors has the logits of a fresh one.
func TestTextsThatBecomeLong(t *testing.T) {
	golden := readModel(t, "phi3_long") // whose first factors are for 8 positions
	m := open32(t, golden, Options{})
	tokens := golden.Tokens[:len(golden.Tokens)/golden.Sequences]
	for _, chunk := range []int{1, 3, 64} {
		g := newGenerator(t, m, GenerateOptions{Chunk: chunk})
		for i, token := range tokens {
			g.tokens = append(g.tokens, token)
			require.NoError(t, g.compute(t.Context(), len(g.tokens)))
			fresh := newGenerator(t, m, GenerateOptions{Chunk: chunk})
			fresh.tokens = append(fresh.tokens, tokens[:i+1]...)
			require.NoError(t, fresh.compute(t.Context(), i+1))
			d, largest := apart(g.Logits(), fresh.Logits())
			require.Less(t, d, 1e-5*largest, "chunks of %d, token %d", chunk, i)
			require.Equal(t, i+1, g.layers[0].used)
		}
	}
	g := newGenerator(t, m, GenerateOptions{})
	require.NoError(t, g.PromptBatch(t.Context(), Batch{Tokens: tokens[:4]}))
	require.ErrorIs(t, g.Prompt(t.Context(), tokens[4:]), snug.ErrConfig, "the vectors of the prompt are gone")
	g.Reset()
	require.NoError(t, g.Prompt(t.Context(), tokens))
}
