package transformer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
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

// ggufFile writes the file of a folder, with a tokenizer's special tokens.
func ggufFile(t testing.TB, dir, kind string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, saveFolder(dir, path, GGUFOptions{Type: kind, Metadata: []gguf.Pair{
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)}, {Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)}, {Key: "tokenizer.ggml.eot_token_id", Value: uint32(3)},
	}}))
	return path
}

// TestGGUFIsReadAgain opens the file of each family: the config and all parameters are those of the folder.
func TestGGUFIsReadAgain(t *testing.T) {
	defer func(write, read int) { ggufPiece, readPiece = write, read }(ggufPiece, readPiece)
	ggufPiece, readPiece = 200, 300 // several pieces a matrix
	for name, golden := range ggufGoldens(t) {
		t.Run(name, func(t *testing.T) {
			dir, want := goldenFolder(t, golden.Config)
			path := ggufFile(t, dir, "f32")
			have, err := ReadConfig(path)
			require.NoError(t, err)
			require.Equal(t, []int{2, 3}, have.EOS)
			require.Equal(t, 1, have.BOS)
			same := *want // but for what the format does not have
			same.Family, same.Whole, same.Ignored, same.Unread, same.InitStd, same.DType = have.Family, "", nil, nil, have.InitStd, have.DType
			same.AttentionDropout, same.ResidualDropout, same.EmbeddingDropout = have.AttentionDropout, have.ResidualDropout, have.EmbeddingDropout
			same.BOS, same.EOS, same.Pad, same.Experts.RouterLoss = have.BOS, have.EOS, have.Pad, 0
			if slices.Contains([]string{"mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}, want.Family) {
				same.Windows = make([]int, want.Layers)
			}
			if same.Rope.Kind == RopeLlama3 { // whose factors alone are there, which several numbers may give
				require.Equal(t, llama3Factors(same.Rope), llama3Factors(have.Rope))
				same.Rope.OriginalPositions = have.Rope.OriginalPositions
			}
			require.Equal(t, same, *have)

			a, err := Open(dir, Options{DType: snug.F32})
			require.NoError(t, err)
			defer a.Close()
			b, err := Open(path, Options{DType: snug.F32})
			require.NoError(t, err)
			defer b.Close()
			require.Equal(t, len(a.Params()), len(b.Params()))
			for i, p := range a.Params() {
				q := b.Params()[i]
				require.Equal(t, p.Shape, q.Shape, "%s %s", p.Name, q.Name)
				require.Equal(t, p.Value.Float32s(), q.Value.Float32s(), p.Name)
			}
		})
	}
}

// TestGGUFBlocksAreTheModel opens files in blocks: the logits are those of the model whose floats are the decoded blocks, also with
// the matrices in a Storage, and a merge writes these floats.
func TestGGUFBlocksAreTheModel(t *testing.T) {
	for name, golden := range ggufGoldens(t) {
		for _, kind := range []string{"q8_0", "q4_0", "q4_k_m"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				dir, _ := goldenFolder(t, golden.Config)
				path := ggufFile(t, dir, kind)
				c, err := ReadConfig(path)
				require.NoError(t, err)
				floats := filepath.Join(t.TempDir(), "floats")
				m, err := Open(path, Options{SaveOnly: true, DType: snug.F32})
				require.NoError(t, err)
				require.NoError(t, m.Save(floats, 0))
				require.NoError(t, m.Close())
				batch := someBatch(5, c.Vocab, 2, 6)
				want := lossOf(t, floats, Options{DType: snug.F32}, batch)
				have := lossOf(t, path, Options{DType: snug.F32}, batch)
				require.InDelta(t, want, have, 1e-5*math.Abs(want))
			})
		}
	}
}

// lossOf returns the loss of a batch.
func lossOf(t *testing.T, dir string, o Options, b Batch) float64 {
	t.Helper()
	m, err := Open(dir, o)
	require.NoError(t, err)
	defer m.Close()
	loss, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	return loss.Mean()
}

// TestGGUFAdaptersTrain trains an adapter on blocks, and merges it.
func TestGGUFAdaptersTrain(t *testing.T) {
	dir, c := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	path := ggufFile(t, dir, "q8_0")
	o := Options{DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}, Seed: 3}
	m, err := Open(path, o)
	require.NoError(t, err)
	stored := 0
	for _, l := range m.layers {
		if l.Weight.Quantized != nil { // rows of 48 elements are no whole blocks
			require.Equal(t, gguf.Q8_0, l.Weight.Quantized.Blocks())
			stored++
		}
	}
	require.Equal(t, 12, stored)
	for _, v := range m.adapterViews() {
		for i, x := range v.Float32s() {
			v.Float32s()[i] = x + float32(i%5-2)/32
		}
	}
	batch := someBatch(5, c.Vocab, 2, 6)
	want, err := m.Evaluate(context.Background(), batch)
	require.NoError(t, err)
	adapter := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, m.SaveAdapter(adapter))
	require.NoError(t, m.Close())

	merge, err := Open(path, Options{SaveOnly: true, DType: snug.F32, AdapterDir: adapter})
	require.NoError(t, err)
	merged := filepath.Join(t.TempDir(), "merged")
	require.NoError(t, merge.Save(merged, 0))
	require.NoError(t, merge.Close())
	require.InDelta(t, want.Mean(), lossOf(t, merged, Options{DType: snug.F32}, batch), 1e-5*want.Mean())
	require.InDelta(t, want.Mean(), lossOf(t, path, Options{DType: snug.F32, AdapterDir: adapter}, batch), 1e-6*want.Mean())

	floats := Options{DType: snug.F32, Decode: true}
	require.Equal(t, lossOf(t, path, Options{DType: snug.F32}, batch), lossOf(t, path, floats, batch))
	decoded, err := Open(path, floats)
	require.NoError(t, err)
	plain := filepath.Join(t.TempDir(), "decoded")
	require.NoError(t, decoded.Save(plain, 0))
	require.NoError(t, decoded.Close())
	nf4 := Options{DType: snug.F32, Base: qlora.NF4}
	require.Equal(t, lossOf(t, plain, nf4, batch), lossOf(t, path, nf4, batch))
	_, err = Open(path, Options{Adapter: &qlora.AdapterOptions{Rank: 2, Init: "pissa"}})
	refuses(t, err, snug.ErrConfig, "gguf")
}

// rewrite writes a file with other metadata and tensors.
func rewrite(t *testing.T, path string, change func(pairs []gguf.Pair, tensors []gguf.Tensor) ([]gguf.Pair, []gguf.Tensor)) string {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	pairs, tensors := change(slices.Clone(f.Metadata()), slices.Clone(f.Tensors()))
	to := filepath.Join(t.TempDir(), "changed.gguf")
	w, err := gguf.Create(to, pairs, tensors)
	require.NoError(t, err)
	for _, tensor := range tensors {
		n, err := tensor.Bytes()
		require.NoError(t, err)
		b := make([]byte, n)
		if of, found := find(f, tensor.Name); found {
			size, err := of.Bytes()
			require.NoError(t, err)
			require.NoError(t, f.ReadAt(of.Name, b[:min(n, size)], 0))
		}
		require.NoError(t, w.Write(tensor.Name, b))
	}
	require.NoError(t, w.Close())
	return to
}

func find(f *gguf.File, name string) (t gguf.Tensor, found bool) {
	i := slices.IndexFunc(f.Tensors(), func(t gguf.Tensor) bool { return t.Name == name })
	if i < 0 {
		return t, false
	}
	return f.Tensors()[i], true
}

// set returns metadata with another value of a key, or without it.
func set(pairs []gguf.Pair, key string, value any) []gguf.Pair {
	pairs = slices.DeleteFunc(pairs, func(p gguf.Pair) bool { return p.Key == key })
	if value != nil {
		pairs = append(pairs, gguf.Pair{Key: key, Value: value})
	}
	return pairs
}

// TestGGUFRefuses has files that another model is in, or one that is not known.
func TestGGUFRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		of    string
		key   string
		value any
		text  string
	}{
		"no architecture":      {"llama", "general.architecture", nil, "general.architecture"},
		"another architecture": {"llama", "general.architecture", "mamba", "want one of"},
		"an adapter":           {"llama", "general.type", "adapter", "want a model"},
		"no layers":            {"llama", "llama.block_count", nil, "does not say it"},
		"many layers":          {"llama", "llama.block_count", uint32(1 << 30), "whole number"},
		"half a layer":         {"llama", "llama.block_count", float32(1.5), "whole number"},
		"a list":               {"llama", "llama.attention.head_count", []uint32{1, 2}, "want a number"},
		"more layers":          {"llama", "llama.block_count", uint32(3), "missing"},
		"fewer layers":         {"llama", "llama.block_count", uint32(1), "not parameters"},
		"NaN":                  {"llama", "llama.attention.layer_norm_rms_epsilon", float32(math.NaN()), "finite"},
		"half a rope":          {"llama", "llama.rope.dimension_count", uint32(2), "elements of a head"},
		"a key of another":     {"llama", "llama.attention.scale", float32(3), "not known"},
		"a scaled rope":        {"llama", "llama.rope.scaling.type", "longrope", "none, linear or yarn"},
		"no epsilon":           {"llama", "llama.attention.layer_norm_rms_epsilon", nil, "does not say it"},
		"no other epsilon":     {"gpt2", "gpt2.attention.layer_norm_epsilon", nil, "does not say it"},
		"both directions":      {"llama", "llama.attention.causal", false, "those before them alone"},
		"a factor of scores":   {"llama", "llama.rope.scaling.attn_factor", float32(2), "not one of yarn"},
		"a long value":         {"llama", "llama.attention.scale", uint32(7), "llama.attention.scale is 7, which"},
		"two ropes":            {"llama_llama3", "llama.rope.scaling.factor", float32(4), "want one of them"},
		"another pattern":      {"gemma3", "gemma3.attention.sliding_window_pattern", uint32(2), "layers with a window"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := goldenFolder(t, ggufGoldens(t)[test.of].Config)
			path := rewrite(t, ggufFile(t, dir, "f32"), func(pairs []gguf.Pair, tensors []gguf.Tensor) ([]gguf.Pair, []gguf.Tensor) {
				return set(pairs, test.key, test.value), tensors
			})
			_, err := ReadConfig(path)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, test.text)
			require.ErrorContains(t, err, path)
			_, err = Open(path, Options{})
			require.ErrorContains(t, err, test.text)
			require.Less(t, len(err.Error()), 700)
			require.Equal(t, 1, strings.Count(err.Error(), path), err)
		})
	}
}

// TestGGUFRopes has ropes as llama.cpp takes them from the keys that are there.
func TestGGUFRopes(t *testing.T) {
	for name, test := range map[string]struct {
		of   string
		set  map[string]any
		want Rope
	}{
		"a factor alone":    {"llama", map[string]any{"rope.scaling.factor": float32(4)}, Rope{Kind: RopeLinear, Theta: 10000, Dim: 8, Factor: 4}},
		"none":              {"llama", map[string]any{"rope.scaling.factor": float32(4), "rope.scaling.type": "none"}, Rope{Kind: RopeDefault, Theta: 10000, Dim: 8}},
		"gemma3 with none":  {"gemma3", map[string]any{"rope.scaling.type": "none"}, Rope{Kind: RopeDefault, Theta: 1000000, Dim: 16}},
		"gemma3 without":    {"gemma3", map[string]any{"rope.scaling.type": nil, "rope.scaling.factor": nil}, Rope{Kind: RopeDefault, Theta: 1000000, Dim: 16}},
		"no base":           {"llama", map[string]any{"rope.freq_base": nil}, Rope{Kind: RopeDefault, Theta: 10000, Dim: 8}},
		"NeoX without base": {"gpt_neox", map[string]any{"rope.freq_base": nil}, Rope{Kind: RopeDefault, Theta: 10000, Dim: 4}},
		"gpt-oss with none": {"gpt_oss", map[string]any{"rope.scaling.type": "none"}, Rope{Kind: RopeDefault, Theta: 150000, Dim: 16}},
		"gpt-oss without": {"gpt_oss", map[string]any{"rope.scaling.type": nil, "rope.scaling.factor": nil, "rope.scaling.original_context_length": nil,
			"rope.scaling.yarn_beta_fast": nil, "rope.scaling.yarn_beta_slow": nil}, Rope{Kind: RopeDefault, Theta: 150000, Dim: 16}},
		"a million positions": {"gpt_oss", map[string]any{"rope.scaling.original_context_length": uint32(1 << 20)},
			Rope{Kind: RopeYarn, Theta: 150000, Dim: 16, Factor: 4, OriginalPositions: 1 << 20, BetaFast: 32, BetaSlow: 1, NoTruncate: true}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := goldenFolder(t, ggufGoldens(t)[test.of].Config)
			path := rewrite(t, ggufFile(t, dir, "f32"), func(pairs []gguf.Pair, tensors []gguf.Tensor) ([]gguf.Pair, []gguf.Tensor) {
				for key, value := range test.set {
					pairs = set(pairs, c.family().gguf.arch+"."+key, value)
				}
				return pairs, tensors
			})
			have, err := ReadConfig(path)
			require.NoError(t, err)
			require.Equal(t, test.want, have.Rope)
		})
	}
}

// TestGGUFHarmless has metadata that change nothing.
func TestGGUFHarmless(t *testing.T) {
	dir, _ := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	path := ggufFile(t, dir, "f32")
	want, err := ReadConfig(path)
	require.NoError(t, err)
	for key, value := range map[string]any{
		"llama.rope.scaling.type": "none", "llama.rope.scaling.finetuned": false, "llama.tensor_data_layout": "Meta AI original pth",
		"llama.expert_count": uint32(0), "general.author": "x", "llama.attention.key_length": nil, "llama.rope.dimension_count": nil, "llama.vocab_size": nil,
	} {
		have, err := ReadConfig(rewrite(t, path, func(pairs []gguf.Pair, tensors []gguf.Tensor) ([]gguf.Pair, []gguf.Tensor) {
			return set(pairs, key, value), tensors
		}))
		require.NoError(t, err, key)
		require.Equal(t, want, have, key)
	}
}

// TestGGUFParallelByNames: llama.cpp tells StableLM's layers by their tensors, and so does a file that says otherwise.
func TestGGUFParallelByNames(t *testing.T) {
	for _, of := range []string{"stablelm", "stablelm_parallel"} {
		dir, _ := goldenFolder(t, ggufGoldens(t)[of].Config)
		path := ggufFile(t, dir, "f32")
		want, err := ReadConfig(path)
		require.NoError(t, err)
		require.Equal(t, of == "stablelm_parallel", want.Parallel)
		for _, says := range []any{true, false, nil} {
			have, err := ReadConfig(rewrite(t, path, func(pairs []gguf.Pair, tensors []gguf.Tensor) ([]gguf.Pair, []gguf.Tensor) {
				return set(pairs, "stablelm.use_parallel_residual", says), tensors
			}))
			require.NoError(t, err, says)
			require.Equal(t, want, have, says)
		}
	}
}

// TestGGUFDamage has values that are not finite, and a file that lost its end.
func TestGGUFDamage(t *testing.T) {
	dir, _ := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	path := ggufFile(t, dir, "f32")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text[:len(text)-64], 0o666))
	_, err = Open(path, Options{})
	require.ErrorIs(t, err, snug.ErrCorrupt)

	again := filepath.Join(t.TempDir(), "again.gguf")
	for name, kind := range map[string]string{"an element": "f32", "a scale": "q8_0", "an element of 16 bits": "bf16"} {
		blocks := ggufFile(t, dir, kind)
		text, err := os.ReadFile(blocks)
		require.NoError(t, err)
		f, err := gguf.Open(blocks)
		require.NoError(t, err)
		last := f.Tensors()[len(f.Tensors())-1]
		n, err := last.Bytes()
		require.NoError(t, errors.Join(err, f.Close()))
		for i := range 4 {
			text[len(text)-int(n)+i] = 0xff
		}
		require.NoError(t, os.WriteFile(blocks, text, 0o666))
		require.Error(t, saveFolder(blocks, again, GGUFOptions{}), name)
		require.NoFileExists(t, again)
	}

	nan := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN())))
	require.NoError(t, os.WriteFile(path, bytes.Join([][]byte{text[:len(text)-64], bytes.Repeat(nan, 16)}, nil), 0o666))
	_, err = Open(path, Options{DType: snug.F32})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "NaN")
}

// TestGGUFRopesOfLlama3 finds the numbers of the published ropes from their factors.
func TestGGUFRopesOfLlama3(t *testing.T) {
	for _, want := range []Rope{
		{Kind: RopeLlama3, Theta: 500000, Dim: 128, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 8192},
		{Kind: RopeLlama3, Theta: 500000, Dim: 64, Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 8192},
		{Kind: RopeLlama3, Theta: 10000, Dim: 64, Factor: 4, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 2048},
	} {
		have, err := llama3Rope(want.Theta, llama3Factors(want))
		require.NoError(t, err)
		require.Equal(t, want, have)
	}
	same, err := llama3Rope(10000, []float32{1, 1, 1})
	require.NoError(t, err)
	require.Zero(t, same)
	for _, factors := range [][]float32{{1, 2, 1}, {2, 1}, {1, float32(math.Inf(1))}, {float32(math.NaN())}, {0, 8}, {-1, 8}} {
		_, err := llama3Rope(10000, factors)
		require.ErrorIs(t, err, snug.ErrConfig, "%v", factors)
	}
}

// TestGGUFIsWrittenBack writes the file of a model that was opened from one: without adapters it is the same, and with one the tensors
// that it does not change are.
func TestGGUFIsWrittenBack(t *testing.T) {
	for _, name := range []string{"llama_llama3", "mixtral", "gpt2", "gemma2"} {
		dir, _ := goldenFolder(t, ggufGoldens(t)[name].Config)
		path := ggufFile(t, dir, "q8_0")
		again := filepath.Join(t.TempDir(), "again.gguf")
		require.NoError(t, saveFolder(path, again, GGUFOptions{}))
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		have, err := os.ReadFile(again)
		require.NoError(t, err)
		require.Equal(t, want, have, name)
	}

	for _, kind := range []string{"q8_0", "q4_0"} {
		t.Run(kind, func(t *testing.T) { writtenWithAdapter(t, kind) })
	}
}

// writtenWithAdapter writes the file of a model with an adapter whose updates are less than half the distance between two numbers of
// 4 bits.
func writtenWithAdapter(t *testing.T, kind string) {
	dir, c := goldenFolder(t, ggufGoldens(t)["llama"].Config)
	path := ggufFile(t, dir, kind)
	m, err := Open(path, Options{DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Targets: qlora.Modules{Names: []string{"up_proj", "q_proj"}}}, Seed: 3})
	require.NoError(t, err)
	for _, v := range m.adapterViews() {
		for i := range v.Float32s() {
			v.Float32s()[i] = float32(i%5-2) / 20
		}
	}
	adapter := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, m.SaveAdapter(adapter))
	batch := someBatch(5, c.Vocab, 2, 6)
	want, err := m.Evaluate(context.Background(), batch)
	require.NoError(t, err)
	require.NoError(t, m.Close())

	merge, err := Open(path, Options{SaveOnly: true, DType: snug.F32, AdapterDir: adapter})
	require.NoError(t, err)
	tuned := filepath.Join(t.TempDir(), "tuned.gguf")
	require.NoError(t, merge.SaveGGUF(tuned, GGUFOptions{Metadata: []gguf.Pair{{Key: "general.name", Value: "tuned"}}}))
	require.NoError(t, merge.Close())
	a, err := gguf.Open(path)
	require.NoError(t, err)
	defer a.Close()
	b, err := gguf.Open(tuned)
	require.NoError(t, err)
	defer b.Close()
	title, _ := b.Value("general.name")
	require.Equal(t, "tuned", title)
	for i, tensor := range a.Tensors() {
		if strings.Contains(tensor.Name, "ffn_up.weight") || strings.Contains(tensor.Name, "attn_q.weight") {
			require.Equal(t, gguf.Q8_0, b.Tensors()[i].Type)
			continue
		}
		require.Equal(t, tensor, b.Tensors()[i])
		n, err := tensor.Bytes()
		require.NoError(t, err)
		x, y := make([]byte, n), make([]byte, n)
		require.NoError(t, errors.Join(a.ReadAt(tensor.Name, x, 0), b.ReadAt(tensor.Name, y, 0)))
		require.Equal(t, x, y, tensor.Name)
	}
	before, after := lossOf(t, path, Options{DType: snug.F32}, batch), lossOf(t, tuned, Options{DType: snug.F32}, batch)
	require.InDelta(t, want.Mean(), after, 0.5*math.Abs(want.Mean()-before), "the adapter changes the loss from %v", before)
}
