package transformer

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/stretchr/testify/require"
)

// folderOf returns a safetensors file in memory with tensors of these shapes. The first
// element of a tensor is values[name].
func folderOf(t testing.TB, shapes map[string][]int, values map[string]float32) *amp.Weights {
	var b bytes.Buffer
	n, err := amp.WriteWeights(&b, func(yield func(amp.Tensor, snug.View) bool) {
		for name, shape := range shapes {
			tensor := amp.Tensor{Name: name, Shape: shape}
			x := make([]float32, tensor.Len())
			x[len(x)-1] = values[name]
			if !yield(tensor, snug.ViewOf(x)) {
				return
			}
		}
	}, nil)
	require.NoError(t, err)
	w, err := amp.NewWeights(bytes.NewReader(b.Bytes()), n)
	require.NoError(t, err)
	return w
}

// TestCheckFoldersOfTransformers has what save_pretrained writes, with heads and without.
func TestCheckFoldersOfTransformers(t *testing.T) {
	var file struct {
		Cases []struct {
			Name    string
			Config  json.RawMessage
			Tensors map[string][]int
		}
	}
	readGolden(t, "folders.json", &file)
	require.NotEmpty(t, file.Cases)
	for _, g := range file.Cases {
		c, err := parseConfig(g.Config)
		require.NoError(t, err, g.Name)
		names, err := c.Check(folderOf(t, g.Tensors, nil))
		if strings.HasSuffix(g.Name, ", no head") && !c.Tied {
			require.ErrorIs(t, err, snug.ErrConfig, g.Name)
			require.ErrorContains(t, err, `transformer: Check: 1 tensors are missing ("lm_head.weight")`, g.Name)
			continue
		}
		require.NoError(t, err, g.Name)
		list, err := c.Tensors()
		require.NoError(t, err)
		require.Len(t, names, len(list))
		for _, tensor := range list {
			if s, joined := c.slot(tensor.Name); joined {
				tensor.Shape = s.shape(c)
			}
			require.Equal(t, tensor.Shape, g.Tensors[names[tensor.Name]], "%s: %s", g.Name, tensor.Name)
		}
		images := 0
		for name := range g.Tensors {
			if !slices.Contains(slices.Collect(maps.Values(names)), name) {
				require.True(t, strings.HasPrefix(name, "vision_tower.") || strings.HasPrefix(name, "multi_modal_projector."), "%s: %s", g.Name, name)
				images++
			}
		}
		require.Equal(t, c.Whole != "", images > 0)
	}
}

// smallConfig returns a model, and the shapes of its tensors.
func smallConfig(t testing.TB, family, more string) (*Config, map[string][]int) {
	c, err := parseConfig([]byte(`{"model_type":"` + family + `","vocab_size":6,"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":2` + more + `}`))
	require.NoError(t, err)
	list, err := c.Tensors()
	require.NoError(t, err)
	shapes := map[string][]int{}
	for _, tensor := range list {
		shapes[tensor.Name] = tensor.Shape
	}
	return c, shapes
}

func TestCheckOtherFolders(t *testing.T) {
	const llama = `,"intermediate_size":5,"num_key_value_heads":2`
	for name, test := range map[string]struct {
		family, more string
		do           func(shapes map[string][]int)
		text         string // of the error, empty if there is none
		want         error
	}{
		"as it is": {"llama", llama, func(map[string][]int) {}, "", nil},
		"inv_freq": {"llama", llama, func(s map[string][]int) { s["model.layers.0.self_attn.rotary_emb.inv_freq"] = []int{1} }, "", nil},
		"masks of gpt2": {"gpt2", "", func(s map[string][]int) {
			s["transformer.h.0.attn.bias"], s["transformer.h.0.attn.masked_bias"] = []int{1, 1, 9, 9}, []int{1}
		}, "", nil},
		"a mask of llama": {"llama", llama, func(s map[string][]int) { s["model.h.0.attn.masked_bias.x"] = []int{1} },
			`1 tensors are not parameters of the model ("model.h.0.attn.masked_bias.x")`, snug.ErrConfig},
		"a bias": {"qwen2", llama, func(s map[string][]int) { delete(s, "model.layers.0.self_attn.q_proj.bias") },
			`1 tensors are missing ("model.layers.0.self_attn.q_proj.bias")`, snug.ErrConfig},
		"a norm too many": {"llama", llama, func(s map[string][]int) { s["model.layers.0.self_attn.q_norm.weight"] = []int{2} },
			`not parameters of the model ("model.layers.0.self_attn.q_norm.weight")`, snug.ErrConfig},
		"a layer too many": {"llama", llama, func(s map[string][]int) { s["model.layers.1.input_layernorm.weight"] = []int{4} },
			`not parameters of the model`, snug.ErrConfig},
		"a shape": {"llama", llama, func(s map[string][]int) { s["model.layers.0.mlp.down_proj.weight"] = []int{5, 4} },
			`1 tensors are of another shape ("model.layers.0.mlp.down_proj.weight is [5 4], want [4 5]")`, snug.ErrShape},
		"a shape and a name": {"llama", llama, func(s map[string][]int) {
			s["model.layers.0.mlp.down_proj.weight"] = []int{5, 4}
			delete(s, "model.norm.weight")
		}, `1 tensors are missing ("model.norm.weight"); 1 tensors are of another shape`, snug.ErrConfig},
		"nothing": {"gpt2", "", func(s map[string][]int) { clear(s) },
			`16 tensors are missing ("transformer.wte.weight, transformer.wpe.weight, `, snug.ErrConfig},
		"another family": {"gpt2", "", func(s map[string][]int) {
			clear(s)
			s["model.embed_tokens.weight"] = []int{6, 4}
		}, `1 tensors are not parameters of the model ("model.embed_tokens.weight")`, snug.ErrConfig},
		"images in llama": {"llama", llama, func(s map[string][]int) { s["vision_tower.x"] = []int{1} }, "not parameters", snug.ErrConfig},
		"a tied head":     {"llama", llama + `,"tie_word_embeddings":true`, func(s map[string][]int) { s["lm_head.weight"] = []int{6, 4} }, "", nil},
		"a tied head of another shape": {"llama", llama + `,"tie_word_embeddings":true`, func(s map[string][]int) { s["lm_head.weight"] = []int{4, 6} },
			"tie_word_embeddings is true, but lm_head.weight is not model.embed_tokens.weight", snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			c, shapes := smallConfig(t, test.family, test.more)
			test.do(shapes)
			names, err := c.Check(folderOf(t, shapes, nil))
			if test.want == nil {
				require.NoError(t, err, name)
				require.NotEmpty(t, names)
				return
			}
			require.ErrorIs(t, err, test.want, name)
			require.ErrorContains(t, err, "transformer: Check: ", name)
			require.ErrorContains(t, err, test.text, name)
			require.Nil(t, names)
		})
	}

	c, shapes := smallConfig(t, "llama", llama+`,"tie_word_embeddings":true`)
	shapes["lm_head.weight"] = []int{6, 4}
	_, err := c.Check(folderOf(t, shapes, map[string]float32{"lm_head.weight": 1, "model.embed_tokens.weight": 1}))
	require.NoError(t, err)
	_, err = c.Check(folderOf(t, shapes, map[string]float32{"lm_head.weight": 1}))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "lm_head.weight is not model.embed_tokens.weight")
	_, err = c.Check(nil)
	require.ErrorContains(t, err, "are missing")
}

// TestCheckTypes: tensors of other types are quantized, or no weights.
func TestCheckTypes(t *testing.T) {
	c, shapes := smallConfig(t, "llama", `,"intermediate_size":5`)
	var b bytes.Buffer
	n, err := amp.WriteWeights(&b, func(yield func(amp.Tensor, snug.View) bool) {
		for name, shape := range shapes {
			tensor := amp.Tensor{Name: name, Shape: shape, DType: "I8"}
			if !yield(tensor, snug.SliceView(make([]byte, tensor.Len()))) {
				return
			}
		}
	}, nil)
	require.NoError(t, err)
	w, err := amp.NewWeights(bytes.NewReader(b.Bytes()), n)
	require.NoError(t, err)
	_, err = c.Check(w)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "12 tensors are of another type (\"model.embed_tokens.weight is I8, want F32, F16 or BF16")
}
