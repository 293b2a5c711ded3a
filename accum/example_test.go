package accum_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/quant8"
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
//
//check:in tiers race
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
//
//check:in tiers race
func ExampleWindow_Into() {
	window := newWindow(accum.Options{})
	kernel := func(g float32) {
		acc, into, err := window.Into("weight")
		if err != nil {
			panic(err)
		}
		for i, old := range acc.Float32s() {
			if into.Beta == 0 {
				old = 0 // acc holds anything
			}
			acc.Float32s()[i] = into.Beta*old + into.Alpha*g
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
//
//check:in tiers race
func ExampleWindow_AddAll() {
	window := newWindow(accum.Options{Schedule: accum.Constant(2), NonFinite: accum.DropMicro})
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
	fmt.Println("dropped:", window.NonFinite())
	// Output:
	// weight [8 0] over 1 samples
	// dropped: [weight[1] = NaN, from micro-batch 1]
}

// A window is saved after its first micro-batch and goes on in another.
//
//check:in tiers race
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

// Batches of 12 tokens, whatever the length of the sequences.
//
//check:in tiers race
func ExampleWeight() {
	window := newWindow(accum.Options{Schedule: accum.Weight(12)})
	for _, tokens := range []float64{5, 4, 6, 12} {
		if err := window.Begin(tokens); err != nil {
			panic(err)
		}
		if err := window.Add("weight", snug.ViewOf([]float32{1, 1})); err != nil {
			panic(err)
		}
		if full, err := window.End(); err != nil || full {
			fmt.Println("step over", window.Weight(), "tokens", err)
			window.Reset()
		}
	}
	// Output:
	// step over 15 tokens <nil>
	// step over 12 tokens <nil>
}

// The batch grows from 16 to 64 samples over the first 300.
//
//check:in tiers race
func ExampleRamp() {
	ramp := accum.Ramp{Start: 16, Increment: 16, Global: 64, Over: 300}
	for _, seen := range []float64{0, 99, 100, 250, 300} {
		fmt.Print(ramp.Target(accum.Progress{Weight: seen}).Weight, " ")
	}
	// Output: 16 16 32 48 64
}

// Windows as large as the gradient's noise is worth. Each of the two gradients is
// of one sample: what they have in common is signal, the rest is noise.
//
//check:in tiers race
func ExampleNoiseScale() {
	noise, err := accum.NewNoiseScale(accum.NoiseOptions{Min: 2, Max: 64})
	if err != nil {
		panic(err)
	}
	window := newWindow(accum.Options{Schedule: noise, Measure: true})
	for _, g := range [][]float32{{1, 2}, {1, -2}} {
		if err := window.Begin(1); err != nil {
			panic(err)
		}
		if err := window.Add("weight", snug.ViewOf(g)); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
	}
	stats, err := amp.Measure(window.Gradients()) // or what Scaler.Unscale returns
	if err == nil {
		err = noise.Observe(window.Moments(), stats.Norm)
	}
	window.Reset()
	scale, _ := noise.Estimate()
	fmt.Println(math.IsInf(scale, 1), window.Target().Weight, err)
	// Output: true 64 <nil>
}

// A micro-batch that fits in memory, for the same global batch of 60 samples.
//
//check:in tiers race
func ExampleFindMicroBatch() {
	batch, err := accum.FindMicroBatch(60, 1, 60, func(b accum.Batch) error {
		if b.Micro > 16 {
			return fmt.Errorf("a forward pass of %d samples: %w", b.Micro, snug.ErrNoMemory)
		}
		return nil
	})
	fmt.Println(batch.Window, "micro-batches of", batch.Micro, err)
	// Output: 4 micro-batches of 15 <nil>
}

//check:in tiers race
func ExampleLinearLR() {
	fmt.Println(accum.LinearLR(0.1, 256, 1024), accum.SquareRootLR(0.1, 256, 1024))
	// Output: 0.4 0.2
}

// Two ranks with micro-batches of 1 and 3 samples: both get the mean over four.
//
//check:in tiers race
func ExampleLocal() {
	ranks, err := accum.Local(context.Background(), 2)
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	means := make([][]float32, 2)
	for _, rank := range ranks {
		wg.Go(func() {
			window := newWindow(accum.Options{Reducer: rank})
			b := batches[rank.Rank()]
			if err := window.Begin(float64(b.samples)); err != nil {
				panic(err)
			}
			if err := window.Add("weight", snug.ViewOf(b.grad)); err != nil {
				panic(err)
			}
			if _, err := window.End(); err != nil { // waits for the other
				panic(err)
			}
			for _, grad := range window.Gradients() {
				means[rank.Rank()] = grad.Float32s()
			}
		})
	}
	wg.Wait()
	fmt.Println(means)
	// Output: [[2 3] [2 3]]
}

// Each rank reduces its own part of the mean gradient, and updates that part of the weights.
//
//check:in tiers race
func ExampleShard() {
	const size = 2
	ranks, err := accum.Local(context.Background(), size)
	if err != nil {
		panic(err)
	}
	weight := []float32{10, 20} // each rank writes its own part
	var wg sync.WaitGroup
	for _, rank := range ranks {
		wg.Go(func() {
			window := newWindow(accum.Options{Reducer: rank, Shard: true})
			b := batches[rank.Rank()]
			if err := window.Begin(float64(b.samples)); err != nil {
				panic(err)
			}
			if err := window.Add("weight", snug.ViewOf(b.grad)); err != nil {
				panic(err)
			}
			if _, err := window.End(); err != nil {
				panic(err)
			}
			first, grad, err := window.Part("weight")
			if err != nil {
				panic(err)
			}
			lo, hi := accum.Shard(len(weight), rank.Rank(), size)
			if lo != first {
				panic("with one parameter the bucket is the parameter")
			}
			for i, g := range grad.Float32s() {
				weight[lo:hi][i] -= g
			}
		})
	}
	wg.Wait()
	fmt.Println(weight)
	// Output: [8 17]
}

// ZeRO-2: each rank holds its part of the mean gradient, updates that part of the weights, and sends it to the others.
//
//check:in tiers race
func ExampleSharded() {
	ranks, err := accum.Local(context.Background(), 2)
	if err != nil {
		panic(err)
	}
	weights := make([][]float32, len(ranks)) // every rank has all weights
	var wg sync.WaitGroup
	for i, rank := range ranks {
		wg.Go(func() {
			weight := []float32{10, 20}
			window, err := accum.NewSharded([]accum.Param{{Name: "weight", Len: 2}}, accum.ShardedOptions{Reducer: rank})
			if err != nil {
				panic(err)
			}
			b := batches[i]
			if err := window.Start([]float64{float64(b.samples)}); err != nil {
				panic(err)
			}
			if err := window.Begin(); err != nil {
				panic(err)
			}
			acc, into, err := window.Into("weight")
			if err != nil {
				panic(err)
			}
			for i, g := range b.grad { // into.Beta is 0
				acc.Float32s()[i] = into.Alpha * g
			}
			if err := window.End(); err != nil {
				panic(err)
			}
			if err := window.Finish(); err != nil {
				panic(err)
			}
			lo, grad, err := window.Part("weight")
			if err != nil {
				panic(err)
			}
			for i, g := range grad.Float32s() {
				weight[lo+i] -= g
			}
			if err := window.Gather(func(string) snug.View { return snug.ViewOf(weight) }); err != nil {
				panic(err)
			}
			weights[i] = weight
		})
	}
	wg.Wait()
	fmt.Println(weights)
	// Output: [[8 17] [8 17]]
}

// The optimizer's state of a Sharded: each rank has the part that belongs to its gradients. Rank 0 writes the state of the
// whole parameter, from which any number of ranks goes on.
//
//check:in tiers race
func ExampleSharded_optimizer() {
	ranks, err := accum.Local(context.Background(), 2)
	if err != nil {
		panic(err)
	}
	const n = 1000
	var saved bytes.Buffer
	var wg sync.WaitGroup
	for _, rank := range ranks {
		wg.Go(func() {
			window, err := accum.NewSharded([]accum.Param{{Name: "weight", Len: n}}, accum.ShardedOptions{Reducer: rank, Align: 256})
			if err != nil {
				panic(err)
			}
			opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 8})
			if err != nil {
				panic(err)
			}
			lo, hi := window.Range("weight", rank.Rank())
			if err := opt.AddShard("weight", n, lo, hi); err != nil {
				panic(err)
			}
			if err := opt.WriteShards(&saved, window); err != nil { // rank 0 writes
				panic(err)
			}
		})
	}
	wg.Wait()
	alone, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 8})
	if err != nil {
		panic(err)
	}
	if err := alone.Add("weight", n); err != nil {
		panic(err)
	}
	_, err = alone.ReadFrom(&saved)
	fmt.Println(err)
	// Output: <nil>
}

// A window with a loss scaler: one state for both, saved after the first of two
// micro-batches.
//
//check:in tiers race
func ExampleScaler() {
	fresh := func() (*amp.Scaler, *accum.Window) {
		scaler, err := amp.NewScaler(amp.ScalerOptions{Init: 1024})
		if err != nil {
			panic(err)
		}
		return scaler, newWindow(accum.Options{Schedule: accum.Constant(2), Scaler: scaler})
	}
	scaler, window := fresh()
	add := func(b batch) {
		if err := window.Begin(float64(b.samples)); err != nil {
			panic(err)
		}
		scaled := []float32{b.grad[0] * scaler.Scale(), b.grad[1] * scaler.Scale()}
		if err := window.Add("weight", snug.ViewOf(scaled)); err != nil {
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
	scaler, window = fresh() // another process
	if err := window.UnmarshalBinary(saved); err != nil {
		panic(err)
	}
	add(batches[1])
	stepped, err := scaler.Step("sgd", window.Gradients(), func() error {
		show(window)
		return nil
	})
	fmt.Println(stepped, err)
	// Output:
	// weight [2 3] over 4 samples
	// true <nil>
}

// A NaN in the second micro-batch: the step is skipped, and the window says where
// it came from.
//
//check:in tiers race
func ExampleWindow_NonFinite() {
	window := newWindow(accum.Options{Schedule: accum.Constant(2), NonFinite: accum.SkipWindow, Measure: true})
	for _, g := range [][]float32{{1, 2}, {3, float32(math.NaN())}} {
		if err := window.Begin(1); err != nil {
			panic(err)
		}
		if err := window.Add("weight", snug.ViewOf(g)); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
	}
	fmt.Println(window.NonFinite())
	window.Skip()
	// Output: [weight[1] = NaN, from micro-batch 1]
}

// A loss scale that has halved within a window makes older gradients twice as large as
// newer ones, until the window is rescaled. With Options.Scaler the window does so itself.
//
//check:in tiers race
func ExampleWindow_Rescale() {
	window := newWindow(accum.Options{Schedule: accum.Constant(2)})
	for _, scale := range []float32{8, 4} {
		if scale == 4 {
			if err := window.Rescale(0.5); err != nil {
				panic(err)
			}
		}
		if err := window.Begin(1); err != nil {
			panic(err)
		}
		if err := window.Add("weight", snug.ViewOf([]float32{1 * scale, 3 * scale})); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
	}
	show(window) // 4 times the gradient
	// Output: weight [4 12] over 2 samples
}

// Two ranks in goroutines hold half of each page of frozen weights, and gather a page when a layer uses it. Package
// transformer makes these calls for a model whose Options.Pages is a Pages.
//
//check:in tiers race
func ExamplePages() {
	ranks, err := accum.Local(context.Background(), 2)
	if err != nil {
		panic(err)
	}
	layers := []string{"layers.0", "layers.1", "layers.2", "layers.3"}
	var held [2]int64
	var last [2][]byte
	var wg sync.WaitGroup
	for i, rank := range ranks {
		wg.Go(func() {
			pages, err := accum.NewPages(rank, accum.PagesOptions{})
			if err != nil {
				panic(err)
			}
			for n, key := range layers { // all ranks read the same file
				page, err := pages.Acquire(key, 2048)
				if err != nil {
					panic(err)
				}
				page[2047] = byte(n)
				if err := pages.Release(key, true); err != nil {
					panic(err)
				}
			}
			held[i] = pages.Bytes() - 2048 // without memory that is used again
			for _, key := range layers {   // a forward pass
				page, err := pages.Acquire(key, 2048)
				if err != nil {
					panic(err)
				}
				last[i] = append(last[i], page[2047])
				if err := pages.Release(key, false); err != nil {
					panic(err)
				}
			}
			sum := []float64{1} // in place of rank.Sum
			if err := pages.Sum(sum); err != nil {
				panic(err)
			}
			if err := pages.Close(); err != nil {
				panic(err)
			}
		})
	}
	wg.Wait()
	fmt.Println("bytes of 8192 that a rank holds:", held)
	fmt.Println("ends of the pages:", last)
	// Output:
	// bytes of 8192 that a rank holds: [4096 4096]
	// ends of the pages: [[0 1 2 3] [0 1 2 3]]
}
