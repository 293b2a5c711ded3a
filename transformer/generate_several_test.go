package transformer

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
)

// write lets a generator write n tokens by itself.
func write(t testing.TB, g *Generator, n int) (tokens []int32) {
	t.Helper()
	for range n {
		token, err := g.Next(t.Context())
		require.NoError(t, err)
		tokens = append(tokens, token)
	}
	return tokens
}

// Texts that join and leave a batch are those that transformers writes, in passes of as many rows as texts and of more.
func TestComputeNextAgainstTransformers(t *testing.T) {
	for _, name := range modelNames {
		golden := readModel(t, name)
		want := golden.greedy(t)
		m := open32(t, golden, Options{})
		for _, rows := range []int{0, 5} {
			var list []*Generator
			joined := 0
			for step := 0; joined < 4 || len(list) > 0; step++ {
				if joined < 4 && step%3 == 0 {
					g := newGenerator(t, m, GenerateOptions{Context: len(want.Prompt) + len(want.Tokens), Chunk: 1 + joined})
					require.NoError(t, g.Prompt(t.Context(), want.Prompt))
					list = append(list, g)
					joined++
				}
				require.NoError(t, m.ComputeNext(t.Context(), list, rows), name)
				for _, g := range list {
					token, err := g.Next(t.Context())
					require.NoError(t, err)
					require.Equal(t, want.Tokens[len(g.Tokens())-len(want.Prompt)-1], token, "%s, %d rows", name, rows)
				}
				list = slices.DeleteFunc(list, func(g *Generator) bool { return len(g.Tokens()) == len(want.Prompt)+len(want.Tokens) })
			}
		}
	}
}

// wideRows returns a model whose products of one row and of several differ in their bits.
func wideRows(t testing.TB, dt snug.DType, base qlora.Type) *Model {
	t.Helper()
	c := tiny()
	c.Dim, c.Heads, c.KVHeads, c.HeadDim, c.Hidden, c.Vocab, c.Context, c.Rope.Dim = 128, 4, 2, 32, 192, 300, 256, 32
	m, err := New(c, Options{DType: dt, Seed: 3, Base: base})
	require.NoError(t, err)
	return m
}

// blocksModel returns a model whose layers have blocks of a GGUF file.
func blocksModel(t testing.TB, dt snug.DType) *Model {
	t.Helper()
	whole, err := New(&Config{
		Family: "llama", Vocab: 300, Dim: 128, Hidden: 192, Layers: 2, Heads: 6, KVHeads: 2, HeadDim: 32, Context: 256, NormEps: 1e-6, Activation: SiLU, Gated: true,
		Rope: Rope{Kind: RopeDefault, Theta: 1e4, Dim: 32}, Windows: []int{0, 0}, ScoreScale: math.Pow(32, -0.5), EmbeddingScale: 1, Tied: true, InitStd: 0.3, EOS: []int{2},
	}, Options{Seed: 3})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, whole.Save(dir, 0))
	m, err := Open(ggufFile(t, dir, "q4_0"), Options{DType: dt})
	require.NoError(t, err)
	require.Equal(t, gguf.Q4_0, m.layers[0].Weight.Quantized.Blocks())
	return m
}

// With a fixed number of rows the logits of a text have the same bits alone and beside others, on every processor.
func TestComputeNextSameBits(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for _, base := range []qlora.Type{0, qlora.NF4, qlora.GGUF} {
			var m *Model
			if base == qlora.GGUF {
				m = blocksModel(t, dt) // whose rows that nobody reads are not computed
			} else {
				m = wideRows(t, dt, base)
			}
			start := func(seed int) *Generator {
				g := newGenerator(t, m, GenerateOptions{Context: 64, Sampling: Sampling{Temperature: 1.5, Seed: uint64(seed)}})
				require.NoError(t, g.Prompt(t.Context(), []int32{1, int32(seed), 7, int32(2 * seed)}))
				return g
			}
			alone, logits := start(9), [][]float32(nil)
			for range 24 {
				require.NoError(t, m.ComputeNext(t.Context(), []*Generator{alone}, 6))
				logits = append(logits, slices.Clone(alone.Logits()))
				write(t, alone, 1)
			}
			beside := start(9)
			list := []*Generator{start(1), beside}
			for step := range 24 {
				if step%5 == 2 {
					list = append([]*Generator{start(10 + step)}, list[len(list)-min(3, len(list)):]...)
				}
				require.Contains(t, list, beside)
				require.NoError(t, m.ComputeNext(t.Context(), list, 6))
				for _, g := range list {
					if g == beside {
						require.Equal(t, logits[step], g.Logits(), "%s %v, token %d", dt, base, step)
					}
					write(t, g, 1)
				}
				slices.Reverse(list)
				if i := slices.Index(list, beside); len(list) > 3 && i > 0 {
					list = list[1:]
				}
			}
			require.Equal(t, alone.Tokens(), beside.Tokens())
		}
	}
}

func TestComputeNextRefuses(t *testing.T) {
	m, other := open32(t, readModel(t, "llama"), Options{}), open32(t, readModel(t, "llama"), Options{})
	start := func(m *Model, context int, prompt ...int32) *Generator {
		g := newGenerator(t, m, GenerateOptions{Context: context})
		if len(prompt) > 0 {
			require.NoError(t, g.Prompt(t.Context(), prompt))
		}
		return g
	}
	good := start(m, 8, 1, 2)
	closed := start(m, 8, 1, 2)
	require.NoError(t, closed.Close())
	for want, list := range map[string][]*Generator{
		"0 generators":                  nil,
		"generator 1 is there twice":    {good, good},
		"generator 1 is of another":     {good, start(other, 8, 1)},
		"generator 1 has 0 tokens":      {good, start(m, 8)},
		"generator 1: the Context of 2": {good, start(m, 2, 1, 2)},
		"generator 0: the Generator is": {closed},
		"generator 1: the Generator is": {good, nil},
	} {
		err := m.ComputeNext(t.Context(), list, 0)
		require.ErrorContains(t, err, want)
		kerneltest.Error(t, "transformer.ComputeNext", err)
	}
	for _, rows := range []int{-1, maxTexts + 1, math.MinInt} {
		require.ErrorIs(t, m.ComputeNext(t.Context(), []*Generator{good}, rows), snug.ErrConfig)
	}
	require.Equal(t, 1, good.done)
	require.NoError(t, m.ComputeNext(t.Context(), []*Generator{good}, 0))
	require.Equal(t, 2, good.done)
	require.NoError(t, m.ComputeNext(t.Context(), []*Generator{good}, 0)) // which is computed
	require.Equal(t, 2, good.done)
}

// TestComputeNextOnDevices: on every device the logits of several texts, one with spans, are those of a
// batch of each.
//
//check:in emulated
func TestComputeNextOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for name, c := range map[string]*Config{"axes": tinyAxes(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh)} {
			m := newTiny(t, c, Options{Seed: 3, Device: p.Dev})
			var list []*Generator
			var texts []Batch
			for i := range 3 {
				g, b := newGenerator(t, m, GenerateOptions{Context: 16, Chunk: 5}), someBatch(uint64(7+i), 11, 1, 6+i)
				b.Labels, b.Weights = nil, nil
				if i == 1 {
					b.Spans = [][2]int{{1, 5}}
					require.NoError(t, g.PromptBatch(t.Context(), b))
				} else {
					require.NoError(t, g.Prompt(t.Context(), b.Tokens))
				}
				list, texts = append(list, g), append(texts, b)
			}
			for step := range 4 {
				require.NoError(t, m.ComputeNext(t.Context(), list, 2*step))
				for i, g := range list {
					want := make([]float32, c.Vocab)
					require.NoError(t, m.Logits(t.Context(), want, texts[i], nil))
					token, err := g.Next(t.Context())
					require.NoError(t, err)
					difference, largest := apart(g.Logits(), want)
					require.LessOrEqual(t, difference, 1e-4*largest, "%s, text %d, step %d", name, i, step)
					texts[i].Tokens = append(texts[i].Tokens, token)
				}
			}
		}
	})
}
