package dataset

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"

	"github.com/snug-ml/snug"
)

// canvas is an image that is drawn.
type canvas interface {
	image.Image
	Set(x, y int, c color.Color)
}

// maskOf returns a mask of 6 by 4 pixels in PNG with the values of some pixels.
func maskOf(t *testing.T, m canvas, values map[image.Point]color.Color) string {
	t.Helper()
	return encoded(t, png.Encode, m, values)
}

// encoded returns the same in another format.
func encoded(t *testing.T, encode func(io.Writer, image.Image) error, m canvas, values map[image.Point]color.Color) string {
	t.Helper()
	for at, v := range values {
		m.Set(at.X, at.Y, v)
	}
	var b bytes.Buffer
	require.NoError(t, encode(&b, m))
	return b.String()
}

func tiffOf(w io.Writer, m image.Image) error { return tiff.Encode(w, m, nil) }

func jpegOf(w io.Writer, m image.Image) error { return jpeg.Encode(w, m, nil) }

func gifOf(w io.Writer, m image.Image) error { return gif.Encode(w, m, nil) }

// TestMasks: objects are the values of masks in all formats that keep them, and rows bring boxes and points.
func TestMasks(t *testing.T) {
	photo, size := string(pngOf(t, 1)), image.Rect(0, 0, 6, 4)
	gray := func(v map[image.Point]color.Color) string { return maskOf(t, image.NewGray(size), v) }
	palette := color.Palette{color.Black, color.White, color.RGBA{R: 255, A: 255}}
	box := func(l, t, r, b float32) *[4]float32 { return &[4]float32{l, t, r, b} }
	for name, c := range map[string]struct {
		files map[string]string
		path  string
		want  []MaskItem
		sum   float32 // pixels of the last object
	}{
		"one object":      {files: map[string]string{"images/a.png": photo, "masks/a.png": gray(map[image.Point]color.Color{{X: 1, Y: 1}: color.White, {X: 3, Y: 2}: color.White})}, want: []MaskItem{{Value: 255, Box: box(1, 1, 3, 2)}}, sum: 2},
		"several objects": {files: map[string]string{"images/a.png": photo, "labels/a.png": gray(map[image.Point]color.Color{{X: 0, Y: 0}: color.Gray{Y: 1}, {X: 5, Y: 3}: color.Gray{Y: 7}})}, want: []MaskItem{{Value: 1, Box: box(0, 0, 0, 0)}, {Value: 7, Box: box(5, 3, 5, 3)}}, sum: 1},
		"16 bits": {files: map[string]string{"images/a.png": photo, "masks/a.png": maskOf(t, image.NewGray16(size), map[image.Point]color.Color{{X: 2, Y: 0}: color.Gray16{Y: 300}, {X: 3, Y: 0}: color.Gray16{Y: 301}})},
			want: []MaskItem{{Value: 300, Box: box(2, 0, 2, 0)}, {Value: 301, Box: box(3, 0, 3, 0)}}, sum: 1},
		"a palette": {files: map[string]string{"images/a.png": photo, "annotations/a.png": maskOf(t, image.NewPaletted(size, palette), map[image.Point]color.Color{{X: 2, Y: 0}: palette[2], {X: 4, Y: 3}: palette[2]})},
			want: []MaskItem{{Value: 2, Box: box(2, 0, 4, 3)}}, sum: 2},
		"colours": {files: map[string]string{"images/a.png": photo, "masks/a.png": maskOf(t, image.NewRGBA(size), map[image.Point]color.Color{{X: 2, Y: 1}: palette[2], {X: 4, Y: 3}: color.White})},
			want: []MaskItem{{Value: 1, Box: box(2, 1, 4, 3)}}, sum: 2},
		"TIFF of 16 bits": {files: map[string]string{"images/a.png": photo, "masks/a.tif": encoded(t, tiffOf, image.NewGray16(size), map[image.Point]color.Color{{X: 2, Y: 0}: color.Gray16{Y: 300}, {X: 3, Y: 0}: color.Gray16{Y: 600}})},
			want: []MaskItem{{Value: 300, Box: box(2, 0, 2, 0)}, {Value: 600, Box: box(3, 0, 3, 0)}}, sum: 1},
		"BMP of colours": {files: map[string]string{"images/a.png": photo, "masks/a.bmp": encoded(t, bmp.Encode, image.NewRGBA(size), map[image.Point]color.Color{{X: 2, Y: 1}: color.RGBA{G: 200, A: 255}})},
			want: []MaskItem{{Value: 1, Box: box(2, 1, 2, 1)}}, sum: 1},
		"GIF": {files: map[string]string{"images/a.png": photo, "masks/a.gif": encoded(t, gifOf, image.NewPaletted(size, palette), map[image.Point]color.Color{{X: 2, Y: 0}: palette[2], {X: 4, Y: 3}: palette[1]})},
			want: []MaskItem{{Value: 1, Box: box(4, 3, 4, 3)}, {Value: 2, Box: box(2, 0, 2, 0)}}, sum: 1},
		"rows": {files: map[string]string{"a.png": photo, "m.png": gray(map[image.Point]color.Color{{X: 1, Y: 1}: color.White, {X: 2, Y: 2}: color.Gray{Y: 9}}),
			"r.jsonl": `{"image": "a.png", "mask": "m.png", "box": [0, 0, 3, 3.5]}` + "\n" + `{"image": "a.png", "mask": "m.png", "points": [[1, 1], [5, 0]], "labels": [1, 0]}`}, path: "r.jsonl",
			want: []MaskItem{{Box: box(0, 0, 3, 3.5)}, {Points: [][2]float32{{1, 1}, {5, 0}}, Labels: []bool{true, false}}}, sum: 2},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ReadMasks(context.Background(), filepath.Join(folderOf(t, c.files), c.path), MaskOptions{})
			require.NoError(t, err)
			var items []MaskItem
			for i := range m.Len() {
				items = append(items, m.Item(i))
			}
			require.Equal(t, c.want, items)
			require.Equal(t, 1, m.Images())
			mask, err := m.Mask(m.Len() - 1)
			require.NoError(t, err)
			sum := float32(0)
			for _, v := range mask {
				sum += v
			}
			require.Equal(t, c.sum, sum)
			_, err = m.Image(0)
			require.NoError(t, err)
			require.NoError(t, m.Close())
		})
	}
}

// turned returns a PNG with EXIF that says that the picture is to be turned by 90 degrees.
func turned(file string) string {
	const header = 8 + 25 // the signature and IHDR
	chunk := []byte("eXIfMM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00")
	whole := binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-len("eXIf")))
	whole = binary.BigEndian.AppendUint32(append(whole, chunk...), crc32.ChecksumIEEE(chunk))
	return file[:header] + string(whole) + file[header:]
}

// TestMasksNotes: fields that nothing reads are named once, however many rows have them.
func TestMasksNotes(t *testing.T) {
	rows := `{"image": "a.png", "mask": "m.png", "bbox": [0, 0, 1, 1]}` + "\n" + `{"image": "a.png", "mask": "m.png", "bbox": null, "points": [[1, 2]], "label": 3}`
	dir := folderOf(t, map[string]string{"a.png": string(pngOf(t, 1)), "m.png": maskOf(t, image.NewGray(image.Rect(0, 0, 6, 4)), map[image.Point]color.Color{{}: color.White}), "r.jsonl": rows})
	m, err := ReadMasks(context.Background(), filepath.Join(dir, "r.jsonl"), MaskOptions{})
	require.NoError(t, err)
	require.Contains(t, m.Notes(), filepath.Join(dir, "r.jsonl")+": ignored fields: bbox, label")
	require.NoError(t, m.Close())
}

// TestMasksRefuse: prompts that are none, and masks whose values a format changes, are errors that say so.
func TestMasksRefuse(t *testing.T) {
	photo := string(pngOf(t, 1))
	row := func(more string) map[string]string {
		return map[string]string{"a.png": photo, "m.png": maskOf(t, image.NewGray(image.Rect(0, 0, 6, 4)), map[image.Point]color.Color{{}: color.White}), "r.jsonl": `{"image": "a.png", "mask": "m.png"` + more + `}`}
	}
	for name, c := range map[string]struct {
		files map[string]string
		path  string
		is    error
		want  string
	}{
		"a box":          {row(`, "box": [1, 2, 3]`), "r.jsonl", snug.ErrConfig, "want [left, top, right, bottom]"},
		"a box in turn":  {row(`, "box": [3, 2, 1, 4]`), "r.jsonl", snug.ErrConfig, "want left before right"},
		"a large number": {row(`, "box": [3, 2, 1e30, 4]`), "r.jsonl", snug.ErrConfig, "1e30, want a number"},
		"points":         {row(`, "points": [1, 2]`), "r.jsonl", snug.ErrConfig, "point 0"},
		"labels":         {row(`, "points": [[1, 2]], "labels": [2]`), "r.jsonl", snug.ErrConfig, "want 1 or 0"},
		"labels alone":   {row(`, "labels": [1]`), "r.jsonl", snug.ErrConfig, "labels without points"},
		"a box beyond":   {row(`, "box": [0, 0, 6, 40]`), "r.jsonl", snug.ErrConfig, "box: [0 0 6 40] is not in the image of 6 by 4 pixels"},
		"a point beyond": {row(`, "points": [[1, 2], [9, 2]]`), "r.jsonl", snug.ErrConfig, "point 1, [9 2], is not in the image"},
		"no array":       {row(`, "box": "1,2,3,4"`), "r.jsonl", snug.ErrConfig, "box: a string, want [left"},
		"a turned mask":  {map[string]string{"images/a.png": photo, "masks/a.png": turned(maskOf(t, image.NewGray(image.Rect(0, 0, 4, 6)), map[image.Point]color.Color{{X: 1}: color.White}))}, "", snug.ErrConfig, "its pixels are 4 by 6, want 6 by 4: save it without an orientation"},
		"no mask":        {map[string]string{"r.jsonl": `{"image": "a.png"}`}, "r.jsonl", snug.ErrConfig, "the row has no mask"},
		"JPEG":           {map[string]string{"images/a.png": photo, "masks/a.jpg": encoded(t, jpegOf, image.NewGray(image.Rect(0, 0, 6, 4)), nil)}, "", snug.ErrConfig, "which changes values: save it as PNG"},
		"one name":       {map[string]string{"images/a.png": photo, "images/a.jpg": photo, "masks/a.png": photo}, "", snug.ErrConfig, "have one name"},
		"nothing":        {map[string]string{"images/.x": "", "masks/.x": ""}, "", snug.ErrConfig, "there are no masks"},
		"no path":        {nil, "none", fs.ErrNotExist, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadMasks(context.Background(), filepath.Join(folderOf(t, c.files), c.path), MaskOptions{})
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.want)
		})
	}
	var none context.Context
	_, err := ReadMasks(none, "x", MaskOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestNumbersOf: what is not a finite number, as a table may have it, is none.
func TestNumbersOf(t *testing.T) {
	for _, x := range []json.Number{"NaN", "Infinity", "-Inf", "1e300", ""} {
		_, err := numbersOf(list{x}, 1)
		require.ErrorContains(t, err, "want a number", x)
	}
}
