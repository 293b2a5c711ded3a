package transformer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// mlxFolder writes the folder of an adapter, whose size is the predicted one, and opens it.
func mlxFolder(t *testing.T, f *AdapterFile) (config mlxConfigFile, tensors map[string][]float32, shapes map[string][]int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new", "mlx")
	require.NoError(t, f.SaveMLX(t.Context(), dir))
	text, err := os.ReadFile(filepath.Join(dir, mlxConfig))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &config))
	w, err := amp.OpenWeights(filepath.Join(dir, mlxWeights))
	require.NoError(t, err)
	defer w.Close()
	tensors, shapes = map[string][]float32{}, map[string][]int{}
	bytes := int64(0)
	for _, one := range w.Tensors() {
		require.Equal(t, "F32", one.DType)
		x := make([]float32, one.Len())
		require.NoError(t, w.Load(one.Name, snug.ViewOf(x)))
		tensors[one.Name], shapes[one.Name] = x, one.Shape
		bytes += one.Bytes()
	}
	size, err := f.MLXSize()
	require.NoError(t, err)
	require.Equal(t, bytes, size.Bytes)
	return config, tensors, shapes
}

// transposed returns the transpose of a matrix.
func transposed(x []float32, rows, cols int) []float32 {
	y := make([]float32, len(x))
	turn(y, x, rows, cols)
	return y
}

// TestMLXFolder: what mlx-lm adds, scale·lora_bᵀ·lora_aᵀ, is what PEFT adds, also where ranks and scales differ. Names are those of mlx-lm's
// modules, and keys and num_layers select all of them.
func TestMLXFolder(t *testing.T) {
	_, configs := loraGoldens(t)
	patterns := qlora.AdapterOptions{Rank: 3, Alpha: 6, RSLoRA: true, Ranks: map[string]int{"v_proj": 5}, Alphas: map[string]float32{"q_proj": 2}}
	plain := qlora.AdapterOptions{Rank: 4, Alpha: 8}
	for _, c := range []struct {
		name, model string
		o           qlora.AdapterOptions
		tables      bool
		rank        int
		keys        []string
	}{
		{"plain", "llama", plain, false, 4, []string{"mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"}},
		{"patterns", "qwen2", patterns, false, 5, nil},
		{"tables", "llama", plain, true, 4, []string{"lm_head", "model.embed_tokens"}},
		{"GPT-2", "gpt2", plain, false, 4, []string{"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}},
		{"Mixtral", "mixtral", plain, false, 4, []string{"block_sparse_moe.switch_mlp.down_proj", "block_sparse_moe.switch_mlp.gate_proj", "block_sparse_moe.switch_mlp.up_proj"}},
		{"Qwen3-MoE", "qwen3_moe", plain, false, 4, []string{"mlp.switch_mlp.gate_proj"}},
		{"gpt-oss", "gpt_oss", plain, false, 4, []string{"self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := configs[c.model]
			f := openAdapter(t, model, goldenAdapter(t, model, c.o, c.tables))
			config, tensors, shapes := mlxFolder(t, f)
			require.Equal(t, []any{"lora", model.Layers, c.rank}, []any{config.Kind, config.Layers, config.LoRA.Rank})
			require.InDelta(t, float64(qlora.LoRAScale(c.o.Alpha, c.o.Rank, c.o.RSLoRA)), config.LoRA.Scale, 1e-6)
			require.Subset(t, config.LoRA.Keys, c.keys)
			_, adapters, err := qlora.LoadAdapters(f.dir, nil)
			require.NoError(t, err)
			for name := range tensors {
				module := strings.TrimSuffix(strings.TrimSuffix(name, ".lora_a"), ".lora_b")
				selected := slices.ContainsFunc(config.LoRA.Keys, func(key string) bool { return module == key || strings.HasSuffix(module, "."+key) })
				require.True(t, selected, name)
			}
			for module, a := range adapters {
				want := product(float64(a.Scale), onHost(t, a.B), onHost(t, a.A), a.Rank)
				name, expert := mlxModule(t, module)
				lowA, lowB := tensors[name+".lora_a"], tensors[name+".lora_b"]
				if expert >= 0 {
					require.Equal(t, []int{model.Experts.Count, c.rank, a.In}, shapes[name+".lora_a"], name)
					require.Equal(t, []int{model.Experts.Count, a.Out, c.rank}, shapes[name+".lora_b"], name)
					lowA, lowB = lowA[expert*c.rank*a.In:][:c.rank*a.In], lowB[expert*c.rank*a.Out:][:c.rank*a.Out]
				} else {
					require.Equal(t, []int{a.In, c.rank}, shapes[name+".lora_a"], name)
					require.Equal(t, []int{c.rank, a.Out}, shapes[name+".lora_b"], name)
					lowA, lowB = transposed(lowA, a.In, c.rank), transposed(lowB, c.rank, a.Out)
				}
				require.InDeltaSlice(t, want, product(config.LoRA.Scale, lowB, lowA, c.rank), 1e-4, module)
			}
		})
	}
}

var ofExpert = regexp.MustCompile(`^(.*)\.experts\.([0-9]+)\.(.*)$`)

// mlxModule returns mlx-lm's name of a module, and the number of its expert or -1.
func mlxModule(t *testing.T, module string) (name string, expert int) {
	parts := ofExpert.FindStringSubmatch(module)
	if parts == nil {
		return strings.Replace(module, "transformer.", "model.", 1), -1
	}
	expert, err := strconv.Atoi(parts[2])
	require.NoError(t, err)
	name = parts[3]
	if joined := map[string]string{"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}[name]; joined != "" {
		name = joined
	}
	return parts[1] + ".switch_mlp." + name, expert
}

// TestMLXFolderOfDoRA: magnitudes are tensors m, and only the last layers are named where those before have no adapter.
func TestMLXFolderOfDoRA(t *testing.T) {
	llama, err := ReadConfig("testdata/models/llama")
	require.NoError(t, err)
	f := openAdapter(t, llama, "testdata/adapters/llama_dora")
	config, tensors, _ := mlxFolder(t, f)
	require.Equal(t, "dora", config.Kind)
	_, adapters, err := qlora.LoadAdapters(f.dir, nil)
	require.NoError(t, err)
	for module, a := range adapters {
		require.Equal(t, onHost(t, a.Magnitude), tensors[module+".m"], module)
	}
	mistral, err := ReadConfig("testdata/models/mistral")
	require.NoError(t, err)
	config, tensors, _ = mlxFolder(t, openAdapter(t, mistral, "testdata/adapters/mistral_layers"))
	require.Equal(t, mlxConfigFile{Model: config.Model, Kind: "lora", Layers: mistral.Layers - 1,
		LoRA: mlxParameters{Rank: 4, Scale: 4, Keys: []string{"mlp.gate_proj", "self_attn.o_proj"}}}, config)
	require.Len(t, tensors, 4*(mistral.Layers-1))
}

func TestMLXFolderRefuses(t *testing.T) {
	ministral, err := ReadConfig("testdata/models/ministral")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "mlx")
	f := openAdapter(t, ministral, goldenAdapter(t, ministral, qlora.AdapterOptions{Rank: 4, Alpha: 8}, false))
	refuses(t, f.SaveMLX(t.Context(), dir), snug.ErrConfig, "the layout of mlx-lm is not written for ministral")
	_, err = f.MLXSize()
	require.ErrorIs(t, err, snug.ErrConfig)
	llama, err := ReadConfig("testdata/models/llama")
	require.NoError(t, err)
	plain := openAdapter(t, llama, "testdata/adapters/llama_lora")
	ended, end := context.WithCancelCause(t.Context())
	why := errors.New("ended")
	end(why)
	require.ErrorIs(t, plain.SaveMLX(ended, dir), why)
	require.NoDirExists(t, dir)
	require.NoError(t, plain.Close())
	require.NoError(t, plain.Close())
	refuses(t, plain.SaveMLX(t.Context(), dir), snug.ErrConfig, "not closed")
	refuses(t, new(AdapterFile).SaveMLX(t.Context(), dir), snug.ErrConfig, "OpenAdapter")
}
