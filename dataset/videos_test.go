package dataset

import (
	"encoding/json"
	"image"
	"image/color"
	"image/gif"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/vision"
)

// videoTemplate writes images and videos as Qwen's templates do.
const videoTemplate = `{% for m in messages %}<|{{ m['role'] }}|>{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>` +
	`{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}</s>{% endfor %}`

// watching returns the tokenizer and the options of a model of images, videos and text, Qwen2.5-VL or Qwen3-VL.
func watching(t *testing.T, name string) (*tokenizer.Tokenizer, Options) {
	from, dir := filepath.Join(imageFolder, name), t.TempDir()
	for _, file := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "processor_config.json"} {
		data, err := os.ReadFile(filepath.Join(from, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(videoTemplate), 0o600))
	in, err := vision.OpenInput(dir)
	require.NoError(t, err)
	in, err = in.MaxPixels(400)
	require.NoError(t, err)
	require.True(t, in.Processor.Videos())
	require.Positive(t, in.VideoToken())
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	o := Options{Context: 400, Images: in}
	o.Template, err = chat.Open(tok, chat.Options{})
	require.NoError(t, err)
	return tok, o
}

// videoRows writes rows to a file of a folder with images, frames in the folder frames, an animation and an MP4.
func videoRows(t *testing.T, rows ...string) (path string) {
	path = imageRows(t, rows...)
	dir := filepath.Dir(path)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "frames"), 0o700))
	data, err := os.ReadFile(filepath.Join(dir, "0.png"))
	require.NoError(t, err)
	for _, name := range []string{"1.png", "2.png", "3.png", "4.png", "5.png"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "frames", name), data, 0o600))
	}
	a := &gif.GIF{}
	for i := range 8 {
		a.Image = append(a.Image, image.NewPaletted(image.Rect(0, 0, 40, 30), color.Palette{color.Gray{Y: uint8(30 * i)}, color.White}))
		a.Delay = append(a.Delay, 25)
	}
	f, err := os.Create(filepath.Join(dir, "clip.gif"))
	require.NoError(t, err)
	require.NoError(t, gif.EncodeAll(f, a))
	require.NoError(t, f.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "clip.mp4"), []byte("\x00\x00\x00\x18ftypmp42"), 0o600))
	return path
}

// TestVideoForms: one video, however it is given, is the same sample with the same pixels.
func TestVideoForms(t *testing.T) {
	part := func(video string) string {
		return `{"messages": [{"role": "user", "content": [` + video + `, {"type": "text", "text": "what color"}]}, ` + colorAnswer + `]}`
	}
	list := `["frames/1.png", "frames/2.png", "frames/3.png", "frames/4.png", "frames/5.png"]`
	for _, name := range []string{"qwen2_5_vl", "qwen3_vl"} {
		tok, o := watching(t, name)
		want := ""
		for form, row := range map[string]string{
			"a folder":          part(`{"type": "video", "video": "frames"}`),
			"path":              part(`{"type": "video", "path": "frames", "fps": 2.0}`),
			"URL":               part(`{"type": "video_url", "video_url": {"url": "frames"}, "sample_fps": "2"}`),
			"frames":            part(`{"type": "video", "video": ` + list + `, "min_pixels": 4}`),
			"without a type":    part(`{"video": ` + list + `}`),
			"place and videos":  `{"videos": [` + list + `], ` + part(`{"type": "video"}`)[1:],
			"place and video":   `{"video": ` + list + `, ` + part(`{"type": "video"}`)[1:],
			"no place":          `{"videos": ["frames"], "messages": [{"role": "user", "content": "what color"}, ` + colorAnswer + `]}`,
			"mark in a text":    `{"videos": [{"path": "frames", "fps": 2}], "messages": [{"role": "user", "content": "<video>\nwhat color"}, ` + colorAnswer + `]}`,
			"LLaVA's":           `{"video": "frames", "conversations": [{"from": "human", "value": "<video>\nwhat color"}, {"from": "gpt", "value": "a red square"}]}`,
			"question, answer":  `{"video": "frames", "question": "what color", "answer": "a red square"}`,
			"prompt completion": `{"videos": "frames", "prompt": [{"role": "user", "content": "what color"}], "completion": [` + colorAnswer + `]}`,
		} {
			t.Run(name+" "+form, func(t *testing.T) {
				s, err := Open([]string{videoRows(t, row)}, tok, o)
				require.NoError(t, err)
				require.Equal(t, 1, s.Images())
				l := s.Layout(0)
				require.Equal(t, 5, l.Frames)
				require.InDelta(t, 1.0, l.Interval, 1e-9)
				require.Equal(t, []float64{0.25, 1.25, 2}, l.Times)
				got := describe(t, s)
				if want == "" {
					want = got
				}
				require.Equal(t, want, got)
				require.NoError(t, s.Close())
			})
		}
	}
}

// TestVideosBesideImages: places of both kinds keep their order, and animations are sampled.
func TestVideosBesideImages(t *testing.T) {
	tok, o := watching(t, "qwen3_vl")
	path := videoRows(t,
		`{"images": ["0.png", "1.png"], "videos": ["clip.gif", "frames"], "messages": [{"role": "user", "content": "<video> and <image> then <video>, <image>"}, `+colorAnswer+`]}`,
		`{"messages": [{"role": "user", "content": [{"type": "video", "video": "clip.gif", "fps": 4, "max_frames": 5}, {"type": "image", "image": "2.png"}, "what"]}, `+colorAnswer+`]}`,
		`{"messages": [{"role": "user", "content": "what color"}, `+colorAnswer+`]}`,
		`{"videos": ["frames"], "images": ["0.png"], "messages": [{"role": "user", "content": "what color"}, `+colorAnswer+`]}`)
	s, err := Open([]string{path}, tok, o)
	require.NoError(t, err)
	var frames []int
	for i := range s.Images() {
		frames = append(frames, s.Layout(i).Frames)
		x, err := s.Pixels(i)
		require.NoError(t, err)
		require.Equal(t, s.Layout(i), x.Layout)
	}
	require.Equal(t, []int{4, 0, 5, 0, 5, 0, 0, 5}, frames, "clip.gif has 8 frames of 2 s: 2 a second, or at most 5")
	require.Equal(t, []float64{(0 + 2) / 8.0, (5 + 7) / 8.0}, s.Layout(0).Times)
	for i, want := range [][]int{{0, 1, 2, 3}, {4, 5}, nil, {6, 7}} {
		b, err := s.batch([]int{i})
		require.NoError(t, err)
		require.Equal(t, want, b.Images[0])
		rows := 0
		for _, n := range b.Images[0] {
			r, err := o.Images.Rows(s.Layout(n))
			require.NoError(t, err)
			rows += r
		}
		for _, token := range b.Tokens {
			if token == o.Images.Token() || token == o.Images.VideoToken() {
				rows--
			}
		}
		require.Zero(t, rows)
	}
	for shown, err := range s.Show(tok) {
		require.NoError(t, err)
		text, err := json.Marshal(shown)
		require.NoError(t, err)
		require.Contains(t, string(text), "video_pad", string(text))
		require.Contains(t, string(text), " × ")
		break
	}
	require.NoError(t, s.Close())

	o.Context = 60 // where videos do not end
	s, err = Open([]string{path}, tok, o)
	require.NoError(t, err)
	require.Equal(t, 3, s.Stats().Truncated)
	require.NoError(t, s.Close())
	o.Context = 400

	o.MaxFrames = 3
	s, err = Open([]string{path}, tok, o)
	require.NoError(t, err)
	require.Equal(t, 3, s.Layout(0).Frames)
	sum := s.ImageSum(2)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "frames", "5.png"), must(os.ReadFile(filepath.Join(imageFolder, "0.png")))[:40], 0o600))
	_, err = s.Pixels(2)
	require.Error(t, err)
	require.Equal(t, sum, s.ImageSum(2))
	require.NoError(t, s.Close())
}

// TestVideoRefused: what would be learned wrongly is an error that says the line.
func TestVideoRefused(t *testing.T) {
	tok, o := watching(t, "qwen2_5_vl")
	ask := func(content string) string {
		return `{"messages": [{"role": "user", "content": ` + content + `}, ` + colorAnswer + `]}`
	}
	for name, c := range map[string]struct{ row, says string }{
		"an MP4":            {ask(`[{"type": "video", "path": "clip.mp4"}]`), "-vf fps=2 frames/%04d.png"},
		"a web page":        {`{"video": "https://example.com/a.mp4", "question": "x", "answer": "y"}`, "nothing is downloaded"},
		"no file":           {`{"video": "9", "question": "x", "answer": "y"}`, "no such file"},
		"no images":         {`{"video": "/proc/self/fd", "question": "x", "answer": "y"}`, "no images in the folder"},
		"a number":          {`{"video": 7, "question": "x", "answer": "y"}`, "item 0 is a number"},
		"an empty object":   {`{"video": {"id": 3}, "question": "x", "answer": "y"}`, "without a path"},
		"bytes":             {`{"video": {"bytes": "AAAA"}, "question": "x", "answer": "y"}`, "the bytes of a video"},
		"data":              {`{"video": "data:video/mp4;base64,AAAA", "question": "x", "answer": "y"}`, "a path"},
		"two fields":        {`{"video": "frames", "videos": ["frames"], "question": "x", "answer": "y"}`, "both video and videos"},
		"too many places":   {`{"video": "frames", "question": "<video> or <video>", "answer": "y"}`, "places for 2 videos, and the row has 1"},
		"a place without":   {`{"question": "<video> what", "answer": "y"}`, "places for 1 videos"},
		"a rate":            {ask(`[{"type": "video", "path": "frames", "fps": 0}]`), "fps: 0, want a number"},
		"a rate of words":   {ask(`[{"type": "video", "path": "frames", "fps": "fast"}]`), "want a number"},
		"a row's rate":      {`{"video": "frames", "fps": 4, "question": "x", "answer": "y"}`, `write it into the video, as {"path": "clips/7", "fps": 2}; -map fps= leaves it out`},
		"a row's frames":    {`{"max_frames": 4, ` + ask(`[{"type": "video", "path": "frames"}]`)[1:], "the row has max_frames"},
		"max_frames":        {ask(`[{"type": "video", "path": "frames", "max_frames": -1}]`), "want a number"},
		"two in a part":     {ask(`[{"type": "video", "path": "frames", "url": "clip.gif"}]`), "more than one video"},
		"a text":            {ask(`[{"type": "video", "path": "frames", "text": "see"}]`), "a part of its own"},
		"drawn":             {`{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "video", "path": "frames"}]}]}`, "turn of the assistant"},
		"drawn mark":        {`{"video": "frames", "question": "x", "answer": "<video>"}`, "writes only text"},
		"the token":         {`{"video": "frames", "question": "<|video_pad|>", "answer": "y"}`, "2 times"},
		"beside its own":    {`{"video": "frames", ` + ask(`[{"type": "video", "path": "frames"}]`)[1:], "no place for them"},
		"noncharacters":     {`{"question": "\ufdeb0\ufde9", "answer": "y"}`, "noncharacters"},
		"an image as video": {ask(`[{"type": "video", "path": ["0.png", "clip.mp4"]}]`), "want PNG"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open([]string{videoRows(t, c.row)}, tok, o)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "line 1")
		})
	}
	tok, o = seeing(t, "gemma3") // which takes no videos
	for _, row := range []string{`{"video": "frames", "question": "x", "answer": "y"}`, ask(`[{"type": "video", "video": "frames"}]`)} {
		_, err := Open([]string{videoRows(t, row)}, tok, o)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "give the frames as images")
	}
	s, err := Open([]string{videoRows(t, `{"question": "the tag <video> of a page", "answer": "y"}`)}, tok, o)
	require.NoError(t, err, "a text, where no videos are known")
	require.NoError(t, s.Close())
}
