package transformer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// blocked is a model whose matrices have whole blocks of MXFP4, and parts of blocks of FP8.
func blocked() *Config {
	return &Config{
		Family: "llama", Vocab: 11, Dim: 64, Hidden: 160, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 32, NormEps: 1e-6, Activation: SiLU,
		Gated: true, Rope: Rope{Kind: RopeDefault, Theta: 100, Dim: 16}, Windows: []int{0, 0}, ScoreScale: 0.25, EmbeddingScale: 1, InitStd: 0.1, BOS: -1, Pad: -1,
	}
}

// store writes the folder of a model with its matrices in a form, all but those of names that end in one of floats.
func store(t *testing.T, m *Model, form qlora.Type, config string, floats ...string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, m.Save(dir, 0))
	text, err := os.ReadFile(filepath.Join(dir, configName))
	require.NoError(t, err)
	var members map[string]any
	require.NoError(t, json.Unmarshal(text, &members))
	members["quantization_config"] = json.RawMessage(config)
	text, err = json.Marshal(members)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, configName), text, 0o644))
	require.NoError(t, amp.SaveWeights(filepath.Join(dir, "model.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
		for _, p := range m.Params() {
			own := amp.Tensor{Name: p.Name, Shape: p.Shape}
			float := !m.config.isMatrix(own)
			for _, end := range floats {
				float = float || strings.HasSuffix(p.Name, end)
			}
			if float {
				if !yield(own, p.Value) {
					return
				}
				continue
			}
			w, err := qlora.NewWeight(p.Value, p.Shape, qlora.Options{Type: form})
			require.NoError(t, err)
			scales, err := w.Absmax()
			require.NoError(t, err)
			own.DType = map[qlora.Type]string{qlora.FP8: "F8_E4M3", qlora.FP8E5M2: "F8_E5M2", qlora.INT8: "I8"}[form]
			more := amp.Tensor{Name: p.Name + "_scale_inv", Shape: []int{(p.Shape[0] + 127) / 128, (p.Shape[1] + 127) / 128}}
			if form == qlora.INT8 {
				more = amp.Tensor{Name: strings.TrimSuffix(p.Name, "weight") + "SCB", Shape: []int{p.Shape[0]}}
			}
			if !yield(own, w.Packed()) || !yield(more, snug.ViewOf(scales)) {
				return
			}
		}
	}, nil))
	return dir
}

const (
	deepseek = `{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]}`
	// transformers5 is what transformers 5.23 writes for FineGrainedFP8Config.
	transformers5 = `{"quant_method":"fp8","modules_to_not_convert":null,"modules_to_convert":null,"activation_scheme":"dynamic",
		"weight_block_size":[128,128],"dequantize":false,"scale_fmt":"float","expert_dtype":"fp8"}`
	bnb8 = `{"quant_method":"bitsandbytes","load_in_8bit":true,"load_in_4bit":false,"_load_in_8bit":true,"llm_int8_threshold":6.0,
		"llm_int8_skip_modules":null,"bnb_4bit_quant_type":"fp4"}`
)

// TestOpenStored: a folder with quantized matrices is the same model, bit for bit, as one that quantizes them while it
// is opened; forward, and backward to adapters.
func TestOpenStored(t *testing.T) {
	for _, c := range []struct {
		form   qlora.Type
		config string
	}{{qlora.FP8, deepseek}, {qlora.FP8, transformers5}, {qlora.FP8E5M2, strings.Replace(deepseek, "e4m3", "e5m2", 1)}, {qlora.INT8, bnb8}} {
		t.Run(c.config, func(t *testing.T) {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				float := newTiny(t, blocked(), Options{Seed: 1, DType: dt})
				plain := t.TempDir()
				require.NoError(t, float.Save(plain, 0))
				stored := store(t, float, c.form, c.config)
				config, err := ReadConfig(stored)
				require.NoError(t, err)
				require.Equal(t, c.form, config.Stored)

				adapter := &qlora.AdapterOptions{Rank: 4, Alpha: 8}
				var results [2]string
				var bytes [2]int64
				for i, dir := range []string{plain, stored} {
					o := Options{DType: dt, Adapter: adapter, Seed: 3}
					if i == 0 {
						o.Base = c.form
					}
					m, err := Open(dir, o)
					require.NoError(t, err)
					b := someBatch(7, 11, 2, 9)
					loss, err := m.Evaluate(context.Background(), b)
					require.NoError(t, err)
					results[i], bytes[i] = fmt.Sprint(loss, gradients(t, m, b)), m.weightBytes
					require.Zero(t, m.Config().Stored)
					for _, p := range m.Params() {
						if p.Quantized != nil {
							require.Equal(t, c.form, p.Quantized.Type())
							require.False(t, p.Trains)
						}
					}
					again := filepath.Join(t.TempDir(), "saved")
					require.NoError(t, m.Save(again, 0)) // in floats
					saved, err := Open(again, Options{})
					require.NoError(t, err)
					require.NoError(t, saved.Close())
					require.NoError(t, m.Close())
				}
				require.Equal(t, results[0], results[1])
				require.Equal(t, bytes[0], bytes[1])
			}
		})
	}
}

// TestOpenStoredPartly: modules that were not converted stay in floats.
func TestOpenStoredPartly(t *testing.T) {
	m, err := Open(store(t, newTiny(t, blocked(), Options{Seed: 1}), qlora.FP8, deepseek, "o_proj.weight"), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	quantized := 0
	for _, p := range m.Params() {
		if p.Quantized != nil {
			quantized++
			require.NotContains(t, p.Name, "o_proj")
		} else {
			require.Equal(t, p.Len(), p.Value.Len())
		}
	}
	require.Equal(t, 12, quantized)
}

// TestScalesOfFloats: scales belong to matrices that are stored quantized, and those of activations to any.
func TestScalesOfFloats(t *testing.T) {
	c := Config{Stored: qlora.FP8}
	known := map[string]bool{"a.weight": true, "b.weight": false}
	for name, want := range map[string]bool{"a.weight_scale_inv": true, "a.weight_scale": true, "a.input_scale": true, "b.activation_scale": true, "a.k_scale": true,
		"b.weight_scale_inv": false, "b.SCB": false, "c.weight_scale": false, "c.input_scale": false, "a.z_scale": false} {
		require.Equal(t, want, c.describesStored(name, known), name)
	}
}

func TestOpenStoredErrors(t *testing.T) {
	dir := store(t, newTiny(t, blocked(), Options{Seed: 1}), qlora.FP8, deepseek)
	for _, init := range []string{"pissa", "loftq"} {
		_, err := Open(dir, Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Init: init}})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "in fp8")
	}
	for config, want := range map[string]string{
		`{"quant_method":"fp8","weight_block_size":[64,0]}`:                            "weight_block_size is [64 0]",
		`{"quant_method":"fp8","weight_block_size":[64]}`:                              "weight_block_size is [64]",
		`{"quant_method":"fp8","fmt":"e3m4"}`:                                          "fmt is \"e3m4\"",
		`{"quant_method":"fp8","surprise":1}`:                                          "surprise",
		`{"quant_method":"bitsandbytes","load_in_4bit":true}`:                          "of another type",
		`{"quant_method":"bitsandbytes","load_in_8bit":true}`:                          "not F32, F16 or BF16",
		`{"quant_method":"awq","bits":3}`:                                              `quant_method "awq", bits 3`,
		`{"quant_method":"fp8","fmt":"e5m2"}`:                                          "of another type",
		`{"quant_method":"bitsandbytes","load_in_8bit":true,"load_in_4bit":true}`:      "bitsandbytes",
		`{"quant_method":"bitsandbytes","load_in_8bit":true,"llm_int8_threshold":"a"}`: "llm_int8_threshold",
	} {
		t.Run(config, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(dir, configName))
			require.NoError(t, err)
			var members map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(text, &members))
			members["quantization_config"] = json.RawMessage(config)
			text, err = json.Marshal(members)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, configName), text, 0o644))
			_, err = Open(dir, Options{})
			require.ErrorIs(t, err, snug.ErrConfig, config)
			if !strings.HasPrefix(want, "not") {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// TestBases: matrices of every form keep a model close to itself, and Pages hold them.
func TestBases(t *testing.T) {
	float := newTiny(t, blocked(), Options{Seed: 1})
	b := someBatch(7, 11, 2, 9)
	want, err := float.Evaluate(context.Background(), b)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, float.Save(dir, 0))
	sizes := map[qlora.Type]int64{}
	for _, base := range []qlora.Type{qlora.NF4, qlora.FP4, qlora.MXFP4, qlora.FP8, qlora.FP8E5M2, qlora.INT8} {
		m, err := Open(dir, Options{Base: base})
		require.NoError(t, err)
		got, err := m.Evaluate(context.Background(), b)
		require.NoError(t, err)
		require.InDelta(t, want.Mean(), got.Mean(), 0.2, base)
		sizes[base] = m.weightBytes
		require.NoError(t, m.Close())
	}
	require.Less(t, sizes[qlora.NF4], sizes[qlora.MXFP4])
	require.Less(t, sizes[qlora.MXFP4], sizes[qlora.FP8])
	require.Less(t, sizes[qlora.FP8], sizes[qlora.INT8])
	_, err = Open(dir, Options{Base: qlora.INT8 + 1})
	require.ErrorIs(t, err, snug.ErrConfig)
}
