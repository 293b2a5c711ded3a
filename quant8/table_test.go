package quant8

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable: the bytes a parameter that OPTIMIZERS.md states are those that are counted.
func TestTable(t *testing.T) {
	const n = 1 << 20
	text, err := os.ReadFile("OPTIMIZERS.md")
	require.NoError(t, err)
	constructors := map[string]func(s StateOptions) (*Optimizer, error){
		"NewAdamW":     rules["Adam decoupled"],
		"NewAdam":      rules["Adam coupled"],
		"NewAdEMAMix":  rules["AdEMAMix"],
		"NewLion":      rules["Lion"],
		"NewSGD":       rules["Momentum"],
		"NewRMSprop":   rules["RMSprop"],
		"NewAdagrad":   rules["Adagrad"],
		"NewLAMB":      rules["LAMB"],
		"NewLARS":      rules["LARS"],
		"NewAdafactor": rules["Adafactor"],
		"NewMuon":      matrixRules["muon"],
	}
	for line := range strings.Lines(string(text)) {
		name, row, found := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !found || !strings.HasPrefix(name, "New") {
			continue
		}
		build := constructors[name]
		require.NotNil(t, build, name)
		delete(constructors, name)
		cells := strings.Split(strings.ReplaceAll(row, `\|`, "/"), " | ")
		for i, bits := range []int{32, 16, 8, 4} {
			a, err := build(StateOptions{Bits: bits})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", 1<<10, n>>10))
			if name == "NewAdafactor" {
				require.EqualValues(t, 4*(1<<10+n>>10), a.StateBytes())
				continue
			}
			want := strings.TrimSuffix(fmt.Sprintf("%.2f", float64(a.StateBytes())/n), ".00")
			require.Equal(t, want, cells[2+i], "%s with %d bits", name, bits)
		}
	}
	require.Empty(t, constructors, "those are not in the table")
}
