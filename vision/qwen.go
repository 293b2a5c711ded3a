package vision

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
)

// qwenFamily is that of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: sides that are multiples of patch_size merge_size, a number of pixels within
// bounds, patches as rows.
var qwenFamily = family{
	types: []string{"Qwen2VLImageProcessor"},
	models: []string{
		"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni", "qwen3_omni_moe", "colqwen2",
	},
	defaults: func() config {
		c := usual(sizes{shortest: 56 * 56, longest: 28 * 28 * 1280}, Bicubic, clipMean, clipStd)
		c.patch, c.temporal, c.merge = 14, 2, 2
		return c
	}(),
	read: func(c *config, f *fields) error {
		if _, isObject := f.Size.(map[string]any); f.Size != nil && !isObject {
			return c.size.useless("shortest_edge and longest_edge")
		}
		r := reader{}
		r.count("min_pixels", f.MinPixels, &c.size.shortest)
		r.count("max_pixels", f.MaxPixels, &c.size.longest)
		r.count("patch_size", f.Patch, &c.patch)
		r.count("temporal_patch_size", f.Temporal, &c.temporal)
		r.count("merge_size", f.Merge, &c.merge)
		switch {
		case r.err != nil:
			return r.err
		case c.size.shortest == 0 || c.size.longest == 0 || c.size.height > 0 || c.size.maxHeight > 0:
			return c.size.useless("shortest_edge and longest_edge, which are numbers of pixels")
		case c.patch > mostPatch || c.merge > mostPatch || c.temporal > mostPatch:
			return fmt.Errorf("patch_size %d, merge_size %d, temporal_patch_size %d, want at most %d: %w", c.patch, c.merge, c.temporal, mostPatch, snug.ErrConfig)
		}
		return nil
	},
	limit: func(c *config, pixels int) { c.size.longest, c.size.shortest = pixels, min(c.size.shortest, pixels) },
	plan: func(c *config, from size) (plan, error) {
		p := plan{whole: from, patch: c.patch, merge: c.merge, temporal: c.temporal}
		if c.resize {
			to, err := smart(from, c.patch*c.merge, c.size.shortest, c.size.longest)
			if err != nil {
				return p, err
			}
			p.resize(to)
		}
		return p, nil
	},
}

// mostPatch is the largest side of a patch, or number of patches that are merged.
const mostPatch = 1 << 10

// qwenPrompt repeats <|image_pad|>, which chat templates put between <|vision_start|> and <|vision_end|>, and <|video_pad|>.
var qwenPrompt = prompt{
	classes: []string{"Qwen2VLProcessor", "Qwen2_5_VLProcessor"},
	models:  []string{"qwen2_vl", "qwen2_5_vl"},

	defaults: qwenTexts,
	mark:     imageToken,
	tokens:   qwenTokens,
	text:     repeated,
	video:    &videoPrompt{videoToken, gridTokens, func(t *texts, l Layout) string { return strings.Repeat(t.video, l.Tokens) }},
}

// qwen3Prompt is the same for images. A video has for each patch along time its seconds, and <|video_pad|> between marks of its own.
var qwen3Prompt = prompt{
	classes: []string{"Qwen3VLProcessor"},
	models:  []string{"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"},

	defaults: qwenTexts,
	mark:     imageToken,
	tokens:   qwenTokens,
	text:     repeated,
	video: &videoPrompt{videoToken, gridTokens, func(t *texts, l Layout) string {
		var b strings.Builder
		for _, seconds := range l.Times {
			fmt.Fprintf(&b, "<%.1f seconds>%s%s%s", seconds, t.start, strings.Repeat(t.video, l.Tokens/len(l.Times)), t.stop)
		}
		return b.String()
	}},
}

var qwenTexts = texts{image: "<|image_pad|>", video: "<|video_pad|>", start: "<|vision_start|>", stop: "<|vision_end|>"}

func qwenTokens(t *texts, l Layout, _ size) int { return gridTokens(t, l) }

func gridTokens(_ *texts, l Layout) int {
	return l.Grid[0] * l.Grid[1] * l.Grid[2] / max(l.Merge*l.Merge, 1)
}

// What prompts share.

func imageToken(t *texts) string { return t.image }

func videoToken(t *texts) string { return t.video }

func fixedLength(t *texts, _ Layout, _ size) int { return t.length }

func repeated(t *texts, l Layout) string { return strings.Repeat(t.image, l.Tokens) }

func needs(file, field string) error {
	return fmt.Errorf("%s has no %s from 1 to %d, which the text needs: %w", file, field, mostTokens, snug.ErrConfig)
}
