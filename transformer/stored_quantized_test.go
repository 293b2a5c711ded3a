package transformer

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// quantizedGolden is a case of testdata/quantized.json or testdata/compressed.json.
type quantizedGolden struct {
	storedGolden
	Own       string
	Logits    []float32
	Gradients map[string][]float32
}

var quantizedTokens = []int32{3, 7, 1, 10, 2, 2, 9, 4, 6}

func quantizedGoldens(t *testing.T) (all map[string]*quantizedGolden) {
	t.Helper()
	for _, name := range []string{"quantized", "compressed"} {
		text, err := os.ReadFile("testdata/" + name + ".json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &all)) // adds to all
	}
	return all
}

// TestQuantizedFolders: folders in 4 and 8 bits have the values that their own software decodes them to, bit for bit, in the type of the folder
// and in f32, in memory, in pages, read for a Save alone, and decoded; and a model of them has the logits and gradients of transformers.
func TestQuantizedFolders(t *testing.T) {
	for name, g := range quantizedGoldens(t) {
		t.Run(name, func(t *testing.T) {
			dir := g.write(t, nil)
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			require.NotZero(t, c.Stored)
			w, err := amp.OpenWeights(dir)
			require.NoError(t, err)
			floats, err := c.FloatsIn(w)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			for i := range floats {
				floats[i] = strings.TrimSuffix(floats[i], ".weight")
			}
			require.ElementsMatch(t, g.Floats, floats)
			for i, o := range []Options{{}, {SaveOnly: true, Decode: true}, {}, {Decode: true, Stream: 1 << 20}, {SaveOnly: true}} {
				want := g.F32
				if o.DType = snug.F32; i > 1 {
					o.DType, want = c.DType, g.Own
				}
				m, err := Open(dir, o)
				require.NoError(t, err)
				quantized := 0
				for _, p := range m.Params() {
					if p.Quantized != nil {
						require.Equal(t, c.Stored, p.Quantized.Type())
						quantized++
					}
				}
				require.Equal(t, !o.Decode && !o.SaveOnly, quantized > 0)
				saved := filepath.Join(t.TempDir(), "saved")
				require.NoError(t, m.Save(saved, 0))
				require.NoError(t, m.Close())
				require.Equal(t, want, sumOf(t, saved), "%+v", o)
			}

			b := Batch{Tokens: quantizedTokens, Labels: append(append([]int32{}, quantizedTokens[1:]...), -100), Sequences: 1}
			for _, o := range []Options{{DType: snug.F32}, {DType: snug.F32, Pages: newStore(t)}} {
				m, err := Open(dir, o)
				require.NoError(t, err)
				difference, largest := apart(allLogits(t, m, b), g.Logits)
				require.LessOrEqual(t, difference, 1e-4*largest)
				grads := gradients(t, m, b)
				for name, want := range g.Gradients {
					sum, norm := 0.0, 0.0
					for i, x := range want {
						d := float64(grads[name][i]) - float64(x)
						sum, norm = sum+d*d, norm+float64(x)*float64(x)
					}
					require.LessOrEqual(t, math.Sqrt(sum), 1e-3*math.Sqrt(norm), name)
				}
				require.NoError(t, m.Close())
			}
		})
	}
}

// TestQuantizedRefused: what a folder in 4 bits says that is not so is an error that names it.
func TestQuantizedRefused(t *testing.T) {
	all := quantizedGoldens(t)
	for _, c := range []struct {
		golden, want string
		sentinel     error
		change       func(q map[string]any)
		old, new     string // text of the file, of one length
	}{
		{"nf4", `bnb_4bit_quant_type is "int4", want nf4 or fp4`, snug.ErrConfig, func(q map[string]any) { q["bnb_4bit_quant_type"] = "int4" }, "", ""},
		{"nf4", "without one of load_in_4bit and load_in_8bit", snug.ErrConfig, func(q map[string]any) { q["load_in_8bit"] = true }, "", ""},
		{"nf4", "q_proj.weight is not in fp4, which config.json says (bnb_4bit_quant_type)", snug.ErrShape, func(q map[string]any) { delete(q, "bnb_4bit_quant_type") }, "", ""},
		{"nf4", "surprise: unknown key", snug.ErrConfig, func(q map[string]any) { q["surprise"] = true }, "", ""},
		{"nf4", "up_proj.weight.absmay", snug.ErrConfig, nil, "up_proj.weight.absmax", "up_proj.weight.absmay"},
		{"nf4", "is nf4 of [20 10], want nf4 of [10 20]", snug.ErrConfig, nil, `"shape": [10, 20]`, `"shape": [20, 10]`},
		{"nf4", "has 200 bytes of codes, want 160 for [16 20] in nf4", snug.ErrShape, nil, "", ""},
	} {
		t.Run(c.want, func(t *testing.T) {
			g := *all[c.golden]
			g.Weights = bytes.ReplaceAll(g.Weights, []byte(c.old), []byte(c.new))
			dir := g.write(t, c.change)
			if c.sentinel == snug.ErrShape && c.change == nil { // another model
				config := filepath.Join(dir, configName)
				text, err := os.ReadFile(config)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(config, bytes.Replace(text, []byte(`"head_dim":10`), []byte(`"head_dim":8`), 1), 0o600))
			}
			_, err := Open(dir, Options{})
			refuses(t, err, c.sentinel, c.want)
		})
	}
}
