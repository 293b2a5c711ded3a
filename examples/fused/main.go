// Fused computes the loss and the gradients of a language model's output layer
// twice: with the logits of the whole batch in memory, and with fused, which
// holds those of a few rows at a time. It prints the memory and the time of
// both ways and how far their gradients lie apart, then what a LayerNorm and a
// BiasGELU keep for the backward pass.
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"time"

	"github.com/snug-ml/snug/fused"
)

const (
	rows  = 512   // tokens in the batch,
	pad   = 4     // of which padding
	cols  = 128   // width of the model
	vocab = 16384 // classes
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	rng := rand.New(rand.NewPCG(1, 2))
	x, w := random(rng, rows*cols, 1), random(rng, vocab*cols, 0.1)
	targets := make([]int32, rows)
	for i := range targets {
		targets[i] = int32(rng.IntN(vocab))
	}
	for i := range pad {
		targets[i] = -1 // no loss, no gradient
	}

	whole, err := train(fused.CrossEntropy{Vocab: vocab, Cols: cols, Chunk: rows}, x, w, targets)
	if err != nil {
		return err
	}
	chunked, err := train(fused.CrossEntropy{Vocab: vocab, Cols: cols, Chunk: 64}, x, w, targets)
	if err != nil {
		return err
	}
	fmt.Printf("output layer of %d rows, %d columns, %d classes\n", rows, cols, vocab)
	fmt.Printf("  %-12s %6.1f MiB  loss %.6f  %v\n", "all logits", mib(whole.workspace), whole.loss, whole.time)
	fmt.Printf("  %-12s %6.1f MiB  loss %.6f  %v\n", "in chunks", mib(chunked.workspace), chunked.loss, chunked.time)
	fmt.Printf("  %.1f times less memory; gradients differ by at most %.1g of %.1g\n",
		float64(whole.workspace)/float64(chunked.workspace),
		max(distance(whole.dx, chunked.dx), distance(whole.dw, chunked.dw)), largest(whole.dw))
	return layers(rng, x)
}

// result is what a step of the output layer gives and takes.
type result struct {
	dx, dw    []float32
	loss      float64 // mean over targets
	workspace int     // bytes
	time      time.Duration
}

func train(head fused.CrossEntropy, x, w []float32, targets []int32) (r result, err error) {
	r.dx, r.dw = make([]float32, len(x)), make([]float32, len(w))
	ws := make([]float32, head.WorkspaceLen(len(targets)))
	scale := 1 / float32(rows-pad) // the gradient of the mean loss
	start := time.Now()
	loss, err := fused.CrossEntropyBackward(head, r.dx, r.dw, x, w, targets, scale, fused.Into{}, ws)
	r.loss, r.workspace = loss.Sum/float64(loss.Targets), 4*len(ws)
	r.time = time.Since(start).Round(time.Millisecond)
	return r, err
}

// layers runs a LayerNorm and a BiasGELU on x and prints what the backward
// passes need beside x.
func layers(rng *rand.Rand, x []float32) error {
	gain, bias, out := random(rng, cols, 1), random(rng, cols, 1), make([]float32, len(x))
	mean, rstd := make([]float32, rows), make([]float32, rows)
	if err := fused.LayerNorm(out, mean, rstd, x, gain, bias, 1e-5); err != nil {
		return err
	}
	if err := fused.BiasGELU(out, x, bias); err != nil {
		return err
	}
	fmt.Printf("LayerNorm keeps %d bytes, its normalized input would take %d\n", 4*(len(mean)+len(rstd)), 4*len(x))
	fmt.Printf("BiasGELU keeps 0 bytes, its biased input and tanh would take %d\n", 8*len(x))
	return nil
}

func random(rng *rand.Rand, n int, sigma float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = sigma * float32(rng.NormFloat64())
	}
	return v
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

func distance(a, b []float32) (d float64) {
	for i := range a {
		d = max(d, math.Abs(float64(a[i])-float64(b[i])))
	}
	return d
}

func largest(a []float32) float64 { return distance(a, make([]float32, len(a))) }
