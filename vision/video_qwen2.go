package vision

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// qwen2Video is the video processor of Qwen2-VL and Qwen2.5-VL: each frame is resized as an image of its own, with bounds of its pixels.
var qwen2Video = videoFamily{
	kind:   "Qwen2VLVideoProcessor",
	models: []string{"qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_omni_moe"},
	defaults: func() videoConfig {
		c := videoConfig{config: usual(sizes{shortest: 128 * 28 * 28, longest: 28 * 28 * 768}, Bicubic, clipMean, clipStd)}
		c.patch, c.temporal, c.merge = 14, 2, 2
		c.minFrames, c.maxFrames, c.tokens = 4, 768, 128000
		return c
	}(),
	read: func(c *videoConfig, f *videoFields) error {
		r := reader{}
		r.count("min_pixels", f.MinPixels, &c.size.shortest)
		r.count("max_pixels", f.MaxPixels, &c.size.longest)
		return r.err
	},
	rate: func(c *videoConfig, total int, fps, take float64) ([]int, error) {
		down := func(x float64) float64 { n := float64(c.temporal); return math.Floor(x/n) * n }
		most := down(float64(min(c.maxFrames, total)))
		n := min(max(float64(total)/fps*take, float64(c.minFrames)), most, float64(total))
		if n = down(n); n < 1 {
			return nil, fmt.Errorf("a clip of %d frames, of which the processor takes %d at a time: give it as an image: %w", total, c.temporal, snug.ErrShape)
		}
		return spread(total, int(n)), nil
	},
	even: spread,
	size: func(c *videoConfig, frames int, from size) (size, error) {
		least, most := c.size.shortest, c.size.longest
		if c.framePixels > 0 {
			least, most = min(least, c.framePixels), min(most, c.framePixels)
		}
		if c.capped { // an even share of the pixels of so many tokens
			total := int64(c.budget() * 0.9)
			most = int(max(min(int64(most), total*int64(c.temporal)/int64(frames)), int64(float64(least)*1.05)))
		}
		return smart(from, c.patch*c.merge, least, most)
	},
}
