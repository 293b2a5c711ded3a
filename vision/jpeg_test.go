package vision_test

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/jpeg"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/vision"
)

// jpegs returns the JPEG files of golden.json by their names.
func jpegs(t testing.TB) map[string][]byte {
	files := map[string][]byte{}
	for _, c := range readGolden(t).Files {
		if strings.HasPrefix(c.Name, "jpeg-") {
			files[strings.TrimPrefix(c.Name, "jpeg-")] = c.File
		}
	}
	return files
}

// TestJPEGCut: what lacks its end is refused, wherever it is cut.
func TestJPEGCut(t *testing.T) {
	for name, file := range jpegs(t) {
		for n := range len(file) {
			_, err := vision.Decode(bytes.NewReader(file[:n]), vision.DecodeOptions{})
			require.ErrorIs(t, err, snug.ErrCorrupt, "%s, %d bytes", name, n)
		}
	}
}

func TestJPEGRefused(t *testing.T) {
	files := jpegs(t)
	// with returns a file in which bytes are replaced, once.
	with := func(name, old, to string) []byte {
		require.Contains(t, string(files[name]), old)
		return bytes.Replace(files[name], []byte(old), []byte(to), 1)
	}
	const sof, baseline, progressive = "\xff\xc0\x00\x11\x08", "coarse-0", "progressive-restarts-0"
	head := func(b []byte) string {
		i := bytes.Index(b, []byte("\xff\xda"))
		require.Positive(t, i)
		return string(b[:i])
	}
	scan := "\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x00"
	for _, c := range []struct {
		name string
		file []byte
		says string
	}{
		{"arithmetic coding", with(baseline, "\xff\xc0", "\xff\xc9"), "unsupported JPEG feature: marker 0xc9"},
		{"lossless", with(baseline, "\xff\xc0", "\xff\xc3"), "unsupported JPEG feature: marker 0xc3"},
		{"lines behind the scan", with(baseline, "\xff\xd9", "\xff\xdc\x00\x04\x00\x01\xff\xd9"), "unsupported JPEG feature: marker 0xdc"},
		{"no lines", with(baseline, sof+"\x00\x21", sof+"\x00\x00"), "want at least 1 x 1"},
		{"12 bits", with(baseline, sof, "\xff\xc1\x00\x11\x0c"), "unsupported JPEG feature: precision of 12 bits"},
		{"five components", with(baseline, "\xff\xc0\x00\x11\x08\x00\x21\x00\x23\x03", "\xff\xc0\x00\x17\x08\x00\x21\x00\x23\x05abcdef"), "number of components, 5"},
		{"frame header", with(baseline, sof, "\xff\xc0\x00\x12\x08"), "frame header of a wrong length"},
		{"two frame headers", with(baseline, "\xff\xda", "\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xda"), "two frame headers"},
		{"factor of 0", with(baseline, "\x01\x11\x00\x02", "\x01\x01\x00\x02"), "sampling factor"},
		{"factors 3 and 2", with(baseline, "\x01\x11\x00\x02\x11\x01", "\x01\x31\x00\x02\x21\x01"), "do not divide"},
		{"blocks of a unit", with(baseline, "\x01\x11\x00\x02\x11\x01", "\x01\x44\x00\x02\x11\x01"), "more than 10 blocks"},
		{"names", with(baseline, "\x01\x11\x00\x02\x11", "\x01\x11\x00\x01\x11"), "two components of a name"},
		{"no scan", []byte(head(files[baseline]) + "\xff\xd9"), "no scan"},
		{"no frame", []byte("\xff\xd8\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\xff\xd9"), "scan before the frame header"},
		{"no quantization tables", bytes.ReplaceAll(files[baseline], []byte("\xff\xdb"), []byte("\xff\xfe")), "missing quantization table"},
		{"no Huffman tables", bytes.ReplaceAll(files[baseline], []byte("\xff\xc4"), []byte("\xff\xfe")), "missing or damaged Huffman table"},
		{"codes of ones", with(baseline, "\x00\x1f\x00\x00\x01\x05", "\x00\x1f\x00\x02\x01\x03"), "missing or damaged Huffman table"},
		{"component of a scan", with(baseline, "\xff\xda\x00\x0c\x03\x01", "\xff\xda\x00\x0c\x03\x09"), "component or a table that is none"},
		{"component twice", with(baseline, "\xff\xda\x00\x0c\x03\x01\x00\x02", "\xff\xda\x00\x0c\x03\x01\x00\x01"), "component twice"},
		{"scan header", with(baseline, "\xff\xda\x00\x0c\x03", "\xff\xda\x00\x0c\x02"), "scan header of a wrong length"},
		{"coefficients", []byte(head(files[progressive]) + strings.Replace(scan, "\x01\x3f", "\x01\x40", 1)), "do not go together"},
		{"bits", []byte(head(files[progressive]) + scan[:9] + "\x0e"), "do not go together"},
		{"scans", []byte(head(files["1x1"]) + strings.Repeat(strings.TrimSuffix(strings.TrimPrefix(string(files["1x1"]), head(files["1x1"])), "\xff\xd9"), 501) + "\xff\xd9"), "too many scans"},
		{"restarts", with("restarts-0", "\xff\xd0", "\xff\xd1"), "missing restart marker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := vision.Decode(bytes.NewReader(c.file), vision.DecodeOptions{})
			kerneltest.Error(t, "vision.Decode", err)
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestJPEGMemory: no memory for more pixels than the file has bits, and in a progressive file 2 bytes a coefficient.
func TestJPEGMemory(t *testing.T) {
	const side = 2048
	file := bytes.Clone(jpegs(t)["progressive-noise"])
	i := bytes.Index(file, []byte("\xff\xc2"))
	binary.BigEndian.PutUint16(file[i+5:], side)
	binary.BigEndian.PutUint16(file[i+7:], side)
	for _, c := range []struct{ extra, most int }{{0, 1 << 17}, {side * side, 2*side*side*3/2 + 1<<17}} {
		var err error
		long := append(bytes.Clone(file), make([]byte, c.extra)...)
		took := allocated(func() { _, err = vision.Decode(bytes.NewReader(long), vision.DecodeOptions{}) })
		require.ErrorIs(t, err, snug.ErrCorrupt)
		require.LessOrEqual(t, took, int64(c.most+6*c.extra))
	}
}

// FuzzJPEG: what image/jpeg takes too has the size that it finds.
func FuzzJPEG(f *testing.F) {
	for _, file := range jpegs(f) {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		file = append([]byte("\xff\xd8\xff"), file[min(len(file), 3):]...)
		o := vision.DecodeOptions{Pixels: 1 << 14}
		m, err := vision.Decode(bytes.NewReader(file), o)
		if err != nil {
			kerneltest.Error(t, "vision.Decode", err)
			return
		}
		require.Len(t, m.Pix, 3*m.Width*m.Height)
		width, height, err := vision.DecodeSize(file, o)
		require.NoError(t, err)
		require.Equal(t, [2]int{width, height}, [2]int{m.Width, m.Height})
		if other, err := jpeg.Decode(bytes.NewReader(file)); err == nil {
			size := other.Bounds().Size()
			require.ElementsMatch(t, []int{size.X, size.Y}, []int{width, height}) // perhaps turned
		}
	})
}

// BenchmarkJPEG: decoding to RGB, and what image/jpeg takes for Y, Cb and Cr.
func BenchmarkJPEG(b *testing.B) {
	m := image.NewRGBA(image.Rect(0, 0, 1024, 768))
	for i := range m.Pix {
		x, y, c := float64(i/4%1024), float64(i/4/1024), float64(i%4)
		m.Pix[i] = byte(128 + 60*math.Sin(x/30+y/50+c) + 40*math.Sin(x*y/9000) + 6*math.Sin(float64(i*i%977)))
	}
	var file bytes.Buffer
	require.NoError(b, jpeg.Encode(&file, m, &jpeg.Options{Quality: 85}))
	decoders := map[string]func(io.Reader) error{
		"snug": func(r io.Reader) error {
			_, err := vision.Decode(r, vision.DecodeOptions{})
			return err
		},
		"image-jpeg": func(r io.Reader) error {
			_, err := jpeg.Decode(r)
			return err
		},
	}
	for name, decode := range decoders {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, decode(bytes.NewReader(file.Bytes())))
			}
		})
	}
}
