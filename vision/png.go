package vision

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/png"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
)

var pngFormat = func() format {
	size, _ := codec(png.DecodeConfig, png.Decode)
	return format{"PNG", prefix("\x89PNG\r\n\x1a\n"), size, decodePNG, pngOrientation}
}()

var bmpFormat = func() format {
	size, pixels := codec(bmp.DecodeConfig, bmp.Decode)
	return format{"BMP", prefix("BM"), size, pixels, func([]byte) int { return 0 }}
}()

var tiffFormat = func() format {
	size, pixels := codec(tiff.DecodeConfig, tiff.Decode)
	is := func(file []byte) bool { return prefix("II*\x00")(file) || prefix("MM\x00*")(file) }
	return format{"TIFF", is, size, pixels, exifOrientation}
}()

func prefix(magic string) func([]byte) bool {
	return func(file []byte) bool { return bytes.HasPrefix(file, []byte(magic)) }
}

// decodePNG knows that 16-bit gray with a transparent level, which package png returns in colour, is gray to Pillow.
func decodePNG(file []byte, o DecodeOptions) (*Image, error) {
	m, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	out := rgb(m, o.OnWhite)
	const depth, kind = 24, 25 // of the header
	if c, ok := m.(*image.NRGBA64); ok && file[depth] == 16 && file[kind] == 0 {
		each(out, func(x, y int, p []byte) {
			i := c.PixOffset(x, y)
			v := clipped(c.Pix[i], c.Pix[i+1])
			p[0], p[1], p[2] = v, v, v
			if o.OnWhite {
				white(p, c.Pix[i+6])
			}
		})
	}
	return out, nil
}

// animatedPNG reports whether a PNG has a chunk acTL before its pixels: that it is an animation.
func animatedPNG(file []byte) bool {
	if !pngFormat.is(file) {
		return false
	}
	for rest := file[8:]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest))
		switch kind := string(rest[4:8]); {
		case kind == "acTL":
			return true
		case kind == "IDAT", n > uint64(len(rest)-12):
			return false
		}
		rest = rest[12+n:]
	}
	return false
}

// pngOrientation looks for the chunks that hold EXIF, and XMP as text that is not compressed.
func pngOrientation(file []byte) int {
	var exif, xmp []byte
	for rest := file[8:]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n > uint64(len(rest)-12) {
			break
		}
		body := rest[8 : 8+n]
		switch string(rest[4:8]) {
		case "eXIf":
			exif = body
		case "iTXt":
			if keyword := []byte("XML:com.adobe.xmp\x00\x00"); bytes.HasPrefix(body, keyword) {
				xmp = body[len(keyword):]
			}
		}
		rest = rest[12+n:]
	}
	return orientation(exif, xmp)
}
