package vision

import (
	"bytes"
	"image"
	"image/jpeg"
)

var jpegFormat = func() format {
	size, pixels := codec(jpeg.DecodeConfig, jpeg.Decode)
	return format{"JPEG", prefix("\xff\xd8\xff"), size, pixels, jpegOrientation}
}()

// jpegOrientation looks at the application segments before the first scan.
func jpegOrientation(file []byte) int {
	var exif, xmp []byte
	for rest := file[2:]; len(rest) >= 4; {
		marker, n := rest[1], int(rest[2])<<8|int(rest[3])
		if rest[0] != 0xff {
			break
		}
		if marker == 0xff { // fill bytes may precede a marker
			rest = rest[1:]
			continue
		}
		const startOfScan, app1 = 0xda, 0xe1
		if marker == startOfScan || n < 2 || n > len(rest)-2 {
			break
		}
		if body := rest[4 : 2+n]; marker == app1 {
			switch {
			case exif == nil && bytes.HasPrefix(body, []byte("Exif\x00\x00")):
				exif = body
			case bytes.HasPrefix(body, []byte("http://ns.adobe.com/xap/1.0/\x00")):
				xmp = body
			}
		}
		rest = rest[2+n:]
	}
	return orientation(exif, xmp)
}

// chroma is a plane of Cb or Cr as libjpeg sees it: of ceil(w/h) columns and rows.
type chroma struct {
	pix                   []byte
	width, height, stride int
}

func (c chroma) row(y int) []byte {
	y = min(max(y, 0), c.height-1)
	return c.pix[y*c.stride:][:c.width]
}

// upsamplers bring row y of a plane to the columns of the image, as libjpeg-turbo does with do_fancy_upsampling (jdsample.c): with the
// weights of a triangle for factors of 2, and by repetition for others. out has room for whole samples.
var upsamplers = map[image.YCbCrSubsampleRatio]struct {
	h, v int
	row  func(out []byte, c chroma, y int)
}{
	image.YCbCrSubsampleRatio444: {1, 1, func(out []byte, c chroma, y int) { copy(out, c.row(y)) }},
	image.YCbCrSubsampleRatio422: {2, 1, func(out []byte, c chroma, y int) { h2v1(out, c.row(y)) }},
	image.YCbCrSubsampleRatio420: {2, 2, h2v2},
	image.YCbCrSubsampleRatio440: {1, 2, h1v2},
	image.YCbCrSubsampleRatio411: {4, 1, func(out []byte, c chroma, y int) { repeat(out, c.row(y), 4) }},
	image.YCbCrSubsampleRatio410: {4, 2, func(out []byte, c chroma, y int) { repeat(out, c.row(y/2), 4) }},
}

func repeat(out, in []byte, times int) {
	for i, v := range in {
		for j := range times {
			out[times*i+j] = v
		}
	}
}

// fancyWidth is the narrowest plane whose columns libjpeg interpolates.
const fancyWidth = 3

// h2v1: out[2i] = (3 in[i] + in[i-1] + 1)/4, out[2i+1] = (3 in[i] + in[i+1] + 2)/4.
func h2v1(out, in []byte) {
	if len(in) < fancyWidth {
		repeat(out, in, 2)
		return
	}
	last := len(in) - 1
	for i, v := range in {
		out[2*i] = byte((3*int(v) + int(in[max(i-1, 0)]) + 1) >> 2)
		out[2*i+1] = byte((3*int(v) + int(in[min(i+1, last)]) + 2) >> 2)
	}
	out[0], out[2*last+1] = in[0], in[last]
}

// h2v2: sums s = 3 near + far of the two nearest rows, then out[2i] = (3 s[i] + s[i-1] + 8)/16, out[2i+1] = (3 s[i] + s[i+1] + 7)/16.
func h2v2(out []byte, c chroma, y int) {
	if c.width < fancyWidth {
		repeat(out, c.row(y/2), 2)
		return
	}
	near, far := c.row(y/2), c.row(y/2-1+y%2*2)
	sum := func(i int) int { return 3*int(near[i]) + int(far[i]) }
	last := c.width - 1
	before, here := sum(0), sum(0)
	for i := range c.width {
		after := here
		if i < last {
			after = sum(i + 1)
		}
		out[2*i] = byte((3*here + before + 8) >> 4)
		out[2*i+1] = byte((3*here + after + 7) >> 4)
		before, here = here, after
	}
}

// h1v2: out = (3 near + far + 1 or 2)/4.
func h1v2(out []byte, c chroma, y int) {
	near, far := c.row(y/2), c.row(y/2-1+y%2*2)
	for i := range near {
		out[i] = byte((3*int(near[i]) + int(far[i]) + 1 + y%2) >> 2)
	}
}

// jpegRGB converts planes of Y, Cb and Cr to RGB in libjpeg's fixed point of 16 bits (jdcolor.c):
//
//	R = Y + 1.40200 Cr,  G = Y - 0.34414 Cb - 0.71414 Cr,  B = Y + 1.77200 Cb
func jpegRGB(out *Image, m *image.YCbCr) {
	const half = 1 << 15
	fix := func(x float64) int { return int(x*(1<<16) + 0.5) }
	var rOfCr, bOfCb, gOfCr, gOfCb [256]int
	for i := range 256 {
		x := i - 128
		rOfCr[i] = (fix(1.40200)*x + half) >> 16
		bOfCb[i] = (fix(1.77200)*x + half) >> 16
		gOfCr[i] = -fix(0.71414) * x
		gOfCb[i] = -fix(0.34414)*x + half
	}
	planar(out, m, func(row, luma, cb, cr []byte) {
		for i, l := range luma {
			p, y := row[3*i:3*i+3], int(l)
			p[0] = clip(y + rOfCr[cr[i]])
			p[1] = clip(y + (gOfCb[cb[i]]+gOfCr[cr[i]])>>16)
			p[2] = clip(y + bOfCb[cb[i]])
		}
	})
}

func clip(x int) byte { return byte(min(max(x, 0), 255)) }

// onSample reports whether a corner of an image lies at the corner of a sample of chroma, and not at one of negative places, which package
// image rounds towards 0. Parts of images may be cut between samples.
func onSample(corner, factors image.Point) bool {
	return corner.X >= 0 && corner.Y >= 0 && corner.X%factors.X == 0 && corner.Y%factors.Y == 0
}

// planar calls set for every row with its luma and its upsampled chroma, which have at least as many samples.
func planar(out *Image, m *image.YCbCr, set func(row, luma, cb, cr []byte)) {
	up, ok := upsamplers[m.SubsampleRatio]
	b := m.Rect
	if !ok || !onSample(b.Min, image.Point{X: up.h, Y: up.v}) {
		each(out, func(x, y int, p []byte) {
			c := m.YCbCrAt(b.Min.X+x, b.Min.Y+y)
			set(p, []byte{c.Y}, []byte{c.Cb}, []byte{c.Cr})
		})
		return
	}
	width, height := (out.Width+up.h-1)/up.h, (out.Height+up.v-1)/up.v
	from := m.COffset(b.Min.X, b.Min.Y)
	cb, cr := chroma{m.Cb[from:], width, height, m.CStride}, chroma{m.Cr[from:], width, height, m.CStride}
	rows := make([]byte, 2*width*up.h)
	cbRow, crRow := rows[:width*up.h], rows[width*up.h:]
	for y := range out.Height {
		up.row(cbRow, cb, y)
		up.row(crRow, cr, y)
		set(out.Pix[3*y*out.Width:], m.Y[m.YOffset(b.Min.X, b.Min.Y+y):][:out.Width], cbRow, crRow)
	}
}
