package transformer

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// TestGroupedConfigs: what quantization_config says of GPTQ and AWQ, in the spellings of their programs.
func TestGroupedConfigs(t *testing.T) {
	for name, row := range map[string]struct {
		config string
		want   qlora.Groups
		bits   float64
		err    string // empty: it is read
	}{
		"GPTQ":              {`{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,"sym":true}`, qlora.Groups{Bits: 4, Size: 128, Layout: qlora.GPTQ, Ordered: true}, 4.25, ""},
		"zero points":       {`{"quant_method":"gptq","bits":4,"group_size":64,"sym":false,"dynamic":null}`, qlora.Groups{Bits: 4, Size: 64, Layout: qlora.GPTQ}, 4.625, ""},
		"no power of two":   {`{"quant_method":"gptq","bits":4,"group_size":96,"dynamic":{}}`, qlora.Groups{Bits: 4, Size: 96, Layout: qlora.GPTQ}, 5, ""},
		"8 bits":            {`{"quant_method":"gptq","bits":8,"group_size":32,"checkpoint_format":"gptq_v2"}`, qlora.Groups{Bits: 8, Size: 32, Layout: qlora.GPTQv2}, 9.25, ""},
		"AWQ":               {`{"quant_method":"awq","bits":4,"group_size":128,"version":"gemm","zero_point":true}`, qlora.Groups{Bits: 4, Size: 128, Layout: qlora.AWQ}, 4.3125, ""},
		"AWQ, old names":    {`{"quant_method":"awq","w_bit":4,"q_group_size":64}`, qlora.Groups{Bits: 4, Size: 64, Layout: qlora.AWQ}, 4.625, ""},
		"AWQ, both names":   {`{"quant_method":"awq","group_size":64,"q_group_size":64}`, qlora.Groups{Bits: 4, Size: 64, Layout: qlora.AWQ}, 4.625, ""},
		"AWQ, format":       {`{"quant_method":"awq","bits":4,"format":"gemv"}`, qlora.Groups{}, 0, "gemv"},
		"other bits inside": {`{"quant_method":"gptq","bits":4,"dynamic":{"+:.*":{"bits":8}}}`, qlora.Groups{}, 0, "dynamic"},
		"3 bits":            {`{"quant_method":"gptq","bits":3,"group_size":128}`, qlora.Groups{}, 0, "bits 3"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parseConfig([]byte(`{"model_type":"llama","quantization_config":` + row.config + `}`))
			if row.err != "" {
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, row.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, row.want, c.StoredGroups)
			require.Equal(t, row.bits, c.StoredBits)
		})
	}
}

// TestGroupedOnDevices: weights in groups are for the CPU, and the error says what goes elsewhere.
func TestGroupedOnDevices(t *testing.T) {
	c := tiny()
	c.Stored, c.StoredGroups = qlora.Grouped, qlora.Groups{Bits: 4, Size: 32, Layout: qlora.GPTQ}
	stored := map[string]bool{"model.layers.0.mlp.down_proj.weight": true}
	_, err := newModel(c, Options{Device: kerneltest.Backends(t)[2].Dev}, stored)
	require.ErrorIs(t, err, snug.ErrDevice)
	require.ErrorContains(t, err, "-full")
}

// TestZeroBiases: AutoGPTQ wrote biases of zeros beside matrices that have none. They are passed over, and others are refused.
func TestZeroBiases(t *testing.T) {
	c, known := Config{Stored: qlora.Grouped, StoredGroups: qlora.Groups{Bits: 4, Size: 32, Layout: qlora.GPTQ}}, map[string]bool{"m.weight": true, "b.weight": true, "b.bias": true}
	for name, row := range map[string]struct {
		bias []float32
		of   string
		err  string
	}{
		"zeros":            {make([]float32, 3), "m.bias", ""},
		"a number":         {[]float32{0, 0, 1e-7}, "m.bias", "m.bias is not 0"},
		"NaN":              {[]float32{0, float32(math.NaN()), 0}, "m.bias", "m.bias is not 0"},
		"the family's own": {[]float32{1, 2, 3}, "b.bias", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.safetensors")
			require.NoError(t, amp.SaveWeights(path, func(yield func(amp.Tensor, snug.View) bool) {
				yield(amp.Tensor{Name: row.of, DType: "F32", Shape: []int{3}}, snug.SliceView(row.bias))
			}, nil))
			w, err := amp.OpenWeights(path)
			require.NoError(t, err)
			defer func() { require.NoError(t, w.Close()) }()
			if err = c.zeroBiases(w, known); row.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, row.err)
		})
	}
}
