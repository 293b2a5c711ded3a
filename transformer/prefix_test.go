package transformer

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// A text that begins with a prefix has the bits of one that computes it, where both compute the rest in the same passes.
func TestPrefix(t *testing.T) {
	m := blocksModel(t, snug.BF16)
	first, rest := make([]int32, 40), []int32{9, 8, 7, 6, 5}
	for i := range first {
		first[i] = int32(i*7%290 + 3)
	}
	whole := newGenerator(t, m, GenerateOptions{Context: 80})
	require.NoError(t, whole.Prompt(t.Context(), append(slices.Clone(first), rest[0]))) // computes first
	p, err := whole.Prefix(40)
	require.NoError(t, err)
	require.Equal(t, first, p.Tokens())
	require.Equal(t, m.PrefixBytes(40), p.Bytes())
	require.NoError(t, whole.Prompt(t.Context(), rest[1:]))
	want := write(t, whole, 20)
	logits := slices.Clone(whole.Logits())
	for range 2 {
		g := newGenerator(t, m, GenerateOptions{Context: 70, Sampling: Sampling{}})
		require.NoError(t, g.PromptPrefix(p, 40))
		require.Equal(t, 40, g.Position())
		require.NoError(t, g.Prompt(t.Context(), rest))
		require.Equal(t, want, write(t, g, 20))
		require.Equal(t, logits, g.Logits())
		require.ErrorIs(t, g.PromptPrefix(p, 1), snug.ErrConfig, "it has tokens")
		g.Reset()
		for _, n := range []int{-1, 0, 41} {
			require.ErrorIs(t, g.PromptPrefix(p, n), snug.ErrShape)
		}
		require.NoError(t, g.PromptPrefix(p, 17))
		require.Equal(t, first[:17], g.Tokens())
	}
	for _, n := range []int{-1, 0, 66} {
		_, err := whole.Prefix(n)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	require.ErrorIs(t, newGenerator(t, m, GenerateOptions{Context: 39}).PromptPrefix(p, 40), snug.ErrShape)
	require.ErrorIs(t, newGenerator(t, blocksModel(t, snug.BF16), GenerateOptions{Context: 50}).PromptPrefix(p, 40), snug.ErrConfig)
	require.NoError(t, p.Close())
	require.ErrorIs(t, newGenerator(t, m, GenerateOptions{Context: 50}).PromptPrefix(p, 40), snug.ErrConfig)
	require.Zero(t, p.Bytes())

	forgets, err := New(tiny(), Options{Seed: 1})
	require.NoError(t, err)
	g := newGenerator(t, forgets, GenerateOptions{Context: 32, Chunk: 2})
	require.NoError(t, g.Prompt(t.Context(), []int32{1, 2, 3, 4}))
	_, err = g.Prefix(2)
	require.ErrorIs(t, err, snug.ErrConfig, "a window forgets rows")
}
