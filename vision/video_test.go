package vision_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"image"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/vision"
)

// goldenVideos is testdata/videos.json, which testdata/videos.py makes with transformers.
type goldenVideos struct {
	Videos []struct {
		Name, Class string
		Files       map[string]json.RawMessage
		Rows        []struct {
			Width, Height, Total int
			FPS, Interval        float64
			Frames               []int
			Refused              bool
			Text, Sum            string
			Grid                 [3]int
		}
	}
	Samples []struct {
		Type      string
		Total     int
		FPS, Take float64
		Frames    []int
	}
	Positions []struct {
		IDs       []int32
		Apart     bool
		PerSecond float64
		Grids     [][3]int
		Intervals []float64
		Positions [3][]int32
		Next      int32
	}
}

func readVideos(t testing.TB) (g goldenVideos) {
	data, err := os.ReadFile("testdata/videos.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// videoFrame is a frame of a clip as videos.py makes it.
func videoFrame(i, width, height int) *vision.Image {
	m := picture("smooth", width, height)
	for j := range m.Pix {
		m.Pix[j] += byte(31 * i)
	}
	return m
}

// folderOf opens the processor of a class whose folder has files.
func folderOf(t testing.TB, class string, files map[string]json.RawMessage) *vision.Processor {
	files = map[string]json.RawMessage{"tokenizer_config.json": json.RawMessage(fmt.Sprintf(`{"processor_class": %q}`, class)), "preprocessor_config.json": files["preprocessor_config.json"],
		"video_preprocessor_config.json": files["video_preprocessor_config.json"], "processor_config.json": files["processor_config.json"]}
	p, err := open(t, files)
	require.NoError(t, err)
	return p
}

// videoProcessor opens a folder whose video processor has fields.
func videoProcessor(t testing.TB, class, fields string) *vision.Processor {
	return folderOf(t, class, map[string]json.RawMessage{"preprocessor_config.json": json.RawMessage(`{"image_processor_type": "Qwen2VLImageProcessor"}`), "video_preprocessor_config.json": json.RawMessage(fields)})
}

// TestVideos: the bits, the text and the intervals of transformers, from frames in memory and from files.
func TestVideos(t *testing.T) {
	for _, c := range readVideos(t).Videos {
		p := folderOf(t, c.Class, c.Files)
		require.True(t, p.Videos())
		for _, r := range c.Rows {
			t.Run(fmt.Sprintf("%s %d frames of %dx%d", c.Name, len(r.Frames), r.Width, r.Height), func(t *testing.T) {
				var frames []*vision.Image
				for _, i := range r.Frames {
					frames = append(frames, videoFrame(i, r.Width, r.Height))
				}
				timing := vision.Timing{FPS: r.FPS, Total: r.Total, Frames: r.Frames}
				x, err := p.ProcessVideo(frames, timing)
				if r.Refused {
					require.ErrorIs(t, err, snug.ErrShape)
					return
				}
				require.NoError(t, err)
				values, err := binary.Append(nil, binary.LittleEndian, x.Values)
				require.NoError(t, err)
				require.Equal(t, r.Grid, x.Grid)
				require.Equal(t, r.Sum, sum(values))
				require.Equal(t, len(r.Frames), x.Frames)
				if r.Interval > 0 {
					require.Equal(t, float32(r.Interval), float32(x.Interval))
				}
				text, err := p.Expand("a<|vision_start|><|video_pad|><|vision_end|>b", x.Layout)
				require.NoError(t, err)
				require.Equal(t, r.Text, sum([]byte(text)), text)
				layout, err := p.VideoLayout(r.Width, r.Height, timing)
				require.NoError(t, err)
				require.Equal(t, x.Layout, layout)
				require.Equal(t, len(x.Values), layout.Len())

				clip, err := vision.OpenClip(folderOfFrames(t, frames), vision.DecodeOptions{})
				require.NoError(t, err)
				timing.Frames = spread(len(frames))
				again, _, err := p.ProcessClip(clip, timing)
				require.NoError(t, err)
				require.Equal(t, x.Values, again.Values)
			})
		}
	}
}

func spread(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// folderOfFrames writes frames as files.
func folderOfFrames(t testing.TB, frames []*vision.Image) string {
	dir := t.TempDir()
	for i, m := range frames {
		writeFrame(t, filepath.Join(dir, fmt.Sprintf("%04d.png", i+1)), m)
	}
	return dir
}

func writeFrame(t testing.TB, path string, m *vision.Image) {
	out := image.NewNRGBA(image.Rect(0, 0, m.Width, m.Height))
	for i := range m.Width * m.Height {
		copy(out.Pix[4*i:], append(slices.Clone(m.Pix[3*i:][:3]), 255))
	}
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, png.Encode(f, out))
	require.NoError(t, f.Close())
}

// TestVideoSamples: the frames that transformers samples by the second.
func TestVideoSamples(t *testing.T) {
	for _, c := range readVideos(t).Samples {
		p := videoProcessor(t, "Qwen3VLProcessor", fmt.Sprintf(`{"video_processor_type": %q, "max_frames": 16}`, c.Type))
		require.Equal(t, 16, p.MaxFrames())
		have, err := p.Sample(c.Total, c.FPS, vision.Sampling{FPS: c.Take})
		require.NoError(t, err)
		require.Equal(t, c.Frames, have.Frames, c)
		require.Equal(t, c.FPS, have.FPS)
	}
	for _, c := range []struct {
		name, fields string
		total        int
		fps          float64
		o            vision.Sampling
		want         []int
	}{
		{"all of a clip without a rate", `{"video_processor_type": "Qwen3VLVideoProcessor"}`, 5, 0, vision.Sampling{}, []int{0, 1, 2, 3, 4}},
		{"by the second, as Qwen3-VL does", `{"video_processor_type": "Qwen3VLVideoProcessor"}`, 25, 10, vision.Sampling{}, []int{0, 6, 12, 18, 24}},
		{"all, as Qwen2-VL does", `{"video_processor_type": "Qwen2VLVideoProcessor"}`, 5, 10, vision.Sampling{}, []int{0, 1, 2, 3, 4}},
		{"an even number up to the most", `{"video_processor_type": "Qwen2VLVideoProcessor"}`, 12, 0, vision.Sampling{Max: 7}, []int{0, 2, 4, 6, 8, 10}},
		{"from the first to the last", `{"video_processor_type": "Qwen3VLVideoProcessor"}`, 12, 0, vision.Sampling{Max: 5}, []int{0, 4, 7, 11}},
		{"fewer than min_frames", `{"video_processor_type": "Qwen3VLVideoProcessor"}`, 100, 1, vision.Sampling{Max: 2}, []int{0, 99}},
		{"num_frames of the files", `{"video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": true, "num_frames": 4}`, 20, 0, vision.Sampling{}, []int{0, 5, 10, 15}},
	} {
		t.Run(c.name, func(t *testing.T) {
			have, err := videoProcessor(t, "Qwen2VLProcessor", c.fields).Sample(c.total, c.fps, c.o)
			require.NoError(t, err)
			if have.Frames == nil {
				have.Frames = spread(c.total)
			}
			require.Equal(t, c.want, have.Frames)
		})
	}
}

// TestVideoPositions: the positions of get_rope_index of three models.
func TestVideoPositions(t *testing.T) {
	for i, c := range readVideos(t).Positions {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			var layouts []vision.Layout
			for i, g := range c.Grids {
				l := vision.Layout{Grid: g, Merge: 2, Interval: c.Intervals[i]}
				if l.Interval > 0 {
					l.Frames = 2 * g[0]
				}
				layouts = append(layouts, l)
			}
			o := vision.Axes{Image: 9, Video: 10, PerSecond: c.PerSecond, Apart: c.Apart}
			p, next, err := vision.Positions(c.IDs, o, layouts)
			require.NoError(t, err)
			require.Equal(t, c.Positions, p)
			require.Equal(t, c.Next, next)
			for _, bad := range []func() []vision.Layout{
				func() []vision.Layout { return layouts[1:] },
				func() []vision.Layout { return append(layouts, layouts[0]) },
				func() []vision.Layout {
					l := slices.Clone(layouts)
					l[len(l)-1].Frames ^= 1 // an image for a video, or more frames
					l[0].Grid[0] += 5
					return l
				},
			} {
				_, _, err := vision.Positions(c.IDs, o, bad())
				require.ErrorIs(t, err, snug.ErrShape)
			}
		})
	}
	fast := vision.Layout{Grid: [3]int{2, 2, 2}, Merge: 2, Frames: 4}
	for _, interval := range []float64{math.Inf(1), math.NaN(), -1, 1e30} {
		fast.Interval = interval
		_, _, err := vision.Positions([]int32{10, 10}, vision.Axes{Image: 9, Video: 10, PerSecond: 2}, []vision.Layout{fast})
		require.ErrorIs(t, err, snug.ErrShape, interval)
	}
}

// TestVideoErrors: what is wrong with a video is said before anything is taken.
func TestVideoErrors(t *testing.T) {
	p := videoProcessor(t, "Qwen3VLProcessor", `{"video_processor_type": "Qwen3VLVideoProcessor"}`)
	frame, other := videoFrame(0, 40, 40), videoFrame(0, 40, 41)
	for _, c := range []struct {
		name   string
		frames []*vision.Image
		timing vision.Timing
		is     error
		says   string
	}{
		{"no frames", nil, vision.Timing{}, snug.ErrShape, "1 x 1"},
		{"a nil frame", []*vision.Image{nil, frame}, vision.Timing{}, snug.ErrConfig, "nil"},
		{"one frame", []*vision.Image{frame}, vision.Timing{}, snug.ErrShape, "as an image"},
		{"sizes", []*vision.Image{frame, other}, vision.Timing{}, snug.ErrShape, "one size"},
		{"too few", []*vision.Image{frame, frame}, vision.Timing{Total: 3}, snug.ErrShape, "2 frames"},
		{"too many", []*vision.Image{frame, frame, frame}, vision.Timing{Total: 2}, snug.ErrShape, "more than 2"},
		{"a rate", []*vision.Image{frame, frame}, vision.Timing{FPS: -1}, snug.ErrConfig, "FPS"},
		{"NaN", []*vision.Image{frame, frame}, vision.Timing{FPS: math.NaN()}, snug.ErrConfig, "FPS"},
		{"a total", []*vision.Image{frame, frame}, vision.Timing{Total: math.MaxInt}, snug.ErrShape, "frames"},
		{"numbers that fall", []*vision.Image{frame, frame}, vision.Timing{Frames: []int{1, 0}}, snug.ErrShape, "do not fall"},
		{"a number below 0", []*vision.Image{frame, frame}, vision.Timing{Frames: []int{-1, 0}}, snug.ErrShape, "number -1"},
		{"a number beyond", []*vision.Image{frame, frame}, vision.Timing{Total: 2, Frames: []int{0, 2}}, snug.ErrShape, "below 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.ProcessVideo(c.frames, c.timing)
			kerneltest.Error(t, "vision.ProcessVideo", err)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := p.VideoLayout(4000, 4000, vision.Timing{Total: 1000})
	require.NoError(t, err, "bounds of the pixels hold")
	big := videoProcessor(t, "Qwen2VLProcessor", `{"video_processor_type": "Qwen2VLVideoProcessor", "do_resize": false}`)
	_, err = big.VideoLayout(2800, 2800, vision.Timing{Total: 1000})
	require.ErrorIs(t, err, snug.ErrNoMemory)
	for _, o := range []vision.Sampling{{FPS: -1}, {Max: -1}, {FPS: math.NaN()}, {Max: math.MaxInt}} {
		_, err := p.Sample(10, 1, o)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	_, err = p.Sample(0, 1, vision.Sampling{})
	require.ErrorIs(t, err, snug.ErrShape)

	for name, fields := range map[string]string{
		"an unknown type": `{"video_processor_type": "LlavaOnevisionVideoProcessor"}`,
		"a size":          `{"video_processor_type": "Qwen2VLVideoProcessor", "size": {"height": 2, "width": 2}}`,
		"both":            `{"video_processor_type": "Qwen3VLVideoProcessor", "num_frames": 5}`,
		"patch_size":      `{"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 5000}`,
		"fps":             `{"video_processor_type": "Qwen3VLVideoProcessor", "fps": -2}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := videoProcessor(t, "Qwen3VLProcessor", fields)
			_, err := p.Process(frame) // of images nothing is wrong
			require.NoError(t, err)
			require.False(t, p.Videos())
			_, err = p.ProcessVideo([]*vision.Image{frame, frame}, vision.Timing{})
			require.ErrorIs(t, err, snug.ErrConfig)
		})
	}
	clipProcessor := processorOf(t, `{"image_processor_type": "CLIPImageProcessor"}`)
	_, err = clipProcessor.ProcessVideo([]*vision.Image{frame}, vision.Timing{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "frames as images")
	require.Zero(t, clipProcessor.MaxFrames())
	require.Empty(t, clipProcessor.VideoPlaceholder())
	var none *vision.Processor
	_, err = none.ProcessVideo(nil, vision.Timing{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = none.Sample(1, 1, vision.Sampling{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestVideoText: layouts of images and videos stand in the order of the text.
func TestVideoText(t *testing.T) {
	p := videoProcessor(t, "Qwen3VLProcessor", `{"video_processor_type": "Qwen3VLVideoProcessor"}`)
	require.Equal(t, "<|video_pad|>", p.VideoPlaceholder())
	picture, err := p.Layout(60, 60)
	require.NoError(t, err)
	clip, err := p.VideoLayout(60, 60, vision.Timing{FPS: 1, Total: 3})
	require.NoError(t, err)
	text, err := p.Expand("<|video_pad|>|<|image_pad|>", clip, picture)
	require.NoError(t, err)
	require.Contains(t, text, "<0.5 seconds><|vision_start|><|video_pad|>")
	require.Contains(t, text, "<2.0 seconds><|vision_start|><|video_pad|>")
	for _, c := range []struct {
		text string
		list []vision.Layout
	}{
		{"<|video_pad|>|<|image_pad|>", []vision.Layout{picture, clip}}, {"<|video_pad|>", nil}, {"<|video_pad|>", []vision.Layout{picture}}, {"", []vision.Layout{clip}},
		{"<|video_pad|>", []vision.Layout{{Grid: clip.Grid, Merge: 2, Frames: 3}}}, {"<|image_pad|>", []vision.Layout{{Frames: -1}}},
	} {
		_, err := p.Expand(c.text, c.list...)
		kerneltest.Error(t, "vision.Expand", err)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	llava := folderOf(t, "LlavaProcessor", map[string]json.RawMessage{"preprocessor_config.json": json.RawMessage(`{"image_processor_type": "CLIPImageProcessor"}`), "processor_config.json": json.RawMessage(`{"patch_size": 14}`)})
	_, err = llava.Expand("", clip)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "frames as images")
}

// TestMaxPixelsOfVideos: a frame has at most so many pixels, in both families.
func TestMaxPixelsOfVideos(t *testing.T) {
	for _, kind := range []string{"Qwen2VL", "Qwen3VL"} {
		p := videoProcessor(t, kind+"Processor", fmt.Sprintf(`{"video_processor_type": "%sVideoProcessor"}`, kind))
		q, err := p.MaxPixels(5000)
		require.NoError(t, err)
		for _, frames := range []int{2, 16} {
			l, err := q.VideoLayout(640, 480, vision.Timing{Total: frames})
			require.NoError(t, err)
			require.LessOrEqual(t, l.Height*l.Width, 5000)
			require.GreaterOrEqual(t, l.Height*l.Width, 2000)
		}
		q, err = p.MaxPixels(math.MaxInt)
		require.NoError(t, err)
		_, err = q.VideoLayout(640, 480, vision.Timing{Total: 4})
		require.NoError(t, err)
	}
}

// TestClip: frames of folders, lists and animations, and what they are bound to.
func TestClip(t *testing.T) {
	frames := []*vision.Image{videoFrame(0, 40, 30), videoFrame(1, 40, 30), videoFrame(2, 40, 30), videoFrame(3, 40, 30)}
	dir := folderOfFrames(t, frames)
	p := videoProcessor(t, "Qwen2VLProcessor", `{"video_processor_type": "Qwen2VLVideoProcessor"}`)
	clip, err := vision.OpenClip(dir, vision.DecodeOptions{})
	require.NoError(t, err)
	width, height := clip.Size()
	require.Equal(t, []int{4, 40, 30}, []int{clip.Len(), width, height})
	require.Zero(t, clip.FPS())
	some := vision.Timing{FPS: 2, Total: 4, Frames: []int{0, 3}}
	sampled, err := p.SampleClip(clip, 0, 3)
	require.NoError(t, err)
	require.Equal(t, vision.Timing{FPS: 2, Total: 4, Frames: []int{0, 2}}, sampled)
	_, err = p.SampleClip(clip, -1, 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	x, read, err := p.ProcessClip(clip, some)
	require.NoError(t, err)
	known, err := clip.Sum(some.Frames)
	require.NoError(t, err)
	require.Equal(t, known, read)
	want, err := p.ProcessVideo([]*vision.Image{frames[0], frames[3]}, some)
	require.NoError(t, err)
	require.Equal(t, want, x)
	others, err := clip.Sum([]int{0, 2})
	require.NoError(t, err)
	require.NotEqual(t, known, others)
	list, err := vision.ClipOf([]string{filepath.Join(dir, "0004.png"), filepath.Join(dir, "0001.png")}, vision.DecodeOptions{})
	require.NoError(t, err)
	x, _, err = p.ProcessClip(list, vision.Timing{})
	require.NoError(t, err)
	want, err = p.ProcessVideo([]*vision.Image{frames[3], frames[0]}, vision.Timing{})
	require.NoError(t, err)
	require.Equal(t, want, x)

	writeFrame(t, filepath.Join(dir, "0004.png"), videoFrame(9, 40, 30))
	changed, err := clip.Sum(some.Frames)
	require.NoError(t, err)
	require.NotEqual(t, known, changed)
	writeFrame(t, filepath.Join(dir, "0004.png"), videoFrame(9, 41, 30))
	_, err = clip.Sum(some.Frames)
	require.ErrorIs(t, err, snug.ErrShape)
	_, _, err = p.ProcessClip(clip, some)
	require.ErrorIs(t, err, snug.ErrShape)
	require.NoError(t, os.Remove(filepath.Join(dir, "0004.png")))
	_, _, err = p.ProcessClip(clip, some)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = clip.Sum(some.Frames)
	require.ErrorIs(t, err, os.ErrNotExist)

	movie := filepath.Join(dir, "clip.mp4")
	require.NoError(t, os.WriteFile(movie, []byte("\x00\x00\x00\x18ftypmp42"), 0o600))
	_, err = vision.OpenClip(movie, vision.DecodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "-vf fps=2 frames/%04d.png")
	still, err := os.ReadFile(filepath.Join(dir, "0001.png"))
	require.NoError(t, err)
	for name, file := range map[string]string{
		"a.png":  string(still[:33]) + "\x00\x00\x00\x08acTL\x00\x00\x00\x02\x00\x00\x00\x00\xf3\x8d\x93\x70" + string(still[33:]),
		"a.webp": "RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x02\x00\x00\x00\x27\x00\x00\x1d\x00\x00",
	} {
		animated := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(animated, []byte(file), 0o600))
		_, err = vision.OpenClip(animated, vision.DecodeOptions{})
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.ErrorContains(t, err, "a folder of its frames")
	}
	_, err = vision.OpenClip("", vision.DecodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = vision.OpenClip(dir, vision.DecodeOptions{Pixels: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = vision.ClipOf(nil, vision.DecodeOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, none := range []*vision.Clip{nil, {}} {
		_, err = none.Sum(nil)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, _, err = p.ProcessClip(none, vision.Timing{})
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = p.SampleClip(none, 0, 0)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Zero(t, none.Len())
		require.Zero(t, none.FPS())
	}
	_, err = clip.Sum([]int{4})
	require.ErrorIs(t, err, snug.ErrShape)
	_, _, err = p.ProcessClip(clip, vision.Timing{Total: 9, Frames: []int{8}})
	require.ErrorIs(t, err, snug.ErrShape)
}

// TestClipOfAnimation: the frames of an animated file are those that Frames returns.
func TestClipOfAnimation(t *testing.T) {
	p := videoProcessor(t, "Qwen2VLProcessor", `{"video_processor_type": "Qwen2VLVideoProcessor"}`)
	for i, c := range readGolden(t).Animations {
		path := filepath.Join(t.TempDir(), "clip.gif")
		require.NoError(t, os.WriteFile(path, c.File, 0o600))
		clip, err := vision.OpenClip(path, vision.DecodeOptions{})
		require.NoError(t, err)
		require.Equal(t, len(c.Sums), clip.Len())
		require.Greater(t, clip.FPS(), 9.9)
		frames, err := vision.Frames(path, 100, vision.DecodeOptions{})
		require.NoError(t, err)
		timing := vision.Timing{FPS: clip.FPS(), Total: clip.Len(), Frames: []int{0, 1, 1, 3}}
		want, failed := p.ProcessVideo([]*vision.Image{frames[0], frames[1], frames[1], frames[3]}, timing)
		x, read, err := p.ProcessClip(clip, timing)
		if failed != nil { // a canvas that grows
			require.ErrorIs(t, err, snug.ErrShape, i)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, x)
		known, err := clip.Sum(timing.Frames)
		require.NoError(t, err)
		require.Equal(t, known, read)
	}
}
