package dataset

import (
	"bytes"
	"fmt"
	"image"
	"image/gif"
	"image/png"
	"io"
	"path/filepath"
	"strings"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/vision"
)

// values returns the values of the mask of an image, row by row.
func (m *Masks) values(n int) (values []uint16, err error) {
	p := &m.masks[n]
	data, err := m.bytes(p)
	if err != nil {
		return nil, named(p, err)
	}
	img, err := m.exact(p, data)
	if err != nil {
		return nil, err
	}
	if b := img.Bounds(); b.Dx() != p.width || b.Dy() != p.height {
		return nil, fmt.Errorf("%s: its pixels are %d by %d, want %d by %d: save it without an orientation, as one whole picture: %w", p.path, b.Dx(), b.Dy(), p.width, p.height, snug.ErrConfig)
	}
	values = make([]uint16, p.width*p.height)
	at := valueOf(img)
	for i := range values {
		values[i] = at(i%p.width, i/p.width)
	}
	return values, nil
}

// exact decodes a mask without a change of its values, as [vision.Decode] changes those of 16 bits and of palettes.
func (m *Masks) exact(p *photo, data []byte) (img image.Image, err error) {
	var decode func(io.Reader) (image.Image, error)
	for begins, d := range map[string]func(io.Reader) (image.Image, error){
		"\x89PNG": png.Decode, "II*\x00": tiff.Decode, "MM\x00*": tiff.Decode, "BM": bmp.Decode, "GIF8": gif.Decode,
	} {
		if strings.HasPrefix(string(data[:min(len(data), 8)]), begins) {
			decode = d
		}
	}
	if decode == nil {
		return nil, fmt.Errorf("%s: a mask in %s, which changes values: save it as PNG: %w", p.path, strings.ToLower(filepath.Ext(p.path)), snug.ErrConfig)
	}
	if _, err := vision.Decode(bytes.NewReader(data), m.decoding(p)); err != nil { // it bounds what is decoded
		return nil, remedied(named(p, err), "remove the file, or save it anew")
	}
	if img, err = decode(bytes.NewReader(data)); err != nil {
		return nil, fmt.Errorf("%s: %w: remove the file, or save it anew: %w", p.path, err, snug.ErrCorrupt)
	}
	return img, nil
}

// valueOf returns what reads the values of a mask.
func valueOf(m image.Image) func(x, y int) uint16 {
	b := m.Bounds().Min
	switch m := m.(type) {
	case *image.Paletted:
		return func(x, y int) uint16 { return uint16(m.ColorIndexAt(b.X+x, b.Y+y)) }
	case *image.Gray:
		return func(x, y int) uint16 { return uint16(m.GrayAt(b.X+x, b.Y+y).Y) }
	case *image.Gray16:
		return func(x, y int) uint16 { return m.Gray16At(b.X+x, b.Y+y).Y }
	}
	return func(x, y int) uint16 {
		r, g, bl, a := m.At(b.X+x, b.Y+y).RGBA()
		if a > 0 && r|g|bl != 0 {
			return 1
		}
		return 0
	}
}
