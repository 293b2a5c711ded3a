package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// The tokens: a prompt is begin, placeholders of the frames and asks, and its answer is the direction of the clip.
const begin, placeholder, asks, left, directions, vocabulary = 0, 1, 2, 3, 4, 16

// Pixels of the side of a frame, of a patch and of the square, its way, and the frames of a clip.
const side, patch, square, way, drawn = 32, 8, 8, 12, 100

// draw returns a clip of a square that moves left, right, up or down, and which of these, 0 to 3. The same places are passed in both
// directions, so that the frames tell the direction by their order alone.
func draw(i int) (clip gif.GIF, direction int) {
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	direction = rng.IntN(directions)
	across, along, c := rng.IntN(side-square+1), rng.IntN(side-square-way+1), rng.IntN(3)
	palette := color.Palette{color.Black, [3]color.Color{color.RGBA{255, 64, 64, 255}, color.RGBA{64, 255, 64, 255}, color.RGBA{96, 96, 255, 255}}[c]}
	for t := range drawn {
		at := along + t*way/(drawn-1)
		if direction%2 == 0 {
			at = along + way - t*way/(drawn-1)
		}
		x, y := at, across
		if direction >= 2 {
			x, y = across, at
		}
		frame := image.NewPaletted(image.Rect(0, 0, side, side), palette)
		for j := range square * square {
			frame.SetColorIndex(x+j%square, y+j/square, 1)
		}
		clip.Image, clip.Delay = append(clip.Image, frame), append(clip.Delay, 4)
	}
	return clip, direction
}

// clip is the name of the file of a clip.
func clip(i int) string { return filepath.Join(*dir, fmt.Sprintf("%04d.gif", i)) }

// sum names a frame of a clip in the cache.
func sum(i, frame int) [sha256.Size]byte {
	return sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(i*drawn+frame)))
}

// create draws the clips and makes a small LLaVA with random weights: a tower and a text are saved on their own, and the folder has both.
func create() (r result) {
	for i := range *clips {
		file := must(os.Create(clip(i)))
		g, _ := draw(i)
		must(0, gif.EncodeAll(file, &g))
		must(0, file.Close())
	}
	tower := must(vision.NewTower(vision.TowerConfig{Family: "clip", Image: side, Patch: patch, Channels: 3, Width: 64, Hidden: 128, Layers: 2, Heads: 4,
		Activation: "gelu", Eps: 1e-5, QKVBias: true}, vision.TowerOptions{Options: layers.Options{DType: snug.F32, Seed: 1}}))
	must(0, tower.Save(filepath.Join(*dir, "tower")))
	const heads, each, depth = 4, 32, 2
	c := &transformer.Config{
		Family: transformer.Llama, Vocab: vocabulary, Dim: heads * each, Hidden: 256, Layers: depth, Heads: heads, KVHeads: heads, HeadDim: each, Context: 2048,
		NormEps: 1e-5, Activation: transformer.SiLU, Gated: true, Windows: make([]int, depth), EmbeddingScale: 1, ScoreScale: 1 / math.Sqrt(each),
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: each}, InitStd: 0.08, BOS: begin, EOS: []int{vocabulary - 1}, Pad: -1,
	}
	must(0, must(transformer.New(c, transformer.Options{DType: snug.F32, Seed: 2})).Save(filepath.Join(*dir, "text"), 0))
	must(0, amp.SaveShards(*dir, 0, whole(tower.Config().Width, c.Dim), map[string]string{"format": "pt"}))
	half := []float64{0.5, 0.5, 0.5}
	write("config.json", map[string]any{
		"architectures": []string{"LlavaForConditionalGeneration"}, "model_type": "llava", "dtype": "float32", "tie_word_embeddings": false, "image_token_index": placeholder,
		"vision_config": read("tower"), "text_config": read("text"), "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
	})
	write("preprocessor_config.json", map[string]any{"image_processor_type": "CLIPImageProcessor", "do_center_crop": false, "image_mean": half, "image_std": half,
		"size": map[string]int{"height": side, "width": side}})
	write("processor_config.json", map[string]any{"processor_class": "LlavaProcessor", "patch_size": patch, "num_additional_image_tokens": 1,
		"vision_feature_select_strategy": "default"})
	return r
}

// whole yields the tensors of a LLaVA: those of the tower, those of the text, and a random projector from rows of one to rows of the other.
func whole(from, to int) iter.Seq2[amp.Tensor, snug.View] {
	return func(yield func(amp.Tensor, snug.View) bool) {
		for part, prefix := range map[string]string{"tower": "vision_tower.", "text": "language_model."} {
			w := must(amp.OpenWeights(filepath.Join(*dir, part)))
			for _, t := range w.Tensors() {
				x := make([]float32, t.Len())
				must(0, w.Load(t.Name, snug.ViewOf(x)))
				if t.Name = prefix + t.Name; !yield(t, snug.ViewOf(x)) {
					return
				}
			}
			must(0, w.Close())
		}
		rng := rand.New(rand.NewPCG(3, 0))
		for i, in := range []int{from, to} {
			name := fmt.Sprint("multi_modal_projector.linear_", i+1)
			x := make([]float32, to*in)
			for i := range x {
				x[i] = float32(rng.NormFloat64() / math.Sqrt(float64(in)))
			}
			if !yield(amp.Tensor{Name: name + ".weight", DType: "F32", Shape: []int{to, in}}, snug.ViewOf(x)) ||
				!yield(amp.Tensor{Name: name + ".bias", DType: "F32", Shape: []int{to}}, snug.ViewOf(make([]float32, to))) {
				return
			}
		}
	}
}

// read returns the config.json of a part.
func read(part string) (fields map[string]any) {
	must(0, json.Unmarshal(must(os.ReadFile(filepath.Join(*dir, part, "config.json"))), &fields))
	return fields
}

func write(name string, fields map[string]any) {
	must(0, os.WriteFile(filepath.Join(*dir, name), must(json.MarshalIndent(fields, "", "  ")), 0o666))
}
