package vision

import (
	"image"
	"image/color"
)

// rgb converts an image as Pillow's convert("RGB") does with the mode that Pillow has for it.
func rgb(m image.Image, onWhite bool) *Image {
	b := m.Bounds()
	out := newImage(b.Dx(), b.Dy())
	if a, ok := m.(*image.NYCbCrA); ok && (a.SubsampleRatio != image.YCbCrSubsampleRatio420 || !onSample(b.Min, image.Point{X: 2, Y: 2})) {
		m = struct{ image.Image }{m} // not as WebP has it: pixel by pixel
	}
	var alpha func(x, y int) uint8 // nil if every pixel is opaque
	switch m := m.(type) {
	case *image.YCbCr:
		jpegRGB(out, m)
	case *image.NYCbCrA:
		webpRGB(out, &m.YCbCr)
		alpha = func(x, y int) uint8 { return m.A[m.AOffset(b.Min.X+x, b.Min.Y+y)] }
	case *image.Gray:
		each(out, func(x, y int, p []byte) {
			v := m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y)]
			p[0], p[1], p[2] = v, v, v
		})
	case *image.Gray16: // Pillow's "I;16"
		each(out, func(x, y int, p []byte) {
			i := m.PixOffset(b.Min.X+x, b.Min.Y+y)
			v := clipped(m.Pix[i], m.Pix[i+1])
			p[0], p[1], p[2] = v, v, v
		})
	case *image.Paletted:
		palette := make([]color.NRGBA, 256)
		for i, c := range m.Palette[:min(len(m.Palette), 256)] {
			palette[i] = nrgba(c)
		}
		at := func(x, y int) color.NRGBA { return palette[m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y)]] }
		each(out, func(x, y int, p []byte) {
			c := at(x, y)
			p[0], p[1], p[2] = c.R, c.G, c.B
		})
		alpha = func(x, y int) uint8 { return at(x, y).A }
	case *image.NRGBA:
		each(out, func(x, y int, p []byte) {
			i := m.PixOffset(b.Min.X+x, b.Min.Y+y)
			copy(p, m.Pix[i:i+3])
		})
		alpha = func(x, y int) uint8 { return m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y)+3] }
	case *image.NRGBA64:
		each(out, func(x, y int, p []byte) {
			i := m.PixOffset(b.Min.X+x, b.Min.Y+y)
			p[0], p[1], p[2] = m.Pix[i], m.Pix[i+2], m.Pix[i+4]
		})
		alpha = func(x, y int) uint8 { return m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y)+6] }
	case *image.RGBA:
		each(out, func(x, y int, p []byte) {
			i := m.PixOffset(b.Min.X+x, b.Min.Y+y)
			unmultiply(p, m.Pix[i], m.Pix[i+1], m.Pix[i+2], m.Pix[i+3])
		})
		alpha = func(x, y int) uint8 { return m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y)+3] }
	case *image.RGBA64:
		each(out, func(x, y int, p []byte) {
			i := m.PixOffset(b.Min.X+x, b.Min.Y+y)
			unmultiply(p, m.Pix[i], m.Pix[i+2], m.Pix[i+4], m.Pix[i+6])
		})
		alpha = func(x, y int) uint8 { return m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y)+6] }
	case *image.CMYK:
		each(out, func(x, y int, p []byte) {
			c := m.Pix[m.PixOffset(b.Min.X+x, b.Min.Y+y):]
			k := 255 - int(c[3])
			for i := range p {
				p[i] = byte(max(k-over255(int(c[i])*k), 0))
			}
		})
	default:
		at := func(x, y int) color.NRGBA { return nrgba(m.At(b.Min.X+x, b.Min.Y+y)) }
		each(out, func(x, y int, p []byte) {
			c := at(x, y)
			p[0], p[1], p[2] = c.R, c.G, c.B
		})
		alpha = func(x, y int) uint8 { return at(x, y).A }
	}
	if onWhite && alpha != nil {
		each(out, func(x, y int, p []byte) { white(p, alpha(x, y)) })
	}
	return out
}

func newImage(width, height int) *Image {
	return &Image{width, height, make([]byte, 3*width*height)}
}

func clip(x int) byte { return byte(min(max(x, 0), 255)) }

// each calls set for the three bytes of every pixel.
func each(m *Image, set func(x, y int, p []byte)) {
	i := 0
	for y := range m.Height {
		for x := range m.Width {
			set(x, y, m.Pix[i:i+3:i+3])
			i += 3
		}
	}
}

// clipped returns a gray level of 16 bits, of which hi and lo are the bytes, clipped at 255.
func clipped(hi, lo byte) byte {
	if hi > 0 {
		return 255
	}
	return lo
}

func nrgba(c color.Color) color.NRGBA {
	if c == nil {
		return color.NRGBA{A: 255}
	}
	return color.NRGBAModel.Convert(c).(color.NRGBA)
}

// over255 returns x/255, rounded, as Pillow's macro MULDIV255 has it.
func over255(x int) int {
	x += 128
	return (x>>8 + x) >> 8
}

// unmultiply sets p to a colour without the alpha that it was multiplied by.
func unmultiply(p []byte, r, g, b, a byte) {
	if a == 0 || a == 255 {
		p[0], p[1], p[2] = r, g, b
		return
	}
	for i, v := range [3]byte{r, g, b} {
		p[i] = byte(min(255*int(v)/int(a), 255))
	}
}

// white lays a colour with alpha on white, as Pillow's alpha_composite does in fixed point.
func white(p []byte, alpha byte) {
	const bits = 7
	if alpha == 0 {
		p[0], p[1], p[2] = 255, 255, 255
		return
	}
	blend := 255 * (255 - int(alpha))
	whole := int(alpha)*255 + blend
	own := int(alpha) * 255 * 255 * (1 << bits) / whole
	rest := 255*(1<<bits) - own
	for i, v := range p {
		x := int(v)*own + 255*rest + 0x80<<bits
		p[i] = byte((x>>8 + x) >> 8 >> bits)
	}
}

// sideways reports whether an image that is turned as EXIF says has rows in place of columns.
func sideways(orientation int) bool { return orientation > 4 && orientation <= 8 }

// turn returns an image with the side up that an orientation of EXIF names. Orientations above 4 change rows and columns.
func turn(m *Image, orientation int) *Image {
	if orientation < 2 || orientation > 8 {
		return m
	}
	w, h := m.Width, m.Height
	if sideways(orientation) {
		w, h = h, w
	}
	out := newImage(w, h)
	each(out, func(x, y int, p []byte) {
		fromX, fromY := x, y
		switch orientation {
		case 2: // left and right
			fromX = w - 1 - x
		case 3: // half a turn
			fromX, fromY = w-1-x, h-1-y
		case 4: // up and down
			fromY = h - 1 - y
		case 5: // along the diagonal
			fromX, fromY = y, x
		case 6: // a quarter, clockwise
			fromX, fromY = y, w-1-x
		case 7: // along the other diagonal
			fromX, fromY = h-1-y, w-1-x
		case 8: // a quarter, counterclockwise
			fromX, fromY = h-1-y, x
		}
		copy(p, m.Pix[3*(fromY*m.Width+fromX):][:3])
	})
	return out
}
