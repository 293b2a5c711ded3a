package transformer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// loraGolden is what convert_lora_to_gguf.py makes of an adapter of a model of the folder gguf.
type loraGolden struct {
	Model string
	Files map[string]struct {
		Metadata map[string]any
		Tensors  map[string][3]any // type, shape, hash
	}
}

// loraGoldens returns those of testdata/lora.json, with a model's file of config.json.
func loraGoldens(t *testing.T) (all map[string]loraGolden, configs map[string]*Config) {
	text, err := os.ReadFile("testdata/lora.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	configs = map[string]*Config{}
	for name, g := range ggufGoldens(t) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, configName), g.Config, 0o600))
		configs[name], err = ReadConfig(dir)
		require.NoError(t, err)
	}
	return all, configs
}

// goldenAdapter writes the adapter of testdata/lora.py: of every matrix of the layers but those of gpt-oss's experts, and of the tables.
func goldenAdapter(t *testing.T, c *Config, o qlora.AdapterOptions, tables bool) (dir string) {
	layout := c.layout()
	adapters := map[string]*qlora.LoRA{}
	for _, p := range c.tensors(layout) {
		module := strings.TrimSuffix(p.Name, ".weight")
		isTable := p.Name == layout.body+c.embedding()
		if !c.isMatrix(p) && !(tables && len(p.Shape) == 2) || c.Family == "gpt_oss" && strings.Contains(module, ".experts.") {
			continue
		}
		out, in := p.Shape[0], p.Shape[1]
		if isTable || c.names().conv {
			in, out = out, in
		}
		rank, scale, err := o.RankOf(module)
		require.NoError(t, err)
		ends := []string{".lora_A.weight", ".lora_B.weight"}
		if isTable {
			ends = []string{".lora_embedding_A", ".lora_embedding_B"}
		}
		adapters[module] = &qlora.LoRA{In: in, Out: out, Rank: rank, Scale: scale, Embedding: isTable,
			A: snug.ViewOf(loraValues(adapterPrefix+module+ends[0], rank*in)), B: snug.ViewOf(loraValues(adapterPrefix+module+ends[1], rank*out))}
	}
	dir = t.TempDir()
	require.NoError(t, qlora.SaveAdapters(dir, o, adapters))
	return dir
}

func loraValues(name string, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32((int64(i)*7+int64(crc32.ChecksumIEEE([]byte(name))))%255-127) / 128
	}
	return v
}

// openAdapter opens an adapter until the end of the test.
func openAdapter(t *testing.T, c *Config, dir string) *AdapterFile {
	t.Helper()
	f, err := c.OpenAdapter(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// loraFile writes the file of an adapter, whose size is the predicted one, and opens it.
func loraFile(t *testing.T, f *AdapterFile, o GGUFOptions) *gguf.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lora.gguf")
	require.NoError(t, f.SaveGGUF(t.Context(), path, o))
	size, err := f.GGUFSize(o)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, info.Size(), size.Bytes)
	file, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	return file
}

func TestLoRAFileIsThatOfTheConverter(t *testing.T) {
	goldens, configs := loraGoldens(t)
	require.Len(t, goldens, 17)
	for name, golden := range goldens {
		for kind, want := range golden.Files {
			t.Run(name+" "+kind, func(t *testing.T) {
				c := configs[golden.Model]
				dir := goldenAdapter(t, c, qlora.AdapterOptions{Rank: 4, Alpha: 8}, name == "tables")
				f := loraFile(t, openAdapter(t, c, dir), GGUFOptions{Type: kind, New: true})
				have := map[string]any{}
				for _, p := range f.Metadata() {
					have[p.Key] = p.Value
				}
				for key, value := range want.Metadata {
					require.EqualValues(t, value, have[key], key)
				}
				tensors := map[string][3]any{}
				for _, tensor := range f.Tensors() {
					n, err := tensor.Bytes()
					require.NoError(t, err)
					b := make([]byte, n)
					require.NoError(t, f.ReadAt(tensor.Name, b, 0))
					sum := sha256.Sum256(b)
					shape := []any{}
					for _, d := range tensor.Shape {
						shape = append(shape, float64(d))
					}
					tensors[tensor.Name] = [3]any{tensor.Type.String(), shape, hex.EncodeToString(sum[:])[:12]}
				}
				require.Equal(t, want.Tensors, tensors)
			})
		}
	}
}

// tensorIn returns the place of a tensor, -1 if there is none.
func tensorIn(f *gguf.File, name string) int {
	return slices.IndexFunc(f.Tensors(), func(t gguf.Tensor) bool { return t.Name == name })
}

// floatsOf returns the elements of a tensor.
func floatsOf(t *testing.T, f *gguf.File, name string) (x []float32, shape []int) {
	t.Helper()
	i := tensorIn(f, name)
	require.GreaterOrEqual(t, i, 0, name)
	tensor := f.Tensors()[i]
	n, err := tensor.Bytes()
	require.NoError(t, err)
	b := make([]byte, n)
	require.NoError(t, f.ReadAt(name, b, 0))
	x = make([]float32, 1)
	for _, d := range tensor.Shape {
		x = make([]float32, len(x)*d)
	}
	require.NoError(t, tensor.Type.Decode(x, b))
	return x, tensor.Shape
}

// product returns s·B·A of B [out, r] and A [r, in].
func product(s float64, b, a []float32, r int) []float64 {
	out, in := len(b)/r, len(a)/r
	y := make([]float64, out*in)
	for i := range out {
		for k := range r {
			for j := range in {
				y[i*in+j] += s * float64(b[i*r+k]) * float64(a[k*in+j])
			}
		}
	}
	return y
}

// TestLoRAFileHasTheScales: what llama.cpp adds, alpha/r·B·A by the length r of the rows of B, is what PEFT adds, also where ranks, alphas and
// the formula of the scale differ, and in GPT-2.
func TestLoRAFileHasTheScales(t *testing.T) {
	_, configs := loraGoldens(t)
	patterns := qlora.AdapterOptions{Rank: 3, Alpha: 6, Ranks: map[string]int{"v_proj": 5, `layers\.1\..*down_proj`: 2}, Alphas: map[string]float32{"q_proj": 2}}
	stabilized := patterns
	stabilized.RSLoRA = true
	experts := qlora.AdapterOptions{Rank: 2, Alpha: 4, Ranks: map[string]int{`experts\.1\.w1`: 3}, Targets: qlora.Modules{Names: []string{"w1"}}}
	for _, c := range []struct {
		name, model string
		o           qlora.AdapterOptions
	}{{"plain", "qwen2", patterns}, {"stabilized", "llama", stabilized}, {"GPT-2", "gpt2", qlora.AdapterOptions{Rank: 4, Alpha: 8}}, {"experts", "mixtral", experts}} {
		t.Run(c.name, func(t *testing.T) {
			config := configs[c.model]
			everything := c.o
			everything.Targets = qlora.Modules{}
			dir := goldenAdapter(t, config, everything, false)
			_, adapters, err := qlora.LoadAdapters(dir, nil)
			require.NoError(t, err)
			f := loraFile(t, openAdapter(t, config, dir), GGUFOptions{})
			value, _ := f.Value("adapter.lora.alpha")
			alpha := float64(value.(float32))
			model, err := config.GGUF("f32")
			require.NoError(t, err)
			seen := 0
			for i, tensor := range model.Tensors {
				p := &model.parts[i]
				if tensorIn(f, tensor.Name+".lora_a") < 0 {
					continue
				}
				a, shape := floatsOf(t, f, tensor.Name+".lora_a")
				b, _ := floatsOf(t, f, tensor.Name+".lora_b")
				r := shape[len(shape)-2]
				for e, param := range p.params {
					of := adapters[strings.TrimSuffix(param, ".weight")]
					size := [2]int{len(a) / len(p.params), len(b) / len(p.params)}
					have := product(alpha/float64(r), b[e*size[1]:][:size[1]], a[e*size[0]:][:size[0]], r)
					want := product(float64(of.Scale), onHost(t, of.B), onHost(t, of.A), of.Rank)
					for row := range of.Out {
						to := row
						if p.pairs > 0 {
							to = p.paired(row)
						}
						require.InDeltaSlice(t, want[row*of.In:][:of.In], have[to*of.In:][:of.In], 1e-5, "%s row %d", param, row)
					}
					seen++
				}
			}
			require.Equal(t, len(adapters), seen)
		})
	}
}

// TestLoRAFileOfSomeExperts: the experts of a layer without an adapter have one of zeros.
func TestLoRAFileOfSomeExperts(t *testing.T) {
	_, configs := loraGoldens(t)
	c := configs["mixtral"]
	module := "model.layers.1.block_sparse_moe.experts.2.w2"
	o := qlora.AdapterOptions{Rank: 2, Alpha: 2}
	a := &qlora.LoRA{In: c.Experts.Hidden, Out: c.Dim, Rank: 2, Scale: 1, A: snug.ViewOf(loraValues("a", 2*c.Experts.Hidden)), B: snug.ViewOf(loraValues("b", 2*c.Dim))}
	dir := t.TempDir()
	require.NoError(t, qlora.SaveAdapters(dir, o, map[string]*qlora.LoRA{module: a}))
	f := loraFile(t, openAdapter(t, c, dir), GGUFOptions{})
	require.Len(t, f.Tensors(), 2)
	b, shape := floatsOf(t, f, "blk.1.ffn_down_exps.weight.lora_b")
	require.Equal(t, []int{4, c.Dim, 2}, shape)
	want := make([]float32, 4*2*c.Dim)
	copy(want[2*2*c.Dim:], onHost(t, a.B))
	require.Equal(t, want, b)
}

// TestAdapterFileRefuses has adapters that are no LoRA of matrices, and calls that write nothing.
func TestAdapterFileRefuses(t *testing.T) {
	for _, c := range []struct{ adapter, model, want string }{
		{"llama_vera", "llama", "VeRA"},
		{"llama_saved", "llama", "modules_to_save"},
		{"llama_lora", "qwen2", "has"},
	} {
		config, err := ReadConfig(filepath.Join("testdata", "models", c.model))
		require.NoError(t, err)
		_, err = config.OpenAdapter(filepath.Join("testdata", "adapters", c.adapter))
		require.Error(t, err, c.adapter)
		require.ErrorContains(t, err, c.want)
	}
	_, configs := loraGoldens(t)
	tied := configs["llama_tied"]
	_, err := tied.OpenAdapter(goldenAdapter(t, tied, qlora.AdapterOptions{Rank: 4, Alpha: 8}, true))
	refuses(t, err, snug.ErrConfig, "which is embedding and head in one")
	_, err = tied.OpenAdapter(t.TempDir())
	require.ErrorIs(t, err, fs.ErrNotExist)
	loftq := qlora.AdapterOptions{Rank: 4, Alpha: 8, Other: qlora.AdapterOptions{Init: "loftq"}.Start().Other}
	_, err = configs["llama"].OpenAdapter(goldenAdapter(t, configs["llama"], loftq, false))
	refuses(t, err, snug.ErrConfig, "NF4")

	llama, err := ReadConfig("testdata/models/llama")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "x.gguf")
	dora := openAdapter(t, llama, "testdata/adapters/llama_dora")
	refuses(t, dora.SaveGGUF(t.Context(), path, GGUFOptions{}), snug.ErrConfig, "DoRA")
	plain := openAdapter(t, llama, "testdata/adapters/llama_lora")
	refuses(t, plain.SaveGGUF(t.Context(), path, GGUFOptions{Type: "q4_k_m"}), snug.ErrConfig, "want one of f32, f16, bf16, q8_0")
	glm4, err := ReadConfig("testdata/models/glm4")
	require.NoError(t, err)
	refuses(t, openAdapter(t, glm4, "testdata/adapters/glm4_nf4").SaveGGUF(t.Context(), path, GGUFOptions{}), snug.ErrConfig, "merge it into the model")
	var none context.Context
	refuses(t, plain.SaveGGUF(none, path, GGUFOptions{}), snug.ErrConfig, "context")
	ended, end := context.WithCancelCause(t.Context())
	why := errors.New("ended")
	end(why)
	require.ErrorIs(t, plain.SaveGGUF(ended, path, GGUFOptions{}), why)
	require.NoFileExists(t, path)
	require.NoFileExists(t, path+".unfinished")
	require.NoError(t, plain.SaveGGUF(t.Context(), path, GGUFOptions{New: true}))
	require.ErrorIs(t, plain.SaveGGUF(t.Context(), path, GGUFOptions{New: true}), fs.ErrExist)
}

// TestOpenWithLoRAFile: a model with the file of an adapter computes what it computes with its folder, bit for bit, and saves the same adapters.
func TestOpenWithLoRAFile(t *testing.T) {
	goldens := ggufGoldens(t)
	for _, c := range []struct {
		name, model string
		o           qlora.AdapterOptions
		tables      bool
	}{
		{"Llama", "llama", qlora.AdapterOptions{Rank: 4, Alpha: 8}, true},
		{"ranks", "qwen2", qlora.AdapterOptions{Rank: 4, Alpha: 8, Ranks: map[string]int{"v_proj": 2}}, false},
		{"GPT-2", "gpt2", qlora.AdapterOptions{Rank: 4, Alpha: 8}, false},
		{"experts", "mixtral", qlora.AdapterOptions{Rank: 4, Alpha: 8}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, config := goldenFolder(t, goldens[c.model].Config)
			adapter := goldenAdapter(t, config, c.o, c.tables)
			path := filepath.Join(t.TempDir(), "lora.gguf")
			require.NoError(t, openAdapter(t, config, adapter).SaveGGUF(t.Context(), path, GGUFOptions{}))
			b := Batch{Tokens: []int32{1, 5, 9, 13}}
			var logits [][]float32
			for _, from := range []string{adapter, path} {
				m, err := Open(dir, Options{DType: snug.F32, AdapterDir: from})
				require.NoError(t, err)
				logits = append(logits, allLogits(t, m, b))
				if !c.tables {
					again := t.TempDir()
					require.NoError(t, m.SaveAdapter(again))
					_, saved, err := qlora.LoadAdapters(again, nil)
					require.NoError(t, err)
					_, first, err := qlora.LoadAdapters(adapter, nil)
					require.NoError(t, err)
					for module, a := range first {
						require.Equal(t, onHost(t, a.B), onHost(t, saved[module].B), module)
						require.Equal(t, a.Scale, saved[module].Scale, module)
					}
				}
				require.NoError(t, m.Close())
			}
			require.Equal(t, logits[0], logits[1])
		})
	}
	t.Run("refused", func(t *testing.T) {
		dir, config := goldenFolder(t, goldens["llama"].Config)
		path := filepath.Join(t.TempDir(), "lora.gguf")
		for _, c := range []struct {
			metadata []gguf.Pair
			tensor   string
			is       error
			want     string
		}{
			{[]gguf.Pair{{Key: "general.type", Value: "model"}}, "", snug.ErrConfig, `general.type is "model", want "adapter"`},
			{[]gguf.Pair{{Key: "general.architecture", Value: "qwen2"}}, "", snug.ErrConfig, `general.architecture is "qwen2", want "llama"`},
			{[]gguf.Pair{{Key: "adapter.lora.alpha", Value: "8"}}, "", snug.ErrCorrupt, "adapter.lora.alpha"},
			{nil, "blk.9.attn_q.weight.lora_a", snug.ErrConfig, "no adapter of a matrix of the model"},
			{nil, "blk.0.attn_q.weight.lora_a", snug.ErrCorrupt, "one of lora_a and lora_b"},
		} {
			pairs := map[string]any{"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama", "adapter.lora.alpha": float32(8)}
			for _, p := range c.metadata {
				pairs[p.Key] = p.Value
			}
			var list []gguf.Pair
			for key, value := range pairs {
				list = append(list, gguf.Pair{Key: key, Value: value})
			}
			tensors := []gguf.Tensor{{Name: "blk.0.attn_k.weight.lora_a", Type: gguf.F32, Shape: []int{1, config.Dim}}, {Name: "blk.0.attn_k.weight.lora_b", Type: gguf.F32, Shape: []int{config.KVHeads * config.HeadDim, 1}}}
			if c.tensor != "" {
				tensors = append(tensors, gguf.Tensor{Name: c.tensor, Type: gguf.F32, Shape: []int{1, config.Dim}})
			}
			w, err := gguf.Create(path, list, tensors)
			require.NoError(t, err)
			for _, tensor := range tensors {
				n, err := tensor.Bytes()
				require.NoError(t, err)
				require.NoError(t, w.Write(tensor.Name, make([]byte, n)))
			}
			require.NoError(t, w.Close())
			_, err = Open(dir, Options{AdapterDir: path})
			refuses(t, err, c.is, c.want)
		}
	})
}
