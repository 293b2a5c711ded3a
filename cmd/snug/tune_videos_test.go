package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// videoModel returns a folder with a model of images, videos and text, whose template writes videos, and of frames in folders a and b with data about them.
func videoModel(t *testing.T, name string) (model, data string) {
	dir := t.TempDir()
	model = filepath.Join(dir, name)
	require.NoError(t, os.CopyFS(model, os.DirFS(filepath.Join(imageModels, name))))
	require.NoError(t, os.WriteFile(filepath.Join(model, "chat_template.jinja"), []byte(`{% for m in messages %}<|{{ m['role'] }}|>{% for c in m['content'] %}`+
		`{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}`+
		`{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}`), 0o600))
	for i, clip := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, clip), 0o700))
		for frame := range 5 {
			text, err := os.ReadFile(filepath.Join(imageModels, fmt.Sprintf("%d.png", 4*i)))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, clip, fmt.Sprintf("%d.png", frame)), text, 0o600))
		}
	}
	data = filepath.Join(dir, "data.jsonl")
	row := `{"messages": [{"role": "user", "content": [{"type": "video", "video": "%s"}, {"type": "text", "text": "what color"}]}, {"role": "assistant", "content": "%s"}]}` + "\n"
	require.NoError(t, os.WriteFile(data, []byte(fmt.Sprintf(row, "a", "red")+fmt.Sprintf(row, "b", "blue")), 0o600))
	return model, data
}

// TestTuneVideos: tune on videos learns from features that are kept, and generate sees a video.
func TestTuneVideos(t *testing.T) {
	for _, name := range []string{"qwen2_5_vl", "qwen3_vl"} {
		t.Run(name, func(t *testing.T) {
			model, data := videoModel(t, name)
			dir := filepath.Dir(data)
			flags := []string{"tune", "-model", model, "-data", data, "-max-pixels", "256", "-max-frames", "4"}
			_, shown, errs := snugged(append(flags, "-show", "1")...)
			require.Empty(t, errs)
			require.Contains(t, shown, "<|video_pad|> × ")
			out := filepath.Join(dir, "tuned")
			status, printed, errs := snugged(append(flags, "-o", out, "-compute", "f32", "-base", "bf16", "-held-out", "0", "-epochs", "30", "-batch", "2", "-lr", "1e-2", "-features", filepath.Join(dir, "kept"))...)
			require.Zero(t, status, errs)
			require.Contains(t, printed, "images: 2 videos in this run, whose features take ")
			for clip, want := range map[string]string{"a": "red", "b": "blue"} {
				status, said, errs := snugged("generate", "-model", model, "-adapter", out, "-video", filepath.Join(dir, clip), "-fps", "2", "-max-frames", "4", "-max-pixels", "256", "-prompt", "what color", "-tokens", "4", "-compute", "f32")
				require.Zero(t, status, errs)
				require.Equal(t, want+"\n", said)
			}
			again := filepath.Join(dir, "again") // of features that are there
			status, printed, errs = snugged(append(flags, "-o", again, "-compute", "f32", "-base", "bf16", "-held-out", "0", "-epochs", "30", "-batch", "2", "-lr", "1e-2", "-features", filepath.Join(dir, "kept"))...)
			require.Zero(t, status, errs)
			require.NotContains(t, printed, "videos in 0")
			first, err := os.ReadFile(filepath.Join(out, adapterFile))
			require.NoError(t, err)
			second, err := os.ReadFile(filepath.Join(again, adapterFile))
			require.NoError(t, err)
			require.Equal(t, first, second)
		})
	}
}

// TestVideosRefused: what cannot be is said in a line.
func TestVideosRefused(t *testing.T) {
	model, data := videoModel(t, "qwen2_5_vl")
	dir := filepath.Dir(data)
	movie := filepath.Join(dir, "clip.mp4")
	require.NoError(t, os.WriteFile(movie, []byte("\x00\x00\x00\x18ftypmp42"), 0o600))
	gemma := filepath.Join(imageModels, "gemma3")
	for name, c := range map[string]struct {
		flags []string
		says  string
	}{
		"an MP4":              {[]string{"generate", "-model", model, "-prompt", "x", "-video", movie}, "-vf fps=2 frames/%04d.png"},
		"no folder":           {[]string{"generate", "-model", model, "-prompt", "x", "-video", filepath.Join(dir, "c")}, "no such file"},
		"no videos":           {[]string{"generate", "-model", gemma, "-prompt", "x", "-video", filepath.Join(dir, "a")}, "give the frames as images"},
		"frames of no videos": {[]string{"tune", "-model", gemma, "-data", data, "-max-frames", "4", "-o", filepath.Join(dir, "out")}, "-max-frames: vision: Gemma3ImageProcessor has no videos"},
		"rows of no videos":   {[]string{"tune", "-model", gemma, "-data", data, "-o", filepath.Join(dir, "out")}, "give the frames as images"},
		"without a video":     {[]string{"generate", "-model", model, "-prompt", "x", "-fps", "2"}, "-fps"},
		"a rate":              {[]string{"generate", "-model", model, "-prompt", "x", "-video", "a", "-fps", "0"}, "0.001 to 1000000"},
		"a plan":              {[]string{"plan", "-frames", "4", model}, "-frames"},
		"a plan of no videos": {[]string{"plan", "-pixels", "16", "-frames", "4", filepath.Join(imageModels, "llava")}, "give the frames as images"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := snugged(c.flags...)
			require.NotZero(t, status)
			require.Contains(t, errs, c.says)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		})
	}
}

// TestPlanFrames: a video has the tokens of its frames.
func TestPlanFrames(t *testing.T) {
	model := filepath.Join(imageModels, "qwen2_5_vl")
	status, said, errs := snugged("plan", "-lora", "4", "-memory", "200MiB", "-context", "32", "-pixels", "8,16", "-frames", "5", "-max-pixels", "256", model)
	require.Zero(t, status, errs)
	require.Contains(t, said, "with one video of 5 frames in each sample")
	require.Regexp(t, `(?m)^    16 px: \d+ tokens of a video; .* of resident memory`, said)
}
