package transformer

import (
	"strings"
	"testing"

	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// TestBlock: those that share a second moment are a head of q and k, a row, one of a bias, and all of a norm.
func TestBlock(t *testing.T) {
	biased := tiny()
	biased.QKVBias = true
	for _, config := range []*Config{tiny(), biased, tinyGPT2(GELUTanh)} {
		m, err := New(config, Options{})
		require.NoError(t, err)
		heads := 0
		for _, p := range m.Params() {
			got, want := m.Block(p.Name), p.Shape[len(p.Shape)-1]
			switch {
			case strings.HasSuffix(p.Name, ".bias"):
				want = 1
			case strings.Contains(p.Name, "q_proj"):
				want, heads = p.Len()/config.Heads, heads+1
			case strings.Contains(p.Name, "k_proj"):
				want, heads = p.Len()/config.KVHeads, heads+1
			}
			require.Equal(t, want, got, p.Name)
		}
		require.Equal(t, map[bool]int{true: 0, false: 2 * config.Layers}[config.Family == "gpt2"], heads)
		require.Zero(t, m.Block("none"))
		require.NoError(t, m.Close())
	}
}

// Matrices are those that adapters are put on, and of adapters.
func TestMatrix(t *testing.T) {
	untied := tiny()
	untied.Tied = false
	for _, config := range []*Config{tiny(), untied, tinyGPT2(GELUTanh)} {
		for _, adapter := range []*qlora.AdapterOptions{nil, {Rank: 2, Alpha: 4, DoRA: true}} {
			m, err := New(config, Options{Adapter: adapter})
			require.NoError(t, err)
			found := 0
			for _, p := range m.Params() {
				rows, cols := m.Matrix(p.Name)
				if strings.Contains(p.Name, "layers.") && len(p.Shape) == 2 || strings.Contains(p.Name, ".h.") && len(p.Shape) == 2 {
					require.Equal(t, p.Shape, []int{rows, cols}, p.Name)
					found++
					continue
				}
				require.Zero(t, rows+cols, p.Name)
			}
			require.Greater(t, found, 4)
			rows, cols := m.Matrix("none")
			require.Zero(t, rows+cols)
			require.NoError(t, m.Close())
		}
	}
}
