package transformer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// ggufGolden is what llama.cpp's converter makes of a model.
type ggufGolden struct {
	Config json.RawMessage
	Files  map[string]struct {
		Metadata map[string]any
		Tensors  map[string][3]any // type, shape, hash
	}
}

func ggufGoldens(t *testing.T) (all map[string]ggufGolden) {
	all = map[string]ggufGolden{}
	for _, models := range readGoldens[map[string]ggufGolden](t, "gguf") {
		maps.Copy(all, models)
	}
	return all
}

// goldenFolder writes the folder of a golden model, whose weights are those of testdata/gguf.py.
func goldenFolder(t *testing.T, config json.RawMessage) (dir string, c *Config) {
	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, configName), config, 0o666))
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	require.NoError(t, amp.SaveWeights(filepath.Join(dir, "model.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
		for _, p := range c.inFiles(c.tensors(c.layout())) {
			p.DType = "BF16"
			v := make([]snug.BFloat16, p.Len())
			start := int64(crc32.ChecksumIEEE([]byte(p.Name)))
			for i := range v {
				v[i] = snug.BFloat16(math.Float32bits(float32((int64(i)*7+start)%255-127)/128) >> 16)
			}
			if !yield(p, snug.ViewOf(v)) {
				return
			}
		}
	}, nil))
	return dir, c
}

func TestGGUFIsThatOfTheConverter(t *testing.T) {
	goldens := ggufGoldens(t)
	require.GreaterOrEqual(t, len(goldens), 29)
	for name, golden := range goldens {
		for kind, want := range golden.Files {
			t.Run(name+" "+kind, func(t *testing.T) {
				dir, _ := goldenFolder(t, golden.Config)
				path := filepath.Join(t.TempDir(), "model.gguf")
				require.NoError(t, saveFolder(dir, path, GGUFOptions{Type: kind, Metadata: []gguf.Pair{{Key: "general.name", Value: "x"}}}))
				f, err := gguf.Open(path)
				require.NoError(t, err)
				defer f.Close()
				sameMetadata(t, want.Metadata, f)
				have := map[string][3]any{}
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
					have[tensor.Name] = [3]any{tensor.Type.String(), shape, hex.EncodeToString(sum[:])[:12]}
				}
				require.Equal(t, want.Tensors, have)
			})
		}
	}
}

// saveFolder writes the file of a folder a matrix at a time.
func saveFolder(dir, path string, o GGUFOptions) error {
	m, err := Open(dir, Options{SaveOnly: true})
	if err != nil {
		return err
	}
	return errors.Join(m.SaveGGUF(path, o), m.Close())
}

func refuses(t *testing.T, err, sentinel error, text string) {
	require.ErrorIs(t, err, sentinel)
	require.ErrorContains(t, err, text)
}

// sameMetadata compares the metadata, besides what is always written here.
func sameMetadata(t *testing.T, want map[string]any, f *gguf.File) {
	have := map[string]any{}
	for _, p := range f.Metadata() {
		switch v := p.Value.(type) {
		case uint32:
			have[p.Key] = float64(v)
		case float32:
			have[p.Key] = float64(v)
		default:
			have[p.Key] = v
		}
	}
	require.Equal(t, "x", have["general.name"])
	delete(have, "general.name")
	for key := range have {
		_, known := want[key]
		always := slices.ContainsFunc([]string{".file_type", ".rope.freq_base", ".attention.key_length", ".attention.value_length"}, func(end string) bool { return strings.HasSuffix(key, end) })
		if !known && always {
			delete(have, key)
		}
	}
	require.Equal(t, want, have)
}

// TestGGUFOfAModel writes the files of opened models, which are those of their folders.
func TestGGUFOfAModel(t *testing.T) {
	for name, golden := range ggufGoldens(t) {
		t.Run(name, func(t *testing.T) {
			dir, _ := goldenFolder(t, golden.Config)
			out := t.TempDir()
			require.NoError(t, saveFolder(dir, filepath.Join(out, "a"), GGUFOptions{}))
			m, err := Open(dir, Options{})
			require.NoError(t, err)
			require.NoError(t, m.SaveGGUF(filepath.Join(out, "b"), GGUFOptions{}))
			require.NoError(t, m.Close())
			a, err := os.ReadFile(filepath.Join(out, "a"))
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(out, "b"))
			require.NoError(t, err)
			require.Equal(t, a, b)
			refuses(t, m.SaveGGUF(filepath.Join(out, "c"), GGUFOptions{}), snug.ErrConfig, "closed")
			require.NoFileExists(t, filepath.Join(out, "c"))
		})
	}
}

// TestGGUFMergesAdapters writes a model with an adapter, and the merged model: the files are the same.
func TestGGUFMergesAdapters(t *testing.T) {
	dir, _ := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	m, err := Open(dir, Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}, Seed: 3})
	require.NoError(t, err)
	for name, v := range m.adapterViews() {
		if strings.Contains(name, "lora_B") {
			x := v.Float32s()
			for i := range x {
				x[i] = float32(i%7)/16 - 0.2
			}
		}
	}
	out := t.TempDir()
	require.NoError(t, m.SaveGGUF(filepath.Join(out, "a"), GGUFOptions{Type: "q8_0"}))
	require.NoError(t, m.Save(filepath.Join(out, "merged"), 0))
	require.NoError(t, m.Close())
	require.NoError(t, saveFolder(filepath.Join(out, "merged"), filepath.Join(out, "b"), GGUFOptions{Type: "q8_0"}))
	a, err := os.ReadFile(filepath.Join(out, "a"))
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(out, "b"))
	require.NoError(t, err)
	require.Equal(t, a, b)
}

// adapterViews yields the parameters that train.
func (m *Model) adapterViews() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for i := range m.params {
			if p := &m.params[i]; p.Trains && !yield(p.Name, p.Value) {
				return
			}
		}
	}
}

func TestGGUFRefusesWhatLlamaCppComputesOtherwise(t *testing.T) {
	goldens := ggufGoldens(t)
	for name, test := range map[string]struct {
		of     string
		change func(c *Config)
		text   string
	}{
		"family":         {"llama", func(c *Config) { c.Family = Custom }, "writes no GGUF"},
		"activation":     {"llama", func(c *Config) { c.Activation = GELU }, "with silu"},
		"bias of output": {"qwen3", func(c *Config) { c.OutBias = true }, "OutBias"},
		"biases of MLP":  {"seed_oss", func(c *Config) { c.MLPBias = true }, "MLPBias"},
		"dynamic rope":   {"llama", func(c *Config) { c.Rope.Kind, c.Rope.Factor, c.Rope.MaxPositions = RopeDynamic, 2, 8 }, "dynamic"},
		"rope of Llama 3": {"qwen2", func(c *Config) {
			c.Rope = Rope{Kind: RopeLlama3, Theta: 1e4, Dim: 8, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 64}
		}, "Llama 3"},
		"sections":         {"qwen2", func(c *Config) { c.Rope.Sections = [3]int{2, 1, 1} }, "three"},
		"heads":            {"qwen2", func(c *Config) { c.HeadDim, c.Rope.Dim, c.ScoreScale = 16, 16, 0.25 }, "as wide as the model"},
		"scale":            {"llama", func(c *Config) { c.ScoreScale = 1 }, "ScoreScale"},
		"embedding":        {"gemma", func(c *Config) { c.EmbeddingScale = 1 }, "EmbeddingScale"},
		"untied":           {"gemma2", func(c *Config) { c.Tied = false }, "embedding as its head"},
		"tied":             {"gpt_oss", func(c *Config) { c.Tied = true }, "head of its own"},
		"no cap":           {"gemma2", func(c *Config) { c.ScoreCap = 0 }, "cap of scores"},
		"cap":              {"llama", func(c *Config) { c.LogitCap = 3 }, "LogitCap"},
		"windows":          {"gemma2", func(c *Config) { c.Windows[1] = 8 }, "every second"},
		"two windows":      {"gemma3", func(c *Config) { c.Windows[1] = 9 }, "one window"},
		"local rope":       {"gemma3", func(c *Config) { c.LocalRope.Kind, c.LocalRope.Factor = RopeLinear, 2 }, "plain rope"},
		"dense layers":     {"qwen3_moe", func(c *Config) { c.Experts.Dense = []bool{true, false} }, "every layer"},
		"weights":          {"qwen3_moe", func(c *Config) { c.Experts.Normalize = false }, "divided by their sum"},
		"limit of experts": {"gpt_oss", func(c *Config) { c.Experts.Limit = 1 }, "limit 7"},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := goldenFolder(t, goldens[test.of].Config)
			_, err := c.GGUF("f16")
			require.NoError(t, err)
			test.change(c)
			_, err = c.GGUF("f16")
			refuses(t, err, snug.ErrConfig, test.text)
		})
	}
	_, c := goldenFolder(t, goldens["llama"].Config)
	_, err := c.GGUF("q9")
	refuses(t, err, snug.ErrConfig, "q4_k_m")
	_, err = (&Config{}).GGUF("")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, (&Model{}).SaveGGUF("x", GGUFOptions{}), snug.ErrConfig)
}

func TestGGUFNotes(t *testing.T) {
	_, c := goldenFolder(t, ggufGoldens(t)["mistral"].Config)
	c.Windows = []int{0, 16}
	g, err := c.GGUF("")
	require.NoError(t, err)
	require.Len(t, g.Notes, 1)
	require.Contains(t, g.Notes[0], "up to 16 tokens")
	c.Windows = []int{c.Context, 0}
	g, err = c.GGUF("")
	require.NoError(t, err)
	require.Empty(t, g.Notes)
}

// TestGGUFSaysOtherTypes: a note counts the matrices that have another type than the name of the file says.
func TestGGUFSaysOtherTypes(t *testing.T) {
	_, c := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	c.Layers, c.Dim, c.Hidden, c.HeadDim, c.Rope.Dim = 2, 256, 352, 64, 64
	c.Windows, c.ScoreScale = make([]int, 2), 0.125
	notes := func(kind string) []string {
		g, err := c.GGUF(kind)
		require.NoError(t, err)
		return g.Notes
	}
	require.Equal(t, []string{"2 of 16 matrices have another type than q4_k_m gives them, because its blocks do not divide their rows: 1 q5_0 for q4_k, 1 q8_0 for q6_k"}, notes("q4_k_m"))
	require.Equal(t, []string{"mxfp4 is for the matrices of experts, and the model has none: its matrices are q8_0"}, notes("mxfp4"))
	for _, kind := range []string{"f32", "f16", "bf16", "q8_0", "q4_0"} {
		require.Empty(t, notes(kind))
	}
	c.Hidden = 40
	require.Equal(t, []string{"2 of 16 matrices have another type than q8_0 gives them, because its blocks do not divide their rows: 2 f16 for q8_0"}, notes("q8_0"))
	c.Dim, c.HeadDim, c.Rope.Dim, c.ScoreScale = 96, 24, 24, 1/math.Sqrt(24)
	require.Contains(t, notes("q6_k")[0], "14 q8_0 for q6_k, 2 f16 for q6_k")
}

// TestGGUFSize is the size of the file that is written.
func TestGGUFSize(t *testing.T) {
	for _, name := range []string{"llama", "gpt2", "qwen3_moe"} {
		dir, _ := goldenFolder(t, ggufGoldens(t)[name].Config)
		for _, kind := range []string{"", "q4_k_m"} {
			m, err := Open(dir, Options{SaveOnly: true})
			require.NoError(t, err)
			o := GGUFOptions{Type: kind, Metadata: []gguf.Pair{{Key: "general.name", Value: "x"}}}
			size, err := m.GGUFSize(o)
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "a")
			require.NoError(t, m.SaveGGUF(path, o))
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, info.Size(), size.Bytes)
			require.Positive(t, size.Largest)
			require.Greater(t, size.Memory, m.heldToSave())
			for p := range m.unread() {
				_, joined := m.config.slot(p.Name)
				require.Equal(t, !joined, m.folder.inPieces(p), p.Name)
			}
			_, err = m.GGUFSize(GGUFOptions{Type: "q9"})
			require.ErrorIs(t, err, snug.ErrConfig)
			require.NoError(t, m.Close())
			_, err = m.GGUFSize(o)
			require.ErrorIs(t, err, snug.ErrConfig)
		}
	}
	_, err := (&Model{}).GGUFSize(GGUFOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestContextEndsSaving: the cause of its end is the error, and nothing is left, with and without SaveOnly.
func TestContextEndsSaving(t *testing.T) {
	dir, _ := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	cause := errors.New("enough")
	for _, only := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		m, err := Open(dir, Options{SaveOnly: only, Context: ctx})
		require.NoError(t, err)
		out := t.TempDir()
		require.NoError(t, m.SaveGGUF(filepath.Join(out, "a"), GGUFOptions{New: true}))
		require.ErrorIs(t, m.SaveGGUF(filepath.Join(out, "a"), GGUFOptions{New: true}), fs.ErrExist)
		require.NoError(t, os.Remove(filepath.Join(out, "a")))
		cancel(cause)
		require.ErrorIs(t, m.SaveGGUF(filepath.Join(out, "a"), GGUFOptions{}), cause)
		require.ErrorIs(t, m.Save(out, 0), cause)
		entries, err := os.ReadDir(out)
		require.NoError(t, err)
		require.Empty(t, entries)
		require.NoError(t, m.Close())
	}
}

// TestGGUFLeavesNothingAfterErrors has an element that is not finite, and one beyond float16.
func TestGGUFLeavesNothingAfterErrors(t *testing.T) {
	dir, _ := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	for name, test := range map[string]struct {
		x    float32
		kind string
	}{"NaN": {float32(math.NaN()), "f32"}, "beyond float16": {1e38, "f16"}, "beyond a scale": {1e38, "q8_0"}} {
		t.Run(name, func(t *testing.T) {
			m, err := Open(dir, Options{DType: snug.F32})
			require.NoError(t, err)
			defer m.Close()
			m.param("layers.1.mlp.up_proj.weight").Value.Float32s()[5] = test.x
			path := filepath.Join(t.TempDir(), "out")
			err = m.SaveGGUF(path, GGUFOptions{Type: test.kind})
			refuses(t, err, snug.ErrNonFinite, "layers.1.mlp.up_proj.weight")
			require.Equal(t, 1, strings.Count(err.Error(), "layers.1.mlp.up_proj.weight"), err)
			entries, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

// TestGGUFTypesAreThoseOfLlamaQuantize has the choices of llama-quantize for models of several sizes, from its rules.
func TestGGUFTypesAreThoseOfLlamaQuantize(t *testing.T) {
	_, c := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	c.Layers, c.Dim, c.Hidden, c.HeadDim, c.Rope.Dim = 16, 256, 512, 64, 64
	c.Windows, c.ScoreScale = make([]int, 16), 0.125
	typesOf := func(kind string) map[string]string {
		g, err := c.GGUF(kind)
		require.NoError(t, err)
		types := map[string]string{}
		for _, tensor := range g.Tensors {
			types[tensor.Name] = tensor.Type.String()
		}
		return types
	}
	more := map[int]bool{0: true, 1: true, 4: true, 7: true, 10: true, 13: true, 14: true, 15: true}
	for kind, want := range map[string][3]string{"q4_k_m": {"q4_k", "q6_k", "q6_k"}, "q5_k_m": {"q5_k", "q6_k", "q6_k"}, "q6_k": {"q6_k", "q6_k", "q6_k"},
		"q4_0": {"q4_0", "q4_0", "q6_k"}, "q8_0": {"q8_0", "q8_0", "q8_0"}, "mxfp4": {"q8_0", "q8_0", "q8_0"}} {
		types := typesOf(kind)
		require.Equal(t, want[2], types["output.weight"])
		require.Equal(t, want[0], types["token_embd.weight"])
		for i := range 16 {
			better := want[0]
			if more[i] {
				better = want[1]
			}
			require.Equal(t, better, types[fmt.Sprintf("blk.%d.attn_v.weight", i)], "%s %d", kind, i)
			require.Equal(t, better, types[fmt.Sprintf("blk.%d.ffn_down.weight", i)], "%s %d", kind, i)
			require.Equal(t, want[0], types[fmt.Sprintf("blk.%d.ffn_up.weight", i)])
			require.Equal(t, "f32", types[fmt.Sprintf("blk.%d.attn_norm.weight", i)])
		}
	}
	c.Tied = true
	require.Equal(t, "q6_k", typesOf("q4_k_m")["token_embd.weight"])
	c.Hidden = 352
	require.Equal(t, "q5_0", typesOf("q4_k_m")["blk.2.ffn_down.weight"], "rows of 352 are no blocks of 256")
	require.Equal(t, "q8_0", typesOf("q4_k_m")["blk.0.ffn_down.weight"])
	require.Equal(t, "q5_1", typesOf("q5_k_m")["blk.2.ffn_down.weight"])
	c.Hidden = 40
	require.Equal(t, "f16", typesOf("q4_k_m")["blk.0.ffn_down.weight"])
	require.Equal(t, "f16", typesOf("q4_0")["blk.0.ffn_down.weight"])
}
