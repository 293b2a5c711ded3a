package vision

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// qwen25Model is Qwen2.5-VL: Bai et al. 2025, arXiv:2502.13923. Most blocks of its tower see windows of an image alone. Its projector,
// the merger, normalizes patches and makes one row of a square of them.
var qwen25Model = &modelFamily{
	modelType: "qwen2_5_vl", towers: []string{"visual."}, projector: "visual.merger.",
	read: func(c *connection, text []byte) error {
		f := struct {
			ID     int32 `json:"image_token_id"`
			Video  int32 `json:"video_token_id"`
			Vision struct {
				gridFields
				Window    int     `json:"window_size"`
				Whole     []int   `json:"fullatt_block_indexes"`
				PerSecond float64 `json:"tokens_per_second"`
			} `json:"vision_config"`
		}{ID: 151655, Video: 151656}
		f.Vision.gridFields = gridFields{Layers: 32, Width: 3584, Activation: "silu", Hidden: 3420, Heads: 16, Channels: 3, Patch: 14, Merge: 2, Temporal: 2, Out: 3584}
		f.Vision.Window, f.Vision.Whole, f.Vision.PerSecond = 112, []int{7, 15, 23, 31}, 4
		if err := lenientJSON.Unmarshal(text, &f); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		v := &f.Vision
		g, err := v.grid(c)
		if err != nil {
			return fmt.Errorf("vision_config: %w", err)
		}
		if g.window = v.Window / v.Merge / v.Patch; g.window < 1 || v.Window > most {
			return fmt.Errorf("vision_config: window_size is %d, want that of a square of %d patches of %d or more: %w", v.Window, v.Merge, v.Patch, snug.ErrConfig)
		}
		if !(v.PerSecond > 0 && v.PerSecond <= most) {
			return fmt.Errorf("vision_config: tokens_per_second is %v, want a number above 0: %w", v.PerSecond, snug.ErrConfig)
		}
		c.axes, c.tower.Family = Axes{Image: f.ID, Video: f.Video, PerSecond: v.PerSecond}, "qwen2_5_vl"
		g.parts = func(prefix string, angles *layers.Angles) [][]layers.Layer {
			list := []layers.Layer{v.embed(prefix+"patch_embed.proj", false)}
			for i := range v.Layers {
				at := fmt.Sprintf("%sblocks.%d.", prefix, i)
				a := v.attention(at, angles)
				a.Norm, a.Parts = *layers.NewRMSNorm(at+"norm1", v.Width), !slices.Contains(v.Whole, i)
				m := layers.NewMLP(at, v.Width, v.Hidden, activations[v.Activation], true)
				m.Norm = *layers.NewRMSNorm(at+"norm2", v.Width)
				m.In[0], m.In[1] = *layers.NewLinear(at+"mlp.gate_proj", v.Width, v.Hidden, true), *layers.NewLinear(at+"mlp.up_proj", v.Width, v.Hidden, true)
				m.Down[0] = *layers.NewLinear(at+"mlp.down_proj", v.Hidden, v.Width, true)
				list = append(list, a, m)
			}
			return [][]layers.Layer{list}
		}
		c.layers = func(prefix string) []layers.Layer {
			norm := layers.NewRMSNorm(prefix+"ln_q", v.Width)
			return []layers.Layer{norm, layers.NewLinear(prefix+"mlp.0", c.reads, c.reads, true), layers.GELU, layers.NewLinear(prefix+"mlp.2", c.reads, c.width, true)}
		}
		return nil
	},
}
