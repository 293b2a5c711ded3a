// Command quant8 fits a linear layer of 262,144 weights to noisy data by least
// squares, with AdamW state in 32, 16, 8 and 4 bits, and prints the bytes
// of state and the loss on data that none has seen.
package main

import (
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/quant8"
)

const (
	in, out   = 512, 512
	batchSize = 8
	steps     = 200
)

// batch holds inputs x [batchSize, in] and targets y [batchSize, out].
type batch struct{ x, y []float32 }

func main() {
	rng := rand.New(rand.NewPCG(1, 2))
	teacher := make([]float32, in*out)
	for i := range teacher {
		teacher[i] = 0.05 * float32(rng.NormFloat64())
	}
	train := make([]batch, 64)
	for i := range train {
		train[i] = draw(rng, teacher)
	}
	test := draw(rng, teacher)

	fmt.Printf("%d weights, loss at the start %.4f\n", in*out, loss(make([]float32, in*out), test))
	for _, bits := range []int{32, 16, 8, 4} {
		w, bytes, err := fit(train, bits)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%2d-bit state: %7d bytes, %.3f a weight, loss at the end %.4f\n",
			bits, bytes, float64(bytes)/float64(len(w)), loss(w, test))
	}
}

// fit returns weights w [out, in] and the bytes of optimizer state.
func fit(train []batch, bits int) (w []float32, bytes int64, err error) {
	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: bits})
	if err != nil {
		return nil, 0, err
	}
	w = make([]float32, in*out)
	if err := opt.Add("w", len(w)); err != nil {
		return nil, 0, err
	}
	grad := make([]float32, len(w))
	for step := range steps {
		gradient(grad, w, train[step%len(train)])
		opt.Advance(0.005 * float32(steps-step) / steps)
		if err := opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1); err != nil {
			return nil, 0, err
		}
	}
	return w, opt.StateBytes(), nil
}

// draw returns inputs and the teacher's outputs with noise.
func draw(rng *rand.Rand, teacher []float32) batch {
	b := batch{make([]float32, batchSize*in), make([]float32, batchSize*out)}
	for i := range b.x {
		b.x[i] = float32(rng.NormFloat64())
	}
	for s := range batchSize {
		for o := range out {
			b.y[s*out+o] = dot(teacher[o*in:(o+1)*in], b.x[s*in:(s+1)*in]) + 0.1*float32(rng.NormFloat64())
		}
	}
	return b
}

// gradient writes that of half the squared error, averaged over the batch.
func gradient(grad, w []float32, b batch) {
	clear(grad)
	for s := range batchSize {
		x := b.x[s*in : (s+1)*in]
		for o := range out {
			e := (dot(w[o*in:(o+1)*in], x) - b.y[s*out+o]) / batchSize
			for i, g := 0, grad[o*in:(o+1)*in]; i < in; i++ {
				g[i] += e * x[i]
			}
		}
	}
}

// loss returns the mean squared error.
func loss(w []float32, b batch) float64 {
	sum := 0.0
	for s := range batchSize {
		for o := range out {
			e := float64(dot(w[o*in:(o+1)*in], b.x[s*in:(s+1)*in]) - b.y[s*out+o])
			sum += e * e
		}
	}
	return sum / (batchSize * out)
}

func dot(a, b []float32) (sum float32) {
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}
