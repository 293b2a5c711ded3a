package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// imageModels has small models of images and text as transformers saves them, and data, which testdata/tune.py of package vision makes.
const imageModels = "../../vision/testdata/tune"

// imageLoss returns the mean loss of the data by a model with its tower and an adapter.
func imageLoss(t *testing.T, dir, file, adapter string) float64 {
	in, err := vision.OpenInput(dir)
	require.NoError(t, err)
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	o := dataset.Options{Context: 512, Images: in}
	if tok.Config().ChatTemplate != "" {
		o.Template, err = chat.Open(tok, chat.Options{})
		require.NoError(t, err)
	}
	data, err := dataset.Open([]string{filepath.Join(imageModels, file)}, tok, o)
	require.NoError(t, err)
	m, err := vision.OpenModel(dir, vision.ModelOptions{Text: transformer.Options{DType: snug.F32, AdapterDir: adapter}})
	require.NoError(t, err)
	batches, err := data.Batch(0, data.Stats().Samples, data.Stats().Samples)
	require.NoError(t, err)
	b := vision.Batch{Text: batches[0].Batch}
	for _, images := range batches[0].Images {
		for _, i := range images {
			x, err := data.Pixels(i)
			require.NoError(t, err)
			b.Images = append(b.Images, x)
		}
	}
	loss, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, data.Close())
	return loss.Mean()
}

// TestTuneImages: tune on images learns, without the tower in memory; the loss of its adapter is that of the whole model. Before, it is
// that of transformers. PEFT has the same loss: SNUG_SAVE=DIR, and testdata/tune.py adapter MODEL DIR/NAME.
func TestTuneImages(t *testing.T) {
	list, err := filepath.Glob(filepath.Join(imageModels, "*", "golden.json"))
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, path := range list {
		model := filepath.Dir(path)
		t.Run(filepath.Base(model), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			var golden struct {
				Loss         float64
				Answer, Data string
			}
			require.NoError(t, json.Unmarshal(text, &golden))
			require.InEpsilon(t, golden.Loss, imageLoss(t, model, golden.Data, ""), 1e-5)
			status, said, errs := snugged("generate", "-model", model, "-image", filepath.Join(imageModels, "4.png"), "-prompt", "what color is this", "-tokens", "12", "-compute", "f32")
			require.Zero(t, status, errs)
			require.Equal(t, golden.Answer+"\n", said)
			to := t.TempDir()
			if dir := os.Getenv("SNUG_SAVE"); dir != "" {
				to = dir
			}
			out := filepath.Join(to, filepath.Base(model))
			status, printed, errs := snugged("tune", "-model", model, "-data", filepath.Join(imageModels, golden.Data), "-o", out, "-compute", "f32", "-base", "bf16",
				"-held-out", "0", "-epochs", "4", "-batch", "2", "-lr", "1e-2")
			require.Zero(t, status, errs)
			require.Contains(t, printed, " images in this run, whose features take ")
			require.NoDirExists(t, out+".pages")
			after := imageLoss(t, model, golden.Data, out)
			require.Less(t, after, 0.7*golden.Loss)
			if os.Getenv("SNUG_SAVE") != "" {
				require.NoError(t, os.WriteFile(filepath.Join(out, "loss.txt"), []byte(fmt.Sprint(after)), 0o644))
			}
			// merge writes the whole model, with the projector that has learned.
			merged := filepath.Join(to, filepath.Base(model)+"-merged")
			status, _, errs = snugged("merge", "-model", model, "-adapter", out, "-o", merged, "-compute", "f32")
			require.Zero(t, status, errs)
			require.InEpsilon(t, after, imageLoss(t, merged, golden.Data, ""), 1e-5)
			// The whole model that -full writes opens, and has learned.
			whole := filepath.Join(to, filepath.Base(model)+"-whole")
			status, _, errs = snugged("tune", "-model", model, "-data", filepath.Join(imageModels, golden.Data), "-o", whole, "-compute", "f32", "-full",
				"-held-out", "0", "-epochs", "4", "-batch", "2", "-lr", "1e-3")
			require.Zero(t, status, errs)
			require.Less(t, imageLoss(t, whole, golden.Data, ""), golden.Loss)
		})
	}
}

// TestGenerateImagesRefused: what cannot be is said in a line.
func TestGenerateImagesRefused(t *testing.T) {
	seen := filepath.Join(imageModels, "0.png")
	for name, c := range map[string]struct {
		flags []string
		says  string
	}{
		"no file":           {[]string{"-image", "nothing.png"}, "no such file"},
		"an empty name":     {[]string{"-image", seen + ","}, "one of the names is empty"},
		"no image":          {[]string{"-image", filepath.Join(imageModels, "data.jsonl")}, "want PNG, JPEG"},
		"no place":          {[]string{"-image", seen, "-plain"}, "want one for each of 1 images"},
		"a place too many":  {[]string{"-image", seen, "-prompt", "<start_of_image>"}, "want one for each of 1 images"},
		"a text model":      {[]string{"-image", seen, "-model", chatModel(t, chatML)}, "model_type"},
		"the token of rows": {[]string{"-image", seen, "-prompt", "<image_soft_token>"}, "placeholder"},
	} {
		t.Run(name, func(t *testing.T) {
			status, said, errs := snugged(append([]string{"generate", "-model", filepath.Join(imageModels, "gemma3"), "-prompt", "x"}, c.flags...)...)
			require.NotZero(t, status)
			require.Empty(t, said)
			require.Contains(t, errs, c.says)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		})
	}
}

// TestPlanPixels: plan has a line for each size of an image, whose rows are those of the processor.
func TestPlanPixels(t *testing.T) {
	model := filepath.Join(imageModels, "qwen2_5_vl")
	status, said, errs := snugged("plan", "-lora", "4", "-memory", "200MiB", "-context", "32", "-pixels", "8,64", "-max-pixels", "1024", model)
	require.Zero(t, status, errs)
	require.Regexp(t, `(?m)^     8 px: 4 tokens of an image; .* of resident memory; micro-batch \d+, frozen weights in 16 bits, rematerialization .+; encoder, before training: .*B$`, said)
	require.Regexp(t, `(?m)^    64 px: 64 tokens of an image; `, said)
	status, said, errs = snugged("plan", "-lora", "4", "-context", "32", "-pixels", "8", "-device-memory", "8GiB", model)
	require.Zero(t, status, errs)
	require.Contains(t, said, "on the device; micro-batch")
	for _, c := range []struct{ flags, says string }{
		{"-pixels 8 -model llama-7b", "want a folder of a model that sees images"},
		{"-pixels 0 " + model, "want pixels from 1"},
		{"-max-pixels 9 " + model, "-max-pixels"},
		{"-pixels 8 -max-pixels 3 " + model, "want at least the 16 of a token"},
		{"-pixels 8 -max-pixels 999 " + filepath.Join(imageModels, "llava"), "the size of images is that of the model"},
		{"-pixels 8 " + chatModel(t, chatML), "model_type"},
	} {
		status, said, errs := snugged(append([]string{"plan"}, strings.Fields(c.flags)...)...)
		require.NotZero(t, status, c.flags)
		require.Contains(t, errs, c.says)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs+said)
	}
}

// TestTunePixels: -max-pixels makes images smaller, for tune and generate.
func TestTunePixels(t *testing.T) {
	flags := []string{"-model", filepath.Join(imageModels, "qwen2_5_vl"), "-data", filepath.Join(imageModels, "data.jsonl"), "-show", "1"}
	_, large, errs := snugged(append([]string{"tune"}, flags...)...)
	require.Empty(t, errs)
	_, small, errs := snugged(append([]string{"tune", "-max-pixels", "64"}, flags...)...)
	require.Empty(t, errs)
	require.Contains(t, large, "<|image_pad|> × 12")
	require.Contains(t, small, "<|image_pad|> × 2")
	status, _, errs := snugged("generate", "-model", filepath.Join(imageModels, "qwen2_5_vl"), "-image", filepath.Join(imageModels, "0.png"), "-max-pixels", "64", "-prompt", "x", "-tokens", "2")
	require.Zero(t, status, errs)
}

// tuneImages runs tune on the images with further flags, and returns the bytes of the adapter.
func tuneImages(t *testing.T, out string, flags ...string) (adapter, printed string) {
	status, printed, errs := snugged(append([]string{"tune", "-model", filepath.Join(imageModels, "gemma3"), "-data", filepath.Join(imageModels, "data.jsonl"), "-o", out,
		"-compute", "f32", "-base", "bf16", "-held-out", "0", "-batch", "2", "-steps", "6", "-lr", "1e-2"}, flags...)...)
	require.Zero(t, status, errs)
	text, err := os.ReadFile(filepath.Join(out, adapterFile))
	require.NoError(t, err)
	return string(text), printed
}

// TestTuneFeatures: features that are kept serve another run, which has the same bits; 8 bits nearly have them. -train text leaves the projector as it is.
func TestTuneFeatures(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "features")
	plain, _ := tuneImages(t, filepath.Join(dir, "a"))
	first, printed := tuneImages(t, filepath.Join(dir, "b"), "-features", kept)
	require.Equal(t, plain, first)
	require.Contains(t, printed, "images: 10 images in ")
	again, printed := tuneImages(t, filepath.Join(dir, "c"), "-features", kept)
	require.Equal(t, plain, again)
	require.NotContains(t, printed, "images: 10 images in 0")
	coarse, _ := tuneImages(t, filepath.Join(dir, "d"), "-features", kept, "-features-bits", "8")
	require.NotEqual(t, plain, coarse)
	require.InEpsilon(t, imageLoss(t, filepath.Join(imageModels, "gemma3"), "data.jsonl", filepath.Join(dir, "a")), imageLoss(t, filepath.Join(imageModels, "gemma3"), "data.jsonl", filepath.Join(dir, "d")), 0.02)
	low, _ := tuneImages(t, filepath.Join(dir, "f"), "-features", filepath.Join(dir, "low"), "-compute", "bf16")
	mixed, _ := tuneImages(t, filepath.Join(dir, "g"), "-features", kept, "-compute", "bf16")
	require.Equal(t, low, mixed) // features of an encoder in another type are not its own
	frozen, _ := tuneImages(t, filepath.Join(dir, "e"), "-train", "text")
	require.NotContains(t, frozen, "mm_input_projection")
	require.Contains(t, plain, "mm_input_projection")
	s, err := offload.Open(kept, offload.Options{})
	require.NoError(t, err)
	require.Len(t, s.Keys(), 30) // 10 each in f32, in 8 bits and in bf16
	require.NoError(t, s.Close())
}

// TestTuneTowerPlanned: the plan has gradients, master weights and state of the tower and the projector in the form that the run has them.
func TestTuneTowerPlanned(t *testing.T) {
	for name, c := range map[string]struct {
		compute, parts string
		rows           []string // of the table of peaks
	}{
		"bf16, all":          {"bf16", "text,projector,tower", []string{"master weights", "gradients", "optimizer state"}},
		"f32, all":           {"f32", "text,projector,tower", []string{"gradients", "optimizer state"}},
		"bf16, no projector": {"bf16", "text,tower", []string{"master weights", "gradients", "optimizer state"}},
		"bf16, no tower":     {"bf16", "text,projector", []string{"master weights", "gradients", "optimizer state"}},
	} {
		for _, model := range []string{"llava", "qwen2_5_vl", "qwen3_vl"} {
			t.Run(name+"/"+model, func(t *testing.T) {
				status, printed, errs := snugged("tune", "-model", filepath.Join(imageModels, model), "-data", filepath.Join(imageModels, "data.jsonl"), "-full", "-train", c.parts,
					"-compute", c.compute, "-held-out", "0", "-batch", "2", "-steps", "1", "-o", filepath.Join(t.TempDir(), "out"))
				require.Zero(t, status, errs)
				_, peaks, found := strings.Cut(printed, "peak memory")
				require.True(t, found, printed)
				for _, row := range c.rows {
					found := regexp.MustCompile(`(?m)^ +` + row + ` .* ([0-9.]+) %$`).FindStringSubmatch(peaks)
					require.Len(t, found, 2, peaks)
					share, err := strconv.ParseFloat(found[1], 64)
					require.NoError(t, err)
					require.InDelta(t, 100, share, 5, peaks)
				}
			})
		}
	}
}

// TestTuneTower: with -train tower the tower trains too, from the pixels of each step, and the whole model is written; it goes on from a checkpoint with the
// same bits.
func TestTuneTower(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"gemma3", "llava", "paligemma", "llava_next", "smolvlm", "qwen2_5_vl", "qwen3_vl"} {
		model, data := filepath.Join(imageModels, name), "data.jsonl"
		if name == "paligemma" {
			data = "prompts.jsonl"
		}
		flags := []string{"tune", "-model", model, "-data", filepath.Join(imageModels, data), "-full", "-train", "text,projector,tower", "-compute", "f32", "-held-out", "0.2",
			"-batch", "2", "-steps", "6", "-lr", "1e-3"}
		out := filepath.Join(dir, name)
		status, printed, errs := snugged(append(flags, "-o", out)...)
		require.Zero(t, status, errs)
		require.Contains(t, printed, "beside the plan above: activations of the tower and the projector, ")
		require.NoDirExists(t, out+".pages")
		before := imageLoss(t, model, data, "")
		require.Less(t, imageLoss(t, out, data, ""), before)
		require.NotEqual(t, towerOf(t, model), towerOf(t, out))
		if name != "gemma3" {
			continue
		}
		resumed := filepath.Join(dir, "resumed")
		flags = append(flags, "-checkpoint", filepath.Join(dir, "checkpoint"), "-save-every", "2")
		status, _, errs = snugged(append(flags, "-o", filepath.Join(dir, "first"))...)
		require.Zero(t, status, errs)
		steps, err := filepath.Glob(filepath.Join(dir, "checkpoint", "step-*"))
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(steps[len(steps)-1]))
		status, printed, errs = snugged(append(flags, "-o", resumed)...)
		require.Zero(t, status, errs)
		require.Contains(t, printed, "going on from step 4 of 6")
		require.Equal(t, towerOf(t, out), towerOf(t, resumed))
	}
}

// towerOf returns the bits of a tensor of a model's tower.
func towerOf(t *testing.T, dir string) []float32 {
	w, err := amp.OpenWeights(dir)
	require.NoError(t, err)
	for _, info := range w.Tensors() {
		if strings.Contains(info.Name, "vis") && strings.HasSuffix(info.Name, "0.norm1.weight") || strings.Contains(info.Name, "vision_") && strings.HasSuffix(info.Name, "fc1.weight") {
			v := make([]float32, info.Len())
			require.NoError(t, w.Load(info.Name, snug.ViewOf(v)))
			require.NoError(t, w.Close())
			return v
		}
	}
	require.Fail(t, "no tower", dir)
	return nil
}

// TestTuneImagesResumed: a run that goes on from a checkpoint ends with the bits of one that was not interrupted.
func TestTuneImagesResumed(t *testing.T) {
	dir := t.TempDir()
	want, _ := tuneImages(t, filepath.Join(dir, "a"))
	flags := []string{"-checkpoint", filepath.Join(dir, "checkpoint"), "-save-every", "2"}
	status, _, errs := snugged(append([]string{"tune", "-model", filepath.Join(imageModels, "gemma3"), "-data", filepath.Join(imageModels, "data.jsonl"), "-o", filepath.Join(dir, "b"),
		"-compute", "f32", "-base", "bf16", "-held-out", "0", "-batch", "2", "-steps", "6", "-lr", "1e-2"}, flags...)...)
	require.Zero(t, status, errs)
	steps, err := filepath.Glob(filepath.Join(dir, "checkpoint", "step-*"))
	require.NoError(t, err)
	require.NotEmpty(t, steps)
	require.NoError(t, os.RemoveAll(steps[len(steps)-1])) // the newest
	got, printed := tuneImages(t, filepath.Join(dir, "c"), flags...)
	require.Contains(t, printed, "going on from step 4 of 6")
	require.Equal(t, want, got)
	status, _, errs = snugged(append([]string{"tune", "-model", filepath.Join(imageModels, "gemma3"), "-data", filepath.Join(imageModels, "data.jsonl"), "-o", filepath.Join(dir, "d"),
		"-compute", "f32", "-base", "bf16", "-held-out", "0", "-batch", "2", "-steps", "6", "-lr", "1e-2", "-train", "text"}, flags...)...)
	require.NotZero(t, status)
	require.Contains(t, errs, "train")
}

// TestTuneImagesRefused: what cannot be is said before there is a model.
func TestTuneImagesRefused(t *testing.T) {
	for name, c := range map[string]struct {
		flags []string
		says  string
	}{
		"the tower":       {[]string{"-train", "text,tower"}, "-train tower wants -full"},
		"another part":    {[]string{"-train", "text,eyes"}, "want text, text,projector or text,projector,tower"},
		"kept features":   {[]string{"-train", "text,tower", "-full", "-features", "x"}, "-features and -features-bits are of a tower that is frozen"},
		"no text":         {[]string{"-train", "projector"}, "want text among what trains"},
		"bits":            {[]string{"-features-bits", "9"}, "want 8 or 16"},
		"too little":      {[]string{"-memory", "1MiB"}, "nothing fits"},
		"another folder":  {[]string{"-images", os.TempDir()}, "no such file"},
		"in the output":   {[]string{"-features", "OUT"}, "name one folder"},
		"in another file": {[]string{"-features", filepath.Join(imageModels, "data.jsonl")}, "features of images"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			for i, flag := range c.flags {
				c.flags[i] = strings.ReplaceAll(flag, "OUT", out)
			}
			status, _, errs := snugged(append([]string{"tune", "-model", filepath.Join(imageModels, "gemma3"), "-data", filepath.Join(imageModels, "data.jsonl"), "-o", out}, c.flags...)...)
			require.NotZero(t, status)
			require.Contains(t, errs, c.says)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			require.NoDirExists(t, out)
		})
	}
}
