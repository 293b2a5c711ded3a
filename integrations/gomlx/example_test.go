package gomlx_test

import (
	stdcontext "context"
	"fmt"

	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// The model, the loss and the dataset are those of a program that uses GoMLX's train.Trainer.
func Example() {
	backend, err := simplego.New("ops_sequential") // so that a panic of an operation is an error
	check(err)
	ctx := context.New()
	check(ctx.SetRNGStateFromSeed(1))
	dataset := &stream{end: 100} // yields batches of 32 rows

	first, err := gomlx.Next(dataset)
	check(err)
	dataset.Reset()
	t, err := gomlx.New(backend, ctx, perceptron, losses.MeanSquaredError, first, gomlx.Options{
		Optimizer: quant8.AdamW{WeightDecay: 0.004}, StateBits: 8, Clip: 1,
	})
	check(err)
	defer t.Close()
	check(t.Run(stdcontext.Background(), dataset, 100, 2, func(r gomlx.Report) error { // 2 micro-batches in a step
		if r.Step%50 == 0 {
			fmt.Printf("step %d: loss below 1: %t\n", r.Step, r.Loss < 1)
		}
		return nil
	}))
	fmt.Println(t.Bytes()[meter.State], "bytes of state")
	// Output:
	// step 50: loss below 1: true
	// step 100: loss below 1: true
	// 18056 bytes of state
}
