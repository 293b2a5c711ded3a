package qlora

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// someAdapters are of the ranks and scales of a config, and of those of 2 and 4 if it is
// not valid.
func someAdapters(c AdapterOptions) map[string]*LoRA {
	adapters := map[string]*LoRA{"layers.0.up": {In: 5, Out: 7}, "layers.0.down": {In: 7, Out: 5}}
	for name, a := range adapters {
		var err error
		if a.Rank, a.Scale, err = c.RankOf(name); err != nil {
			a.Rank, a.Scale = 2, 2
		}
		a.A, a.B = snug.ViewOf(kerneltest.Normal(1, a.In*a.Rank)), snug.ViewOf(kerneltest.Normal(uint64(a.In), a.Out*a.Rank))
		a.Dropout = c.Dropout
		if c.DoRA {
			a.Magnitude = snug.ViewOf(kerneltest.Normal(5, a.Out))
		}
	}
	return adapters
}

func TestAdapters(t *testing.T) {
	for _, dora := range []bool{false, true} {
		testAdapters(t, AdapterOptions{Rank: 3, Alpha: 12, RSLoRA: true, Dropout: 0.1, DoRA: dora, Targets: Modules{Names: []string{"up", "down"}}, BaseModel: "a/model"})
	}
}

func testAdapters(t *testing.T, c AdapterOptions) {
	dir := filepath.Join(t.TempDir(), "made")
	want := someAdapters(c)
	for range 2 { // the second time over the first
		require.NoError(t, SaveAdapters(dir, c, want))
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, backend := range backends(t) {
		got, adapters, err := LoadAdapters(dir, backend.Dev)
		require.NoError(t, err)
		require.Equal(t, c, got)
		require.Len(t, adapters, len(want))
		for name, a := range adapters {
			w := want[name]
			require.Equal(t, []int{w.In, w.Out, w.Rank}, []int{a.In, a.Out, a.Rank})
			require.Equal(t, w.Scale, a.Scale)
			sameBits(t, values(t, w.A), values(t, a.A))
			sameBits(t, values(t, w.B), values(t, a.B))
			require.Equal(t, w.Dropout, a.Dropout)
			require.Equal(t, c.DoRA, a.Magnitude.Len() > 0)
			if c.DoRA {
				sameBits(t, values(t, w.Magnitude), values(t, a.Magnitude))
			}
			require.NoError(t, a.Close())
			require.NoError(t, a.Close())
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
	require.NoError(t, err)
	for _, field := range []string{`"peft_type": "LORA"`, `"r": 3`, `"lora_alpha": 12`, `"use_rslora": true`, `"bias": "none"`, `"lora_dropout": 0.1`, fmt.Sprintf(`"use_dora": %t`, c.DoRA)} {
		require.Contains(t, string(text), field)
	}
	weights, err := amp.OpenWeights(filepath.Join(dir, "adapter_model.safetensors"))
	require.NoError(t, err)
	defer weights.Close()
	tensor, found := weights.Tensor("base_model.model.layers.0.up.lora_B.weight")
	require.True(t, found)
	require.Equal(t, []int{7, 3}, tensor.Shape)
	tensor, found = weights.Tensor("base_model.model.layers.0.up.lora_magnitude_vector")
	require.Equal(t, c.DoRA, found)
	if found {
		require.Equal(t, []int{7}, tensor.Shape)
	}
}

// foreign makes the weights of a folder those of another program, which say nothing of
// their config.
func foreign(t *testing.T, dir string) {
	file := filepath.Join(dir, adapterWeightsFile)
	w, err := amp.OpenWeights(file)
	require.NoError(t, err)
	loaded := map[string]snug.View{}
	for _, tensor := range w.Tensors() {
		loaded[tensor.Name] = snug.ViewOf(make([]float32, tensor.Len()))
		require.NoError(t, w.Load(tensor.Name, loaded[tensor.Name]))
	}
	list := w.Tensors()
	require.NoError(t, w.Close())
	require.NoError(t, amp.SaveWeights(file, func(yield func(amp.Tensor, snug.View) bool) {
		for _, tensor := range list {
			if !yield(tensor, loaded[tensor.Name]) {
				return
			}
		}
	}, map[string]string{"format": "pt"}))
}

func TestAdaptersErrors(t *testing.T) {
	c := AdapterOptions{Rank: 2, Alpha: 4, Targets: Modules{Pattern: allLinear}}
	dir := t.TempDir()
	_, _, err := LoadAdapters(dir, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, bad := range []AdapterOptions{{Alpha: 1}, {Rank: 1}, {Rank: 3, Alpha: 4}, {Rank: 2, Alpha: 5}, {Rank: 2, Alpha: 4, Dropout: 1}, {Rank: 2, Alpha: 4, Dropout: 0.1}, {Rank: 2, Alpha: 4, DoRA: true}} {
		require.ErrorIs(t, SaveAdapters(dir, bad, someAdapters(c)), snug.ErrConfig, "%+v", bad)
	}
	require.ErrorIs(t, SaveAdapters(dir, c, nil), snug.ErrConfig)
	unnamed := someAdapters(c)
	unnamed[""] = unnamed["layers.0.up"]
	require.ErrorIs(t, SaveAdapters(dir, c, unnamed), snug.ErrConfig)
	require.ErrorIs(t, SaveAdapters(dir, c, map[string]*LoRA{"\xff": unnamed[""]}), snug.ErrConfig)
	long := c
	long.BaseModel = strings.Repeat("a", maxAdapterConfig)
	require.ErrorIs(t, SaveAdapters(dir, long, someAdapters(c)), snug.ErrConfig)
	bytes := someAdapters(c)
	bytes["layers.0.up"].A = snug.SliceView(make([]uint8, bytes["layers.0.up"].A.Len()))
	require.ErrorIs(t, SaveAdapters(dir, c, bytes), snug.ErrDType)
	short := someAdapters(c)
	short["layers.0.up"].A = snug.ViewOf(kerneltest.Normal(1, 3))
	require.ErrorIs(t, SaveAdapters(dir, c, short), snug.ErrShape)
	spoiled := someAdapters(c)
	spoiled["layers.0.up"].B.Float32s()[1] = float32(math.NaN())
	err = SaveAdapters(dir, c, spoiled)
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "layers.0.up.lora_B")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files, "nothing was written")

	require.NoError(t, SaveAdapters(dir, c, someAdapters(c)))
	foreign(t, dir)
	config := filepath.Join(dir, "adapter_config.json")
	good, err := os.ReadFile(config)
	require.NoError(t, err)
	for change, want := range map[[2]string]error{
		{`"r": 2`, `"r": 3`}:                                  snug.ErrCorrupt, // not that of the tensors
		{`"r": 2`, `"r": 0`}:                                  snug.ErrCorrupt,
		{`"r": 2`, `"r": `}:                                   snug.ErrCorrupt,
		{`"LORA"`, `"IA3"`}:                                   snug.ErrConfig,
		{`"use_dora": false`, `"use_dora": true`}:             snug.ErrCorrupt, // magnitudes are not there
		{`"lora_dropout": 0`, `"lora_dropout": 1`}:            snug.ErrConfig,  // which PEFT drops all by
		{`"lora_dropout": 0`, `"lora_dropout": 2`}:            snug.ErrCorrupt,
		{`"lora_alpha": 4`, `"lora_alpha": -4`}:               snug.ErrConfig,
		{`"r": 2`, `"r": 2, "lora_bias": true`}:               snug.ErrConfig,
		{`"alpha_pattern": {}`, `"alpha_pattern": {"up": 0}`}: snug.ErrConfig,
		{`"rank_pattern": {}`, `"rank_pattern": {"up": 1}`}:   snug.ErrCorrupt, // not that of the tensors
		{`"r": 2`, `"r": 2, "R": 2`}:                          snug.ErrConfig,
		{`"r": 2`, `"r": 2, "r": 2`}:                          snug.ErrCorrupt,
		{`"lora_dropout": 0`, `"lora_dropout": "0"`}:          snug.ErrCorrupt,
		{`"bias": "none"`, `"bias": "all"`}:                   snug.ErrConfig,
	} {
		text := strings.Replace(string(good), change[0], change[1], 1)
		require.NotEqual(t, string(good), text)
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		_, _, err := LoadAdapters(dir, nil)
		require.ErrorIs(t, err, want, "%v", change)
	}
	require.NoError(t, os.WriteFile(config, good, 0o600))

	file := filepath.Join(dir, "adapter_model.safetensors")
	one := snug.ViewOf(make([]float32, 2))
	for name, tensors := range map[string]map[string][]int{
		"one of two":  {"base_model.model.x.lora_A.weight": {2, 1}},
		"another":     {"base_model.model.x.lora_A.weight": {2, 1}, "base_model.model.x.lora_B.weight": {1, 2}, "y": {2}},
		"a vector":    {"base_model.model.x.lora_A.weight": {2}, "base_model.model.x.lora_B.weight": {1, 2}},
		"no prefix":   {"x.lora_A.weight": {2, 1}, "x.lora_B.weight": {1, 2}},
		"nothing":     {},
		"other ranks": {"base_model.model.x.lora_A.weight": {1, 2}, "base_model.model.x.lora_B.weight": {1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, amp.SaveWeights(file, func(yield func(amp.Tensor, snug.View) bool) {
				for tensor, shape := range tensors {
					if !yield(amp.Tensor{Name: tensor, Shape: shape}, one) {
						return
					}
				}
			}, nil))
			_, _, err := LoadAdapters(dir, nil)
			require.ErrorIs(t, err, snug.ErrCorrupt, name)
		})
	}
	require.NoError(t, os.WriteFile(file, []byte("damaged"), 0o600))
	_, _, err = LoadAdapters(dir, nil)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.NoError(t, os.Remove(file))
	_, _, err = LoadAdapters(dir, nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestAdapterTensors: what is missing, or is no part of an adapter of a linear layer, is
// refused by its full name, with what it is.
func TestAdapterTensors(t *testing.T) {
	dir := t.TempDir()
	const q, head, embed = "base_model.model.q_proj", "base_model.model.lm_head", "base_model.model.model.embed_tokens"
	pair := func(module string) []string { return []string{module + adapterA, module + adapterB} }
	for name, c := range map[string]struct {
		dora    bool
		tensors []string
		class   error
		says    []string
	}{
		"no B":                   {false, []string{q + adapterA}, snug.ErrCorrupt, []string{`the tensor "` + q + adapterB + `" is missing`}},
		"no A":                   {false, []string{q + adapterB}, snug.ErrCorrupt, []string{`its tensor "` + q + adapterA + `" is missing`}},
		"no B of two":            {false, append(pair(head), q+adapterA), snug.ErrCorrupt, []string{`the tensor "` + q + adapterB + `" is missing`}},
		"no A of two":            {false, append(pair(head), q+adapterB), snug.ErrCorrupt, []string{`its tensor "` + q + adapterA + `" is missing`}},
		"no magnitude":           {true, pair(q), snug.ErrCorrupt, []string{`the tensor "` + q + adapterMagnitude + `" is missing`}},
		"no DoRA":                {false, append(pair(q), q+adapterMagnitude), snug.ErrConfig, []string{q + adapterMagnitude, "use_dora is false"}},
		"only magnitudes":        {true, []string{q + adapterMagnitude}, snug.ErrCorrupt, []string{`its tensor "` + q + adapterA + `" is missing`}},
		"a base layer":           {false, append(pair(q), q+".base_layer.weight"), snug.ErrConfig, []string{q + ".base_layer.weight", "a copy of a weight of the base model"}},
		"its bias":               {false, append(pair(head), head+".base_layer.bias"), snug.ErrConfig, []string{head + ".base_layer.bias", "a copy of a weight of the base model"}},
		"an embedding without B": {false, append(pair(q), embed+embeddingA), snug.ErrCorrupt, []string{`the tensor "` + embed + embeddingB + `" is missing`}},
		"an embedding without A": {false, append(pair(q), embed+embeddingB), snug.ErrCorrupt, []string{`its tensor "` + embed + embeddingA + `" is missing`}},
		"an embedding and a head": {false, append(pair(embed), embed+embeddingA, embed+embeddingB), snug.ErrCorrupt,
			[]string{`the module has also "` + embed + adapterA}},
		"an embedding's magnitudes": {true, []string{embed + embeddingA, embed + embeddingB}, snug.ErrCorrupt,
			[]string{`the tensor "` + embed + adapterMagnitude + `" is missing`}},
		"a norm":    {false, append(pair(q), "base_model.model.model.norm.weight"), snug.ErrConfig, []string{"model.norm.weight", "that modules_to_save does not name"}},
		"a bias":    {false, append(pair(q), q+".lora_B.bias"), snug.ErrConfig, []string{q + ".lora_B.bias", "not supported"}},
		"no tensor": {false, nil, snug.ErrCorrupt, []string{"adapter_model.safetensors has no tensors"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, adapterConfigFile), fmt.Appendf(nil, `{"peft_type":"LORA","r":8,"lora_alpha":8,"use_dora":%t}`, c.dora), 0o600))
			require.NoError(t, amp.SaveWeights(filepath.Join(dir, adapterWeightsFile), func(yield func(amp.Tensor, snug.View) bool) {
				for _, tensor := range c.tensors {
					shape := []int{8, 8}
					if strings.HasSuffix(tensor, adapterMagnitude) {
						shape = shape[:1]
					}
					n := 1
					for _, d := range shape {
						n *= d
					}
					if !yield(amp.Tensor{Name: tensor, Shape: shape}, snug.ViewOf(make([]float32, n))) {
						return
					}
				}
			}, nil))
			_, adapters, err := LoadAdapters(dir, nil)
			require.ErrorIs(t, err, c.class, name)
			require.Nil(t, adapters)
			for _, part := range c.says {
				require.ErrorContains(t, err, part, name)
			}
			require.NotContains(t, err.Error(), "shape []", name)
		})
	}
}

// TestAdapterDefaults: a file that has only what PEFT needs gets PEFT's defaults.
func TestAdapterDefaults(t *testing.T) {
	dir := t.TempDir()
	c := AdapterOptions{Rank: 8, Alpha: 8}
	require.NoError(t, SaveAdapters(dir, c, someAdapters(c)))
	foreign(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, adapterConfigFile), []byte(`{"peft_type":"LORA"}`), 0o600))
	got, adapters, err := LoadAdapters(dir, nil)
	require.NoError(t, err)
	require.Equal(t, c, got)
	for _, a := range adapters {
		require.Equal(t, []any{8, float32(1), float32(0)}, []any{a.Rank, a.Scale, a.Dropout})
		require.NoError(t, a.Close())
	}
}
