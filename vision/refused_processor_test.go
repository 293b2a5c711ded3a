package vision_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/vision"
)

// TestProcessorRefused: files that cannot be followed, with the field that says so.
func TestProcessorRefused(t *testing.T) {
	clip := func(fields string) string { return `{"image_processor_type": "CLIPImageProcessor", ` + fields + `}` }
	qwen := func(fields string) string { return `{"image_processor_type": "Qwen2VLImageProcessor", ` + fields + `}` }
	for _, c := range []struct {
		name, preprocessor, processor string
		is                            error
		says                          string
	}{
		{"no files", "", "", snug.ErrConfig, "no preprocessor_config.json"},
		{"unknown type", `{"image_processor_type": "FuyuImageProcessor"}`, "", snug.ErrConfig, `image_processor_type "FuyuImageProcessor", want one of CLIPImageProcessor`},
		{"no type", `{}`, "", snug.ErrConfig, "no image_processor_type"},
		{"damaged", `{"image_processor_type": `, "", snug.ErrCorrupt, "preprocessor_config.json"},
		{"size of another form", clip(`"size": {"width": 3}`), "", snug.ErrConfig, `size is {"width":3}`},
		{"size of 0", clip(`"size": 0`), "", snug.ErrConfig, "size is 0"},
		{"size as text", clip(`"size": "large"`), "", snug.ErrConfig, `size is "large"`},
		{"size of three", clip(`"size": [1, 2, 3]`), "", snug.ErrConfig, "[height, width]"},
		{"crop_size without width", clip(`"crop_size": {"shortest_edge": 3}`), "", snug.ErrConfig, "crop_size"},
		{"resample", clip(`"resample": 6`), "", snug.ErrConfig, "resample is 6"},
		{"resample that torchvision lacks", clip(`"resample": 4`), "", snug.ErrConfig, "filter box"},
		{"image_std of 0", clip(`"image_std": [1, 0, 1]`), "", snug.ErrConfig, "image_std has a 0"},
		{"image_mean of two", clip(`"image_mean": [1, 0]`), "", snug.ErrConfig, "image_mean is [1,0]"},
		{"image_mean with null", clip(`"image_mean": [1, null, 2]`), "", snug.ErrConfig, "image_mean"},
		{"rescale_factor of 0", clip(`"rescale_factor": 0`), "", snug.ErrConfig, "rescale_factor is 0"},
		{"rescale_factor beyond float64", clip(`"rescale_factor": 1e999`), "", nil, "rescale_factor"},
		{"do_resize as text", clip(`"do_resize": "yes"`), "", snug.ErrCorrupt, "do_resize"},
		{"crop without a size", `{"image_processor_type": "ViTImageProcessor", "do_center_crop": true}`, "", snug.ErrConfig, "crop_size"},
		{"Qwen's size in pixels of an edge", qwen(`"size": 224`), "", snug.ErrConfig, "shortest_edge and longest_edge"},
		{"Qwen's size as a square", qwen(`"size": {"height": 3, "width": 3}`), "", snug.ErrConfig, "shortest_edge and longest_edge"},
		{"Qwen's patch", qwen(`"patch_size": 0`), "", snug.ErrConfig, "patch_size is 0"},
		{"Qwen's huge patch", qwen(`"patch_size": 4096`), "", snug.ErrConfig, "patch_size 4096"},
		{"pan and scan", `{"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": true}`, "", snug.ErrConfig, "do_pan_and_scan"},
		{"SAM's size as a square", `{"image_processor_type": "SamImageProcessor", "size": 3}`, "", snug.ErrConfig, "longest_edge"},
		{"tiles without a side", `{"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"height": 1, "width": 1}}`, "", snug.ErrConfig, "max_image_size"},
		{"LLaVA-NeXT's tiles of another size", `{"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 336}}`, "", snug.ErrConfig, "crop_size differ"},
		{"LLaVA-NeXT's resolution", `{"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": [[224, 225]]}`, "", snug.ErrConfig, "[224, 225], want multiples of 224"},
		{"LLaVA-NeXT's resolutions of the class, with its size", `{"image_processor_type": "LlavaNextImageProcessor"}`, "", snug.ErrConfig, "[336, 672], want multiples of 224"},
		{"LLaVA-NeXT without resolutions", `{"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": []}`, "", snug.ErrConfig, "image_grid_pinpoints is empty"},
		{"LLaVA-NeXT's resolutions as a number", `{"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": 3}`, "", snug.ErrConfig, "want a list"},
		{"PaliGemma without a length", `{"image_processor_type": "SiglipImageProcessor", "processor_class": "PaliGemmaProcessor"}`, "", snug.ErrConfig, "image_seq_length"},
		{"LLaVA without a patch", clip(`"processor_class": "LlavaProcessor"`), "", snug.ErrConfig, "patch_size"},
		{"too many tokens", `{"image_processor_type": "Idefics3ImageProcessor"}`, `{"processor_class": "Idefics3Processor", "image_seq_len": 100000000}`, snug.ErrConfig, "image_seq_len"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]json.RawMessage{}
			for name, content := range map[string]string{"preprocessor_config.json": c.preprocessor, "processor_config.json": c.processor} {
				if content != "" {
					files[name] = json.RawMessage(content)
				}
			}
			_, err := open(t, files)
			kerneltest.Error(t, "vision.OpenProcessor", err)
			require.ErrorContains(t, err, c.says)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
		})
	}
}

// TestProcessorFiles: where fields may stand.
func TestProcessorFiles(t *testing.T) {
	for _, c := range []struct {
		name, kind, placeholder string
		files                   map[string]json.RawMessage
	}{
		{"nested", "SiglipImageProcessor", "", map[string]json.RawMessage{
			"processor_config.json":    json.RawMessage(`{"image_processor": {"image_processor_type": "SiglipImageProcessor"}}`),
			"preprocessor_config.json": json.RawMessage(`{"image_processor_type": "CLIPImageProcessor"}`),
		}},
		{"type of the model", "Qwen2VLImageProcessor", "<|image_pad|>", map[string]json.RawMessage{
			"preprocessor_config.json": json.RawMessage(`{}`), "config.json": json.RawMessage(`{"model_type": "qwen2_5_vl"}`),
		}},
		{"class in the tokenizer's file, with other tokens", "Gemma3ImageProcessor", "<boi>", map[string]json.RawMessage{
			"preprocessor_config.json": json.RawMessage(`{"image_processor_type": "Gemma3ImageProcessorFast", "unknown": [1]}`),
			"tokenizer_config.json":    json.RawMessage(`{"processor_class": "Gemma3Processor", "boi_token": {"content": "<boi>"}, "extra_special_tokens": {"boi_token": "<x>"}}`),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := open(t, c.files)
			require.NoError(t, err)
			require.Equal(t, c.kind, p.Type())
			require.Equal(t, c.placeholder, p.Placeholder())
		})
	}
}

// TestProcessRefused: images that a processor cannot take.
func TestProcessRefused(t *testing.T) {
	qwen := processorOf(t, `{"image_processor_type": "Qwen2VLImageProcessor"}`)
	sam := processorOf(t, `{"image_processor_type": "SamImageProcessor"}`)
	llava := processorOf(t, `{"image_processor_type": "LlavaImageProcessor", "do_pad": true}`)
	large := processorOf(t, `{"image_processor_type": "ViTImageProcessor", "size": 100000}`)
	raw := processorOf(t, `{"image_processor_type": "Qwen2VLImageProcessor", "do_resize": false}`)
	for _, c := range []struct {
		name          string
		p             *vision.Processor
		width, height int
		is            error
		says          string
	}{
		{"no pixels", qwen, 0, 3, snug.ErrShape, "0 x 3"},
		{"201 times as wide", qwen, 201, 1, snug.ErrShape, "ratio of at most 200"},
		{"no rows are left", sam, 60000, 1, snug.ErrShape, "1024 x 0"},
		{"square too large", llava, 60000, 1, snug.ErrNoMemory, "60000 x 60000"},
		{"resized too large", large, 1, 1, snug.ErrNoMemory, "100000 x 100000"},
		{"no multiple of patches", raw, 30, 28, snug.ErrShape, "multiples of 28"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.p.Layout(c.width, c.height)
			kerneltest.Error(t, "vision.Layout", err)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
		})
	}
	for _, m := range []*vision.Image{nil, {}, {Width: 1, Height: 1}, {Width: 2, Height: 1, Pix: make([]byte, 3)}, {Width: -1, Height: -1, Pix: make([]byte, 3)}, {Width: 1, Height: 1, Pix: make([]byte, 4)}} {
		_, err := qwen.Process(m)
		kerneltest.Error(t, "vision.Process", err)
		_, err = vision.Resize(m, 1, 1, vision.Box, vision.Pillow)
		kerneltest.Error(t, "vision.Resize", err)
	}
}

// TestExpandRefused: texts that do not fit the images.
func TestExpandRefused(t *testing.T) {
	p := processorOf(t, `{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"}`)
	l, err := p.Layout(60, 60)
	require.NoError(t, err)
	for _, c := range []struct {
		name, text string
		images     []vision.Layout
		is         error
		says       string
	}{
		{"two placeholders", "<|image_pad|><|image_pad|>", []vision.Layout{l}, snug.ErrShape, "2 times"},
		{"none", "", []vision.Layout{l}, snug.ErrShape, "0 times"},
		{"no image", "<|image_pad|>", nil, snug.ErrShape, "1 times"},
		{"huge layout", "<|image_pad|>", []vision.Layout{{Tokens: math.MaxInt}}, snug.ErrShape, "tokens"},
		{"negative layout", "<|image_pad|>", []vision.Layout{{Tokens: -1}}, snug.ErrShape, "tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.Expand(c.text, c.images...)
			kerneltest.Error(t, "vision.Expand", err)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
		})
	}
	text, err := p.Expand("<|image_pad|>", vision.Layout{})
	require.NoError(t, err)
	require.Empty(t, text, "an image without tokens")
	_, err = processorOf(t, `{"image_processor_type": "CLIPImageProcessor"}`).Expand("")
	require.ErrorIs(t, err, snug.ErrConfig)

	for _, c := range []struct {
		ids    []int32
		images []vision.Layout
	}{
		{[]int32{9}, nil}, {nil, []vision.Layout{l}}, {[]int32{9, 9}, []vision.Layout{{Grid: [3]int{1, 2, 2}, Merge: 2}}},
		{[]int32{9}, []vision.Layout{{Grid: [3]int{-1, -2, 2}, Merge: 2}}}, {[]int32{9}, []vision.Layout{{}}},
	} {
		_, _, err := vision.Positions(c.ids, vision.Axes{Image: 9, Video: 10}, c.images)
		kerneltest.Error(t, "vision.Positions", err)
		require.ErrorIs(t, err, snug.ErrShape)
	}
}
