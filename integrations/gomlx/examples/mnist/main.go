// Mnist trains a MNIST model of GoMLX's examples, which it imports, on digits that it draws and writes as MNIST's files.
// The lines that end with "snug" are all that differs from a program with GoMLX's train.Trainer.
//
//	go run ./examples/mnist -steps 200
package main

import (
	stdcontext "context"
	"flag"
	"fmt"
	"os"

	"github.com/gomlx/gomlx/examples/mnist"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/gomlx/gomlx/pkg/ml/train/metrics"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/snug-ml/snug/integrations/gomlx" // snug
	"github.com/snug-ml/snug/integrations/gomlx/examples/internal/complete"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8" // snug
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mnist:", err)
		os.Exit(1)
	}
}

func main() {
	steps := flag.Int("steps", 200, "steps")
	batch := flag.Int("batch", 50, "images in a batch")
	rate := flag.Float64("rate", 1e-3, "learning rate")
	name := flag.String("model", "linear", "linear or cnn")
	flag.Parse()
	model, known := map[string]train.ModelFn{"linear": mnist.LinearModelGraph, "cnn": mnist.CnnModelGraph}[*name]
	if !known {
		check(fmt.Errorf("-model is %q, want linear or cnn", *name))
	}
	if *steps < 1 || *batch < 1 {
		check(fmt.Errorf("-steps is %d and -batch %d, want 1 or more", *steps, *batch))
	}
	dir, err := os.MkdirTemp("", "mnist")
	check(err)
	defer os.RemoveAll(dir)
	check(writeFiles(dir, 2000, 200))

	backend, err := complete.New()
	check(err)
	ctx := mnist.CreateDefaultContext()
	check(ctx.SetRNGStateFromSeed(1))
	ctx.SetParam(optimizers.ParamLearningRate, *rate)
	images, err := mnist.NewDataset(backend, "drawn", dir, "train", dtypes.Float32)
	check(err)
	images.BatchSize(*batch, true)
	held, err := mnist.NewDataset(backend, "held out", dir, "test", dtypes.Float32)
	check(err)
	held.BatchSize(100, false)

	loss := losses.SparseCategoricalCrossEntropyLogits
	first, err := gomlx.Next(images)                                                         // snug
	check(err)                                                                               // snug
	images.Reset()                                                                           // snug
	o := gomlx.Options{Optimizer: quant8.AdamW{WeightDecay: 0.004, Eps: 1e-7}, StateBits: 8} // snug
	t, err := gomlx.New(backend, ctx, model, loss, first, o)                                 // snug
	check(err)                                                                               // snug
	defer t.Close()                                                                          // snug
	check(t.Run(stdcontext.Background(), images, *steps, 1, nil))                            // snug

	accuracy := metrics.NewSparseCategoricalAccuracy("accuracy", "acc")
	theirs := train.NewTrainer(backend, ctx.Reuse(), model, loss,
		optimizers.FromContext(ctx), nil, []metrics.Interface{accuracy})
	values, err := theirs.Eval(held)
	check(err)
	fmt.Printf("%d steps: held-out loss %.3f, accuracy %.1f %%; %d bytes of state for %d parameters\n", t.Step(),
		values[0].Value(), 100*values[len(values)-1].Value().(float32), t.Bytes()[meter.State], t.Bytes()[meter.Gradients]/4)
}
