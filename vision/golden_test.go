package vision_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/vision"
)

// golden is testdata/golden.json, which testdata/make.py makes with transformers and Pillow.
type golden struct {
	Resizes []struct {
		Kind                           string
		Width, Height, Filter, Backend int
		To                             [2]int
		Sum                            string
	}
	Files []struct {
		Name, Sum, White string
		File             []byte
		Width, Height    int
	}
	Animations []struct {
		File  []byte
		Sums  []string
		Sizes [][2]int
	}
	Processors []struct {
		Name, Prompt, Text      string
		Preprocessor, Processor json.RawMessage
		Rows                    []struct {
			Kind                   string
			Width, Height, Backend int
			Refused                bool
			Shape, Resized         []int
			Grid                   [3]int
			Sum                    string
		}
	}
	Positions []struct {
		IDs       []int32
		Grids     [][3]int
		Positions [3][]int32
		Next      int32
	}
}

func readGolden(t testing.TB) (g golden) {
	data, err := os.ReadFile("testdata/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// sum is how the file names bytes.
func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])[:16]
}

// picture makes an image as make.py does.
func picture(kind string, width, height int) *vision.Image {
	m := &vision.Image{Width: width, Height: height, Pix: make([]byte, 3*width*height)}
	state := uint32(width*1000 + height)
	for i := range m.Pix {
		x, y, c := i/3%width, i/3/width, i%3
		switch kind {
		case "noise":
			state = state*1664525 + 1013904223
			m.Pix[i] = byte(state >> 16)
		default:
			m.Pix[i] = byte(x*7 + y*13 + c*50 + x*y/5)
		}
	}
	return m
}

// TestResize: the bits of Pillow and of torchvision.
func TestResize(t *testing.T) {
	for _, c := range readGolden(t).Resizes {
		name := fmt.Sprintf("%s/%dx%d-%dx%d/%v/%v", c.Kind, c.Width, c.Height, c.To[0], c.To[1], vision.Filter(c.Filter), vision.Backend(c.Backend))
		t.Run(name, func(t *testing.T) {
			m, err := vision.Resize(picture(c.Kind, c.Width, c.Height), c.To[0], c.To[1], vision.Filter(c.Filter), vision.Backend(c.Backend))
			require.NoError(t, err)
			require.Equal(t, c.To, [2]int{m.Width, m.Height})
			require.Equal(t, c.Sum, sum(m.Pix))
		})
	}
}

// TestDecode: the pixels of load_image, and those on white.
func TestDecode(t *testing.T) {
	for _, c := range readGolden(t).Files {
		t.Run(c.Name, func(t *testing.T) {
			m, err := vision.Decode(bytes.NewReader(c.File), vision.DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, [2]int{c.Width, c.Height}, [2]int{m.Width, m.Height})
			require.Equal(t, c.Sum, sum(m.Pix))
			m, err = vision.Decode(bytes.NewReader(c.File), vision.DecodeOptions{OnWhite: true})
			require.NoError(t, err)
			require.Equal(t, c.White, sum(m.Pix))
		})
	}
}

// TestAnimations: frames as Pillow draws them, for every method of disposal.
func TestAnimations(t *testing.T) {
	for i, c := range readGolden(t).Animations {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "clip.gif")
			require.NoError(t, os.WriteFile(path, c.File, 0o666))
			frames, err := vision.Frames(path, 100, vision.DecodeOptions{})
			require.NoError(t, err)
			require.Len(t, frames, len(c.Sums))
			for i, f := range frames {
				require.Equal(t, c.Sizes[i], [2]int{f.Width, f.Height}, "frame %d", i)
				require.Equal(t, c.Sums[i], sum(f.Pix), "frame %d", i)
			}
			few, err := vision.Frames(path, 2, vision.DecodeOptions{})
			require.NoError(t, err)
			require.Equal(t, []*vision.Image{frames[0], frames[len(frames)/2]}, few)
		})
	}
}

// open makes a folder of files, by names, and opens it.
func open(t testing.TB, files map[string]json.RawMessage) (*vision.Processor, error) {
	dir := t.TempDir()
	for name, content := range files {
		if content != nil {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o666))
		}
	}
	return vision.OpenProcessor(dir)
}

// TestProcessors: the bits of transformers with both backends, and the text with images.
func TestProcessors(t *testing.T) {
	for _, c := range readGolden(t).Processors {
		t.Run(c.Name, func(t *testing.T) {
			files := map[string]json.RawMessage{"preprocessor_config.json": c.Preprocessor}
			if string(c.Processor) != "null" {
				files["processor_config.json"] = c.Processor
			}
			p, err := open(t, files)
			require.NoError(t, err)
			for _, r := range c.Rows {
				what := fmt.Sprintf("%s %dx%d, backend %d", r.Kind, r.Width, r.Height, r.Backend)
				q, err := p.Using(vision.Backend(r.Backend))
				require.NoError(t, err)
				got, err := q.Process(picture(r.Kind, r.Width, r.Height))
				if r.Refused {
					require.Error(t, err, what)
					continue
				}
				require.NoError(t, err, what)
				require.Equal(t, r.Shape, got.Shape, what)
				require.Equal(t, r.Grid, got.Grid, what)
				if r.Resized != nil {
					require.Equal(t, r.Resized, []int{got.Height, got.Width}, what)
				}
				values, err := binary.Append(nil, binary.LittleEndian, got.Values)
				require.NoError(t, err)
				require.Equal(t, r.Sum, sum(values), what)
				layout, err := q.Layout(r.Width, r.Height)
				require.NoError(t, err, what)
				require.Equal(t, got.Layout, layout, what)
				require.Equal(t, len(got.Values), layout.Len(), what)
			}
			if c.Prompt == "" {
				return
			}
			one, err := p.Layout(60, 45)
			require.NoError(t, err)
			two, err := p.Layout(257, 211)
			require.NoError(t, err)
			text, err := p.Expand(c.Prompt, one, two)
			require.NoError(t, err)
			require.Equal(t, c.Text, sum([]byte(text)), text)
		})
	}
}

// TestPositions: the positions of get_rope_index of three models.
func TestPositions(t *testing.T) {
	for i, c := range readGolden(t).Positions {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var images []vision.Layout
			for _, g := range c.Grids {
				images = append(images, vision.Layout{Grid: g, Merge: 2})
			}
			p, next, err := vision.Positions(c.IDs, vision.Axes{Image: 9, Video: 10}, images)
			require.NoError(t, err)
			require.Equal(t, c.Positions, p)
			require.Equal(t, c.Next, next)
		})
	}
}
