package main

import (
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/vision/segment"
)

// smallSegment writes the folder of a small Segment Anything with random weights.
func smallSegment(t *testing.T) string {
	t.Helper()
	c, dir := segment.ViTB(), t.TempDir()
	c.Encoder.Image, c.Prompt.Image = 64, 64
	c.Encoder.Width, c.Encoder.Hidden, c.Encoder.Layers, c.Encoder.Heads, c.Encoder.Global, c.Encoder.Window = 16, 32, 1, 2, []int{0}, 0
	c.Encoder.Patch, c.Prompt.Patch = 8, 8
	c.Encoder.Out, c.Encoder.Waves, c.Prompt.Width, c.Decoder.Width, c.Decoder.Hidden, c.Decoder.IoUHidden = 32, 16, 32, 32, 32, 16
	require.NoError(t, segment.Create(dir, c, 1))
	return dir
}

// writeGray writes an image in PNG whose pixels a function says.
func writeGray(t *testing.T, path string, w, h int, at func(x, y int) uint8) {
	t.Helper()
	m := image.NewGray(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			m.SetGray(x, y, color.Gray{Y: at(x, y)})
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, png.Encode(f, m))
	require.NoError(t, f.Close())
}

// cells writes images of bright squares, n of them, of which the last one has two objects, and their masks.
func cells(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		in := func(x, y int) uint8 {
			switch {
			case x >= 4+2*i && x < 20+2*i && y >= 5 && y < 20:
				return 1
			case i == n-1 && x < 4 && y > 30:
				return 2
			}
			return 0
		}
		writeGray(t, filepath.Join(dir, "images", fmt.Sprint(i)+".png"), 48, 36, func(x, y int) uint8 { return 40 + 90*in(x, y) })
		writeGray(t, filepath.Join(dir, "masks", fmt.Sprint(i)+".png"), 48, 36, func(x, y int) uint8 {
			if i < n-1 {
				return 255 * in(x, y)
			}
			return in(x, y)
		})
	}
	return dir
}

// TestTuneMasks: a mask decoder learns masks beside images; features are computed once, and again where they are damaged.
func TestTuneMasks(t *testing.T) {
	kerneltest.Slow(t)
	model, data, dir := smallSegment(t), cells(t, 6), t.TempDir()
	features := filepath.Join(dir, "features")
	run := func(out string, more ...string) (string, visualResult) {
		status, stdout, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-o", filepath.Join(dir, out), "-batch", "3", "-features", features, "-json", "-compute", "f32", "-held-out", "0.2"}, more...)...)
		require.Zero(t, status, errs)
		var r visualResult
		lineAtEnd(t, stdout, &r)
		return stdout, r
	}
	stdout, r := run("tuned", "-lr", "0.003", "-epochs", "25")
	require.Contains(t, stdout, "6 images with 7 objects")
	require.Contains(t, stdout, "images: features of 6")
	require.Equal(t, []any{"done", "IoU", 7}, []any{r.State, r.Score, r.Samples + r.HeldOut})
	require.Less(t, r.LossLast, r.LossFirst)
	require.InEpsilon(t, r.Predicted, r.Measured, 0.1)
	_, err := segment.Open(filepath.Join(dir, "tuned"), segment.Options{})
	require.NoError(t, err)
	list, err := filepath.Glob(filepath.Join(features, "*"))
	require.NoError(t, err)
	require.Len(t, list, 6)
	require.NoError(t, os.Truncate(list[0], 100))
	stdout, _ = run("again", "-steps", "1", "-box-jitter", "2", "-memory", "200MiB")
	require.Contains(t, stdout, "images: features of 1 ")
	text, err := os.ReadFile(filepath.Join(model, "preprocessor_config.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(model, "preprocessor_config.json"), []byte(strings.Replace(string(text), "{", `{"image_mean": [0.5, 0.5, 0.5], `, 1)), 0o600))
	stdout, _ = run("other values", "-steps", "1")
	require.Contains(t, stdout, "images: features of 6 ", "features of another processor are not read")
	require.NoError(t, os.RemoveAll(features))
}

// TestTuneMasksRows: rows name images and masks, with boxes and points, and no features stay without -features.
func TestTuneMasksRows(t *testing.T) {
	model, data, dir := smallSegment(t), cells(t, 3), t.TempDir()
	rows := []string{
		`{"image": "images/0.png", "mask": "masks/0.png", "box": [4, 5, 19, 19]}`,
		`{"image": "images/1.png", "mask": "masks/1.png", "points": [[10, 10], [40, 30]], "labels": [1, 0]}`,
		`{"image": "images/2.png", "mask": "masks/2.png"}`,
	}
	file := filepath.Join(data, "cells.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(rows, "\n")), 0o600))
	out := filepath.Join(dir, "tuned")
	status, stdout, errs := snugged("tune", "-model", model, "-data", file, "-o", out, "-steps", "2", "-batch", "2", "-held-out", "0")
	require.Zero(t, status, errs)
	require.Contains(t, stdout, "3 images with 4 objects")
	require.NoDirExists(t, out+".pages")
}

// TestTuneMasksRefuse: data without masks, and flags without a meaning, are one line that says why.
func TestTuneMasksRefuse(t *testing.T) {
	model, data := smallSegment(t), cells(t, 2)
	change := func(do func(dir string)) string {
		dir := cells(t, 2)
		do(dir)
		return dir
	}
	for name, c := range map[string]struct {
		data, want string
		more       []string
	}{
		"adapters": {data, "-lora is not for a model that makes masks for prompts, which -model", []string{"-lora", "4"}},
		"a part":   {data, "-train is not for a model that makes masks", []string{"-train", "head"}},
		"no masks": {filepath.Join(data, "images"), "want the folders images and masks", nil},
		"no mask":  {change(func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "masks", "1.png"))) }), "has no 1.png for it", nil},
		"another size": {change(func(dir string) {
			writeGray(t, filepath.Join(dir, "masks", "1.png"), 5, 5, func(int, int) uint8 { return 1 })
		}), "want one size", nil},
		"no object": {change(func(dir string) {
			writeGray(t, filepath.Join(dir, "masks", "1.png"), 48, 36, func(int, int) uint8 { return 0 })
		}), "has no object", nil},
		"damaged": {change(func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "images", "1.png"), []byte("x"), 0o600))
		}), "remove the file, or save it anew", nil},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := snugged(append([]string{"tune", "-model", model, "-data", c.data, "-o", filepath.Join(t.TempDir(), "out")}, c.more...)...)
			require.NotZero(t, status)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			requireNoKind(t, errs)
		})
	}
}
