package vision

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// qwen3Video is the video processor of Qwen3-VL: the bounds are of the pixels of all frames.
var qwen3Video = videoFamily{
	kind:   "Qwen3VLVideoProcessor",
	models: []string{"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"},
	defaults: func() videoConfig {
		c := videoConfig{config: usual(sizes{shortest: 128 * 32 * 32, longest: 32 * 32 * 768}, Bicubic, half, half)}
		c.patch, c.temporal, c.merge = 16, 2, 2
		c.minFrames, c.maxFrames, c.tokens = 4, 768, 768
		c.sample, c.fps = true, 2
		return c
	}(),
	rate: func(c *videoConfig, total int, fps, take float64) ([]int, error) {
		n := math.Trunc(float64(total) / fps * take)
		return linspace(total, int(min(max(n, float64(c.minFrames)), float64(c.maxFrames), float64(total)))), nil
	},
	even: linspace,
	size: func(c *videoConfig, frames int, from size) (size, error) {
		least, most, n := int64(c.size.shortest), int64(c.size.longest), int64(frames)
		if c.framePixels > 0 {
			least, most = min(least, int64(c.framePixels)*n), min(most, int64(c.framePixels)*n)
		}
		if c.capped { // so many tokens a frame, or an even share of the pixels
			most = max(min(int64(c.budget()), most/n), int64(float64(least)*1.05)) * n
		}
		return smartVideo(frames, from, c.temporal, c.patch*c.merge, least, most)
	},
}

// linspace returns n of total numbers, the first and the last among them, as numpy's linspace rounds them.
func linspace(total, n int) []int {
	out := make([]int, n)
	step := float64(total-1) / float64(max(n-1, 1))
	for i := range out {
		out[i] = int(math.RoundToEven(float64(i) * step))
	}
	if n > 1 {
		out[n-1] = total - 1
	}
	return out
}

// smartVideo is Qwen3-VL's smart_resize: sides that are multiples of factor, with a number of pixels of all frames within bounds.
func smartVideo(frames int, from size, temporal, factor int, minimum, maximum int64) (size, error) {
	if frames < temporal {
		return size{}, fmt.Errorf("a video of %d frames, want at least %d: give it as an image: %w", frames, temporal, snug.ErrShape)
	}
	h, w, f, n := float64(from.height), float64(from.width), float64(factor), float64(frames)
	if h < f || w < f {
		scale := max(f/h, f/w)
		h, w = math.Trunc(h*scale), math.Trunc(w*scale)
	}
	if max(h, w)/min(h, w) > 200 {
		return size{}, fmt.Errorf("video of %d x %d pixels, want sides with a ratio of at most 200: %w", from.width, from.height, snug.ErrShape)
	}
	height, width, times := roundEven(h, f), roundEven(w, f), roundEven(n, float64(temporal))
	switch total := times * height * width; {
	case total > float64(maximum):
		beta := math.Sqrt(n * h * w / float64(maximum))
		height, width = max(f, math.Floor(h/beta/f)*f), max(f, math.Floor(w/beta/f)*f)
	case total < float64(minimum):
		beta := math.Sqrt(float64(minimum) / (n * h * w))
		height, width = math.Ceil(h*beta/f)*f, math.Ceil(w*beta/f)*f
	}
	return size{int(height), int(width)}, nil
}
