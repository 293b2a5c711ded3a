package vision

import (
	"fmt"
	"image"
	"reflect"

	"github.com/snug-ml/snug"
)

// samples is a plane of an image of package image: rows of a number of bytes, at a stride.
type samples struct {
	pix               []byte
	rows, row, stride int
}

// sound returns an error if an image of package image is nil, or has fewer samples than its bounds say.
func sound(m image.Image) error {
	if v := reflect.ValueOf(m); m == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("image is nil: %w", snug.ErrConfig)
	}
	w, h := m.Bounds().Dx(), m.Bounds().Dy()
	var planes []samples
	switch m := m.(type) {
	case *image.Gray:
		planes = []samples{{m.Pix, h, w, m.Stride}}
	case *image.Gray16:
		planes = []samples{{m.Pix, h, 2 * w, m.Stride}}
	case *image.Paletted:
		planes = []samples{{m.Pix, h, w, m.Stride}}
	case *image.NRGBA:
		planes = []samples{{m.Pix, h, 4 * w, m.Stride}}
	case *image.RGBA:
		planes = []samples{{m.Pix, h, 4 * w, m.Stride}}
	case *image.CMYK:
		planes = []samples{{m.Pix, h, 4 * w, m.Stride}}
	case *image.NRGBA64:
		planes = []samples{{m.Pix, h, 8 * w, m.Stride}}
	case *image.RGBA64:
		planes = []samples{{m.Pix, h, 8 * w, m.Stride}}
	case *image.YCbCr:
		planes = colourPlanes(m)
	case *image.NYCbCrA:
		planes = append(colourPlanes(&m.YCbCr), samples{m.A, h, w, m.AStride})
	}
	for _, p := range planes {
		if p.stride < p.row || len(p.pix) < p.row || (len(p.pix)-p.row)/max(p.stride, 1) < p.rows-1 {
			return fmt.Errorf("%T of %d x %d pixels has %d bytes with a stride of %d, want %d rows of %d: %w", m, w, h, len(p.pix), p.stride, p.rows, p.row, snug.ErrShape)
		}
	}
	return nil
}

// colourPlanes returns Y, Cb and Cr. Chroma has the samples that COffset names for pixels in the bounds.
func colourPlanes(m *image.YCbCr) []samples {
	b, by := m.Rect, factors(m.SubsampleRatio)
	span := func(lo, hi, by int) int { return (hi-1)/by - lo/by + 1 }
	w, h := span(b.Min.X, b.Max.X, by.X), span(b.Min.Y, b.Max.Y, by.Y)
	return []samples{{m.Y, b.Dy(), b.Dx(), m.YStride}, {m.Cb, h, w, m.CStride}, {m.Cr, h, w, m.CStride}}
}

// factors returns the pixels of a sample of chroma; those of an unknown ratio are package image's, which are 1.
func factors(r image.YCbCrSubsampleRatio) image.Point {
	if by, ok := ratios[r]; ok {
		return by
	}
	return image.Point{X: 1, Y: 1}
}
