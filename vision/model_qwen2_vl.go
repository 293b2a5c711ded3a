package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// qwen2Model is Qwen2-VL: Wang et al. 2024, arXiv:2409.12191. Its tower is that of Qwen2.5-VL without windows, with other norms and MLPs.
var qwen2Model = &modelFamily{
	modelType: "qwen2_vl", towers: []string{"visual."}, projector: "visual.merger.",
	read: func(c *connection, text []byte) error {
		f := struct {
			ID     int32 `json:"image_token_id"`
			Video  int32 `json:"video_token_id"`
			Vision struct {
				gridFields
				Width int `json:"embed_dim"`
				Ratio int `json:"mlp_ratio"`
				Out   int `json:"hidden_size"`
			} `json:"vision_config"`
		}{ID: 151655, Video: 151656}
		f.Vision.gridFields = gridFields{Layers: 32, Activation: "quick_gelu", Heads: 16, Channels: 3, Patch: 14, Merge: 2, Temporal: 2}
		f.Vision.Width, f.Vision.Ratio, f.Vision.Out = 1280, 4, 3584
		if err := lenientJSON.Unmarshal(text, &f); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		v := &f.Vision.gridFields
		if v.Width, v.Out = f.Vision.Width, f.Vision.Out; f.Vision.Ratio < 1 || f.Vision.Ratio > most/max(1, v.Width) {
			return fmt.Errorf("vision_config: mlp_ratio is %d of rows of %d elements, want 1 or more, and at most 2^24 elements: %w", f.Vision.Ratio, v.Width, snug.ErrConfig)
		}
		v.Hidden = f.Vision.Ratio * v.Width
		g, err := v.grid(c)
		if err != nil {
			return fmt.Errorf("vision_config: %w", err)
		}
		c.axes, c.tower.Family = Axes{Image: f.ID, Video: f.Video}, "qwen2_vl"
		g.parts = func(prefix string, angles *layers.Angles) [][]layers.Layer {
			list := []layers.Layer{v.embed(prefix+"patch_embed.proj", false)}
			for i := range v.Layers {
				list = append(list, v.block(fmt.Sprintf("%sblocks.%d.", prefix, i), "mlp.fc1", "mlp.fc2", angles)...)
			}
			return [][]layers.Layer{list}
		}
		c.layers = func(prefix string) []layers.Layer {
			return []layers.Layer{
				gridNorm(prefix+"ln_q", v.Width), layers.NewLinear(prefix+"mlp.0", c.reads, c.reads, true), layers.GELU, layers.NewLinear(prefix+"mlp.2", c.reads, c.width, true),
			}
		}
		return nil
	},
}
