package main

import (
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/vision"
)

// smallTower writes the folder of a small vision transformer with random weights.
func smallTower(t *testing.T, labels ...string) string {
	t.Helper()
	dir := t.TempDir()
	tower, err := vision.NewTower(vision.TowerConfig{
		Family: "vit", Image: 16, Patch: 8, Channels: 3, Width: 16, Hidden: 32, Layers: 2, Heads: 2, Activation: "gelu", Eps: 1e-6, QKVBias: true, Labels: labels,
	}, vision.TowerOptions{Options: layers.Options{Seed: 1}})
	require.NoError(t, err)
	require.NoError(t, tower.Save(dir))
	const processor = `{"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(processor), 0o600))
	return dir
}

// writePNG writes an image of one colour with a corner that tells it from others.
func writePNG(t *testing.T, path string, fill color.Color, i int) {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, 20, 18))
	for y := range 18 {
		for x := range 20 {
			m.Set(x, y, fill)
		}
	}
	m.Set(0, 0, color.Gray{Y: uint8(10 * i)})
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, png.Encode(f, m))
	require.NoError(t, f.Close())
}

var shades = map[string]color.Color{"red": color.RGBA{R: 255, A: 255}, "green": color.RGBA{G: 255, A: 255}, "blue": color.RGBA{B: 255, A: 255}}

// shadesFolder writes a folder of classes: n images of each shade in a folder of a part.
func shadesFolder(t *testing.T, dir, part string, n int) string {
	t.Helper()
	for name, fill := range shades {
		for i := range n {
			writePNG(t, filepath.Join(dir, part, name, string(rune('a'+i))+".png"), fill, i)
		}
	}
	return dir
}

func lineAtEnd(t *testing.T, out string, v any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), v), out)
}

// TestTuneClasses: a vision transformer learns folders of classes, its result tells them apart, and a run from it goes on with its head.
func TestTuneClasses(t *testing.T) {
	model, data, dir := smallTower(t), shadesFolder(t, shadesFolder(t, t.TempDir(), "train", 6), "validation", 2), t.TempDir()
	out := filepath.Join(dir, "tuned")
	status, stdout, errs := snugged("tune", "-model", model, "-data", data, "-o", out, "-lr", "0.01", "-epochs", "10", "-batch", "6", "-json", "-memory", "300MiB")
	require.Zero(t, status, errs)
	var r visualResult
	lineAtEnd(t, stdout, &r)
	require.Equal(t, []any{"done", 18, 6, 30, 30, "accuracy"}, []any{r.State, r.Samples, r.HeldOut, r.Steps, r.Done, r.Score})
	require.Equal(t, 1.0, *r.ScoreLast)
	require.Less(t, r.LossLast, r.LossFirst)
	require.InEpsilon(t, r.Predicted, r.Measured, 0.01)
	require.Contains(t, stdout, "images by class: blue 6, green 6, red 6")
	require.Contains(t, stdout, "a new head for 3 classes")
	tower, err := vision.OpenTower(out, vision.TowerOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"blue", "green", "red"}, tower.Config().Labels)
	status, stdout, errs = snugged("generate", "-model", out, "-image", filepath.Join(data, "validation", "green", "a.png")+","+filepath.Join(data, "validation", "red", "a.png"))
	require.Zero(t, status, errs)
	require.Regexp(t, `(?s)a\.png\n +\d+\.\d %  green\n.*a\.png\n +\d+\.\d %  red\n`, stdout)
	status, stdout, errs = snugged("tune", "-model", out, "-data", filepath.Join(data, "train"), "-val", filepath.Join(data, "validation"), "-o", filepath.Join(dir, "more"), "-steps", "1", "-train", "head", "-json")
	require.Zero(t, status, errs)
	require.Contains(t, stdout, "the head of the model goes on")
	lineAtEnd(t, stdout, &r)
	require.Equal(t, 1.0, *r.ScoreFirst)
	for i, name := range []string{"vit.embeddings.cls_token", "classifier.weight"} {
		require.Equal(t, i == 0, equalTensors(t, name, out, filepath.Join(dir, "more")), name)
	}
}

// equalTensors reports whether two folders have the same values of a parameter.
func equalTensors(t *testing.T, name string, dirs ...string) bool {
	t.Helper()
	var all [][]uint16
	for _, dir := range dirs {
		tower, err := vision.OpenTower(dir, vision.TowerOptions{Options: layers.Options{DType: 0}})
		require.NoError(t, err)
		for _, p := range tower.Model.Params() {
			if p.Name == name {
				var bits []uint16
				for _, x := range p.Value.Float32s() {
					bits = append(bits, uint16(x*1000))
				}
				all = append(all, bits)
			}
		}
	}
	require.Len(t, all, len(dirs))
	return jsonOf(t, all[0]) == jsonOf(t, all[1])
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// TestTuneClassesResumes: a run that goes on from a checkpoint ends with the bits of one that was not stopped, and other data is refused.
func TestTuneClassesResumes(t *testing.T) {
	model, data, dir := smallTower(t), shadesFolder(t, t.TempDir(), "", 5), t.TempDir()
	args := func(out, steps string, more ...string) []string {
		return append([]string{"tune", "-model", model, "-data", data, "-o", filepath.Join(dir, out), "-steps", steps, "-batch", "4", "-lr", "0.001"}, more...)
	}
	status, _, errs := snugged(args("whole", "6")...)
	require.Zero(t, status, errs)
	checkpoints := filepath.Join(dir, "checkpoints")
	status, _, errs = snugged(args("first", "6", "-checkpoint", checkpoints, "-save-every", "3")...)
	require.Zero(t, status, errs)
	steps, err := filepath.Glob(filepath.Join(checkpoints, "step-*"))
	require.NoError(t, err)
	require.Len(t, steps, 2)
	require.NoError(t, os.RemoveAll(steps[1]))
	status, stdout, errs := snugged(args("second", "6", "-checkpoint", checkpoints, "-save-every", "3")...)
	require.Zero(t, status, errs)
	require.Contains(t, stdout, "going on from step 3 of 6")
	want, err := os.ReadFile(filepath.Join(dir, "whole", "model.safetensors"))
	require.NoError(t, err)
	for _, name := range []string{"first", "second"} {
		got, err := os.ReadFile(filepath.Join(dir, name, "model.safetensors"))
		require.NoError(t, err)
		require.True(t, string(want) == string(got), name)
	}
	writePNG(t, filepath.Join(data, "red", "z.png"), shades["red"], 20)
	status, _, errs = snugged(args("third", "6", "-checkpoint", checkpoints)...)
	require.NotZero(t, status)
	require.Contains(t, errs, "data")
}

// TestTuneClassesRefuses: what has no meaning for classes, and data that cannot be learned, is one line that says why.
func TestTuneClassesRefuses(t *testing.T) {
	model, data := smallTower(t), shadesFolder(t, t.TempDir(), "", 2)
	damaged := shadesFolder(t, t.TempDir(), "", 2)
	require.NoError(t, os.WriteFile(filepath.Join(damaged, "red", "a.png"), []byte("no image"), 0o600))
	larger := smallTower(t)
	require.NoError(t, os.WriteFile(filepath.Join(larger, "preprocessor_config.json"), []byte(`{"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}`), 0o600))
	for name, c := range map[string]struct {
		model, data string
		more        []string
		want        string
	}{
		"adapters":         {model, data, []string{"-lora", "4", "-alpha", "8"}, "-lora and -alpha are not for a model that tells classes of images apart, which -model"},
		"preferences":      {model, data, []string{"-dpo", "0.1"}, "-dpo is not for a model that tells"},
		"a part":           {model, data, []string{"-train", "text"}, "-train text is not for a model that tells"},
		"a jitter":         {model, data, []string{"-box-jitter", "2"}, "-box-jitter is not for a model that tells"},
		"a damaged image":  {model, damaged, nil, filepath.Join(damaged, "red", "a.png")},
		"one class":        {model, filepath.Dir(filepath.Join(data, "red")) + "/red", nil, "images and no folders"},
		"too little":       {model, data, []string{"-memory", "20MiB"}, "nothing fits"},
		"another size":     {larger, data, nil, "preprocessor_config.json of"},
		"steps and epochs": {model, data, []string{"-steps", "1", "-epochs", "1"}, "-steps and -epochs"},
		"several paths":    {model, data + "," + data, nil, "several paths"},
		"another field":    {model, data, []string{"-map", "text=x"}, "want image or label"},
		"no validation":    {model, data, []string{"-val", data + "/red"}, "images and no folders"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			status, _, errs := snugged(append([]string{"tune", "-model", c.model, "-data", c.data, "-o", out}, c.more...)...)
			require.NotZero(t, status)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			requireNoKind(t, errs)
			require.NoDirExists(t, out)
		})
	}
	status, _, errs := snugged("generate", "-model", model, "-image", filepath.Join(data, "red", "a.png"))
	require.Equal(t, 2, status)
	require.Contains(t, errs, "has no head that tells classes apart")
	status, _, errs = snugged("tune", "-model", "none", "-data", data, "-o", "x", "-val", data)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-val is for a model that tells classes of images apart, which -model none is not")
}

// TestTuneClassesDryRun: a plan is printed without a step, and its JSON says what the process takes.
func TestTuneClassesDryRun(t *testing.T) {
	model, data := smallTower(t), shadesFolder(t, t.TempDir(), "", 3)
	status, stdout, errs := snugged("tune", "-model", model, "-data", data, "-dry-run", "-json", "-compute", "f32")
	require.Zero(t, status, errs)
	var p planJSON
	lineAtEnd(t, stdout, &p)
	require.Positive(t, p.Process)
	require.Equal(t, "f32", p.Run.Compute)
}
