package transformer

import (
	"context"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// TestDoRA: fresh adapters with magnitudes change nothing, and a call after a change of the
// parameters has norms of the changed ones.
func TestDoRA(t *testing.T) {
	made := func(c *Config, o Options) *Model {
		m, err := New(c, o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU)} {
		c.InitStd = 0.2
		for _, base := range []qlora.Type{0, qlora.NF4} {
			b := someBatch(7, c.Vocab, 2, 8)
			plain := allLogits(t, made(c, Options{Base: base}), b)
			m := made(c, Options{Base: base, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, DoRA: true}})
			difference, largest := apart(allLogits(t, m, b), plain)
			require.LessOrEqual(t, difference, 1e-5*largest, c.Family)
			setAdapters(t, m)
			for _, p := range m.Params() {
				if p.Trains && len(p.Shape) == 1 {
					x := p.Value.Float32s()
					for i := range x {
						x[i] *= 1 + float32(i%5)/10
					}
				}
			}
			g := newGenerator(t, m, GenerateOptions{Context: 12, Chunk: 3})
			require.NoError(t, g.Prompt(context.Background(), b.Tokens[:8]))
			_, err := g.Next(context.Background())
			require.NoError(t, err)
			want := allLogits(t, m, b)
			difference, largest = apart(g.Logits(), want[7*c.Vocab:8*c.Vocab])
			require.LessOrEqual(t, difference, 1e-4*largest, c.Family)
			difference, _ = apart(want, plain)
			require.Greater(t, difference, 1e-3*largest, c.Family)
			dir := t.TempDir()
			require.NoError(t, m.SaveAdapter(dir))
			require.Equal(t, want, allLogits(t, made(c, Options{Base: base, AdapterDir: dir}), b), c.Family)
		}
	}
}

// TestDoRAOfZeros: a matrix with a row of zeros has no direction there, which is no error.
func TestDoRAOfZeros(t *testing.T) {
	c := tiny()
	m := newTiny(t, c, Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, DoRA: true}})
	for _, p := range m.Params() {
		if !p.Trains && len(p.Shape) == 2 {
			require.NoError(t, snug.Copy(part(p.Value, 0, p.Shape[1]), make([]float32, p.Shape[1])))
		}
	}
	for name, g := range gradients(t, m, someBatch(7, c.Vocab, 2, 8)) {
		for i, v := range g {
			require.False(t, v != v, "%s[%d]", name, i)
		}
	}
}
