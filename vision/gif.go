package vision

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"io"
	"iter"
	"slices"

	"github.com/snug-ml/snug"
)

var gifFormat = func() format {
	return format{"GIF", func(file []byte) bool { return prefix("GIF87a")(file) || prefix("GIF89a")(file) }, gifSize, decodeGIF, func([]byte) int { return 0 }}
}()

// animation is what a GIF file holds, without the pixels.
type animation struct {
	width, height int // of the screen and of the first frame
	palette       []byte
	background    int // 0 in a file without a palette for all frames
	frames        []gifFrame
}

// gifFrame is a frame that is not decompressed.
type gifFrame struct {
	at           image.Rectangle
	transparent  int // an index, -1 for none
	disposal     int
	delay        int // until the next frame, in hundredths of a second
	interlaced   bool
	palette      []byte // 3 bytes a colour, of the frame or of the file; nil for gray levels
	compressed   []byte // the size of codes and the blocks after it
	endOfPicture bool   // whether the blocks ended before the file
}

var errGIFEnds = errors.New("file ends within a block")

// gifBytes reads a file from its beginning. After a read beyond the end it returns zeros and over is set.
type gifBytes struct {
	rest []byte
	over bool
}

func (b *gifBytes) take(n int) []byte {
	if n > len(b.rest) {
		b.rest, b.over = nil, true
		return make([]byte, n)
	}
	taken := b.rest[:n]
	b.rest = b.rest[n:]
	return taken
}

func (b *gifBytes) number() int { n := b.take(2); return int(n[0]) | int(n[1])<<8 }

// blocks passes over blocks with a byte of length each, up to the empty one, and returns the first.
func (b *gifBytes) blocks() (first []byte) {
	for {
		block := b.take(int(b.take(1)[0]))
		if len(block) == 0 || b.over {
			return first
		}
		if first == nil {
			first = block
		}
	}
}

// maxFrames is the most frames of a file.
const maxFrames = 1 << 18

// scanGIF finds the frames of a file: the first, or all of them. It holds 150 bytes a frame.
func scanGIF(file []byte, all bool) (*animation, error) {
	b := &gifBytes{rest: file[6:]}
	a := &animation{width: b.number(), height: b.number()}
	flags := b.take(1)[0]
	background := int(b.take(1)[0])
	b.take(1)
	if flags&0x80 != 0 {
		a.background = background
		a.palette = b.take(3 << (flags&7 + 1))
	}
	transparent, disposal, delay := -1, 0, 0
	for !b.over {
		if len(b.rest) == 0 {
			break
		}
		switch kind := b.take(1)[0]; kind {
		case '!':
			label := b.take(1)[0]
			if block := b.blocks(); label == 0xf9 && len(block) >= 4 {
				delay = int(block[1]) | int(block[2])<<8
				if block[0]&1 != 0 {
					transparent = int(block[3])
				}
				if d := int(block[0] >> 2 & 7); d != 0 { // Pillow keeps the last that was named
					disposal = d
				}
			}
		case ',':
			x, y, w, h := b.number(), b.number(), b.number(), b.number()
			f := gifFrame{at: image.Rect(x, y, x+w, y+h), transparent: transparent, disposal: disposal, delay: delay, palette: a.palette}
			flags := b.take(1)[0]
			f.interlaced = flags&0x40 != 0
			if flags&0x80 != 0 {
				f.palette = b.take(3 << (flags&7 + 1))
			}
			begin := b.rest
			b.take(1)
			b.blocks()
			f.compressed, f.endOfPicture = begin[:len(begin)-len(b.rest)], !b.over
			a.frames = append(a.frames, f)
			if len(a.frames) > maxFrames {
				return a, fmt.Errorf("more than %d frames: %w", maxFrames, snug.ErrNoMemory)
			}
			transparent, delay = -1, 0
			if !all {
				return a, nil
			}
		case ';':
			b.rest = nil
		}
	}
	if b.over {
		return a, errGIFEnds
	}
	return a, nil
}

func gifSize(file []byte) (width, height int, err error) {
	a, err := scanGIF(file, false)
	if len(a.frames) == 0 {
		if err == nil {
			err = errors.New("no frame, want at least one")
		}
		return 0, 0, err
	}
	return max(a.width, a.frames[0].at.Max.X), max(a.height, a.frames[0].at.Max.Y), nil
}

func decodeGIF(file []byte, o DecodeOptions) (*Image, error) {
	a, _ := scanGIF(file, false) // gifSize has had its error
	for m, err := range a.pictures(o) {
		return m.rgb(o), err
	}
	return nil, errGIFEnds
}

// indices decompresses a frame: one byte a pixel, of the frame alone. Package gif reads a file that has this frame alone, with 256 colours.
func (f *gifFrame) indices() ([]byte, error) {
	if !f.endOfPicture {
		return nil, errGIFEnds
	}
	w, h := f.at.Dx(), f.at.Dy()
	size := []byte{byte(w), byte(w >> 8), byte(h), byte(h >> 8)}
	flags := byte(0x87)
	if f.interlaced {
		flags |= 0x40
	}
	head := append([]byte("GIF89a"), size...)
	head = append(head, 0, 0, 0, ',', 0, 0, 0, 0)
	head = append(append(head, size...), flags)
	head = append(head, make([]byte, 3*256)...)
	m, err := gif.Decode(io.MultiReader(bytes.NewReader(head), bytes.NewReader(f.compressed), bytes.NewReader([]byte(";"))))
	if err != nil {
		return nil, err
	}
	p, ok := m.(*image.Paletted)
	if !ok || len(p.Pix) < w*h {
		return nil, errGIFEnds
	}
	return p.Pix[:w*h], nil
}

// colours returns the palette of a frame with gray levels where it ends. The transparent colour has no alpha.
func (f *gifFrame) colours() (palette [256][4]byte) {
	for i := range palette {
		v := byte(i)
		palette[i] = [4]byte{v, v, v, 255}
		if rgb := f.palette; len(rgb) >= 3*i+3 {
			copy(palette[i][:], rgb[3*i:3*i+3])
		}
	}
	if f.transparent >= 0 {
		palette[f.transparent][3] = 0
	}
	return palette
}

// picture is what is seen after a frame, in RGB with alpha.
type picture struct {
	width, height int
	pix           [][4]byte
}

func (p *picture) rgb(o DecodeOptions) *Image {
	if p == nil {
		return nil
	}
	out := newImage(p.width, p.height)
	for i, c := range p.pix {
		copy(out.Pix[3*i:], c[:3])
		if o.OnWhite {
			white(out.Pix[3*i:3*i+3], c[3])
		}
	}
	return out
}

// grow gives the picture a larger size, with a colour where there was nothing.
func (p *picture) grow(width, height int, c [4]byte) {
	if width == p.width && height == p.height {
		return
	}
	pix := slices.Repeat([][4]byte{c}, width*height)
	for y := range p.height {
		copy(pix[y*width:], p.pix[y*p.width:][:p.width])
	}
	p.width, p.height, p.pix = width, height, pix
}

// fill calls with for every pixel in r.
func (p *picture) fill(r image.Rectangle, with func(i int) ([4]byte, bool)) {
	i := 0
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			if c, ok := with(i); ok {
				p.pix[y*p.width+x] = c
			}
			i++
		}
	}
}

// pictures draws the frames one after the other by the rules of Pillow: a frame of method 2 is replaced with its transparent
// colour or the background's before the next one, one of method 3 and above with what was there before, if it is not the first. It yields one
// picture, changed in place. It holds 4 bytes a pixel of the canvas, as many of a frame of method 3, and one a pixel of a frame.
func (a *animation) pictures(o DecodeOptions) iter.Seq2[*picture, error] {
	return func(yield func(*picture, error) bool) {
		p := &picture{}
		width, height := a.width, a.height
		dispose := func() {}
		for n := range a.frames {
			f := &a.frames[n]
			width, height = max(width, f.at.Max.X), max(height, f.at.Max.Y) // frames may go beyond the screen
			if err := o.admit(width, height); err != nil {
				yield(nil, fmt.Errorf("frame %d: %w", n, err))
				return
			}
			indices, err := f.indices()
			if err != nil {
				yield(nil, fmt.Errorf("frame %d: %w", n, err))
				return
			}
			dispose()
			palette := f.colours()
			beyond := palette[max(f.transparent, 0)]
			if n > 0 && f.transparent >= 0 {
				beyond = [4]byte{}
			}
			dispose = f.disposer(p, palette, a.background, n == 0)
			p.grow(width, height, beyond)
			p.fill(f.at, func(i int) ([4]byte, bool) {
				c := palette[indices[i]]
				return c, n == 0 || c[3] > 0
			})
			if !yield(p, nil) {
				return
			}
		}
	}
}

// disposer returns what is to be done with the place of the frame before the next frame.
func (f *gifFrame) disposer(p *picture, palette [256][4]byte, background int, first bool) func() {
	c := palette[background]
	switch {
	case f.transparent >= 0:
		c = palette[f.transparent]
	case !first && f.palette != nil && 3*background+3 > len(f.palette):
		c = palette[0]
	}
	switch {
	case f.disposal < 2 || f.disposal > 2 && first && f.transparent < 0:
		return func() {}
	case f.disposal == 2 || first:
		return func() { p.fill(f.at, func(int) ([4]byte, bool) { return c, true }) }
	}
	before := make([][4]byte, f.at.Dx()*f.at.Dy()) // black where the picture did not reach
	for y := f.at.Min.Y; y < min(f.at.Max.Y, p.height); y++ {
		if f.at.Min.X < p.width {
			copy(before[(y-f.at.Min.Y)*f.at.Dx():], p.pix[y*p.width:][f.at.Min.X:min(f.at.Max.X, p.width)])
		}
	}
	return func() { p.fill(f.at, func(i int) ([4]byte, bool) { return before[i], true }) }
}

// gifAnimation reads all frames of a file.
var gifAnimation = animationFormat{"GIF", gifFormat.is, func(file []byte) (movie, error) { return scanGIF(file, true) }}

func (a *animation) count() int { return len(a.frames) }

// seconds implements movie. As in ffmpeg, a frame with no delay, or 0.01 s, takes 0.1 s.
func (a *animation) seconds() (s float64) {
	for _, f := range a.frames {
		if f.delay < 2 {
			f.delay = 10
		}
		s += float64(f.delay) / 100
	}
	return s
}
