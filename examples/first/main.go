// Command first trains one linear layer with bfloat16 products, four micro-batches a step,
// clipped gradients and AdamW with 8-bit state.
package main

import (
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/quant8"
)

const rows, in, out = 64, 256, 64 // of a micro-batch: x is rows×in, y is rows×out

func main() {
	truth, w := normal(out*in), make([]float32, out*in) // y = x·truthᵀ is to be learned
	low := make([]snug.BFloat16, len(w))                // what the products read of w
	x, y, dy := make([]snug.BFloat16, rows*in), make([]float32, rows*out), make([]float32, rows*out)

	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{}) // 2.03 bytes a parameter
	check(err)
	check(opt.Add("w", len(w)))
	window, err := accum.New([]accum.Param{{Name: "w", Len: len(w)}}, accum.Options{Schedule: accum.Constant(4)})
	check(err)

	for step := 1; step <= 200; step++ {
		loss := 0.0
		check(amp.Cast(low, w))
		for full := false; !full; { // micro-batches
			check(amp.Cast(x, normal(rows*in)))
			check(amp.MatMul(y, x, truth, amp.MatMulOptions{M: rows, N: out, K: in, TransB: true}))
			check(amp.MatMul(dy, x, low, amp.MatMulOptions{M: rows, N: out, K: in, TransB: true}))
			for i := range dy { // the prediction becomes the gradient of the mean squared error
				d := dy[i] - y[i]
				loss += float64(d*d) / (4 * rows * out)
				dy[i] = 2 * d / (rows * out)
			}
			check(window.Begin(rows)) // the weight of the micro-batch
			dw, into, err := window.Into("w")
			check(err)
			check(amp.MatMul(dw, dy, x, amp.MatMulOptions{M: out, N: in, K: rows, TransA: true, Into: into}))
			full, err = window.End()
			check(err)
		}
		stats, err := amp.Measure(window.Gradients())
		check(err)
		opt.Advance(0.02) // begins the step at this learning rate
		for name, grad := range window.Gradients() {
			check(opt.Step(name, snug.ViewOf(w), grad, amp.ClipCoef(stats.Norm, 1)))
		}
		window.Reset()
		if step%50 == 0 {
			fmt.Printf("step %d: loss %.4f\n", step, loss)
		}
	}
}

func normal(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rand.NormFloat64())
	}
	return x
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
