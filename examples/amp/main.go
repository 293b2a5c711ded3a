// Command amp trains a small network to compute |x|, with float16 weights,
// activations and activation gradients, without and with a loss scale.
//
// The loss has a small weight, as auxiliary losses do, so that its gradients lie
// below the least float16 number, 6e-8: without a scale they become zero and
// nothing is learned. With one they are lifted into range, accumulated over
// micro-batches in float32, unscaled, clipped, and applied to float32 masters.
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
)

const (
	rows, inputs, hidden = 256, 16, 64 // of a micro-batch
	micros, steps        = 4, 300
	weight, rate         = 1e-5, 0.4 / weight // of the loss, of learning
)

type half = []snug.Float16

var names = [2]string{"w1", "w2"}

// net computes h = max(0, x·w1), y = h·w2.
type net struct {
	w        [2]half
	h, dh    half      // rows×hidden
	y        []float32 // rows×inputs
	dy       half
	vanished int // elements of dh
}

func main() {
	log.SetFlags(0)
	train("without a loss scale", amp.ScalerOptions{Init: 1, Floor: 1, Cap: 1})
	train("with a loss scale", amp.ScalerOptions{Interval: 100})
	size := 2*rows*(inputs+hidden) + 2*inputs*hidden
	fmt.Printf("activations and weights: %d bytes, %d in float32; masters: %d bytes\n", 2*size, 4*size, 4*2*inputs*hidden)
}

func train(title string, o amp.ScalerOptions) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := net{
		w: [2]half{normal(rng, inputs*hidden, 0.25), normal(rng, hidden*inputs, 0.1)},
		h: make(half, rows*hidden), dh: make(half, rows*hidden), y: make([]float32, rows*inputs), dy: make(half, rows*inputs),
	}
	scaler, err := amp.NewScaler(o)
	check(err)
	master, err := amp.NewMaster(amp.MasterOptions{})
	check(err)
	var params []accum.Param
	for i, w := range n.w {
		check(master.Add(names[i], len(w), func(lo int, m []float32) error { return amp.Cast(m, w[lo:lo+len(m)]) }))
		params = append(params, accum.Param{Name: names[i], Len: len(w)})
	}
	window, err := accum.New(params, accum.Options{Schedule: accum.Constant(micros)})
	check(err)

	var loss [steps]float64
	for step := range steps {
		for range micros {
			loss[step] += n.microBatch(window, normal(rng, rows*inputs, 1), scaler.Scale()) / micros
		}
		stats, err := scaler.Unscale("sgd", window.Gradients())
		check(err)
		stepped, err := scaler.Step("sgd", nil, func() error { return n.update(master, window, amp.ClipCoef(stats.Norm, 1)) })
		check(err)
		check(scaler.Update())
		if stepped {
			window.Reset()
		} else {
			window.Skip()
		}
	}
	fmt.Printf("%-20s  loss %.3f -> %.3f, %.1f%% of the hidden gradients vanished, %d steps skipped, scale %v\n", title,
		loss[0], loss[steps-1], 100*float64(n.vanished)/(steps*micros*rows*hidden), window.Stats().Skipped, scaler.Scale())
}

// microBatch adds the scaled gradients of the weighted mean squared error to
// the window and returns the error.
func (n *net) microBatch(window *accum.Window, x half, scale float32) (loss float64) {
	check(amp.MatMul(n.h, x, n.w[0], amp.MatMulOptions{M: rows, N: hidden, K: inputs}))
	for i := range n.h {
		if n.h[i].Signbit() {
			n.h[i] = 0
		}
	}
	check(amp.MatMul(n.y, n.h, n.w[1], amp.MatMulOptions{M: rows, N: inputs, K: hidden}))
	for i := range n.y { // y becomes its gradient
		n.y[i] -= float32(math.Abs(float64(x[i].Float32())))
		loss += float64(n.y[i]) * float64(n.y[i]) / (rows * inputs)
		n.y[i] *= scale * weight * 2 / (rows * inputs)
	}
	check(amp.Cast(n.dy, n.y))
	check(amp.MatMul(n.dh, n.dy, n.w[1], amp.MatMulOptions{M: rows, N: hidden, K: inputs, TransB: true}))
	for i := range n.dh {
		if n.dh[i]&0x7fff == 0 {
			n.vanished++
		}
		if n.h[i] == 0 {
			n.dh[i] = 0
		}
	}
	check(window.Begin(rows))
	addProduct(window, names[0], x, n.dh, inputs, hidden)
	addProduct(window, names[1], n.h, n.dy, hidden, inputs)
	_, err := window.End()
	check(err)
	return loss
}

// update is plain gradient descent on the masters.
func (n *net) update(master *amp.Master, window *accum.Window, coef float32) error {
	for i, name := range names {
		grad, err := window.Gradient(name)
		if err != nil {
			return err
		}
		err = master.Update(name, snug.ViewOf(n.w[i]), func(lo int, v snug.View) error {
			w := v.Float32s()
			for j := range w {
				w[j] -= rate * coef * grad.Float32s()[lo+j]
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addProduct adds inᵀ·dout, the gradient of an m×k weight, to the window.
func addProduct(window *accum.Window, name string, in, dout half, m, k int) {
	acc, into, err := window.Into(name)
	check(err)
	check(amp.MatMul(acc, in, dout, amp.MatMulOptions{M: m, N: k, K: rows, TransA: true, Into: into}))
}

func normal(rng *rand.Rand, n int, scale float64) half {
	x, out := make([]float32, n), make(half, n)
	for i := range x {
		x[i] = float32(scale * rng.NormFloat64())
	}
	check(amp.Cast(out, x))
	return out
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
