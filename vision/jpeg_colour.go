package vision

import "image"

// image converts what was decoded to RGB.
func (d *jpegDecoder) image() *Image {
	out := newImage(d.width, d.height)
	planes := make([]plane, len(d.components))
	for i, c := range d.components {
		planes[i] = plane{
			pix: c.pix, width: divUp(d.width*c.h, d.hMax), height: divUp(d.height*c.v, d.vMax), stride: 8 * c.stride,
			h: d.hMax / c.h, v: d.vMax / c.v,
		}
	}
	if len(planes) == 1 { // gray
		planes = append(planes, planes[0], planes[0])
	}
	if d.rgb() {
		rows(out, planes[:3], func(row []byte, colours [][]byte) {
			r, g, b := colours[0], colours[1], colours[2]
			for i := range len(row) / 3 {
				p := row[3*i : 3*i+3]
				p[0], p[1], p[2] = r[i], g[i], b[i]
			}
		})
	} else {
		rows(out, planes[:3], func(row []byte, colours [][]byte) { ycc(row, colours[0], colours[1], colours[2]) })
	}
	if len(planes) == 4 {
		// Adobe writes 255 less ink. Of Y, Cb and Cr, RGB is the ink.
		invert := byte(0)
		if d.rgb() {
			invert = 255
		}
		rows(out, planes[3:], func(row []byte, colours [][]byte) {
			for i, k := range colours[0][:len(row)/3] {
				p := row[3*i : 3*i+3]
				for c, v := range p {
					p[c] = byte(max(int(k)-over255(int(v^invert)*int(k)), 0))
				}
			}
		})
	}
	return out
}

// rgb reports whether the first three components are RGB, or CMY, and not Y, Cb and Cr (jdapimin.c).
func (d *jpegDecoder) rgb() bool {
	c := d.components
	switch {
	case len(c) == 1: // gray, three times
		return true
	case len(c) == 4:
		return !d.adobe || d.transform == 0
	case d.jfif:
		return false
	case d.adobe:
		return d.transform == 0
	}
	return c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B'
}

// rows calls set for every row of an image with its upsampled colours, which have at least as many samples.
func rows(out *Image, planes []plane, set func(row []byte, colours [][]byte)) {
	buffers, colours := make([][]byte, len(planes)), make([][]byte, len(planes))
	for i, p := range planes {
		buffers[i] = make([]byte, p.width*p.h)
	}
	for y := range out.Height {
		for i, p := range planes {
			colours[i] = p.upsampled(buffers[i], y)
		}
		set(out.Pix[3*y*out.Width:][:3*out.Width], colours)
	}
}

// ycc converts a row of Y, Cb and Cr to RGB, in libjpeg's fixed point of 16 bits (jdcolor.c):
//
//	R = Y + 1.40200 Cr,  G = Y - 0.34414 Cb - 0.71414 Cr,  B = Y + 1.77200 Cb
func ycc(row, luma, cb, cr []byte) {
	const (
		half  = 1 << 15
		rOfCr = 91881
		gOfCb = 22554
		gOfCr = 46802
		bOfCb = 116130
	)
	luma = luma[:len(row)/3]
	cb, cr = cb[:len(luma)], cr[:len(luma)]
	for i, l := range luma {
		p, y, b, r := (*[3]byte)(row[3*i:]), int32(l), int32(cb[i])-128, int32(cr[i])-128
		p[0] = sample(y + (rOfCr*r+half)>>16)
		p[1] = sample(y + (half-gOfCb*b-gOfCr*r)>>16)
		p[2] = sample(y + (bOfCb*b+half)>>16)
	}
}

// ratios has the factors of package image's planes of chroma.
var ratios = map[image.YCbCrSubsampleRatio]image.Point{
	image.YCbCrSubsampleRatio444: {X: 1, Y: 1},
	image.YCbCrSubsampleRatio422: {X: 2, Y: 1},
	image.YCbCrSubsampleRatio420: {X: 2, Y: 2},
	image.YCbCrSubsampleRatio440: {X: 1, Y: 2},
	image.YCbCrSubsampleRatio411: {X: 4, Y: 1},
	image.YCbCrSubsampleRatio410: {X: 4, Y: 2},
}

// jpegRGB converts an image of package image to RGB, as if it came from a file.
func jpegRGB(out *Image, m *image.YCbCr) {
	b := m.Rect
	by, ok := ratios[m.SubsampleRatio]
	if !ok || !onSample(b.Min, by) {
		each(out, func(x, y int, p []byte) {
			c := m.YCbCrAt(b.Min.X+x, b.Min.Y+y)
			ycc(p, []byte{c.Y}, []byte{c.Cb}, []byte{c.Cr})
		})
		return
	}
	width, height := divUp(out.Width, by.X), divUp(out.Height, by.Y)
	from := m.COffset(b.Min.X, b.Min.Y)
	planes := []plane{
		{m.Y[m.YOffset(b.Min.X, b.Min.Y):], out.Width, out.Height, m.YStride, 1, 1},
		{m.Cb[from:], width, height, m.CStride, by.X, by.Y},
		{m.Cr[from:], width, height, m.CStride, by.X, by.Y},
	}
	rows(out, planes, func(row []byte, colours [][]byte) { ycc(row, colours[0], colours[1], colours[2]) })
}

// onSample reports whether a corner of an image lies at the corner of a sample of chroma, and not at one of negative places, which package
// image rounds towards 0. Parts of images may be cut between samples.
func onSample(corner, factors image.Point) bool {
	return corner.X >= 0 && corner.Y >= 0 && corner.X%factors.X == 0 && corner.Y%factors.Y == 0
}
