package quant8_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/quant8"
)

//check:in tiers race
func Example() {
	w, grad := make([]float32, 20_000), make([]float32, 20_000)
	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{})
	if err != nil {
		panic(err)
	}
	if err := opt.Add("w", len(w)); err != nil {
		panic(err)
	}
	for range 100 { // minimize Σ (w-3)²/2
		for i := range w {
			grad[i] = w[i] - 3
		}
		opt.Advance(0.1)
		if err := opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1); err != nil {
			panic(err)
		}
	}
	fmt.Printf("w = %.1f with %.2f bytes of state a parameter\n", w[0], float64(opt.StateBytes())/float64(len(w)))
	// Output: w = 3.0 with 2.03 bytes of state a parameter
}

// The norm of the gradients is known, so that the steps need not look for what is not finite.
//
//check:in tiers race
func ExampleOptimizer_Within() {
	params := map[string][]float32{"a": {1, 2}, "b": {3}}
	grads := map[string][]float32{"a": {0.5, 0}, "b": {1}}
	opt, err := quant8.New(quant8.SGD{}, quant8.Options{Bits: 32})
	if err != nil {
		panic(err)
	}
	squares := 0.0 // amp.Measure and amp's Unscale return the norm of all gradients
	for name, g := range grads {
		if err := opt.Add(name, len(g)); err != nil {
			panic(err)
		}
		for _, x := range g {
			squares += float64(x) * float64(x)
		}
	}
	opt.Advance(1)
	opt.Within(math.Sqrt(squares))
	for name, w := range params {
		if err := opt.Step(name, snug.ViewOf(w), snug.ViewOf(grads[name]), 1); err != nil {
			panic(err)
		}
	}
	fmt.Println(params)
	// Output: map[a:[0.5 2] b:[2]]
}

//check:in tiers race
func ExampleLion() {
	w, grad := make([]float32, 20_000), make([]float32, 20_000)
	opt, err := quant8.New(quant8.Lion{}, quant8.Options{})
	if err != nil {
		panic(err)
	}
	if err := opt.Add("w", len(w)); err != nil {
		panic(err)
	}
	for range 40 { // minimize Σ (w-3)²/2
		for i := range w {
			grad[i] = w[i] - 3
		}
		opt.Advance(0.1)
		if err := opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1); err != nil {
			panic(err)
		}
	}
	fmt.Printf("%.2f bytes of state a parameter\n", float64(opt.StateBytes())/float64(len(w)))
	// Output: 1.02 bytes of state a parameter
}

//check:in tiers race
func ExampleAdafactor() {
	opt, err := quant8.New(quant8.Adafactor{}, quant8.Options{})
	if err != nil {
		panic(err)
	}
	const rows, cols = 100, 200
	w, grad := make([]float32, rows*cols), make([]float32, rows*cols)
	if err := opt.AddMatrix("w", rows, cols); err != nil {
		panic(err)
	}
	for range 400 { // minimize Σ (w-3)²/2
		for i := range w {
			grad[i] = w[i] - 3
		}
		opt.Advance(0.1)
		if err := opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1); err != nil {
			panic(err)
		}
	}
	fmt.Printf("w = %.1f with %d bytes of state for %d parameters\n", w[0], opt.StateBytes(), len(w))
	// Output: w = 3.0 with 1200 bytes of state for 20000 parameters
}

//check:in tiers race
func ExampleMuon() {
	opt, err := quant8.New(quant8.Muon{}, quant8.Options{})
	if err != nil {
		panic(err)
	}
	const rows, cols, steps = 64, 96, 100
	w, grad := make([]float32, rows*cols), make([]float32, rows*cols)
	if err := opt.AddMatrix("w", rows, cols); err != nil {
		panic(err)
	}
	for step := range steps { // minimize |w - I|²/2
		copy(grad, w)
		for i := range rows {
			grad[i*cols+i]--
		}
		opt.Advance(0.1 * float32(steps-step) / steps)
		if err := opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1); err != nil {
			panic(err)
		}
	}
	fmt.Printf("w[0] = %.1f, %.1f, ... with %.2f bytes of state a parameter\n", w[0], w[1], float64(opt.StateBytes())/float64(len(w)))
	fmt.Printf("and %d KiB of workspace for all matrices\n", opt.WorkspaceBytes()/1024)
	// Output:
	// w[0] = 1.0, 0.0, ... with 1.02 bytes of state a parameter
	// and 64 KiB of workspace for all matrices
}

//check:in tiers race
func ExampleQuantize() {
	x := []float32{0.5, -2, 0, 0.001}
	m := quant8.DynamicMap(true)
	codes, absmax := make([]uint8, len(x)), make([]float32, quant8.Blocks(len(x), 256))
	if err := quant8.Quantize(codes, absmax, x, m, 256); err != nil {
		panic(err)
	}
	y := make([]float32, len(x))
	if err := quant8.Dequantize(y, codes, absmax, m, 256); err != nil {
		panic(err)
	}
	fmt.Println(codes, absmax)
	fmt.Printf("%.4f\n", y)
	// Output:
	// [201 0 127 138] [2]
	// [0.4953 -1.9859 0.0000 0.0010]
}

//check:in tiers race
func ExampleOptimizer_WriteTo() {
	build := func() *quant8.Optimizer {
		opt, err := quant8.New(quant8.AdamW{}, quant8.Options{})
		if err != nil {
			panic(err)
		}
		if err := opt.Add("w", 10_000); err != nil {
			panic(err)
		}
		return opt
	}
	opt := build()
	opt.Advance(1e-3)
	var file bytes.Buffer
	if _, err := opt.WriteTo(&file); err != nil {
		panic(err)
	}
	restored := build()
	if _, err := restored.ReadFrom(&file); err != nil {
		panic(err)
	}
	fmt.Println("continues after step", restored.Steps())
	// Output: continues after step 1
}

//check:in tiers arm64 race
func ExampleOptimizer_ReadBitsAndBytes() {
	build := func() *quant8.Optimizer {
		opt, err := quant8.New(quant8.AdamW{}, quant8.Options{})
		if err != nil {
			panic(err)
		}
		if err := opt.Add("layer.weight", 6000); err != nil {
			panic(err)
		}
		return opt
	}
	opt := build()
	opt.Advance(1e-3)
	var file bytes.Buffer
	format := quant8.BitsAndBytesFormat{
		Prefix: "optimizer.",
		Shapes: map[string][]int{"layer.weight": {60, 100}},
	}
	if _, err := opt.WriteBitsAndBytes(&file, format); err != nil {
		panic(err)
	}
	restored := build()
	if err := restored.ReadBitsAndBytes(bytes.NewReader(file.Bytes()), int64(file.Len()), "optimizer."); err != nil {
		panic(err)
	}
	fmt.Println("continues after step", restored.Steps())
	// Output: continues after step 1
}

//check:in tiers race
func ExampleStateBytes() {
	const n = 7_000_000_000 / 100
	for _, bits := range []int{32, 8} {
		fmt.Printf("%d bits: %.2f GB\n", bits, 100*float64(quant8.StateBytes(quant8.AdamW{}, quant8.Options{Bits: bits}, n))/1e9)
	}
	// Output:
	// 32 bits: 56.00 GB
	// 8 bits: 14.22 GB
}

// Biases do not decay, embeddings learn at half the rate, and elements whose gradient
// is not finite are left alone and reported.
//
//check:in tiers race
func ExampleOptions() {
	opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.01}, quant8.Options{
		NonFinite: quant8.SkipElement,
		Params: func(name string) quant8.ParamOptions {
			switch {
			case strings.HasSuffix(name, ".bias"):
				return quant8.ParamOptions{NoDecay: true}
			case name == "embedding":
				return quant8.ParamOptions{LR: 0.5}
			}
			return quant8.ParamOptions{}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := opt.Add("up.bias", 3); err != nil {
		fmt.Println(err)
		return
	}
	opt.Advance(1e-5)
	bias, gradient := []float32{1, 1, 1}, []float32{2, float32(math.Inf(1)), 2}
	err = opt.Step("up.bias", snug.ViewOf(bias), snug.ViewOf(gradient), 1)
	fmt.Println(bias, opt.Skipped(), err)
	// Output:
	// [0.99999 1 0.99999] [up.bias[1] = +Inf] <nil>
}

// A step of two micro-batches that has one gradient at a time in memory.
//
//check:in tiers race
func ExampleOptimizer_FoldInBackward() {
	opt, err := quant8.New(quant8.SGD{}, quant8.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	weights, gradient := []float32{1, 1}, make([]float32, 2)
	if err := opt.Add("weights", len(weights)); err != nil {
		fmt.Println(err)
		return
	}
	batches := [][]float32{{4, 8, 6}, {2}} // samples; the gradient of a micro-batch is their mean
	opt.Advance(0.125)
	for _, samples := range batches {
		weight := quant8.FoldOptions{Weight: float64(len(samples)), Total: 4}
		full, _, err := opt.FoldInBackward(weight, func(ready quant8.Ready) error {
			clear(gradient)
			for _, x := range samples {
				gradient[0] += x / float32(len(samples))
			}
			return ready("weights", snug.ViewOf(weights), snug.ViewOf(gradient))
		})
		fmt.Println(weights, full, err)
	}
	// Output:
	// [1 1] false <nil>
	// [0.375 1] true <nil>
}

// A backward pass of two layers that has one gradient at a time in memory.
//
//check:in tiers race
func ExampleOptimizer_StepInBackward() {
	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	weights := map[string][]float32{"first": make([]float32, 10), "second": make([]float32, 1000)}
	for name, w := range weights {
		if err := opt.Add(name, len(w)); err != nil {
			fmt.Println(err)
			return
		}
	}
	gradient := make([]float32, 1000) // for all of them
	opt.Advance(1e-3)
	norm, err := opt.StepInBackward(quant8.BackwardOptions{MaxNorm: 1}, func(ready quant8.Ready) error {
		for _, name := range []string{"second", "first"} { // last layer first
			w := weights[name]
			g := gradient[:len(w)]
			for i := range g {
				g[i] = 0.5 // what the layer computes
			}
			if err := ready(name, snug.ViewOf(w), snug.ViewOf(g)); err != nil {
				return err
			}
		}
		return nil
	})
	fmt.Printf("norm %.2f, step %d, %v\n", norm, opt.Steps(), err)
	// Output:
	// norm 15.89, step 1, <nil>
}

// APOLLO-mini of a matrix, with AdamW of a vector.
//
//check:in tiers race
func ExampleApollo() {
	const rows, cols = 256, 512
	w, b := make([]float32, rows*cols), make([]float32, rows)
	opt, err := quant8.New(quant8.Apollo{Tensor: true}, quant8.Options{})
	if err != nil {
		panic(err)
	}
	if err := opt.AddMatrix("w", rows, cols); err != nil {
		panic(err)
	}
	if err := opt.Add("b", rows); err != nil {
		panic(err)
	}
	gradient := func(x []float32) snug.View { // of Σ (x-3)²/2
		g := make([]float32, len(x))
		for i := range x {
			g[i] = x[i] - 3
		}
		return snug.ViewOf(g)
	}
	for i := range 100 {
		opt.Advance(0.3 * (1 - float32(i)/100))
		for name, x := range map[string][]float32{"w": w, "b": b} {
			if err := opt.Step(name, snug.ViewOf(x), gradient(x), 1); err != nil {
				panic(err)
			}
		}
	}
	fmt.Printf("w = %.1f and b = %.1f with %d bytes of state\n", w[0], b[0], opt.StateBytes())
	// Output: w = 3.0 and b = 3.0 with 6148 bytes of state
}

// A bfloat16 weight of 1 does not move by steps of 0.001 that are rounded to nearest.
//
//check:in tiers race
func ExampleOptimizer_LostUpdates() {
	opt, err := quant8.New(quant8.SGD{}, quant8.Options{CountLost: true})
	if err != nil {
		panic(err)
	}
	if err := opt.Add("w", 2); err != nil {
		panic(err)
	}
	w, g := []snug.BFloat16{snug.ToBFloat16(1), snug.ToBFloat16(0.01)}, []float32{1, 1}
	opt.Advance(0.001)
	if err := opt.Step("w", snug.ViewOf(w), snug.ViewOf(g), 1); err != nil {
		panic(err)
	}
	for name, lost := range opt.LostUpdates() {
		fmt.Printf("%s: %.0f %% of %d updates lost\n", name, 100*lost.Share(), lost.Updates)
	}
	// Output: w: 50 % of 2 updates lost
}

// A matrix of queries has one second moment for each of its four heads of 16 rows.
//
//check:in tiers race
func ExampleAdamMini() {
	opt, err := quant8.New(quant8.AdamMini{WeightDecay: 0.1}, quant8.Options{Params: func(name string) quant8.ParamOptions {
		if name == "q_proj" {
			return quant8.ParamOptions{Shared: 16 * 64}
		}
		return quant8.ParamOptions{}
	}})
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"q_proj", "v_proj"} {
		if err := opt.AddMatrix(name, 64, 64); err != nil {
			panic(err)
		}
	}
	w, g := make([]float32, 64*64), make([]float32, 64*64)
	for i := range g {
		g[i] = float32(i%2)*2 - 1
	}
	opt.Advance(0.01)
	if err := opt.Step("q_proj", snug.ViewOf(w), snug.ViewOf(g), 1); err != nil {
		panic(err)
	}
	fmt.Printf("%.2f %.2f with %d bytes of state\n", w[0], w[1], opt.StateBytes())
	// Output: 0.01 -0.01 with 8592 bytes of state
}

// SOAP of a matrix, with Adam of a vector. The first step only looks at the gradients.
//
//check:in tiers race
func ExampleSOAP() {
	const rows, cols = 4, 6
	w, b := make([]float32, rows*cols), make([]float32, rows)
	opt, err := quant8.New(quant8.SOAP{}, quant8.Options{})
	if err != nil {
		panic(err)
	}
	if err := opt.AddMatrix("w", rows, cols); err != nil {
		panic(err)
	}
	if err := opt.Add("b", rows); err != nil {
		panic(err)
	}
	gradient := func(x []float32) snug.View { // of Σ (x-3)²/2
		g := make([]float32, len(x))
		for i := range x {
			g[i] = x[i] - 3
		}
		return snug.ViewOf(g)
	}
	for i := range 301 {
		opt.Advance(0.6 * (1 - float32(i)/301))
		for name, x := range map[string][]float32{"w": w, "b": b} {
			if err := opt.Step(name, snug.ViewOf(x), gradient(x), 1); err != nil {
				panic(err)
			}
		}
	}
	fmt.Printf("w[0] %.1f, b[0] %.1f, %d bytes of state\n", w[0], b[0], opt.StateBytes())
	// Output:
	// w[0] 3.0, b[0] 3.0, 644 bytes of state
}
