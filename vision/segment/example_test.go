package segment_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/vision/segment"
)

// A small model learns one mask of one image.
func Example() {
	dir := must(os.MkdirTemp("", "segment"))
	defer func() { must(0, os.RemoveAll(dir)) }()
	c := segment.ViTB()
	c.Encoder.Image, c.Prompt.Image = 64, 64
	c.Encoder.Width, c.Encoder.Hidden, c.Encoder.Layers, c.Encoder.Heads, c.Encoder.Window, c.Encoder.Global = 32, 64, 2, 2, 2, []int{1}
	c.Encoder.Out, c.Encoder.Waves, c.Prompt.Width, c.Decoder.Width, c.Decoder.Hidden = 32, 16, 32, 32, 64
	must(0, segment.Create(dir, c, 1))

	image, target := make([]float32, 3*64*64), make([]float32, 16*16)
	for i := range image {
		if i/64%64 < 32 { // the upper half
			image[i] = 1
		}
	}
	for i := range len(target) / 2 {
		target[i] = 1
	}
	ctx, file := context.Background(), filepath.Join(dir, "image.safetensors")
	e := must(segment.OpenEncoder(dir, layers.Options{}))
	must(0, e.EncodeFile(ctx, file, snug.F16, image))
	must(0, e.Close())

	m := must(segment.Open(dir, segment.Options{}))
	item := segment.Item{Features: must(segment.ReadFeatures(file)), Target: target}
	item.Prompt.Points = []segment.Point{{X: 32, Y: 16}, {X: 32, Y: 48, Background: true}}
	t := must(train.New(m, train.Options{StateBits: 8, Schedule: train.Constant(3e-3)}))
	for t.Step() < 60 {
		must(t.Train(ctx, [][]segment.Item{{item}}))
	}
	mask, score := make([]float32, 16*16), make([]float32, 1)
	must(0, m.Predict(ctx, mask, score, []segment.Item{item}))
	fmt.Println("the mask is right for more than 9 of 10 pixels:", segment.IoU(mask, target) > 0.9)
	must(0, m.Save(filepath.Join(dir, "tuned")))
	// Output: the mask is right for more than 9 of 10 pixels: true
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
