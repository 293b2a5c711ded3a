// Flowmatching trains the flow-matching model of GoMLX's examples, a U-Net that it imports, on small images that it draws.
// The lines that end with "snug" are all that differs from a program with GoMLX's train.Trainer.
//
//	go run ./examples/flowmatching -steps 20
package main

import (
	stdcontext "context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"

	fm "github.com/gomlx/gomlx/examples/FlowMatching"
	"github.com/gomlx/gomlx/examples/oxfordflowers102/diffusion"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/snug-ml/snug/integrations/gomlx" // snug
	"github.com/snug-ml/snug/integrations/gomlx/examples/internal/complete"
	"github.com/snug-ml/snug/meter"
)

const (
	size  = 8 // of an image, in pixels
	kinds = 4 // of flowers
)

// flowers is a dataset of discs in the colors of their kinds: images of bytes, their numbers and their kinds, as GoMLX's
// dataset of flowers yields them.
type flowers struct{ at, batch int }

func (f *flowers) Name() string { return "drawn flowers" }
func (f *flowers) Reset()       { f.at = 0 }
func (f *flowers) Yield() (any, []*tensors.Tensor, []*tensors.Tensor, error) {
	r := rand.New(rand.NewPCG(uint64(f.at), 3))
	f.at++
	pixels, numbers, kind := make([]uint8, 0, f.batch*size*size*3), make([]int32, f.batch), make([]int32, f.batch)
	for i := range f.batch {
		kind[i], numbers[i] = int32(r.IntN(kinds)), int32(i)
		cx, cy := 2.5+3*r.Float64(), 2.5+3*r.Float64()
		for y := range size {
			for x := range size {
				dx, dy := float64(x)-cx, float64(y)-cy
				for c := range 3 {
					v := 0
					if dx*dx+dy*dy < 5 && (int(kind[i])>>min(c, 1))&1 == c&1 {
						v = 2
					}
					pixels = append(pixels, uint8(v))
				}
			}
		}
	}
	return nil, []*tensors.Tensor{tensors.FromFlatDataAndDimensions(pixels, f.batch, size, size, 3),
		tensors.FromFlatDataAndDimensions(numbers, f.batch), tensors.FromFlatDataAndDimensions(kind, f.batch)}, nil, nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "flowmatching:", err)
		os.Exit(1)
	}
}

func main() {
	steps := flag.Int("steps", 20, "steps")
	batch := flag.Int("batch", 4, "images in a batch")
	flag.Parse()
	if *steps < 1 || *batch < 1 {
		check(fmt.Errorf("-steps is %d and -batch %d, want 1 or more", *steps, *batch))
	}
	dir, err := os.MkdirTemp("", "flowmatching")
	check(err)
	defer os.RemoveAll(dir)
	backend, err := complete.New()
	check(err)
	ctx := fm.CreateDefaultContext()
	check(ctx.SetRNGStateFromSeed(1))
	ctx.SetParams(map[string]any{"image_size": size, "batch_size": *batch, "diffusion_channels_list": []int{8, 16}, "diffusion_num_residual_blocks": 1,
		"flower_type_embed_size": 0})
	config := diffusion.NewConfig(backend, ctx, dir, nil)
	config.NoNormalization = true // its numbers would come from the photographs
	model := fm.BuildTrainComputation(config)
	loss := func(_, predictions []*graph.Node) *graph.Node { return predictions[1] }
	dataset := &flowers{batch: *batch}

	first, err := gomlx.Next(dataset)                                                           // snug
	check(err)                                                                                  // snug
	dataset.Reset()                                                                             // snug
	t, err := gomlx.New(backend, ctx, model, loss, first, gomlx.Options{StateBits: 8, Clip: 1}) // snug
	check(err)                                                                                  // snug
	defer t.Close()                                                                             // snug
	mean := 0.0
	check(t.Run(stdcontext.Background(), dataset, *steps, 1, func(r gomlx.Report) error { // snug
		mean += r.Loss
		if r.Step%10 == 0 {
			fmt.Printf("steps %d to %d: loss %.3f\n", r.Step-9, r.Step, mean/10)
			mean = 0
		}
		return nil
	}))
	fmt.Printf("%d bytes of state for %d parameters\n", t.Bytes()[meter.State], t.Bytes()[meter.Gradients]/4)
}
