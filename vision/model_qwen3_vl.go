package vision

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// qwen3Model is Qwen3-VL: Qwen Team 2025, arXiv:2511.21631. Its tower has learned positions, and the rows of some of its blocks are added to
// the first layers of the text, through mergers of their own: DeepStack, arXiv:2406.04334.
var qwen3Model = &modelFamily{
	modelType: "qwen3_vl", towers: []string{"visual."}, projector: "visual.", body: "model.language_model.",
	read: func(c *connection, text []byte) error {
		f := struct {
			ID     int32 `json:"image_token_id"`
			Video  int32 `json:"video_token_id"`
			Vision struct {
				gridFields
				Places int   `json:"num_position_embeddings"`
				Deep   []int `json:"deepstack_visual_indexes"`
			} `json:"vision_config"`
		}{ID: 151655, Video: 151656}
		f.Vision.gridFields = gridFields{Layers: 27, Width: 1152, Activation: "gelu_pytorch_tanh", Hidden: 4304, Heads: 16, Channels: 3, Patch: 16, Merge: 2, Temporal: 2, Out: 3584}
		f.Vision.Places, f.Vision.Deep = 2304, []int{8, 16, 24}
		if err := lenientJSON.Unmarshal(text, &f); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		v := &f.Vision
		g, err := v.grid(c)
		if err != nil {
			return fmt.Errorf("vision_config: %w", err)
		}
		if v.Places < 1 || float64(v.Places)*float64(v.Width) > math.MaxInt32 {
			return fmt.Errorf("vision_config: num_position_embeddings is %d, want 1 or more, and at most 2^31 elements: %w", v.Places, snug.ErrConfig)
		}
		for i, block := range v.Deep {
			if block < 0 || block >= v.Layers || i > 0 && block <= v.Deep[i-1] {
				return fmt.Errorf("vision_config: deepstack_visual_indexes has %d after %d others, want ascending ones of %d blocks: %w", block, i, v.Layers, snug.ErrConfig)
			}
		}
		c.axes, c.tower.Family, c.per = Axes{Image: f.ID, Video: f.Video, Apart: true}, "qwen3_vl", 1+len(v.Deep)
		g.side, g.places = int(math.Sqrt(float64(v.Places))), v.Places
		g.reads = make([]int, c.per)
		for i := range v.Deep {
			g.reads[1+i] = 1 + i
		}
		if g.reads[0] = len(v.Deep); g.reads[0] == 0 || v.Deep[len(v.Deep)-1] < v.Layers-1 {
			g.reads[0]++ // blocks follow behind the last of them
		}
		g.parts = func(prefix string, angles *layers.Angles) [][]layers.Layer {
			parts := [][]layers.Layer{{v.embed(prefix+"patch_embed.proj", true)}}
			from := 0
			for _, to := range append(v.Deep[:len(v.Deep):len(v.Deep)], v.Layers-1) {
				var list []layers.Layer
				for ; from <= to; from++ {
					list = append(list, v.block(fmt.Sprintf("%sblocks.%d.", prefix, from), "mlp.linear_fc1", "mlp.linear_fc2", angles)...)
				}
				if list != nil {
					parts = append(parts, list)
				}
			}
			return parts
		}
		c.layers = func(prefix string) []layers.Layer {
			merger := func(at string, width int) layers.Layer {
				return layers.Sequential{gridNorm(at+"norm", width), layers.NewLinear(at+"linear_fc1", c.reads, c.reads, true), layers.GELU, layers.NewLinear(at+"linear_fc2", c.reads, c.width, true)}
			}
			groups := layers.Groups{merger(prefix+"merger.", v.Width)}
			for i := range v.Deep {
				groups = append(groups, merger(fmt.Sprintf("%sdeepstack_merger_list.%d.", prefix, i), c.reads))
			}
			return []layers.Layer{groups}
		}
		return nil
	},
}
