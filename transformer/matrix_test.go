package transformer

import (
	"strings"
	"testing"

	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

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
