package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// gemma3Model is Gemma 3: Gemma Team 2025, arXiv:2503.19786. Squares of the tower's rows are averaged, normalized and projected, and the rows
// of an image see each other in both directions.
var gemma3Model = &modelFamily{
	modelType: "gemma3", towers: []string{"vision_tower.", "vision_tower.vision_model."}, projector: "multi_modal_projector.", tower: "siglip_vision_model",
	read: func(c *connection, text []byte) error {
		f := struct {
			Token int32 `json:"image_token_index"`
			Again int32 `json:"image_token_id"`
			Each  int   `json:"mm_tokens_per_image"`
		}{Each: 256}
		if err := lenientJSON.Unmarshal(text, &f); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		if c.token = f.Token; f.Token == 0 {
			if c.token = f.Again; f.Again == 0 {
				c.token = 262144
			}
		}
		side := c.tower.Image / c.tower.Patch
		for c.square = 1; c.square < side && (side/c.square)*(side/c.square) > f.Each; c.square++ {
		}
		if c.square*c.square*f.Each != side*side {
			return fmt.Errorf("mm_tokens_per_image is %d for %d by %d patches, want squares of them: %w", f.Each, side, side, snug.ErrConfig)
		}
		c.each, c.spans = f.Each, true
		c.layers = func(prefix string) []layers.Layer {
			norm := layers.NewRMSNorm(prefix+"mm_soft_emb_norm", c.tower.Width)
			norm.Eps, norm.PlusOne = float32(c.tower.Eps), true
			project := layers.NewLinear(prefix, c.tower.Width, c.width, false)
			project.Weight.Name, project.Weight.Shape, project.Transposed = prefix+"mm_input_projection_weight", []int{c.tower.Width, c.width}, true
			return []layers.Layer{norm, project}
		}
		return nil
	},
}
