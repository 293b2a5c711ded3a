package vision

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// dinov2Tower is DINOv2's: Oquab et al. 2023, arXiv:2304.07193. Its positions are interpolated to whatever size images have.
var dinov2Tower = dino("dinov2", "Dinov2", 0, func(*names) {})

// dinov2RegistersTower has registers besides: Darcet et al. 2023, arXiv:2309.16588.
var dinov2RegistersTower = dino("dinov2_with_registers", "Dinov2WithRegisters", 4, func(n *names) { n.registers = "embeddings.register_tokens" })

func dino(modelType, class string, registers int, more func(*names)) *towerFamily {
	f := &towerFamily{
		modelType: modelType, tower: modelType, classifier: class + "ForImageClassification", towerClass: class + "Model", prefix: modelType + ".",
		standard: TowerConfig{Image: 224, Patch: 14, Channels: 3, Width: 768, Hidden: 3072, Layers: 12, Heads: 12, Activation: "gelu", Eps: 1e-6, QKVBias: true, Registers: registers},
		class:    true, batched: true, patchBias: true, norms: true, means: []layers.Mean{{To: 1}, {From: 1}}, resizes: true, antialias: registers > 0,
		read: readDino, write: writeDino,
		spellings: []names{
			{
				class: "embeddings.cls_token", positions: "embeddings.position_embeddings", patch: "embeddings.patch_embeddings.projection", block: "encoder.layer.%d.",
				norm1: "norm1", q: "attention.attention.query", k: "attention.attention.key", v: "attention.attention.value", out: "attention.output.dense", scale1: "layer_scale1.lambda1",
				norm2: "norm2", up: "mlp.fc1", down: "mlp.fc2", gated: [3]string{"mlp.gate_proj", "mlp.up_proj", "mlp.weights_out"}, packed: "mlp.weights_in", scale2: "layer_scale2.lambda1", norm: "layernorm", mask: "embeddings.mask_token",
			},
			{ // in the memory of transformers 5
				class: "embeddings.cls_token", positions: "embeddings.position_embeddings", patch: "embeddings.patch_embeddings.projection", block: "encoder.layer.%d.",
				norm1: "norm1", q: "attention.q_proj", k: "attention.k_proj", v: "attention.v_proj", out: "attention.o_proj", scale1: "layer_scale1.lambda1",
				norm2: "norm2", up: "mlp.fc1", down: "mlp.fc2", gated: [3]string{"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}, scale2: "layer_scale2.lambda1", norm: "layernorm", mask: "embeddings.mask_token",
			},
		},
	}
	for i := range f.spellings {
		more(&f.spellings[i])
	}
	return f
}

// dinoFields are those of config.json that the other families do not have.
type dinoFields struct {
	Ratio     int  `json:"mlp_ratio"`
	Gated     bool `json:"use_swiglu_ffn"`
	Registers int  `json:"num_register_tokens"`
}

// hidden returns the elements of an MLP: a SwiGLU has two thirds of them, as a multiple of 8.
func (f dinoFields) hidden(width int) int {
	n := width * f.Ratio
	if !f.Gated {
		return n
	}
	return (n*2/3 + 7) / 8 * 8
}

func readDino(c *TowerConfig, text []byte) error {
	in := dinoFields{Ratio: 4, Registers: c.Registers}
	if err := lenientJSON.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	if in.Ratio < 1 || in.Ratio > most/max(1, c.Width) {
		return fmt.Errorf("mlp_ratio is %d, for a hidden_size of %d: %w", in.Ratio, c.Width, snug.ErrConfig)
	}
	c.Hidden, c.Gated = in.hidden(c.Width), in.Gated
	if c.Registers > 0 {
		c.Registers = in.Registers
	}
	return nil
}

func writeDino(c *TowerConfig) (map[string]any, error) {
	f := dinoFields{Gated: c.Gated}
	for f.Ratio = 1; f.hidden(c.Width) < c.Hidden; f.Ratio++ {
	}
	if f.hidden(c.Width) != c.Hidden {
		return nil, fmt.Errorf("the field Hidden is %d, want a multiple of the Width, %d, or of a Gated one two thirds, as a multiple of 8: %w", c.Hidden, c.Width, snug.ErrConfig)
	}
	m := map[string]any{"mlp_ratio": f.Ratio, "use_swiglu_ffn": c.Gated, "intermediate_size": nil}
	if c.Registers > 0 {
		m["num_register_tokens"] = c.Registers
	}
	return m, nil
}

// crop returns the side of the squares that the image processor of a folder makes of images of any size, and 0 if there is none, or if it
// keeps sizes apart.
func crop(dir string) (int, error) {
	p, err := OpenProcessor(dir)
	if errors.Is(err, errNoPixels) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	var list [2]Layout
	for i, s := range [2][2]int{{640, 480}, {480, 640}} {
		if list[i], err = p.Layout(s[0], s[1]); err != nil {
			return 0, err
		}
	}
	s := list[0].Shape
	if len(s) != 4 || s[0] != 1 || s[2] != s[3] || !slices.Equal(s, list[1].Shape) {
		return 0, nil
	}
	return s[2], nil
}
