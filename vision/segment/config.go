package segment

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/layers"
)

// Config says what a model computes. Most fields are those of config.json of model_type sam.
type Config struct {
	Encoder EncoderConfig `json:"vision_config"`
	Prompt  PromptConfig  `json:"prompt_encoder_config"`
	Decoder DecoderConfig `json:"mask_decoder_config"`
}

// EncoderConfig says what the encoder of images computes. What follows Channels down to Relative is a vision transformer's; TinyViT has Stages.
type EncoderConfig struct {
	Type       string  `json:"-"`          // "vit", a vision transformer, as is ""; or "tiny_vit", TinyViT
	Image      int     `json:"image_size"` // pixels of the side of an image, a multiple of Patch
	Patch      int     `json:"patch_size"` // pixels of the side of a patch
	Channels   int     `json:"num_channels"`
	Width      int     `json:"hidden_size"`
	Hidden     int     `json:"mlp_dim"` // of an MLP; 0: Ratio times Width
	Ratio      float64 `json:"mlp_ratio"`
	Layers     int     `json:"num_hidden_layers"`
	Heads      int     `json:"num_attention_heads"`
	Activation string  `json:"hidden_act"` // gelu, gelu_pytorch_tanh, relu or silu
	Eps        float64 `json:"layer_norm_eps"`
	QKVBias    bool    `json:"qkv_bias"`
	Window     int     `json:"window_size"`         // patches of the side of a window of attention; 0: all of the image
	Global     []int   `json:"global_attn_indexes"` // layers whose attention sees all of the image
	Positions  bool    `json:"use_abs_pos"`         // positions are added to patches
	Relative   bool    `json:"use_rel_pos"`         // attention has relative positions
	Out        int     `json:"output_channels"`     // elements of a row of features
	Waves      int     `json:"num_pos_feats"`       // random waves of a position, half as many as Out
	Stages     []Stage `json:"-"`                   // of TinyViT, from the first
}

// PromptConfig says how prompts are embedded.
type PromptConfig struct {
	Image      int     `json:"image_size"` // these three are as in the other parts
	Patch      int     `json:"patch_size"`
	Width      int     `json:"hidden_size"`
	Channels   int     `json:"mask_input_channels"` // of a mask, a multiple of 4
	Activation string  `json:"hidden_act"`
	Eps        float64 `json:"layer_norm_eps"`
	Points     int     `json:"num_point_embeddings"` // 4
}

// DecoderConfig says what the decoder of masks computes.
type DecoderConfig struct {
	Width      int     `json:"hidden_size"` // a multiple of 8
	Hidden     int     `json:"mlp_dim"`
	Layers     int     `json:"num_hidden_layers"`
	Heads      int     `json:"num_attention_heads"`
	Activation string  `json:"hidden_act"`
	Eps        float64 `json:"layer_norm_eps"`
	Downsample int     `json:"attention_downsample_rate"` // of the last attention; those before have 2
	Masks      int     `json:"num_multimask_outputs"`     // for a prompt that may mean several things, besides the one mask for one that does not
	IoUDepth   int     `json:"iou_head_depth"`
	IoUHidden  int     `json:"iou_head_hidden_dim"`
}

// ViTB returns the shape of the smallest of the published models, SAM ViT-B.
func ViTB() Config {
	return Config{
		Encoder: EncoderConfig{
			Type: "vit", Image: 1024, Patch: 16, Channels: 3, Width: 768, Hidden: 3072, Ratio: 4, Layers: 12, Heads: 12, Activation: "gelu", Eps: 1e-6, QKVBias: true,
			Window: 14, Global: []int{2, 5, 8, 11}, Positions: true, Relative: true, Out: 256, Waves: 128,
		},
		Prompt:  PromptConfig{Image: 1024, Patch: 16, Width: 256, Channels: 16, Activation: "gelu", Eps: 1e-6, Points: 4},
		Decoder: DecoderConfig{Width: 256, Hidden: 2048, Layers: 2, Heads: 8, Activation: "relu", Eps: 1e-6, Downsample: 2, Masks: 3, IoUDepth: 3, IoUHidden: 256},
	}
}

// Grid returns the rows and columns of patches of an image.
func (c Config) Grid() int { return c.Encoder.Image / max(1, c.Encoder.Patch) }

// Rows returns the rows of features of an image, its patches.
func (c Config) Rows() int { return c.Grid() * c.Grid() }

// FeatureLen returns the elements of the features of an image.
func (c Config) FeatureLen() int { return c.Rows() * c.Encoder.Out }

// Side returns the rows and columns of logits of a mask.
func (c Config) Side() int { return 4 * c.Grid() }

var activations = map[string]layers.Activation{
	"gelu": layers.GELU, "gelu_pytorch_tanh": layers.GELUTanh, "relu": layers.ReLU, "silu": layers.SiLU,
}

// most is the largest of sizes, far above what memory has, and mostPatches of patches on a side.
const most, mostPatches = 1 << 20, 1 << 12

func (c *Config) check() error {
	e, p, d := &c.Encoder, &c.Prompt, &c.Decoder
	for _, n := range []struct {
		name string
		of   int
	}{
		{"vision_config.image_size", e.Image}, {"vision_config.patch_size", e.Patch}, {"vision_config.num_channels", e.Channels}, {"vision_config.output_channels", e.Out},
		{"prompt_encoder_config.mask_input_channels", p.Channels}, {"mask_decoder_config.mlp_dim", d.Hidden}, {"mask_decoder_config.num_hidden_layers", d.Layers},
		{"mask_decoder_config.num_attention_heads", d.Heads}, {"mask_decoder_config.attention_downsample_rate", d.Downsample},
		{"mask_decoder_config.num_multimask_outputs", d.Masks}, {"mask_decoder_config.iou_head_depth", d.IoUDepth}, {"mask_decoder_config.iou_head_hidden_dim", d.IoUHidden},
	} {
		if n.of < 1 || n.of > most {
			return fmt.Errorf("%s is %d, want 1 to 2^20: %w", n.name, n.of, snug.ErrConfig)
		}
	}
	grid := c.Grid()
	product := func(a, b int) float64 { return float64(a) * float64(b) }
	switch {
	case d.IoUDepth < 2:
		return fmt.Errorf("mask_decoder_config.iou_head_depth is %d, want 2 or more: %w", d.IoUDepth, snug.ErrConfig)
	case 9*product(e.Out, e.Out) > math.MaxInt32 || product(d.Width, max(d.Hidden, d.IoUHidden)) > math.MaxInt32 || product(d.IoUHidden, d.IoUHidden) > math.MaxInt32:
		return fmt.Errorf("layers of %d elements in the encoder and %d and %d in the decoder, want at most 2^31 elements of a block: %w", e.Out, d.Width, d.Hidden, snug.ErrConfig)
	case e.Image != grid*e.Patch || grid > mostPatches || e.Patch*e.Patch > most/e.Channels:
		return fmt.Errorf("patches of %d pixels in images of %d, want them to divide the side, and at most 2^12 there: %w", e.Patch, e.Image, snug.ErrConfig)
	case p.Image != e.Image || p.Patch != e.Patch || p.Width != e.Out || d.Width != e.Out || e.Waves != e.Out/2:
		return fmt.Errorf("image_size, patch_size, output_channels, hidden_size or num_pos_feats of the three parts differ: %w", snug.ErrConfig)
	case e.Out%8 != 0 || p.Channels%4 != 0 || p.Points != 4:
		return fmt.Errorf("%d output_channels, %d mask_input_channels and %d num_point_embeddings, want multiples of 8 and of 4, and 4: %w", e.Out, p.Channels, p.Points, snug.ErrConfig)
	case e.Out%(2*d.Heads) != 0 || e.Out%d.Downsample != 0 || e.Out/d.Downsample%d.Heads != 0:
		return fmt.Errorf("%d heads of the decoder do not divide hidden_size, or what attention_downsample_rate leaves of it: %w", d.Heads, snug.ErrConfig)
	case d.Masks > 64 || d.Layers > 1<<10 || d.IoUDepth > 1<<10:
		return fmt.Errorf("%d masks or %d and %d layers, want up to 64 masks and 1024 layers: %w", d.Masks, d.Layers, d.IoUDepth, snug.ErrConfig)
	}
	for _, n := range []float64{float64(e.Channels) * float64(e.Image) * float64(e.Image), float64(c.Rows()) * float64(e.Out), float64(1+d.Masks) * (float64(c.Side())*float64(c.Side()) + 1)} {
		if n > math.MaxInt32 {
			return fmt.Errorf("an image of %d channels and %d by %d pixels, its %d rows or its %d masks have more than 2^31 elements: %w", e.Channels, e.Image, e.Image, c.Rows(), 1+d.Masks, snug.ErrConfig)
		}
	}
	if err := errors.Join(checkLayer(p.Activation, p.Eps), checkLayer(d.Activation, d.Eps)); err != nil {
		return err
	}
	k, err := c.kind()
	if err != nil {
		return err
	}
	return k.check(c)
}

// checkLayer returns an error for an activation that nothing computes, or an epsilon of a norm out of range.
func checkLayer(activation string, eps float64) error {
	if _, known := activations[activation]; !known {
		return fmt.Errorf("hidden_act is %.40q, want gelu, gelu_pytorch_tanh, relu or silu: %w", activation, snug.ErrConfig)
	}
	if !(eps > 0) || eps > 1 {
		return fmt.Errorf("layer_norm_eps is %v, want above 0, and 1 at most: %w", eps, snug.ErrConfig)
	}
	return nil
}

const (
	configName = "config.json"
	pixelsName = "preprocessor_config.json"
)

var lenientJSON = strictjson.Options{Open: true, MaxBytes: 16 << 20}

// ReadConfig reads what the model of a folder or a file computes, as [Open] does. Fields that config.json lacks are those of [ViTB]. The error
// wraps [snug.ErrConfig] for another model, [snug.ErrCorrupt], or is of the file system.
func ReadConfig(dir string) (c Config, err error) {
	defer fault.Named(&err, "segment: ReadConfig")
	c, _, err = readConfig(dir)
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

func parseConfig(text []byte) (c Config, err error) {
	var top struct {
		ModelType string `json:"model_type"`
	}
	if err = lenientJSON.Unmarshal(text, &top); err != nil {
		return c, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	if top.ModelType != "sam" {
		return c, fmt.Errorf("model_type is %.40q, want \"sam\": %w", top.ModelType, snug.ErrConfig)
	}
	whole := map[string]json.RawMessage{}
	if err = lenientJSON.Unmarshal(text, &whole); err != nil {
		return c, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	c = ViTB()
	c.Encoder.Hidden = 0
	for name, of := range map[string]any{"vision_config": &c.Encoder, "prompt_encoder_config": &c.Prompt, "mask_decoder_config": &c.Decoder} {
		fields := map[string]json.RawMessage{}
		if whole[name] == nil || string(whole[name]) == "null" {
			continue
		}
		if err = lenientJSON.Unmarshal(whole[name], &fields); err == nil {
			for field, v := range fields {
				if string(v) == "null" { // the default
					delete(fields, field)
				}
			}
			var rest []byte
			if rest, err = json.Marshal(fields); err == nil {
				err = lenientJSON.Unmarshal(rest, of)
			}
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w: %w", name, err, snug.ErrCorrupt)
		}
	}
	if e := &c.Encoder; e.Hidden == 0 && e.Ratio >= 0 && e.Ratio < most {
		e.Hidden = int(float64(e.Width) * e.Ratio)
	}
	return c, c.check()
}
