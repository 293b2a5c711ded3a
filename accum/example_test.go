package accum_test

import (
	"fmt"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
)

// batch has the mean gradient over its samples.
type batch struct {
	samples int
	grad    []float32
}

var batches = []batch{{1, []float32{8, 0}}, {3, []float32{0, 4}}, {2, []float32{6, 6}}}

func newWindow(o accum.Options) *accum.Window {
	window, err := accum.New([]accum.Param{{Name: "weight", Len: 2}}, o)
	if err != nil {
		panic(err)
	}
	return window
}

func show(window *accum.Window) {
	for name, grad := range window.Gradients() {
		fmt.Println(name, grad.Float32s(), "over", window.Weight(), "samples")
	}
}

// Two micro-batches a step. The third is alone at the end of the epoch: Flush
// makes it a window of its own.
func ExampleWindow() {
	window := newWindow(accum.Options{Schedule: accum.Constant(2)})
	for _, b := range batches {
		if err := window.Begin(float64(b.samples)); err != nil {
			panic(err)
		}
		if err := window.Add("weight", snug.ViewOf(b.grad)); err != nil {
			panic(err)
		}
		full, err := window.End()
		if err != nil {
			panic(err)
		}
		if full {
			show(window) // clip, step
			window.Reset()
		}
	}
	if full, err := window.Flush(); err == nil && full {
		show(window)
		window.Reset()
	}
	// Output:
	// weight [2 3] over 4 samples
	// weight [6 6] over 2 samples
}

// A kernel that computes beta·acc + alpha·g needs no memory for g. Further
// contributions to a parameter, such as tied weights, add up.
func ExampleWindow_Into() {
	window := newWindow(accum.Options{})
	kernel := func(g float32) {
		acc, alpha, beta, err := window.Into("weight")
		if err != nil {
			panic(err)
		}
		for i, old := range acc.Float32s() {
			if beta == 0 {
				old = 0 // acc holds anything
			}
			acc.Float32s()[i] = beta*old + alpha*g
		}
	}
	if err := window.Begin(4); err != nil {
		panic(err)
	}
	kernel(1) // the embedding
	kernel(2) // the output layer, which shares its weight
	if _, err := window.End(); err != nil {
		panic(err)
	}
	show(window)
	// Output: weight [3 3] over 4 samples
}

// With DropMicro a micro-batch with a NaN is left out, with its weight.
func ExampleWindow_AddAll() {
	window := newWindow(accum.Options{Schedule: accum.Constant(2), Overflow: accum.DropMicro})
	for _, b := range []batch{batches[0], {3, []float32{1, float32(math.NaN())}}} {
		if err := window.Begin(float64(b.samples)); err != nil {
			panic(err)
		}
		var grads iter.Seq2[string, snug.View] = func(yield func(string, snug.View) bool) {
			yield("weight", snug.ViewOf(b.grad))
		}
		if _, err := window.AddAll(grads); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
	}
	show(window)
	fmt.Println("dropped:", window.Overflows())
	// Output:
	// weight [8 0] over 1 samples
	// dropped: [weight[1] = NaN, from micro-batch 1]
}

// A window is saved after its first micro-batch and goes on in another.
func ExampleWindow_resume() {
	window := newWindow(accum.Options{Schedule: accum.Constant(2)})
	add := func(b batch) {
		if err := window.Begin(float64(b.samples)); err != nil {
			panic(err)
		}
		if err := window.Add("weight", snug.ViewOf(b.grad)); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
	}
	add(batches[0])
	saved, err := window.AppendBinary(nil)
	if err != nil {
		panic(err)
	}
	window = newWindow(accum.Options{Schedule: accum.Constant(2)})
	if err := window.UnmarshalBinary(saved); err != nil {
		panic(err)
	}
	add(batches[1])
	show(window)
	// Output: weight [2 3] over 4 samples
}
