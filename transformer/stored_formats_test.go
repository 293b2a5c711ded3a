package transformer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// storedGolden is a case of testdata/stored.json.
type storedGolden struct {
	Config  map[string]json.RawMessage
	Weights []byte
	Floats  []string
	F32     string
	BF16    string
}

// write writes the folder, with other members of quantization_config if change is not nil.
func (g *storedGolden) write(t *testing.T, change func(quantization map[string]any)) string {
	t.Helper()
	dir, config := t.TempDir(), maps.Clone(g.Config)
	if change != nil {
		var quantization map[string]any
		require.NoError(t, json.Unmarshal(config["quantization_config"], &quantization))
		change(quantization)
		text, err := json.Marshal(quantization)
		require.NoError(t, err)
		config["quantization_config"] = text
	}
	text, err := json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, configName), text, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), g.Weights, 0o644))
	return dir
}

func storedGoldens(t *testing.T) (all map[string]*storedGolden) {
	t.Helper()
	text, err := os.ReadFile("testdata/stored.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	return all
}

// sumOf is the SHA-256 of the matrices of the layers in a folder.
func sumOf(t *testing.T, dir string) string {
	t.Helper()
	w, err := amp.OpenWeights(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	sum := sha256.New()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for _, tensor := range w.Tensors() {
			if strings.HasSuffix(tensor.Name, "_proj.weight") && !yield(tensor.Name) {
				return
			}
		}
	}) {
		tensor, _ := w.Tensor(name)
		b := make([]byte, tensor.Bytes())
		require.NoError(t, w.ReadBytes(name, 0, b))
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// TestStoredFormats: folders in the forms of 8-bit floats have the values that transformers decodes them to, bit for bit, whether the
// matrices stay as they are or are decoded when they are read, some rows at a time or not.
func TestStoredFormats(t *testing.T) {
	defer func(n int) { decodePiece = n }(decodePiece)
	for name, g := range storedGoldens(t) {
		t.Run(name, func(t *testing.T) {
			dir := g.write(t, nil)
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			require.Equal(t, qlora.FP8, c.Stored)
			w, err := amp.OpenWeights(dir)
			require.NoError(t, err)
			floats, err := c.FloatsIn(w)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			require.ElementsMatch(t, c.Floats, floats) // what config.json says is what the files have
			for _, o := range []Options{{}, {Decode: true}, {SaveOnly: true}, {SaveOnly: true, Decode: true}, {Decode: true, Stream: 1 << 20}} {
				for dt, want := range map[snug.DType]string{snug.F32: g.F32, snug.BF16: g.BF16} {
					o.DType = dt
					for _, decodePiece = range []int{1 << 20, 1} {
						m, err := Open(dir, o)
						require.NoError(t, err)
						quantized := 0
						for _, p := range m.Params() {
							if p.Quantized != nil {
								quantized++
							}
						}
						require.Equal(t, !o.Decode && !o.SaveOnly, quantized > 0)
						saved := filepath.Join(t.TempDir(), "saved")
						require.NoError(t, m.Save(saved, 0))
						require.NoError(t, m.Close())
						require.Equal(t, want, sumOf(t, saved), "%+v", o)
						text, err := os.ReadFile(filepath.Join(saved, configName))
						require.NoError(t, err)
						require.NotContains(t, string(text), "quantization_config")
					}
				}
			}
		})
	}
}

// TestStoredAsOther: with another Base, and to train, a folder in FP8 is the folder of its decoded matrices.
func TestStoredAsOther(t *testing.T) {
	dir := storedGoldens(t)["FP8-block"].write(t, nil)
	decoded := filepath.Join(t.TempDir(), "decoded")
	m, err := Open(dir, Options{Decode: true, DType: snug.F32})
	require.NoError(t, err)
	require.NoError(t, m.Save(decoded, 0))
	require.NoError(t, m.Close())
	adapter := func(init string) *qlora.AdapterOptions { return &qlora.AdapterOptions{Rank: 2, Alpha: 4, Init: init} }
	for name, o := range map[string]Options{
		"full": {Decode: true}, "nf4": {Base: qlora.NF4, Adapter: adapter("")}, "int8": {Base: qlora.INT8}, "pissa": {Decode: true, Adapter: adapter("pissa")},
		"loftq": {Base: qlora.NF4, Adapter: adapter("loftq")}, "lora": {Decode: true, Adapter: adapter("")},
	} {
		t.Run(name, func(t *testing.T) {
			o.DType, o.Seed = snug.F32, 3
			var results [2]string
			for i, from := range []string{dir, decoded} {
				m, err := Open(from, o)
				require.NoError(t, err)
				b := someBatch(5, 11, 2, 9)
				loss, err := m.Evaluate(context.Background(), b)
				require.NoError(t, err)
				results[i] = fmt.Sprint(loss, gradients(t, m, b))
				require.NoError(t, m.Close())
			}
			require.Equal(t, results[1], results[0])
		})
	}
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	for _, k := range []struct {
		options Options
		want    qlora.Type
	}{{Options{}, qlora.FP8}, {Options{Base: qlora.FP8}, qlora.FP8}, {Options{Base: qlora.NF4}, 0}, {Options{Decode: true}, 0}} {
		held := c.Held(k.options)
		require.Equal(t, k.want, held.Stored)
		require.Equal(t, k.want == 0, held.StoredBlock == [2]int{})
	}
	require.Equal(t, [2]int{8, 16}, c.StoredBlock)
}

// TestStoredRefused: what a quantization_config says that is not read is an error that names it.
func TestStoredRefused(t *testing.T) {
	all := storedGoldens(t)
	at := func(q map[string]any, path ...string) map[string]any {
		for _, name := range path {
			q = q[name].(map[string]any)
		}
		return q
	}
	weights := func(name string, value any) func(map[string]any) {
		return func(q map[string]any) { at(q, "config_groups", "group_0", "weights")[name] = value }
	}
	set := func(name string, value any) func(map[string]any) { return func(q map[string]any) { q[name] = value } }
	for want, change := range map[string]func(map[string]any){
		`quant_method "hqq"); take the folder of the unquantized model`:                                      set("quant_method", "hqq"),
		`Quantized matrices are read of awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, mxfp4`: set("quant_method", "quark"),
		`quant_method "compressed-tensors", format "marlin-24")`:                                             set("format", "marlin-24"),
		`the type "float" and the format "int-quantized"`:                                                    set("format", "int-quantized"),
		`group_0 with weights of 4 bits, the type "float" and the format "float-quantized"`:                  weights("num_bits", 4),
		`group_0 with weights of 8 bits, the type "int" and the format "float-quantized"`:                    weights("type", "int"),
		`group_0 with zero points`:                                weights("symmetric", false),
		`group_0 with dynamic weights`:                            weights("dynamic", true),
		`group_0 with the strategy "attn_head"`:                   weights("strategy", "attn_head"),
		`"group_0": block_structure is [], want rows and columns`: weights("strategy", "block"),
		`"group_0": surprise: unknown key`:                        weights("surprise", 1),
		`quantization_config: surprise: unknown key`:              set("surprise", 1),
		`transform_config {"config_groups":{}}`:                   set("transform_config", map[string]any{"config_groups": map[string]any{}}),
		`sparsity_config with the format "sparse-24-bitmask"`:     set("sparsity_config", map[string]any{"format": "sparse-24-bitmask"}),
		`quantization_status "initialized"`:                       set("quantization_status", "initialized"),
		`without config_groups`:                                   set("config_groups", nil),
		`without weights`:                                         weightsOfNone,
		`group_1 with blocks of [8 8] and others of [4 4]`:        twoBlocks,
		`group_0 with the format "nvfp4-pack-quantized"`:          func(q map[string]any) { at(q, "config_groups", "group_0")["format"] = "nvfp4-pack-quantized" },
	} {
		t.Run(want, func(t *testing.T) {
			_, err := ReadConfig(all["FP8-dynamic"].write(t, change))
			refuses(t, err, snug.ErrConfig, want)
		})
	}
	for _, preset := range []string{"FP8", "FP8_DYNAMIC", "FP8_BLOCK"} {
		c, err := ReadConfig(all["FP8-dynamic"].write(t, set("config_groups", map[string]any{preset: []string{"Linear"}})))
		require.NoError(t, err)
		require.Equal(t, qlora.FP8, c.Stored)
		require.Empty(t, c.Floats)
	}
}

func weightsOfNone(q map[string]any) {
	q["config_groups"].(map[string]any)["group_0"].(map[string]any)["weights"] = nil
}

func twoBlocks(q map[string]any) {
	groups := map[string]any{}
	for name, n := range map[string]int{"group_0": 4, "group_1": 8} {
		groups[name] = map[string]any{"targets": []string{"Linear"}, "weights": map[string]any{"type": "float", "strategy": "block", "block_structure": []int{n, n}}}
	}
	q["config_groups"] = groups
}

// TestStoredDamaged: codes and scales that are no numbers, and scales that are missing or of another shape, are errors that name the tensor.
func TestStoredDamaged(t *testing.T) {
	const matrix = "model.layers.0.mlp.up_proj.weight"
	for _, c := range []struct {
		name, golden, tensor, want string
		at                         int
		bytes                      []byte
	}{
		{"NaN code", "FP8-dynamic", matrix, "element 37 is NaN", 37, []byte{0x7f}},
		{"NaN code of another sign", "FP8", matrix, "element 0 is NaN", 0, []byte{0xff}},
		{"NaN scale", "FP8 of MLPs", matrix + "_scale", "scale 1 is NaN", 4, []byte{0, 0, 0xc0, 0x7f}},
		{"infinite scale", "fbgemm", matrix + "_scale", "scale 0 is +Inf", 0, []byte{0, 0, 0x80, 0x7f}},
		{"scale whose products are infinite", "fbgemm", matrix + "_scale", "finite", 0, []byte{0, 0, 0x80, 0x7e}},
		{"negative scale", "FP8-block", matrix + "_scale", "scale 0 is -", 0, []byte{0x80, 0xbf}},
		{"scale of 0", "blocks of 2x4", matrix + "_scale_inv", "the scale of element 0 is 0, and the element is not", 0, []byte{0, 0, 0, 0}},
		{"scale that is no power of two", "scales in powers of two", matrix + "_scale_inv", "scale 2 is NaN", 2, []byte{0xff}},
	} {
		for _, o := range []Options{{}, {Decode: true}, {Base: qlora.NF4}} {
			t.Run(fmt.Sprint(c.name, o.Decode, o.Base), func(t *testing.T) {
				dir := storedGoldens(t)[c.golden].write(t, nil)
				w, err := amp.OpenWeights(dir)
				require.NoError(t, err)
				tensor, found := w.Tensor(c.tensor)
				require.True(t, found)
				b := make([]byte, tensor.Bytes())
				require.NoError(t, w.ReadBytes(c.tensor, 0, b))
				require.NoError(t, w.Close())
				changed := append([]byte(nil), b...)
				copy(changed[c.at:], c.bytes)
				path := filepath.Join(dir, "model.safetensors")
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, 1, strings.Count(string(text), string(b)))
				require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), string(b), string(changed), 1)), 0o644))
				_, err = Open(dir, o)
				refuses(t, err, snug.ErrCorrupt, c.want)
				require.ErrorContains(t, err, matrix)
			})
		}
	}
	shape := storedGoldens(t)["blocks of 2x4"].write(t, func(q map[string]any) { q["weight_block_size"] = []int{4, 4} })
	_, err := Open(shape, Options{})
	refuses(t, err, snug.ErrCorrupt, "scales of shape [10 5] for a weight [20, 20]")
	require.ErrorContains(t, err, "for each block of 4×4")

	lost := storedGoldens(t)["FP8-dynamic"]
	text := strings.Replace(string(lost.Weights), "up_proj.weight_scale", "up_proj.weight_other", 1)
	lost.Weights = []byte(text)
	_, err = Open(lost.write(t, nil), Options{})
	refuses(t, err, snug.ErrConfig, "up_proj.weight_other")
	lost.Weights = []byte(strings.Replace(text, `up_proj.weight_other":`, `up_proj.input_scale": `, 1))
	_, err = Open(lost.write(t, nil), Options{})
	refuses(t, err, snug.ErrConfig, "the file has no scales for its tensor")
}
