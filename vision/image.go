package vision

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"io"

	"github.com/snug-ml/snug"
)

// Image is an image of 8 bits a channel in RGB. Pix has Height rows of Width pixels of three bytes, without gaps.
type Image struct {
	Width, Height int
	Pix           []byte
}

// check returns an error if the image is nil, empty, or has other bytes than its size says.
func (m *Image) check() error {
	switch {
	case m == nil:
		return fmt.Errorf("image is nil: %w", snug.ErrConfig)
	case m.Width < 1 || m.Height < 1:
		return fmt.Errorf("image of %d x %d pixels, want at least 1 x 1: %w", m.Width, m.Height, snug.ErrShape)
	case len(m.Pix)%3 != 0 || len(m.Pix)/3%m.Width != 0 || len(m.Pix)/3/m.Width != m.Height:
		return fmt.Errorf("image of %d x %d pixels in %d bytes, want 3 a pixel: %w", m.Width, m.Height, len(m.Pix), snug.ErrShape)
	}
	return nil
}

// The limits of a file where DecodeOptions names none.
const (
	DefaultSide   = 1 << 16   // pixels of a row or a column
	DefaultPixels = 89478485  // of an image: where Pillow begins to warn
	DefaultBytes  = 256 << 20 // of a file
)

// DecodeOptions has the limits of a file that is decoded. 0 is the default; a negative number is an error.
type DecodeOptions struct {
	// Width and Height are the most pixels of a row and of a column, DefaultSide if 0.
	Width, Height int
	// Pixels is the most pixels of an image, and of an animation's frame, DefaultPixels if 0.
	Pixels int
	// Bytes is the longest file, DefaultBytes if 0.
	Bytes int
	// OnWhite lays images with alpha on white, as the processors of transformers 5.24 do with images of PIL. The default leaves alpha
	// out, as its load_image does with files. Where its processors read a path themselves, by torchvision, a GIF with a transparent colour and gray
	// of 16 bits have other values.
	OnWhite bool
}

// complete returns the options with defaults.
func (o DecodeOptions) complete() (DecodeOptions, error) {
	for _, f := range []struct {
		name  string
		value *int
		or    int
	}{{"Width", &o.Width, DefaultSide}, {"Height", &o.Height, DefaultSide}, {"Pixels", &o.Pixels, DefaultPixels}, {"Bytes", &o.Bytes, DefaultBytes}} {
		switch {
		case *f.value < 0:
			return o, fmt.Errorf("%s = %d, want at least 0: %w", f.name, *f.value, snug.ErrConfig)
		case *f.value == 0:
			*f.value = f.or
		}
	}
	return o, nil
}

// admit returns an error if an image of that size, as a header declares it, is beyond the limits.
func (o DecodeOptions) admit(width, height int) error {
	switch {
	case width < 1 || height < 1:
		return fmt.Errorf("header declares %d x %d pixels, want at least 1 x 1: %w", width, height, snug.ErrCorrupt)
	case width > o.Width || height > o.Height:
		return fmt.Errorf("header declares %d x %d pixels, want at most %d x %d: %w", width, height, o.Width, o.Height, snug.ErrNoMemory)
	case int64(width)*int64(height) > int64(o.Pixels):
		return fmt.Errorf("header declares %d x %d pixels, want at most %d in all: %w", width, height, o.Pixels, snug.ErrNoMemory)
	}
	return nil
}

// format is a file format: how it is known, its size, its pixels, and where it says which side is up.
type format struct {
	name        string
	is          func(file []byte) bool
	size        func(file []byte) (width, height int, err error)
	decode      func(file []byte, o DecodeOptions) (*Image, error)
	orientation func(file []byte) int // 1 to 8 as in EXIF, another number for none
}

// formats are asked in turn.
var formats = []format{pngFormat, jpegFormat, webpFormat, gifFormat, bmpFormat, tiffFormat}

// Decode reads an image in PNG, JPEG, WebP, GIF (the first frame), BMP or TIFF, as transformers' load_image does with Pillow:
// turned as EXIF or XMP says, then converted to RGB. What Pillow's conversion does is done here: alpha is left out, not blended
// (see [DecodeOptions]), 16-bit colours keep their upper byte, 16-bit gray is clipped at 255, CMYK becomes (255-C)(255-K)/255, and the
// part of a GIF's canvas that its frame leaves out has the transparent colour, or the first of the palette.
//
// Pixels have the bits of Pillow's, also JPEG's, of which libjpeg-turbo's inverse DCT, upsampling and conversion of colours are followed on x86.
// A progressive JPEG whose last scans were left out is not smoothed as there. Not read are BMP with runs, JPEG of 12 bits, without loss or
// with arithmetic coding, animated WebP, and TIFF of CMYK or of gray with alpha. A damaged or truncated JPEG is refused, also
// where Pillow would fill what is missing.
//
// The size in the header is compared with the limits before memory for pixels is taken. The call holds the file, the pixels as
// the decoder has them (at most 8 bytes a pixel; of a JPEG a byte a sample, and 2 more a coefficient if it is progressive, so that 4:2:0 has
// 1.5 or 4.5 a pixel), and 3 bytes a pixel of RGB, or 6 while the image is turned.
//
// Errors wrap [snug.ErrNoMemory] for what is beyond a limit, [snug.ErrCorrupt] for a damaged or unknown file, [snug.ErrConfig]
// for options, and the error of r.
func Decode(r io.Reader, o DecodeOptions) (*Image, error) {
	m, err := decode(r, o)
	if err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	return m, nil
}

func decode(r io.Reader, o DecodeOptions) (*Image, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	file, err := contents(r, o.Bytes)
	if err != nil {
		return nil, err
	}
	return decodeFile(file, o)
}

// DecodeSize returns the pixels of a row and of a column of the image that [Decode] makes of a file, from its header. Errors are those of
// Decode; a file whose pixels are damaged has a size.
func DecodeSize(file []byte, o DecodeOptions) (width, height int, err error) {
	if o, err = o.complete(); err == nil && len(file) > o.Bytes {
		err = fmt.Errorf("file of %d bytes, want at most %d: %w", len(file), o.Bytes, snug.ErrNoMemory)
	}
	var f format
	if err == nil {
		f, width, height, err = header(file, o)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("vision: %w", err)
	}
	if sideways(f.orientation(file)) {
		width, height = height, width
	}
	return width, height, nil
}

// header reads the size of an image and compares it with the limits of complete options.
func header(file []byte, o DecodeOptions) (f format, width, height int, err error) {
	if f, err = formatOf(file); err != nil {
		return f, 0, 0, err
	}
	if width, height, err = f.size(file); err != nil {
		return f, 0, 0, damaged(f.name, err)
	}
	if err := o.admit(width, height); err != nil {
		return f, 0, 0, fmt.Errorf("%s: %w", f.name, err)
	}
	return f, width, height, nil
}

// decodeFile decodes a whole file with complete options.
func decodeFile(file []byte, o DecodeOptions) (*Image, error) {
	f, _, _, err := header(file, o)
	if err != nil {
		return nil, err
	}
	m, err := f.decode(file, o)
	if err != nil {
		return nil, damaged(f.name, err)
	}
	return turn(m, f.orientation(file)), nil
}

// damaged says that a file cannot be decoded, unless it is only too large.
func damaged(format string, err error) error {
	if errors.Is(err, snug.ErrNoMemory) {
		return fmt.Errorf("%s: %w", format, err)
	}
	return fmt.Errorf("%s: %w: %w", format, err, snug.ErrCorrupt)
}

// contents reads a file within a limit.
func contents(r io.Reader, limit int) ([]byte, error) {
	if r == nil {
		return nil, fmt.Errorf("reader is nil: %w", snug.ErrConfig)
	}
	file, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(file) > limit {
		return nil, fmt.Errorf("file of more than %d bytes, want at most that: %w", limit, snug.ErrNoMemory)
	}
	return file, nil
}

func formatOf(file []byte) (format, error) {
	for _, f := range formats {
		if f.is(file) {
			return f, nil
		}
	}
	return format{}, fmt.Errorf("file begins with %q, want PNG, JPEG, WebP, GIF, BMP or TIFF: %w", file[:min(len(file), 8)], snug.ErrCorrupt)
}

// Convert returns an image of package image in RGB, as [Decode] does. Images in [image.YCbCr] are taken for JPEG's. The call takes 3 bytes a
// pixel. Its limits are those of o; errors are those of [Decode].
func Convert(m image.Image, o DecodeOptions) (*Image, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	if err := sound(m); err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	b := m.Bounds()
	if err := o.admit(b.Dx(), b.Dy()); err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	return rgb(m, o.OnWhite), nil
}

// codec makes the functions of a format from those of a decoder of Go's.
func codec(config func(io.Reader) (image.Config, error), decode func(io.Reader) (image.Image, error)) (
	func([]byte) (int, int, error), func([]byte, DecodeOptions) (*Image, error),
) {
	size := func(file []byte) (int, int, error) {
		c, err := config(bytes.NewReader(file))
		return c.Width, c.Height, err
	}
	pixels := func(file []byte, o DecodeOptions) (*Image, error) {
		m, err := decode(bytes.NewReader(file))
		if err != nil {
			return nil, err
		}
		return rgb(m, o.OnWhite), nil
	}
	return size, pixels
}
