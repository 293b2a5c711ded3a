package vision

import (
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
)

// idefics3Family is that of Idefics3 and SmolVLM: the longest edge gets a fixed size, then both edges become multiples of a tile's side,
// then the image is cut into tiles, which are followed by all of it in the size of a tile. No tile is padded: pixel_attention_mask is 1.
var idefics3Family = family{
	types:  []string{"Idefics3ImageProcessor", "SmolVLMImageProcessor"},
	models: []string{"idefics3", "smolvlm"},
	defaults: func() config {
		c := usual(sizes{longest: 4 * 364}, Lanczos, half, half)
		c.split, c.tile, c.square = true, 364, true
		return c
	}(),
	read: func(c *config, f *fields) error {
		s := sizes{longest: c.tile}
		r := reader{}
		r.sizes("max_image_size", f.TileSize, &s, true)
		switch {
		case r.err != nil:
			return r.err
		case s.longest == 0:
			return fmt.Errorf("max_image_size has no longest_edge: %w", snug.ErrConfig)
		case c.resize && c.size.longest == 0 && (c.size.height == 0 || c.size.width == 0):
			return c.size.useless("longest_edge, or height and width")
		}
		c.tile = s.longest
		return nil
	},
	plan: func(c *config, from size) (plan, error) {
		p := plan{whole: from, tile: c.tile}
		if c.resize {
			to := size{c.size.height, c.size.width}
			if c.size.longest > 0 {
				to = longestEdge(from, c.size.longest)
			}
			p.resize(to)
		}
		if !c.split {
			p.resize(size{c.tile, c.tile})
			return p, nil
		}
		to := multiples(p.whole, c.tile)
		p.resize(to)
		if to.height > c.tile || to.width > c.tile {
			p.rows, p.columns = to.height/c.tile, to.width/c.tile
		}
		return p, nil
	},
}

// longestEdge is get_resize_output_image_size: the other edge is even, and no edge above 4096.
func longestEdge(from size, longest int) size {
	const most = 4096
	ratio := float64(from.width) / float64(from.height)
	to := size{longest, longest}
	if from.width >= from.height {
		to.height = int(float64(longest) / ratio)
		to.height += to.height % 2
	} else {
		to.width = int(float64(longest) * ratio)
		to.width += to.width % 2
	}
	to.height, to.width = max(to.height, 1), max(to.width, 1)
	ratio = float64(to.width) / float64(to.height)
	switch {
	case to.width >= to.height && to.width > most:
		to = size{int(most / ratio), most}
	case to.height > to.width && to.height > most:
		to = size{most, int(most * ratio)}
	}
	return size{max(to.height, 1), max(to.width, 1)}
}

// multiples is resize_for_vision_encoder: edges that are multiples of a tile's.
func multiples(from size, tile int) size {
	up := func(n int) int { return int(math.Ceil(float64(n)/float64(tile))) * tile }
	ratio := float64(from.width) / float64(from.height)
	if from.width >= from.height {
		width := up(from.width)
		return size{up(int(float64(width) / ratio)), width}
	}
	height := up(from.height)
	return size{height, up(int(float64(height) * ratio))}
}

// idefics3Prompt has a line of text for each row of tiles. Each tile has its row and column, the last one its own mark.
var idefics3Prompt = prompt{
	classes:  []string{"Idefics3Processor"},
	models:   []string{"idefics3"},
	defaults: texts{image: "<image>", fake: "<fake_token_around_image>", global: "<global-img>", length: 169},
	mark:     imageToken,
	tokens:   func(t *texts, l Layout, _ size) int { return t.length * (l.Rows*l.Columns + 1) },
	text: func(t *texts, l Layout) string {
		var b strings.Builder
		image := strings.Repeat(t.image, t.length)
		for row := range l.Rows {
			for column := range l.Columns {
				fmt.Fprintf(&b, "%s<row_%d_col_%d>%s", t.fake, row+1, column+1, image)
			}
			b.WriteByte('\n')
		}
		if l.Rows > 0 {
			b.WriteByte('\n')
		}
		return b.String() + t.fake + t.global + image + t.fake
	},
}

// smolvlmPrompt is the same with the tokens that the tokenizer names.
var smolvlmPrompt = prompt{
	classes:  []string{"SmolVLMProcessor"},
	models:   []string{"smolvlm"},
	defaults: idefics3Prompt.defaults,
	mark:     idefics3Prompt.mark,
	tokens:   idefics3Prompt.tokens,
	text:     idefics3Prompt.text,
}
