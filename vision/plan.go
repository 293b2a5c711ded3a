package vision

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Layout is what a processor makes of an image of one size: the shape of its values, and its place in the model's text.
type Layout struct {
	// Shape is tiles, 3, height, width; or patches, values of a patch where the model takes patches as rows.
	Shape []int
	// Grid is the number of patches along time, height and width, before they are merged, of a model that takes patches, and 0 otherwise.
	Grid [3]int
	// Merge is how many patches along height, and along width, become one token, and 0 without Grid.
	Merge int
	// Rows and Columns are those of the tiles that the image was split into, besides the tile that shows all of it; 0 if it was not.
	Rows, Columns int
	// Height and Width are the pixels of the resized image: before it was split, padded or cut into patches, and after it was cropped.
	Height, Width int
	// OriginalHeight and OriginalWidth are the pixels of the image before all steps.
	OriginalHeight, OriginalWidth int
	// Tokens is how many tokens of the text stand for the image and get its features; 0 for a model without text.
	Tokens int
	// Bytes is the most that Process allocates for such an image, its values included; of a video the most that is held at once.
	Bytes int64
	// Frames is how many frames a video has before the last is repeated, and 0 for an image.
	Frames int
	// Interval is the seconds between two patches of a video along time: second_per_grid_ts.
	Interval float64
	// Times are the seconds at which the patches of a video along time are shown, each in the middle of its frames.
	Times []float64
}

// Len returns the number of values.
func (l Layout) Len() int {
	if len(l.Shape) == 0 {
		return 0
	}
	n := 1
	for _, s := range l.Shape {
		n *= s
	}
	return n
}

// plan is the way from an image to values. Zero values are steps that are not taken.
type plan struct {
	square     bool // pad to a square first
	background [3]byte
	sizes      []size // resize to each in turn
	crop       size   // then cut out the middle
	frame      size   // then put into the middle of black of this size
	tile       int    // then cut into tiles of this side, if there are several, and append all resized to it
	first      bool   // put all resized to it before the tiles instead, as it was before the other steps
	patch      int    // then take patches of this side as rows
	merge      int    // in squares of so many
	temporal   int    // each so many times, or of so many frames of a video
	times      int    // patches of a video along time; 0: an image
	pad        size   // at the end, with the value 0

	rows, columns int
	whole         size // what the image is before tiles, patches or pad
}

// usualPlan is that of the class attributes alone: resize, crop, pad.
func usualPlan(c *config, from size) (plan, error) {
	p := plan{whole: from}
	if c.resize {
		to, err := c.size.target(from)
		if err != nil {
			return p, err
		}
		p.resize(to)
	}
	p.finish(c)
	return p, nil
}

func (p *plan) resize(to size) {
	p.sizes = append(p.sizes, to)
	p.whole = to
}

// finish adds crop and pad.
func (p *plan) finish(c *config) {
	if c.crop {
		p.crop, p.whole = c.cropSize, c.cropSize
	}
	if c.pad {
		p.pad = c.padSize
	}
}

// tiles returns how many tiles there are and the size of each, with its padding.
func (p *plan) tiles() (n int, each size) {
	switch {
	case p.rows > 0:
		return p.rows*p.columns + 1, size{p.tile, p.tile}
	case p.pad != size{}:
		return 1, p.pad
	}
	return 1, p.whole
}

// check returns an error if a step cannot be taken, or takes too much.
func (p *plan) check(from size) error {
	at := from
	if p.square {
		side := max(at.height, at.width)
		at = size{side, side}
		if err := sizeFits(side, side); err != nil {
			return err
		}
	}
	for i, s := range p.sizes {
		fits := sizeFits
		if i == len(p.sizes)-1 && p.crop != (size{}) {
			fits = sideFits // only the middle of it is computed
		}
		if err := fits(s.width, s.height); err != nil {
			return err
		}
		at = s
	}
	if p.crop != (size{}) {
		at = p.crop
	}
	if err := sizeFits(at.width, at.height); err != nil {
		return err
	}
	if p.pad != (size{}) && (p.pad.height < at.height || p.pad.width < at.width) {
		return fmt.Errorf("pad_size of %d x %d pixels is less than the image's %d x %d: %w", p.pad.width, p.pad.height, at.width, at.height, snug.ErrConfig)
	}
	if side := p.patch * p.merge; side > 0 && (at.height%side != 0 || at.width%side != 0) {
		return fmt.Errorf("image of %d x %d pixels, want multiples of %d: %w", at.width, at.height, side, snug.ErrShape)
	}
	if f := p.frame; f != (size{}) {
		if err := sizeFits(f.width, f.height); err != nil {
			return err
		}
	}
	n, each := p.tiles()
	values := 3 * float64(n) * float64(each.height) * float64(each.width) * float64(max(p.temporal, 1)) * float64(max(p.times, 1))
	if values > maxPixels {
		return fmt.Errorf("%.0f values of an image or a video, want at most %d: %w", values, maxPixels, snug.ErrNoMemory)
	}
	return nil
}

// layout returns the layout of the values, without tokens.
func (p *plan) layout(from size, f Filter) Layout {
	n, each := p.tiles()
	l := Layout{Shape: []int{n, 3, each.height, each.width}, Height: p.whole.height, Width: p.whole.width, OriginalHeight: from.height, OriginalWidth: from.width, Rows: p.rows, Columns: p.columns}
	if p.patch > 0 {
		l.Grid = [3]int{max(p.times, 1), each.height / p.patch, each.width / p.patch}
		l.Merge = p.merge
		l.Shape = []int{l.Grid[0] * l.Grid[1] * l.Grid[2], 3 * p.temporal * p.patch * p.patch}
	}
	l.Bytes = p.bytes(from, f) + 4*int64(l.Len())
	if p.times > 0 {
		l.Bytes += int64(p.temporal) * p.bytes(from, f)
	}
	l.Bytes += l.Bytes/8 + 1<<17 // what Go's allocator adds, tables and descriptions
	return l
}

// bytes is what the steps before the values allocate.
func (p *plan) bytes(from size, f Filter) int64 {
	total := int64(0)
	image := func(s size) { total += 3 * int64(s.height) * int64(s.width) }
	at := from
	if p.square {
		at = size{max(at.height, at.width), max(at.height, at.width)}
		image(at)
	}
	resized := func(to, part size) {
		image(part)
		image(size{at.height, part.width})
		total += weightBytes(at.height, to.height, part.height, f) + weightBytes(at.width, to.width, part.width, f) + 12*int64(part.width)
	}
	for i, s := range p.sizes {
		part := s
		if i == len(p.sizes)-1 && p.crop != (size{}) {
			part = size{min(s.height, p.crop.height), min(s.width, p.crop.width)}
		}
		resized(s, part)
		at = part
	}
	if p.crop != (size{}) {
		image(p.crop)
	}
	if p.frame != (size{}) {
		image(p.frame)
		at = p.frame
	}
	if p.rows > 0 {
		if p.first {
			at = from
		}
		resized(size{p.tile, p.tile}, size{p.tile, p.tile})
	}
	return total
}

// weightBytes is the most that the weights of an axis allocate: two indices for each output, and each weight in three forms at most.
func weightBytes(in, out, n int, f Filter) int64 {
	if f == Nearest {
		return 8 * int64(out)
	}
	most := 2*math.Ceil(kernels[f].support*max(float64(in)/float64(out), 1)) + 1
	return 16*int64(n) + 12*int64(n)*int64(min(most, float64(in))) + 8*int64(most) + 64
}

// levels returns what each level of a channel becomes.
func (c *config) levels(b backend) (levels [3][256]float32) {
	for ch := range levels {
		levels[ch] = b.values(c, ch)
	}
	return levels
}

// run takes the steps.
func (p *plan) run(m *Image, c *config, b backend) []float32 {
	original := m
	m = p.resized(m, c, b)
	n, each := p.tiles()
	values := make([]float32, n*3*each.height*each.width*max(p.temporal, 1))
	levels := c.levels(b)
	switch {
	case p.patch > 0:
		p.patches(values, slices.Repeat([]*Image{m}, p.temporal), &levels)
	case p.rows > 0:
		tile := 3 * p.tile * p.tile
		parts, all := values[:(n-1)*tile], values[(n-1)*tile:]
		if p.first {
			parts, all = values[tile:], values[:tile]
		}
		for i := range p.rows * p.columns {
			planes(parts[i*tile:][:tile], m, window{i % p.columns * p.tile, i / p.columns * p.tile, p.tile, p.tile}, each, &levels)
		}
		if p.first {
			m = original
		}
		m = resize(m, p.tile, p.tile, window{0, 0, p.tile, p.tile}, c.filter, b)
		planes(all, m, window{0, 0, p.tile, p.tile}, each, &levels)
	default:
		planes(values, m, window{0, 0, m.Width, m.Height}, each, &levels)
	}
	return values
}

// resized takes the steps before tiles or patches.
func (p *plan) resized(m *Image, c *config, b backend) *Image {
	if p.square {
		m = squared(m, p.background)
	}
	for i, s := range p.sizes {
		part := window{0, 0, s.width, s.height}
		if i == len(p.sizes)-1 && p.crop != (size{}) {
			part = middle(s, p.crop)
		}
		if (size{m.Height, m.Width}) != s || part.width != s.width || part.height != s.height {
			m = resize(m, s.width, s.height, part, c.filter, b)
		}
	}
	if p.crop != (size{}) {
		m = centred(m, p.crop, b)
	}
	if p.frame != (size{}) {
		framed := newImage(p.frame.width, p.frame.height)
		paste(framed, m, (framed.Width-m.Width)/2, (framed.Height-m.Height)/2)
		m = framed
	}
	return m
}

// squared puts the image in the middle of a square with a background.
func squared(m *Image, background [3]byte) *Image {
	side := max(m.Width, m.Height)
	if m.Width == m.Height {
		return m
	}
	out := newImage(side, side)
	each(out, func(_, _ int, p []byte) { copy(p, background[:]) })
	paste(out, m, (side-m.Width)/2, (side-m.Height)/2)
	return out
}

// paste copies m to out at a place where it fits.
func paste(out, m *Image, x, y int) {
	for i := range m.Height {
		copy(out.Pix[3*((y+i)*out.Width+x):], m.Pix[3*i*m.Width:][:3*m.Width])
	}
}

// middle returns the part of an image that a crop from its middle shows.
func middle(s, crop size) window {
	w := window{width: min(s.width, crop.width), height: min(s.height, crop.height)}
	w.x, w.y = (s.width-w.width)/2, (s.height-w.height)/2
	return w
}

// centred cuts the middle out of an image, and puts black around it where the image is smaller.
func centred(m *Image, crop size, b backend) *Image {
	if (size{m.Height, m.Width}) == crop {
		return m
	}
	out := newImage(crop.width, crop.height)
	w := middle(size{m.Height, m.Width}, crop)
	x, y := 0, 0
	if m.Width < crop.width {
		x = b.before(crop.width, m.Width)
	}
	if m.Height < crop.height {
		y = b.before(crop.height, m.Height)
	}
	for i := range w.height {
		copy(out.Pix[3*((y+i)*out.Width+x):], m.Pix[3*((w.y+i)*m.Width+w.x):][:3*w.width])
	}
	return out
}

// planes writes a part of an image as three planes, at the top left of planes of a size.
func planes(values []float32, m *Image, part window, to size, levels *[3][256]float32) {
	for ch := range levels {
		level, plane := &levels[ch], values[ch*to.height*to.width:]
		for y := range part.height {
			in := m.Pix[3*((part.y+y)*m.Width+part.x)+ch:]
			out := plane[y*to.width:][:part.width]
			for x := range out {
				out[x] = level[in[3*x]]
			}
		}
	}
}

// patches writes frames as rows of patches, in Qwen2-VL's order: rows go by squares of merge x merge patches, which become one token;
// within a row are channel, frame, height, width. It returns the values behind them.
func (p *plan) patches(values []float32, frames []*Image, levels *[3][256]float32) []float32 {
	side, square := p.patch, p.patch*p.merge
	area := side * side
	for y0 := 0; y0 < frames[0].Height; y0 += square {
		for x0 := 0; x0 < frames[0].Width; x0 += square {
			for i := range p.merge * p.merge {
				y, x := y0+i/p.merge*side, x0+i%p.merge*side
				for ch := range levels {
					before := []float32(nil)
					for t, m := range frames {
						part := values[:area]
						if t > 0 && m == frames[t-1] {
							copy(part, before)
						} else {
							m.levels(part, x, y, ch, side, &levels[ch])
						}
						before, values = part, values[area:]
					}
				}
			}
		}
	}
	return values
}

// levels writes a channel of a square of an image.
func (m *Image) levels(to []float32, x, y, ch, side int, levels *[256]float32) {
	for row := range side {
		in := m.Pix[3*((y+row)*m.Width+x)+ch:]
		for j := range side {
			to[row*side+j] = levels[in[3*j]]
		}
	}
}
