package vision

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"

	"golang.org/x/image/webp"
)

var webpFormat = func() format {
	size, _ := codec(webp.DecodeConfig, webp.Decode)
	is := func(file []byte) bool {
		return len(file) >= 12 && string(file[:4]) == "RIFF" && string(file[8:12]) == "WEBP"
	}
	return format{"WebP", is, size, decodeWebP, webpOrientation}
}()

// decodeWebP converts lossy images as libwebp does; those without loss have their colours.
func decodeWebP(file []byte, o DecodeOptions) (*Image, error) {
	if animatedWebP(file) {
		return nil, errors.New("animated, want one image: write the frames to a folder, or a GIF")
	}
	m, err := webp.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	if lossy, ok := m.(*image.YCbCr); ok {
		out := newImage(lossy.Rect.Dx(), lossy.Rect.Dy())
		webpRGB(out, lossy)
		return out, nil
	}
	return rgb(m, o.OnWhite), nil
}

// animatedWebP reports whether the header of a WebP declares an animation.
func animatedWebP(file []byte) bool {
	const flags, animated = 20, 2
	return len(file) > flags && string(file[8:16]) == "WEBPVP8X" && file[flags]&animated != 0
}

// webpOrientation looks at the chunks of the container.
func webpOrientation(file []byte) int {
	var exif, xmp []byte
	for rest := file[12:]; len(rest) >= 8; {
		n := uint64(binary.LittleEndian.Uint32(rest[4:]))
		if n > uint64(len(rest)-8) {
			break
		}
		switch body := rest[8 : 8+n]; string(rest[:4]) {
		case "EXIF":
			exif = body
		case "XMP ":
			xmp = body
		}
		rest = rest[min(8+n+n%2, uint64(len(rest))):]
	}
	return orientation(exif, xmp)
}

// webpRGB converts the planes of a lossy WebP to RGB as libwebp does with "fancy" upsampling. A pixel's chroma is (9a + 3b + 3c + d)/16
// of the four nearest samples, rounded in two steps (dsp/upsampling.c), and colours are in fixed point of 14 bits (dsp/yuv.h):
//
//	R = 1.164 (Y-16) + 1.596 (V-128),  G = 1.164 (Y-16) - 0.391 (U-128) - 0.813 (V-128),  B = 1.164 (Y-16) + 2.018 (U-128)
func webpRGB(out *Image, m *image.YCbCr) {
	b := m.Rect
	from := m.COffset(b.Min.X, b.Min.Y)
	width, height := (out.Width+1)/2, (out.Height+1)/2
	u := plane{pix: m.Cb[from:], width: width, height: height, stride: m.CStride}
	v := plane{pix: m.Cr[from:], width: width, height: height, stride: m.CStride}
	for y := range out.Height {
		// Samples lie between rows 2i and 2i+1: row y is near sample y/2, and far from the one beyond.
		near, far := y/2, (y-1)/2
		if y%2 == 1 {
			far = y/2 + 1
		}
		luma := m.Y[m.YOffset(b.Min.X, b.Min.Y+y):][:out.Width]
		uNear, uFar, vNear, vFar := u.row(near), u.row(far), v.row(near), v.row(far)
		p := out.Pix[3*y*out.Width:]
		for x, l := range luma {
			i, j := x/2, (x-1)/2
			if x%2 == 1 {
				j = min(x/2+1, width-1)
			}
			webpPixel(p[3*x:3*x+3], int(l), webpSample(uNear, uFar, i, j), webpSample(vNear, vFar, i, j))
		}
	}
}

// webpSample returns the chroma of a pixel that is nearest to column i of row near, next to column j and row far.
func webpSample(near, far []byte, i, j int) int {
	a, b, c, d := int(near[i]), int(near[j]), int(far[i]), int(far[j])
	if i == j { // at the left or right border
		return (3*a + c + 2) >> 2
	}
	return ((a+b+c+d+8+2*(b+c))>>3 + a) >> 1
}

func webpPixel(p []byte, y, u, v int) {
	high := func(x, factor int) int { return x * factor >> 8 }
	l := high(y, 19077)
	p[0] = clip((l + high(v, 26149) - 14234) >> 6)
	p[1] = clip((l - high(u, 6419) - high(v, 13320) + 8708) >> 6)
	p[2] = clip((l + high(u, 33050) - 17685) >> 6)
}
