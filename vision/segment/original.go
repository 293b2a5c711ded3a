package segment

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// original is the layout of segment_anything, Meta's code of Segment Anything, and of MobileSAM and TinySAM: weights alone, without a
// config.json.
type original struct {
	names *strings.Replacer
	image int // pixels of the side of an image
}

// sizeName has the pixels of the side of an image in the metadata of a file; a file without it has those of published models.
const (
	sizeName      = "image_size"
	publishedSize = 1024
)

func newOriginal(c *Config) *original {
	pairs := []string{
		"vision_encoder.layers.", "image_encoder.blocks.", "vision_encoder.", "image_encoder.", "patch_embed.projection", "patch_embed.proj",
		"neck.conv1", "neck.0", "neck.layer_norm1", "neck.1", "neck.conv2", "neck.2", "neck.layer_norm2", "neck.3",
		"shared_image_embedding.positional_embedding", "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix", ".point_embed.", ".point_embeddings.",
		"mask_embed.conv1", "mask_downscaling.0", "mask_embed.layer_norm1", "mask_downscaling.1", "mask_embed.conv2", "mask_downscaling.3",
		"mask_embed.layer_norm2", "mask_downscaling.4", "mask_embed.conv3", "mask_downscaling.6",
		"upscale_conv1", "output_upscaling.0", "upscale_layer_norm", "output_upscaling.1", "upscale_conv2", "output_upscaling.3",
		"layer_norm_final_attn", "norm_final_attn", ".layer_norm", ".norm",
	}
	head := func(name string, depth int) {
		pairs = append(pairs, name+".proj_in", name+".layers.0", name+".proj_out", fmt.Sprint(name, ".layers.", depth-1))
		for i := range depth - 2 {
			pairs = append(pairs, fmt.Sprint(name, ".layers.", i, "."), fmt.Sprint(name, ".layers.", i+1, "."))
		}
	}
	for i := range 1 + c.Decoder.Masks {
		head(fmt.Sprint("output_hypernetworks_mlps.", i), 3)
	}
	head("iou_prediction_head", c.Decoder.IoUDepth)
	return &original{strings.NewReplacer(pairs...), c.Encoder.Image}
}

func (o *original) rename(name string) string { return o.names.Replace(name) }

func (o *original) metadata() map[string]string {
	m := map[string]string{"format": "pt"}
	if o.image != publishedSize {
		m[sizeName] = strconv.Itoa(o.image)
	}
	return m
}

func (o *original) description() []byte { return nil }

func (o *original) extras(from, to string) error {
	if info, err := os.Stat(from); err != nil || !info.IsDir() {
		return err
	}
	return copyFiles(from, to, pixelsName)
}

// shapes are those of the tensors of a file.
type shapes struct {
	w   *amp.Weights
	err error // of the first tensor that is not there
}

func (s *shapes) has(name string) bool {
	_, has := s.w.Tensor(name)
	return has
}

// of returns the shape of a tensor of so many dimensions, and ones for one that is not there.
func (s *shapes) of(name string, dims int) []int {
	t, has := s.w.Tensor(name)
	if has && len(t.Shape) == dims {
		return t.Shape
	}
	if s.err == nil {
		s.err = fmt.Errorf("the tensor %s has the shape %v, or is missing, want %d dimensions: %w", name, t.Shape, dims, snug.ErrConfig)
	}
	ones := make([]int, dims)
	for i := range ones {
		ones[i] = 1
	}
	return ones
}

// count returns how many tensors there are with a number from 0 on in their name.
func (s *shapes) count(format string) (n int) {
	for s.has(fmt.Sprintf(format, n)) {
		n++
	}
	return n
}

// describe returns what a model in the layout of segment_anything computes, from the shapes of its tensors.
func describe(w *amp.Weights) (c Config, err error) {
	c, s := ViTB(), &shapes{w: w}
	c.Encoder = EncoderConfig{Image: publishedSize}
	wanted := ""
	for _, k := range kinds {
		if s.has(k.tensor()) {
			c.Encoder.Type = k.name()
			if text, has := w.Metadata()[sizeName]; has {
				if c.Encoder.Image, err = strconv.Atoi(text); err != nil {
					return c, fmt.Errorf("the metadata has %s %.20q, want pixels: %w", sizeName, text, snug.ErrCorrupt)
				}
			}
			k.describe(s, &c)
			describeDecoder(s, &c)
			if s.err != nil {
				return c, s.err
			}
			return c, c.check()
		}
		wanted += " or " + k.tensor()
	}
	return c, fmt.Errorf("there is neither %s nor a tensor%s, want the folder of a SamModel, or weights with the names of segment_anything: %w", configName, wanted[len(" or"):], snug.ErrConfig)
}

// describeDecoder reads the parts besides the encoder, of published ones what the shapes do not say.
func describeDecoder(s *shapes, c *Config) {
	e, p, d := &c.Encoder, &c.Prompt, &c.Decoder
	const prompt, decoder, score = "prompt_encoder.", "mask_decoder.", "mask_decoder.iou_prediction_head.layers.%d.weight"
	e.Waves = s.of(prompt+"pe_layer.positional_encoding_gaussian_matrix", 2)[1]
	p.Image, p.Patch = e.Image, e.Patch
	p.Width, p.Channels = s.of(prompt+"no_mask_embed.weight", 2)[1], s.of(prompt+"mask_downscaling.3.weight", 4)[0]
	p.Points = s.count(prompt + "point_embeddings.%d.weight")
	d.Eps = 1e-5 // PyTorch's, which those of transformers differ from
	tokens, layer := s.of(decoder+"mask_tokens.weight", 2), s.of(decoder+"transformer.layers.0.mlp.lin1.weight", 2)
	d.Width, d.Masks, d.Hidden = tokens[1], tokens[0]-1, layer[0]
	d.Layers = s.count(decoder + "transformer.layers.%d.mlp.lin1.weight")
	d.Downsample = min(d.Width, math.MaxInt32) / max(1, s.of(decoder+"transformer.final_attn_token_to_image.q_proj.weight", 2)[0])
	d.IoUDepth, d.IoUHidden = s.count(score), s.of(fmt.Sprintf(score, 0), 2)[0]
}
