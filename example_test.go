package snug_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// A kernel of one's own adds to an accumulator in the way that the caller chose.
func ExampleInto_Factors() {
	add := func(acc, g []float32, into snug.Into) error {
		alpha, beta, err := into.Factors()
		if err != nil {
			return err
		}
		for i := range acc {
			if beta == 0 {
				acc[i] = 0 // the accumulator may hold anything, also NaN
			}
			acc[i] = beta*acc[i] + alpha*g[i]
		}
		return nil
	}
	acc := []float32{10, 20}
	if err := add(acc, []float32{2, 4}, snug.Into{Alpha: 0.5, Beta: 1}); err != nil {
		panic(err)
	}
	fmt.Println(acc)
	// Output: [11 22]
}

// A program that owns a CUDA context gives snug its stream and its memory. The work of
// both then runs in one order, and nothing is copied.
func ExampleOpenOn() {
	weightsOnStream := func(stream, pointer uintptr, n int) error {
		dev, err := snug.OpenOn("cuda:0", stream)
		if err != nil {
			return err // wraps snug.ErrNotBuilt in a program without the tag cuda
		}
		defer dev.Close()
		weights, err := snug.Wrap[float32](dev, pointer, n)
		if err != nil {
			return err
		}
		low, err := snug.Make[snug.BFloat16](dev, n)
		if err != nil {
			return err
		}
		return amp.Cast(low, weights)
	}
	_ = weightsOnStream
}

// A step of many small kernels is recorded once and then queued with one call.
func ExampleDevice_Capture() {
	steps := func(dev *snug.Device, step func() error, n int) error {
		graph, err := dev.Capture(step)
		if err != nil {
			return err // wraps snug.ErrDevice on devices without graphs, such as the CPU
		}
		defer graph.Close()
		for range n {
			if err := graph.Launch(); err != nil {
				return err
			}
		}
		return dev.Sync()
	}
	_ = steps
}
