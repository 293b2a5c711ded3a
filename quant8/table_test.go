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
	builders := map[string]func(s Options) (*Optimizer, error){
		"AdamW":     rules["Adam decoupled"],
		"Adam":      rules["Adam coupled"],
		"AdEMAMix":  rules["AdEMAMix"],
		"Lion":      rules["Lion"],
		"SGD":       rules["Momentum"],
		"RMSprop":   rules["RMSprop"],
		"Adagrad":   rules["Adagrad"],
		"LAMB":      rules["LAMB"],
		"LARS":      rules["LARS"],
		"Adafactor": rules["Adafactor"],
		"Muon":      matrixRules["muon"],

		"ScheduleFree": rules["ScheduleFree"],
		"Prodigy":      func(s Options) (*Optimizer, error) { return New(Prodigy{}, s) },

		"AdamMini": func(s Options) (*Optimizer, error) { return New(AdamMini{}, s) },

		"Apollo":               func(s Options) (*Optimizer, error) { return New(Apollo{}, s) },
		"Apollo{Tensor: true}": func(s Options) (*Optimizer, error) { return New(Apollo{Tensor: true}, s) },
		"GaLore":               func(s Options) (*Optimizer, error) { return New(GaLore{}, s) },
		"SOAP":                 func(s Options) (*Optimizer, error) { return New(SOAP{}, s) },
	}
	for line := range strings.Lines(string(text)) {
		name, row, found := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !found {
			continue
		}
		build := builders[name]
		require.NotNil(t, build, name)
		delete(builders, name)
		cells := strings.Split(strings.ReplaceAll(row, `\|`, "/"), " | ")
		for i, bits := range []int{32, 16, 8, 4} {
			a, err := build(Options{Bits: bits})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", 1<<10, n>>10))
			if name == "Adafactor" {
				require.EqualValues(t, 4*(1<<10+n>>10), a.StateBytes())
				continue
			}
			want := strings.TrimSuffix(fmt.Sprintf("%.2f", float64(a.StateBytes())/n), ".00")
			require.Equal(t, want, cells[2+i], "%s with %d bits", name, bits)
		}
	}
	require.Empty(t, builders, "those are not in the table")
}
