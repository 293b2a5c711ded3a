package vision

import (
	"fmt"
	"math"
	"strconv"

	"github.com/snug-ml/snug"
)

// llavaNextFamily is LLaVA-NeXT's: the image in the size of a tile, then the tiles of the image in the resolution of a list that keeps
// most of its pixels. Tiles have the size that the tower takes, as in all published models.
var llavaNextFamily = family{
	types:  []string{"LlavaNextImageProcessor"},
	models: []string{"llava_next", "llava_next_video", "granite4_vision"},
	defaults: func() config {
		c := clipFamily.defaults
		c.resolutions = []size{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}}
		return c
	}(),
	read: func(c *config, f *fields) error {
		r := reader{}
		if list, ok := f.Pinpoints.([]any); ok && len(list) <= mostPatch {
			c.resolutions = nil
			for _, v := range list {
				var s size
				r.size("image_grid_pinpoints", v, &s)
				c.resolutions = append(c.resolutions, s)
			}
		} else if f.Pinpoints != nil {
			r.fail("image_grid_pinpoints", f.Pinpoints, "a list of [height, width]")
		}
		if r.err != nil {
			return r.err
		}
		c.tile = c.size.shortest
		if c.tile == 0 && c.size.height == c.size.width {
			c.tile = c.size.height
		}
		square := size{c.tile, c.tile}
		if c.tile == 0 || c.size.longest > 0 || c.crop && c.cropSize != square || !c.crop && c.cropSize.height != 0 && c.cropSize.height != c.tile {
			return fmt.Errorf("size and crop_size differ, want one square: %w", snug.ErrConfig)
		}
		if len(c.resolutions) == 0 {
			return fmt.Errorf("image_grid_pinpoints is empty: %w", snug.ErrConfig)
		}
		for _, s := range c.resolutions {
			if s.height%c.tile != 0 || s.width%c.tile != 0 || s.height == 0 || s.width == 0 {
				return fmt.Errorf("image_grid_pinpoints has [%d, %d], want multiples of %d, which is crop_size: %w", s.height, s.width, c.tile, snug.ErrConfig)
			}
		}
		return nil
	},
	plan: func(c *config, from size) (plan, error) {
		best := bestResolution(from, c.resolutions)
		p := plan{whole: from, frame: best, tile: c.tile, first: true, rows: best.height / c.tile, columns: best.width / c.tile}
		p.resize(within(from, best))
		return p, nil
	},
}

// bestResolution is select_best_resolution: the one that keeps most pixels of the image, and wastes fewest of its own.
func bestResolution(from size, resolutions []size) (best size) {
	most, least := 0, math.MaxInt
	for _, r := range resolutions {
		scale := min(float64(r.width)/float64(from.width), float64(r.height)/float64(from.height))
		kept := min(int(float64(from.width)*scale)*int(float64(from.height)*scale), from.width*from.height)
		wasted := r.width*r.height - kept
		if kept > most || kept == most && wasted < least {
			most, least, best = kept, wasted, r
		}
	}
	return best
}

// within is get_patch_output_size: the image as large as a resolution has room for it.
func within(from, to size) size {
	w, h := float64(to.width)/float64(from.width), float64(to.height)/float64(from.height)
	if w < h {
		return size{min(int(math.Ceil(float64(from.height)*w)), to.height), to.width}
	}
	return size{to.height, min(int(math.Ceil(float64(from.width)*h)), to.width)}
}

// llavaNextPrompt repeats <image> for the patches of the whole image and of the tiles, without those that see padding alone, and with one
// for the end of each row.
var llavaNextPrompt = prompt{
	classes:  []string{"LlavaNextProcessor"},
	models:   []string{"llava_next"},
	defaults: texts{image: "<image>"},
	read:     llavaPrompt.read,
	mark:     imageToken,
	tokens: func(t *texts, l Layout, from size) int {
		if len(l.Shape) != 4 {
			return 0
		}
		high, wide := l.Shape[2]/t.patch, l.Shape[3]/t.patch
		rows, columns := high*l.Rows, wide*l.Columns
		if rows == 0 || columns == 0 {
			return 0
		}
		above, left := unpadded(rows, columns, from)
		rows, columns = rows-2*above, columns-2*left
		return max(rows*columns+rows+high*wide+t.extra-t.drop, 0)
	},
	text: repeated,
}

// unpadded is unpad_image: how many rows above and below, and columns at each side, of patches see padding alone.
func unpadded(rows, columns int, from size) (above, left int) {
	if float64(from.width)/float64(from.height) > float64(columns)/float64(rows) {
		return (rows - scaled(from.height, columns, from.width)) / 2, 0
	}
	return 0, (columns - scaled(from.width, rows, from.height)) / 2
}

// scaled returns n (to/of), cut to an integer after it was rounded to 7 digits.
func scaled(n, to, of int) int {
	v := strconv.FormatFloat(float64(n)*(float64(to)/float64(of)), 'f', 7, 64)
	f, _ := strconv.ParseFloat(v, 64)
	return int(f)
}
