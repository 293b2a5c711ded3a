package vision_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/vision"
)

func TestZero(t *testing.T) {
	kerneltest.Zero(t,
		vision.Decode, vision.Convert, vision.Frames, vision.Resize, vision.OpenProcessor, vision.Positions, vision.Types,
		vision.NewTower, vision.OpenTower, vision.OpenModel, vision.OpenEncoder, vision.OpenInput, (*vision.Encoder)(nil), new(vision.Encoder), (*vision.Input)(nil), new(vision.Input), (*vision.Cache)(nil), new(vision.Cache), (*vision.Tower)(nil), new(vision.Tower), (*vision.Model)(nil), new(vision.Model), vision.TowerConfig{},
		(*vision.Processor)(nil), new(vision.Processor), vision.Filter(0), vision.Filter(-1), vision.Backend(0), vision.Backend(-1), vision.Layout{},
		vision.OpenClip, vision.ClipOf, (*vision.Clip)(nil), new(vision.Clip),
	)
	p := processorOf(t, `{"image_processor_type": "CLIPImageProcessor"}`)
	kerneltest.Zero(t, p)
	kerneltest.NoPanics(t, p, processorOf(t, `{"image_processor_type": "SmolVLMImageProcessor", "processor_class": "SmolVLMProcessor"}`))
	clip, err := vision.OpenClip(folderOfFrames(t, []*vision.Image{videoFrame(0, 30, 20), videoFrame(1, 30, 20)}), vision.DecodeOptions{})
	require.NoError(t, err)
	for _, kind := range []string{"Qwen2VL", "Qwen3VL"} {
		kerneltest.NoPanics(t, videoProcessor(t, kind+"Processor", `{"video_processor_type": "`+kind+`VideoProcessor"}`), clip)
	}
}

func processorOf(t testing.TB, preprocessor string) *vision.Processor {
	p, err := open(t, map[string]json.RawMessage{"preprocessor_config.json": json.RawMessage(preprocessor)})
	require.NoError(t, err)
	return p
}

// header is a PNG file without pixels, of a size that its header declares.
func header(width, height uint32) []byte {
	b := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
	b = binary.BigEndian.AppendUint32(b, width)
	b = append(binary.BigEndian.AppendUint32(b, height), 8, 2, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[12:]))
}

// allocated returns the bytes that a call allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestLimits: what a header declares is refused before memory is taken for it.
func TestLimits(t *testing.T) {
	gif := func(w, h uint16) []byte {
		b := binary.LittleEndian.AppendUint16([]byte("GIF89a"), w)
		return append(binary.LittleEndian.AppendUint16(b, h), 0, 0, 0, ',', 0, 0, 0, 0, 1, 0, 1, 0, 0, 2, 1, 0, 0, ';')
	}
	bmp := append([]byte("BM\x00\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00\x20\x4e\x00\x00\x20\x4e\x00\x00\x01\x00\x18\x00"), make([]byte, 24)...)
	jpeg := []byte("\xff\xd8\xff\xc0\x00\x11\x08\x4e\x20\x4e\x20\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00")
	webp := []byte("RIFF\x1e\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\x1f\x4e\x00\x1f\x4e\x00VP8 \x00\x00\x00\x00")
	small := header(3, 5)
	for _, c := range []struct {
		name string
		file []byte
		o    vision.DecodeOptions
		is   error
		says string
	}{
		{"png", append(header(12000, 12000), make([]byte, 50_000)...), vision.DecodeOptions{}, snug.ErrNoMemory, "vision: PNG: header declares 12000 x 12000 pixels, want at most 89478485 in all"},
		{"png of one row", header(1<<20, 1), vision.DecodeOptions{}, snug.ErrNoMemory, "want at most 65536 x 65536"},
		{"png of no rows", header(5, 0), vision.DecodeOptions{}, snug.ErrCorrupt, "PNG"},
		{"png of most", header(math.MaxInt32, math.MaxInt32), vision.DecodeOptions{}, nil, "PNG"},
		{"gif", gif(20000, 20000), vision.DecodeOptions{}, snug.ErrNoMemory, "GIF: header declares 20000 x 20000"},
		{"gif of nothing", []byte("GIF89a"), vision.DecodeOptions{}, snug.ErrCorrupt, "ends within a block"},
		{"gif without frames", []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00;"), vision.DecodeOptions{}, snug.ErrCorrupt, "no frame"},
		{"bmp", bmp, vision.DecodeOptions{}, snug.ErrNoMemory, "BMP: header declares 20000 x 20000"},
		{"jpeg", jpeg, vision.DecodeOptions{}, snug.ErrNoMemory, "JPEG: header declares 20000 x 20000"},
		{"webp", webp, vision.DecodeOptions{}, snug.ErrNoMemory, "WebP: header declares 20000 x 20000"},
		{"width", small, vision.DecodeOptions{Width: 2}, snug.ErrNoMemory, "3 x 5 pixels, want at most 2 x 65536"},
		{"height", small, vision.DecodeOptions{Height: 4}, snug.ErrNoMemory, "3 x 5 pixels"},
		{"pixels", small, vision.DecodeOptions{Pixels: 14}, snug.ErrNoMemory, "want at most 14 in all"},
		{"bytes", small, vision.DecodeOptions{Bytes: 10}, snug.ErrNoMemory, "more than 10 bytes"},
		{"negative", small, vision.DecodeOptions{Pixels: -1}, snug.ErrConfig, "Pixels = -1"},
		{"text", []byte("hello, world"), vision.DecodeOptions{}, snug.ErrCorrupt, `begins with "hello, w"`},
		{"empty", nil, vision.DecodeOptions{}, snug.ErrCorrupt, `begins with ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			took := allocated(func() { _, err = vision.Decode(bytes.NewReader(c.file), c.o) })
			kerneltest.Error(t, "vision.Decode", err)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "\n")
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			require.Less(t, took, int64(1<<20))
		})
	}
}

// TestTruncated: a file that ends early, or has a byte changed, is an error or an image of the size in its header.
func TestTruncated(t *testing.T) {
	for _, c := range readGolden(t).Files {
		t.Run(c.Name, func(t *testing.T) {
			step := 1
			if !kerneltest.Full() {
				step = 7
			}
			for n := 0; n < len(c.File); n += step {
				m, err := vision.Decode(bytes.NewReader(c.File[:n]), vision.DecodeOptions{})
				if err != nil {
					kerneltest.Error(t, "vision.Decode", err)
					continue
				}
				require.Len(t, m.Pix, 3*m.Width*m.Height)
			}
			for n := 0; n < len(c.File); n += step {
				file := bytes.Clone(c.File)
				file[n] ^= 0xff
				if m, err := vision.Decode(bytes.NewReader(file), vision.DecodeOptions{Pixels: 1 << 16}); err == nil {
					require.Len(t, m.Pix, 3*m.Width*m.Height)
				}
			}
		})
	}
}

// TestDecodeBytes: what a call allocates, in bytes of the file and of pixels, also of a file that comes in parts.
func TestDecodeBytes(t *testing.T) {
	const width, height = 700, 500
	wide := image.NewNRGBA64(image.Rect(0, 0, width, height))
	for i := range wide.Pix {
		wide.Pix[i] = byte(i * i >> 7)
	}
	narrow := image.NewRGBA(wide.Rect)
	draw.Draw(narrow, narrow.Rect, wide, image.Point{}, draw.Src)
	var deep, photo, clip bytes.Buffer
	require.NoError(t, png.Encode(&deep, wide))
	require.NoError(t, jpeg.Encode(&photo, narrow, nil))
	require.NoError(t, gif.Encode(&clip, narrow, nil))
	for _, c := range []struct {
		name  string
		file  []byte
		pixel int64 // bytes of one
	}{{"png of 16 bits", deep.Bytes(), 8 + 3}, {"jpeg", photo.Bytes(), 3 + 3}, {"gif", clip.Bytes(), 4 + 1 + 3}} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			took := allocated(func() { _, err = vision.Decode(bytes.NewReader(c.file), vision.DecodeOptions{}) })
			require.NoError(t, err)
			require.LessOrEqual(t, took, 6*int64(len(c.file))+c.pixel*width*height+1<<18)
		})
	}
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestDecodeErrorOfReader(t *testing.T) {
	want := errors.New("connection lost")
	_, err := vision.Decode(failing{want}, vision.DecodeOptions{})
	require.ErrorIs(t, err, want)
}

// TestConvert: images of package image, also parts of them.
func TestConvert(t *testing.T) {
	at := image.Rect(-3, 2, 4, 9)
	nrgba := image.NewNRGBA(at)
	for i := range nrgba.Pix {
		nrgba.Pix[i] = byte(i * 11)
	}
	ycbcr := image.NewYCbCr(image.Rect(0, 0, 20, 20), image.YCbCrSubsampleRatio420)
	for i := range ycbcr.Y {
		ycbcr.Y[i] = byte(i * 3)
	}
	for i := range ycbcr.Cb {
		ycbcr.Cb[i], ycbcr.Cr[i] = 90, 150
	}
	for _, c := range []struct {
		name string
		m    image.Image
		max  int
	}{
		{"NRGBA", nrgba, 0},
		{"part of NRGBA", nrgba.SubImage(image.Rect(-1, 4, 2, 7)), 0},
		{"YCbCr", ycbcr, 1},
		{"part of YCbCr, cut between samples", ycbcr.SubImage(image.Rect(3, 5, 10, 12)), 1},
		{"part of YCbCr", ycbcr.SubImage(image.Rect(4, 6, 10, 12)), 1},
		{"uniform, which has no end", image.NewUniform(color.White), -1},
		{"paletted without colours", image.NewPaletted(at, nil), 0},
		{"nil pointer", (*image.NRGBA)(nil), -1},
		{"pixels that are not there", &image.NRGBA{Rect: at, Stride: 28}, -1},
		{"stride too small", &image.Gray{Rect: at, Stride: 1, Pix: make([]byte, 100)}, -1},
		{"negative stride", &image.CMYK{Rect: at, Stride: -28, Pix: make([]byte, 1000)}, -1},
		{"no chroma", &image.YCbCr{Rect: at, Y: make([]byte, 100), YStride: 7}, -1},
		{"no alpha", &image.NYCbCrA{YCbCr: *ycbcr}, -1},
		{"alpha and full chroma", image.NewNYCbCrA(at, image.YCbCrSubsampleRatio444), 1},
		{"alpha and chroma that is cut", image.NewNYCbCrA(image.Rect(1, 1, 5, 5), image.YCbCrSubsampleRatio420), 1},
		{"YCbCr at negative places", image.NewYCbCr(image.Rect(-5, -3, 4, 4), image.YCbCrSubsampleRatio410), 1},
		{"unknown ratio", &image.YCbCr{Rect: at, Y: make([]byte, 100), YStride: 7, Cb: make([]byte, 100), Cr: make([]byte, 100), CStride: 7, SubsampleRatio: 77}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := vision.Convert(c.m, vision.DecodeOptions{})
			if c.max < 0 {
				kerneltest.Error(t, "vision.Convert", err)
				return
			}
			require.NoError(t, err)
			b := c.m.Bounds()
			require.Equal(t, [2]int{b.Dx(), b.Dy()}, [2]int{m.Width, m.Height})
			if p, ok := c.m.(*image.Paletted); ok && len(p.Palette) == 0 {
				return
			}
			for y := range m.Height {
				for x := range m.Width {
					want := color.NRGBAModel.Convert(c.m.At(b.Min.X+x, b.Min.Y+y)).(color.NRGBA)
					got := m.Pix[3*(y*m.Width+x):]
					for i, v := range []byte{want.R, want.G, want.B} {
						require.InDelta(t, v, got[i], float64(c.max))
					}
				}
			}
		})
	}
}

// TestJPEGColours: the conversion of JFIF, within what a fixed point of 16 bits rounds.
func TestJPEGColours(t *testing.T) {
	m := image.NewYCbCr(image.Rect(0, 0, 256, 1), image.YCbCrSubsampleRatio444)
	for _, luma := range []byte{0, 60, 128, 200, 255} {
		for cb := range 256 {
			for x := range 256 {
				m.Y[x], m.Cb[x], m.Cr[x] = luma, byte(cb), byte(x)
			}
			out, err := vision.Convert(m, vision.DecodeOptions{})
			require.NoError(t, err)
			for x := range 256 {
				y, b, r := float64(luma), float64(cb-128), float64(x-128)
				for i, want := range []float64{y + 1.402*r, y - 0.34414*b - 0.71414*r, y + 1.772*b} {
					require.InDelta(t, min(max(want, 0), 255), out.Pix[3*x+i], 0.51)
				}
			}
		}
	}
}

// TestFrames: folders in the order of names, evenly chosen.
func TestFrames(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		var b bytes.Buffer
		require.NoError(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, i+1, 1))))
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.PNG", i)), b.Bytes(), 0o666))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no image"), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".png"), []byte("no image"), 0o666))
	for _, c := range []struct {
		n      int
		widths []int
	}{{1, []int{1}}, {3, []int{1, 4, 7}}, {4, []int{1, 3, 6, 8}}, {10, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, {100, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}} {
		frames, err := vision.Frames(dir, c.n, vision.DecodeOptions{})
		require.NoError(t, err)
		var widths []int
		for _, f := range frames {
			widths = append(widths, f.Width)
		}
		require.Equal(t, c.widths, widths)
	}
	one, err := vision.Frames(filepath.Join(dir, "04.PNG"), 9, vision.DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, one, 1)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "05.PNG"), header(12000, 12000), 0o666))
	for _, c := range []struct {
		name, path string
		n          int
		is         error
		says       string
	}{
		{"no frames", dir, 0, snug.ErrConfig, "0 frames"},
		{"too large", dir, 10, snug.ErrNoMemory, "05.PNG: PNG: header declares 12000 x 12000"},
		{"no images", t.TempDir(), 1, snug.ErrConfig, "no images in the folder"},
		{"not there", filepath.Join(dir, "x"), 1, os.ErrNotExist, "x"},
		{"not an image", filepath.Join(dir, "notes.txt"), 1, snug.ErrCorrupt, "notes.txt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := vision.Frames(c.path, c.n, vision.DecodeOptions{})
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestBytes: a call allocates no more than its layout says, and not much less.
func TestBytes(t *testing.T) {
	for _, c := range readGolden(t).Processors {
		files := map[string]json.RawMessage{"preprocessor_config.json": c.Preprocessor}
		if string(c.Processor) != "null" {
			files["processor_config.json"] = c.Processor
		}
		p, err := open(t, files)
		require.NoError(t, err)
		for _, backend := range []vision.Backend{vision.Torchvision, vision.Pillow} {
			p, err := p.Using(backend)
			require.NoError(t, err)
			for _, size := range [][2]int{{1, 1}, {60, 45}, {900, 30}, {30, 900}, {640, 480}, {1000, 1300}} {
				t.Run(fmt.Sprintf("%s/%v/%dx%d", c.Name, backend, size[0], size[1]), func(t *testing.T) {
					m := picture("smooth", size[0], size[1])
					l, err := p.Layout(size[0], size[1])
					if err != nil {
						_, refused := p.Process(m)
						require.Equal(t, err, refused)
						return
					}
					took := allocated(func() { _, err = p.Process(m) })
					require.NoError(t, err)
					require.LessOrEqual(t, took, l.Bytes)
					require.Greater(t, 3*took+1<<19, l.Bytes)
				})
			}
		}
	}
}

// TestWindows: a crop has the pixels of the whole, also of an image whose other edge becomes very long.
func TestWindows(t *testing.T) {
	p := processorOf(t, `{"image_processor_type": "CLIPImageProcessor", "do_rescale": false, "do_normalize": false, "size": {"shortest_edge": 20}, "crop_size": {"height": 9, "width": 12}}`)
	for _, backend := range []vision.Backend{vision.Torchvision, vision.Pillow} {
		p, err := p.Using(backend)
		require.NoError(t, err)
		for _, size := range [][2]int{{50, 3}, {3, 50}, {41, 40}} {
			m := picture("noise", size[0], size[1])
			l, err := processorOf(t, `{"image_processor_type": "CLIPImageProcessor", "do_center_crop": false, "size": {"shortest_edge": 20}}`).Layout(size[0], size[1])
			require.NoError(t, err)
			whole, err := vision.Resize(m, l.Width, l.Height, vision.Bicubic, backend)
			require.NoError(t, err)
			part, err := p.Process(m)
			require.NoError(t, err)
			top, left := (whole.Height-9)/2, (whole.Width-12)/2
			for i, v := range part.Values {
				c, y, x := i/(9*12), i/12%9, i%12
				require.EqualValues(t, whole.Pix[3*((top+y)*whole.Width+left+x)+c], v)
			}
		}
	}
	clip := processorOf(t, `{"image_processor_type": "CLIPImageProcessor"}`)
	l, err := clip.Layout(4000, 3)
	require.NoError(t, err)
	require.Less(t, l.Bytes, int64(16<<20), "of 298,666 columns, 224 are computed")
}

// TestParallel: one processor serves many goroutines.
//
//check:in race
func TestParallel(t *testing.T) {
	p := processorOf(t, `{"image_processor_type": "SmolVLMImageProcessor", "processor_class": "SmolVLMProcessor", "max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 128}}`)
	m := picture("noise", 70, 40)
	want, err := p.Process(m)
	require.NoError(t, err)
	require.Equal(t, 5, want.Shape[0])
	done := make(chan vision.Pixels)
	for range 4 {
		go func() {
			got, _ := p.Process(m)
			done <- got
		}()
	}
	for range 4 {
		require.Equal(t, want, <-done)
	}
}

func FuzzDecode(f *testing.F) {
	g := readGolden(f)
	for _, c := range g.Files {
		if len(c.File) < 2000 {
			f.Add(c.File)
		}
	}
	for _, c := range g.Animations {
		f.Add(c.File)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file []byte) {
		o := vision.DecodeOptions{Pixels: 1 << 14, OnWhite: len(file)%2 == 0}
		m, err := vision.Decode(bytes.NewReader(file), o)
		if err != nil {
			kerneltest.Error(t, "vision.Decode", err)
		} else {
			require.Len(t, m.Pix, 3*m.Width*m.Height)
			require.LessOrEqual(t, m.Width*m.Height, o.Pixels)
		}
		path := filepath.Join(dir, "clip")
		require.NoError(t, os.WriteFile(path, file, 0o666))
		frames, err := vision.Frames(path, 3, o)
		if err != nil {
			kerneltest.Error(t, "vision.Frames", err)
			return
		}
		for _, m := range frames {
			require.Len(t, m.Pix, 3*m.Width*m.Height)
		}
	})
}

func FuzzProcessor(f *testing.F) {
	for _, c := range readGolden(f).Processors {
		f.Add(string(c.Preprocessor), strings.TrimPrefix(string(c.Processor), "null"), uint16(7), uint16(60))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, preprocessor, processor string, width, height uint16) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(preprocessor), 0o666))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "processor_config.json"), []byte(processor), 0o666))
		p, err := vision.OpenProcessor(dir)
		if err != nil {
			kerneltest.Error(t, "vision.OpenProcessor", err)
			return
		}
		l, err := p.Layout(int(width), int(height))
		if err != nil {
			kerneltest.Error(t, "vision.Layout", err)
			return
		}
		if l.Bytes > 1<<24 || int(width)*int(height) > 1<<16 {
			return
		}
		m := picture("smooth", int(width), int(height))
		in, err := p.Process(m)
		require.NoError(t, err)
		require.Equal(t, l, in.Layout)
		require.Len(t, in.Values, l.Len())
		if p.Placeholder() != "" {
			if text, err := p.Expand(p.Placeholder(), l); err != nil {
				kerneltest.Error(t, "vision.Expand", err)
			} else {
				require.GreaterOrEqual(t, len(text), l.Tokens)
			}
		}
	})
}
