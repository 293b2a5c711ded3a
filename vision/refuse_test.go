package vision_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// edited copies a folder of testdata with another config.json. A field is named with dots; null as "null", and no text leaves it out.
func edited(t *testing.T, folder string, fields map[string]string) string {
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join("testdata", folder, "model.safetensors"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), data, 0o666))
	text, err := os.ReadFile(filepath.Join("testdata", folder, "config.json"))
	require.NoError(t, err)
	config := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &config))
	for path, value := range fields {
		in, name := config, path
		for {
			outer, rest, nested := strings.Cut(name, ".")
			if !nested {
				break
			}
			in, name = in[outer].(map[string]any), rest
		}
		if delete(in, name); value != "" {
			in[name] = json.RawMessage(value)
		}
	}
	text, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666))
	return dir
}

// TestTowerRefuses: what config.json says and a tower does not do is an error with the field's name.
func TestTowerRefuses(t *testing.T) {
	const largest = "9223372036854775807"
	for _, c := range []struct {
		name, folder, field, value string
		is                         error
		says                       string
	}{
		{"another model", "vit", "model_type", `"beit"`, snug.ErrConfig, "model_type"},
		{"no model", "vit", "model_type", ``, snug.ErrConfig, "model_type"},
		{"an image that is no square", "vit", "image_size", `[8, 12]`, snug.ErrConfig, "image_size"},
		{"no MLP", "dinov2", "mlp_ratio", `0`, snug.ErrConfig, "mlp_ratio"},
		{"a large MLP", "dinov2", "mlp_ratio", largest, snug.ErrConfig, "mlp_ratio"},
		{"half an MLP", "dinov2", "mlp_ratio", `2.5`, snug.ErrCorrupt, "mlp_ratio"},
		{"another MLP", "dinov2", "use_swiglu_ffn", `true`, snug.ErrConfig, "mlp.weights_in.weight"},
		{"another gate", "dinov2-registers", "mlp_ratio", `4`, snug.ErrShape, "mlp.weights_in.weight"},
		{"no registers", "dinov2-registers", "num_register_tokens", `0`, snug.ErrConfig, "Registers"},
		{"many registers", "dinov2-registers", "num_register_tokens", largest, snug.ErrConfig, "Registers"},
		{"other positions", "dinov2", "image_size", `20`, snug.ErrShape, "position_embeddings"},
		{"no image", "vit", "image_size", `null`, snug.ErrConfig, "Image"},
		{"a patch that is no square", "vit", "patch_size", `[4, 2]`, snug.ErrConfig, "patch_size"},
		{"an activation", "vit", "hidden_act", `"mish"`, snug.ErrConfig, "mish"},
		{"a null", "vit", "qkv_bias", `null`, snug.ErrCorrupt, "qkv_bias"},
		{"many layers", "vit", "num_hidden_layers", largest, snug.ErrConfig, "Layers"},
		{"a wide model", "vit", "hidden_size", largest, snug.ErrConfig, "Width"},
		{"large images", "clip", "vision_config.image_size", largest, snug.ErrConfig, "Image"},
		{"channels", "vit", "num_channels", largest, snug.ErrConfig, "Channels"},
		{"more layers than there are", "vit", "num_hidden_layers", `100`, snug.ErrConfig, "num_hidden_layers"},
		{"more than memory has", "vit", "intermediate_size", `16777216`, snug.ErrShape, "intermediate.dense"},
		{"wider than there is", "clip", "vision_config.hidden_size", `10000`, snug.ErrShape, "class_embedding"},
		{"other shapes", "vit", "intermediate_size", `16`, snug.ErrShape, "intermediate.dense"},
		{"other problems", "vit", "problem_type", `"multi_label_classification"`, snug.ErrConfig, "problem_type"},
		{"classes without numbers", "vit", "id2label", `{"a": "b"}`, snug.ErrConfig, "id2label"},
		{"classes without names", "vit", "id2label", `{"0": []}`, snug.ErrConfig, "id2label"},
		{"one class", "vit", "id2label", `{"0": "a"}`, snug.ErrConfig, "id2label"},
		{"two classes without names", "vit", "id2label", ``, snug.ErrShape, "classifier.weight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := vision.OpenTower(edited(t, "towers/"+c.folder, map[string]string{c.field: c.value}), vision.TowerOptions{})
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
			require.Less(t, len(err.Error()), 400)
		})
	}
}

// TestTowerHeads: classes without names have those of transformers, names may be numbers, and a new head replaces one for another problem.
func TestTowerHeads(t *testing.T) {
	for _, c := range []struct {
		name   string
		fields map[string]string
		fresh  []string
		want   []string
	}{
		{"a number of classes", map[string]string{"id2label": "", "num_labels": "3"}, nil, []string{"LABEL_0", "LABEL_1", "LABEL_2"}},
		{"numbers for names", map[string]string{"id2label": `{"0": 7, "1": "b", "2": 9}`}, nil, []string{"7", "b", "9"}},
		{"two new classes", map[string]string{"num_labels": "3", "problem_type": `"regression"`}, []string{"LABEL_0", "LABEL_1"}, []string{"LABEL_0", "LABEL_1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := vision.OpenTower(edited(t, "towers/vit", c.fields), vision.TowerOptions{Labels: c.fresh})
			require.NoError(t, err)
			require.Equal(t, c.want, m.Config().Labels)
			dir := t.TempDir()
			require.NoError(t, m.Save(dir))
			text, err := os.ReadFile(filepath.Join(dir, "config.json"))
			require.NoError(t, err)
			require.NotContains(t, string(text), "num_labels")
			require.NotContains(t, string(text), "problem_type")
			if c.fresh != nil { // as transformers writes it
				dir = t.TempDir()
				require.NoError(t, m.Save(dir))
				config := map[string]any{}
				require.NoError(t, json.Unmarshal(text, &config))
				delete(config, "id2label")
				text, err = json.Marshal(config)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o666))
			}
			again, err := vision.OpenTower(dir, vision.TowerOptions{})
			require.NoError(t, err)
			require.Equal(t, c.want, again.Config().Labels)
		})
	}
}

// TestTowerOlderFields: vision_config_dict of CLIP goes before vision_config, with the values of transformers for what it lacks.
func TestTowerOlderFields(t *testing.T) {
	m, err := vision.OpenTower("testdata/towers/clip-whole", vision.TowerOptions{})
	require.NoError(t, err)
	text, err := os.ReadFile("testdata/towers/clip-whole/config.json")
	require.NoError(t, err)
	var config struct {
		Tower map[string]any `json:"vision_config"`
	}
	require.NoError(t, json.Unmarshal(text, &config))
	delete(config.Tower, "hidden_act") // quick_gelu
	older, err := json.Marshal(config.Tower)
	require.NoError(t, err)
	again, err := vision.OpenTower(edited(t, "towers/clip-whole", map[string]string{"vision_config.hidden_act": `"gelu"`, "vision_config_dict": string(older)}), vision.TowerOptions{})
	require.NoError(t, err)
	want := m.Config()
	want.Activation = "quick_gelu"
	require.Equal(t, want, again.Config())
	dir := t.TempDir()
	require.NoError(t, again.Save(dir))
	text, err = os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"model_type": "clip_vision_model"`) // without the text
	require.NotContains(t, string(text), "vision_config")
	again, err = vision.OpenTower(dir, vision.TowerOptions{})
	require.NoError(t, err)
	require.Equal(t, want, again.Config())
}

// TestTowerQuantized: elements of 8 bits, whose scales are elsewhere, are not taken for numbers.
func TestTowerQuantized(t *testing.T) {
	dir := edited(t, "towers/vit", nil)
	w, err := amp.OpenWeights(dir)
	require.NoError(t, err)
	const name = "vit.encoder.layer.0.attention.output.dense.weight"
	list := map[string][]float32{}
	for _, info := range w.Tensors() {
		list[info.Name] = make([]float32, info.Len())
		require.NoError(t, w.Load(info.Name, snug.ViewOf(list[info.Name])))
	}
	tensors := w.Tensors()
	require.NoError(t, w.Close())
	require.NoError(t, amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, info := range tensors {
			if info.Name == name {
				info.DType = "F8_E4M3"
			}
			if !yield(info, snug.ViewOf(list[info.Name])) {
				return
			}
		}
	}, nil))
	_, err = vision.OpenTower(dir, vision.TowerOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, name+" has elements of the type F8_E4M3")
}

// TestModelRefuses: what config.json says and a model does not do is an error with the field's name.
func TestModelRefuses(t *testing.T) {
	for _, c := range []struct {
		name, folder, field, value, says string
	}{
		{"another model", "llava", "model_type", `"blip-2"`, "model_type"},
		{"a model for a tower", "llava", "vision_config.model_type", `"clip"`, "model_type"},
		{"several layers", "llava", "vision_feature_layer", `[-2, -1]`, "vision_feature_layer"},
		{"a layer that is not there", "llava", "vision_feature_layer", `-9`, "vision_feature_layer"},
		{"no layer", "llava", "vision_feature_layer", `null`, "vision_feature_layer"},
		{"a strategy", "llava", "vision_feature_select_strategy", `"patch"`, "vision_feature_select_strategy"},
		{"more layers than there are", "llava", "vision_config.num_hidden_layers", `100`, "layers"},
		{"a token that is not there", "llava", "image_token_index", `20`, "token"},
		{"a class token", "gemma3", "vision_config.model_type", `"clip_vision_model"`, "model_type"},
		{"a class token among lines", "llava_next", "vision_feature_select_strategy", `"full"`, "vision_feature_select_strategy"},
		{"tiles in no squares", "smolvlm", "scale_factor", `3`, "scale_factor"},
		{"no scale", "idefics3", "scale_factor", `0`, "scale_factor"},
		{"patches in no squares", "gemma3", "mm_tokens_per_image", `5`, "mm_tokens_per_image"},
		{"many patches", "gemma3", "mm_tokens_per_image", `9223372036854775807`, "mm_tokens_per_image"},
		{"no patches", "gemma3", "mm_tokens_per_image", `0`, "mm_tokens_per_image"},
		{"many blocks", "qwen2_5_vl", "vision_config.depth", `9223372036854775807`, "depth"},
		{"more blocks than there are", "qwen2_5_vl", "vision_config.depth", `16777216`, "depth"},
		{"odd heads", "qwen2_5_vl", "vision_config.num_heads", `3`, "num_heads"},
		{"heads of two", "qwen2_5_vl", "vision_config.num_heads", `8`, "num_heads"},
		{"no heads", "qwen2_5_vl", "vision_config.num_heads", `0`, "num_heads"},
		{"many channels", "qwen2_5_vl", "vision_config.in_channels", `9223372036854775807`, "in_channels"},
		{"large patches", "qwen2_5_vl", "vision_config.patch_size", `1024`, "window_size"},
		{"large squares", "qwen2_5_vl", "vision_config.spatial_merge_size", `1024`, "window_size"},
		{"small windows", "qwen2_5_vl", "vision_config.window_size", `3`, "window_size"},
		{"large windows", "qwen2_5_vl", "vision_config.window_size", `9223372036854775807`, "window_size"},
		{"another rope", "qwen2_5_vl", "vision_config.rope_parameters.rope_type", `"default"`, "rope_type"},
		{"no base", "qwen2_5_vl", "vision_config.rope_parameters.rope_theta", `0`, "rope_parameters"},
		{"an activation", "qwen2_5_vl", "vision_config.hidden_act", `"mish"`, "hidden_act"},
		{"an activation without a gate", "qwen2_5_vl", "vision_config.hidden_act", `"relu"`, "Activation"},
		{"rows of another width", "qwen2_5_vl", "vision_config.out_hidden_size", `32`, "out_hidden_size"},
		{"one axis", "qwen2_5_vl", "text_config.rope_parameters", `{"rope_type": "default", "rope_theta": 10000.0}`, "mrope_section"},
		{"no MLP", "qwen2_vl", "vision_config.mlp_ratio", `0`, "mlp_ratio"},
		{"a large MLP", "qwen2_vl", "vision_config.mlp_ratio", `9223372036854775807`, "mlp_ratio"},
		{"wide rows", "qwen2_vl", "vision_config.embed_dim", `9223372036854775807`, "mlp_ratio"},
		{"no rows", "qwen2_vl", "vision_config.embed_dim", `-1`, "embed_dim"},
		{"rows for another text", "qwen2_vl", "vision_config.hidden_size", `8`, "hidden_size"},
		{"places in no order", "qwen3_vl", "vision_config.deepstack_visual_indexes", `[2, 0]`, "deepstack_visual_indexes"},
		{"a place behind the blocks", "qwen3_vl", "vision_config.deepstack_visual_indexes", `[0, 4]`, "deepstack_visual_indexes"},
		{"a place before the blocks", "qwen3_vl", "vision_config.deepstack_visual_indexes", `[-1]`, "deepstack_visual_indexes"},
		{"more mergers than there are", "qwen3_vl", "vision_config.deepstack_visual_indexes", `[0, 1, 2]`, "deepstack_merger_list.2"},
		{"more mergers than layers", "qwen3_vl", "text_config.num_hidden_layers", `1`, "added to 2 layers"},
		{"no positions", "qwen3_vl", "vision_config.num_position_embeddings", `0`, "num_position_embeddings"},
		{"many positions", "qwen3_vl", "vision_config.num_position_embeddings", `9223372036854775807`, "num_position_embeddings"},
		{"no placeholder", "qwen2_5_vl", "image_token_id", `-1`, "token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := vision.OpenModel(edited(t, "models/"+c.folder, map[string]string{c.field: c.value}), vision.ModelOptions{})
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := vision.OpenModel(edited(t, "models/llava", map[string]string{"text_config.hidden_size": "100000"}), vision.ModelOptions{})
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "multi_modal_projector.linear_1.weight has the shape [16 16]")
}

// TestModelPlaceholders: image_token_id goes before image_token_index, and the squares of an image may be all of it.
func TestModelPlaceholders(t *testing.T) {
	for _, c := range []struct {
		name, folder string
		fields       map[string]string
		token        int32
		rows         int
	}{
		{"one", "llava", map[string]string{"image_token_index": "", "image_token_id": "7"}, 7, 9},
		{"both", "llava", map[string]string{"image_token_id": "7"}, 7, 9},
		{"null", "gemma3", map[string]string{"image_token_id": "null"}, 5, 4},
		{"zero", "gemma3", map[string]string{"image_token_index": "0"}, 0, 4},
		{"one row", "gemma3", map[string]string{"mm_tokens_per_image": "1"}, 5, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := vision.OpenModel(edited(t, "models/"+c.folder, c.fields), vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
			require.NoError(t, err)
			require.Equal(t, c.token, m.Token())
			rows, err := m.Rows(vision.Layout{})
			require.NoError(t, err)
			require.Equal(t, c.rows, rows)
		})
	}
}

// TestModelSequences: sequences of one length are those with Starts, also where one ends with an image and the next begins with one, and an
// image is in one sequence.
func TestModelSequences(t *testing.T) {
	for _, name := range []string{"llava", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			m, _, golden := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
			ctx := context.Background()
			var b vision.Batch
			rows, err := m.Rows(vision.Layout{})
			require.NoError(t, err)
			image := slices.Repeat([]int32{m.Token()}, rows)
			for range 2 {
				b.Text.Tokens = slices.Concat(b.Text.Tokens, image, []int32{8}, image)
			}
			half := len(b.Text.Tokens) / 2
			b.Text.Labels = slices.Repeat([]int32{3}, 2*half)
			b.Images = []vision.Pixels{golden.Images[0], golden.Images[1], golden.Images[2], golden.Images[0]}
			b.Text.Sequences = 2
			equal, err := m.Evaluate(ctx, b)
			require.NoError(t, err)
			b.Text.Sequences, b.Text.Starts = 0, []int{0, half, 2 * half}
			packed, err := m.Evaluate(ctx, b)
			require.NoError(t, err)
			require.Equal(t, packed, equal)
			b.Text.Starts = []int{0, half + 1, 2 * half}
			_, err = m.Evaluate(ctx, b)
			require.ErrorIs(t, err, snug.ErrShape)
			require.ErrorContains(t, err, "lacks")
		})
	}
}

// TestTowerSaveRefused: what would not open again is not made, and a folder has a name.
func TestTowerSaveRefused(t *testing.T) {
	c := vision.TowerConfig{Family: "vit", Image: 8, Patch: 4, Channels: 1, Width: 8, Hidden: 8, Layers: 1, Heads: 1, Activation: "gelu", Eps: 1e-6}
	m, err := vision.NewTower(c, vision.TowerOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, m.Save(""), "the folder has no name")
	_, err = vision.NewTower(c, vision.TowerOptions{Labels: []string{"a"}})
	require.ErrorContains(t, err, "one class in Labels")
	for _, c.Family = range []string{"clip", "siglip_vision_model"} {
		_, err = vision.NewTower(c, vision.TowerOptions{})
		require.ErrorContains(t, err, "QKVBias")
	}
	other, err := vision.OpenTower(edited(t, "towers/clip", map[string]string{"vision_config.qkv_bias": "false"}), vision.TowerOptions{})
	require.NoError(t, err) // transformers passes it over
	require.True(t, other.Config().QKVBias)
	c.Family = "vit"
	for _, image := range []int{-1, 3, 1 << 20, math.MaxInt} {
		_, err = vision.NewTower(c, vision.TowerOptions{Image: image})
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = vision.OpenTower("testdata/towers/dinov2", vision.TowerOptions{Image: image})
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	for name, change := range map[string]func(*vision.TowerConfig){
		"Layers": func(c *vision.TowerConfig) { c.Layers = 1 << 20 }, "elements": func(c *vision.TowerConfig) { c.Width, c.Hidden = 1<<20, 1<<24 },
		"Gated": func(c *vision.TowerConfig) { c.Gated = true }, "Registers": func(c *vision.TowerConfig) { c.Registers = 2 }, "Positions": func(c *vision.TowerConfig) { c.Positions = -8 },
		"Hidden":       func(c *vision.TowerConfig) { c.Family, c.Hidden = "dinov2", 20 },
		"interpolated": func(c *vision.TowerConfig) { c.Family, c.QKVBias, c.Positions = "smolvlm_vision", true, 16 },
		"Labels": func(c *vision.TowerConfig) {
			c.Family, c.QKVBias, c.Labels = "smolvlm_vision", true, []string{"a", "b"}
		},
	} {
		c := c
		change(&c)
		_, err = vision.NewTower(c, vision.TowerOptions{})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, name)
	}
}

// TestTowerImageSize: DINOv2 takes images of its folder's processor, if that makes one size of all; another one is an error.
func TestTowerImageSize(t *testing.T) {
	for processor, want := range map[string]int{
		`{"image_processor_type": "BitImageProcessor", "crop_size": 17}`:                          17,
		`{"image_processor_type": "BitImageProcessor", "do_center_crop": false}`:                  29,
		`{"image_processor_type": "BitImageProcessor", "crop_size": {"height": 12, "width": 16}}`: 29,
		`{"image_processor_type": "ViTImageProcessor", "size": {"height": 20, "width": 20}}`:      20,
		`{"image_processor_type": "EfficientFormerImageProcessor"}`:                               0,
		`{"image_processor_type": "BitImageProcessor", "crop_size": 9223372036854775807}`:         0,
	} {
		dir := edited(t, "towers/dinov2", nil)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(processor), 0o666))
		m, err := vision.OpenTower(dir, vision.TowerOptions{})
		if want == 0 {
			require.Error(t, err)
			require.ErrorContains(t, err, "Options.Image")
			m, err = vision.OpenTower(dir, vision.TowerOptions{Image: 8})
			want = 8
		}
		require.NoError(t, err)
		require.Equal(t, want, m.Config().Image)
	}
}
