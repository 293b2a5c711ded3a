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

// qwenPrompt repeats <|image_pad|>, which chat templates put between <|vision_start|> and <|vision_end|>.
var qwenPrompt = prompt{
	classes: []string{"Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"},
	models:  []string{"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"},

	defaults: texts{image: "<|image_pad|>"},
	mark:     imageToken,
	tokens: func(_ *texts, l Layout, _ size) int {
		return l.Grid[0] * l.Grid[1] * l.Grid[2] / max(l.Merge*l.Merge, 1)
	},
	text: repeated,
}

// Positions returns the positions of tokens along time, height and width for multimodal rotary embedding, and the position of the token that would be next,
// as get_rope_index of Qwen2-VL, Qwen2.5-VL and Qwen3-VL computes them for images. ids is one sequence, image the id of the image token, and
// images the layouts of the images in it, in turn: each run of image tokens is one image.
//
//	text:   t = h = w = p, p grows by 1
//	image:  (t, h, w) = (p, p + i, p + j) of row i and column j of merged patches, then p grows by max(rows, columns)
//
// positions[:] is Batch.Positions of package transformer.
// It allocates 12 bytes a token. The error wraps [snug.ErrShape] if the runs are not the images.
func Positions(ids []int32, image int32, images []Layout) (positions [3][]int32, next int32, err error) {
	left := images
	all := make([]int32, 3*len(ids))
	for a := range positions {
		positions[a] = all[a*len(ids):][:len(ids):len(ids)]
	}
	for i := 0; i < len(ids); {
		if ids[i] != image {
			positions[0][i], positions[1][i], positions[2][i] = next, next, next
			next++
			i++
			continue
		}
		run := i
		for run < len(ids) && ids[run] == image {
			run++
		}
		if len(left) == 0 {
			return [3][]int32{}, 0, fmt.Errorf("vision: image tokens at %d beyond the %d images: %w", i, len(images), snug.ErrShape)
		}
		l := left[0]
		left = left[1:]
		if err := l.check(); err != nil {
			return [3][]int32{}, 0, err
		}
		merge := max(l.Merge, 1)
		times, rows, columns := l.Grid[0], l.Grid[1]/merge, l.Grid[2]/merge
		if n := int64(times) * int64(rows) * int64(columns); n != int64(run-i) {
			return [3][]int32{}, 0, fmt.Errorf("vision: %d image tokens at %d, want %d for a grid of %v: %w", run-i, i, n, l.Grid, snug.ErrShape)
		}
		for j := range run - i {
			positions[0][i+j] = next + int32(j/(rows*columns))
			positions[1][i+j] = next + int32(j/columns%rows)
			positions[2][i+j] = next + int32(j%columns)
		}
		next += int32(max(rows, columns))
		i = run
	}
	if len(left) > 0 {
		return [3][]int32{}, 0, fmt.Errorf("vision: %d images without image tokens, want a run of them for each of %d: %w", len(left), len(images), snug.ErrShape)
	}
	return positions, next, nil
}

// What prompts share.

func imageToken(t *texts) string { return t.image }

func fixedLength(t *texts, _ Layout, _ size) int { return t.length }

func repeated(t *texts, l Layout) string { return strings.Repeat(t.image, l.Tokens) }

func needs(file, field string) error {
	return fmt.Errorf("%s has no %s from 1 to %d, which the text needs: %w", file, field, mostTokens, snug.ErrConfig)
}
