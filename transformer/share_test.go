package transformer

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
)

// saveAdapters writes a model, and two adapters of it: one of matrices, and one with a head of its own beside them.
func saveAdapters(t *testing.T) (dir string, adapters []string) {
	t.Helper()
	c := published()
	c.Vocab, c.Dim, c.HeadDim, c.Rope.Dim, c.Hidden, c.ScoreScale = 40, 64, 16, 16, 64, 0.25
	c.OutBias, c.QKVBias = false, false // which GGUF files of the family do not have
	m, err := New(c, Options{Seed: 1})
	require.NoError(t, err)
	dir = t.TempDir()
	require.NoError(t, m.Save(dir, 0))
	for i, o := range []qlora.AdapterOptions{{Rank: 2, Alpha: 4}, {Rank: 3, Alpha: 4, ModulesToSave: []string{"lm_head", "norm"}}} {
		a, err := Open(dir, Options{Adapter: &o, Seed: uint64(i)})
		require.NoError(t, err)
		for name, v := range a.Trainable() {
			x := make([]float32, v.Len())
			for j := range x {
				x[j] = float32((j*7+len(name)+i)%13)/13 - 0.4
			}
			require.NoError(t, snug.Copy(v, x))
		}
		adapters = append(adapters, t.TempDir())
		require.NoError(t, a.SaveAdapter(adapters[i]))
		require.NoError(t, a.Close())
	}
	return dir, adapters
}

// Models that share their weights compute what they compute with weights of their own, and hold the adapters alone.
func TestShare(t *testing.T) {
	dir, adapters := saveAdapters(t)
	tokens := []int32{1, 5, 3, 30, 2}
	logits := func(m *Model) []float32 {
		out := make([]float32, len(tokens)*m.config.Vocab)
		require.NoError(t, m.Logits(t.Context(), out, Batch{Tokens: tokens}, []int32{0, 1, 2, 3, 4}))
		return out
	}
	for name, o := range map[string]Options{"floats": {}, "bf16": {DType: snug.BF16}, "nf4": {Base: qlora.NF4}, "streamed": {Stream: 20000}} {
		t.Run(name, func(t *testing.T) {
			base, err := Open(dir, o)
			require.NoError(t, err)
			var shared []*Model
			for i, adapter := range adapters {
				own := Options{DType: o.DType, Base: o.Base, AdapterDir: adapter}
				apart, err := Open(dir, own)
				require.NoError(t, err)
				m, err := Open(dir, Options{AdapterDir: adapter, Share: base})
				require.NoError(t, err)
				require.Equal(t, logits(apart), logits(m), i)
				if i == 0 {
					require.Less(t, 2*m.Memory().Weights, apart.Memory().Weights)
				}
				require.Less(t, m.Memory().Weights, apart.Memory().Weights)
				shared = append(shared, m)
			}
			plain, err := Open(dir, Options{DType: o.DType, Base: o.Base})
			require.NoError(t, err)
			require.NotEqual(t, logits(shared[0]), logits(shared[1]))
			require.Equal(t, logits(plain), logits(base))
			for _, m := range append(shared, base) {
				require.NoError(t, m.Close())
			}
		})
	}
}

// Adapters of a GGUF file share its blocks.
func TestShareGGUF(t *testing.T) {
	dir, adapters := saveAdapters(t)
	m, err := Open(dir, Options{})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, m.SaveGGUF(file, GGUFOptions{Type: "q8_0"}))
	base, err := Open(file, Options{})
	require.NoError(t, err)
	tokens := []int32{1, 5, 3}
	for _, adapter := range adapters {
		var have [2][]float32
		for i, o := range []Options{{AdapterDir: adapter}, {AdapterDir: adapter, Share: base}} {
			a, err := Open(file, o)
			require.NoError(t, err)
			have[i] = make([]float32, a.Config().Vocab)
			require.NoError(t, a.Logits(t.Context(), have[i], Batch{Tokens: tokens}, nil))
			require.NoError(t, a.Close())
		}
		require.Equal(t, have[0], have[1])
	}
	require.NoError(t, base.Close())
}

func TestShareRefuses(t *testing.T) {
	dir, adapters := saveAdapters(t)
	base, err := Open(dir, Options{})
	require.NoError(t, err)
	adapted, err := Open(dir, Options{AdapterDir: adapters[0]})
	require.NoError(t, err)
	closed, err := Open(dir, Options{})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	other, err := New(tinyGPT2(GELU), Options{})
	require.NoError(t, err)
	for want, o := range map[string]Options{
		"goes with none of":        {Share: base, Stream: 1 << 20},
		"is a model with adapters": {Share: adapted, AdapterDir: adapters[1]},
		"the option Share: ":       {Share: closed},
		"are not those of Share":   {Share: base, Base: qlora.NF4},
		"is a model of gpt2":       {Share: other},
	} {
		_, err := Open(dir, o)
		require.ErrorContains(t, err, want)
		kerneltest.Error(t, "transformer.Open", err)
	}
	_, err = New(tiny(), Options{Share: base})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// CacheBytes is what a further generator takes, and a part of GenerateBytes.
func TestCacheBytes(t *testing.T) {
	m, err := New(tiny(), Options{})
	require.NoError(t, err)
	for _, o := range []GenerateOptions{{Context: 20}, {Context: 30, Chunk: 2, Sampling: Sampling{Temperature: 1}}} {
		g := newGenerator(t, m, o)
		bytes, err := m.CacheBytes(o)
		require.NoError(t, err)
		all, err := m.GenerateBytes(o)
		require.NoError(t, err)
		drawn := int64(0)
		if o.Sampling.Temperature > 0 {
			drawn = 12
		}
		require.Equal(t, g.Bytes()+(4+drawn)*11+8*int64(o.Context), bytes)
		require.Greater(t, all, bytes)
	}
	_, err = m.CacheBytes(GenerateOptions{Context: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
}
