// Fused computes the loss and the gradients of a language model's output layer
// twice: with the logits of the whole batch in memory, and with fused, which
// holds the logits of a few rows at a time. It prints the memory and the time of
// both ways and how far their gradients lie apart, then what the layers between
// the matmuls keep for the backward pass, compared with what they would keep if they were
// composed of simpler ones.
package main

import (
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

const (
	rows  = 512   // tokens in the batch, padding included
	pad   = 4     // padding tokens in the batch
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
	loss, err := fused.CrossEntropyBackward(head, r.dx, r.dw, x, w, targets, scale, snug.Into{}, ws)
	r.loss, r.workspace = loss.Sum/float64(loss.Targets), 4*len(ws)
	r.time = time.Since(start).Round(time.Millisecond)
	return r, err
}

// layers runs the layers between the matmuls on x, forward and backward where
// that shows how little is kept, and prints the bytes that the backward passes need
// in addition to the inputs.
func layers(rng *rand.Rand, x []float32) error {
	n := len(x)
	gain, bias, up := random(rng, cols, 1), random(rng, cols, 1), random(rng, n, 1)
	out, mean, rstd := make([]float32, n), make([]float32, rows), make([]float32, rows)
	rotary := fused.RotaryOptions{Heads: cols / 64, Dim: 64}
	angles, positions := make([]float32, rows*rotary.Dim), make([]int32, rows)
	for i := range positions {
		positions[i] = int32(i)
	}
	mask := fused.DropoutMask{P: 0.1, Seed: 1}
	turned := append([]float32(nil), x...)
	if err := errors.Join(
		fused.LayerNorm(out, mean, rstd, x, gain, bias, 1e-5),
		fused.RMSNorm(out, rstd, x, gain, 1e-5),
		fused.BiasGELU(out, x, bias),
		fused.SwiGLU(out, x, up),
		fused.RotaryAngles(angles, rotary.Dim, 10000),
		fused.Rotary(turned, angles, positions, rotary),
		fused.RotaryBackward(turned, angles, positions, rotary),
		fused.Dropout(out, x, mask),
		fused.DropoutBackward(up, x, mask), // makes the mask again
	); err != nil {
		return err
	}
	fmt.Printf("bytes kept for the backward pass, and by a composition\n")
	row := "  %-10s %6d %8d  %s\n"
	fmt.Printf(row, "LayerNorm", 8*rows, 4*n, "the normalized input")
	fmt.Printf(row, "RMSNorm", 4*rows, 4*n, "the normalized input")
	fmt.Printf(row, "BiasGELU", 0, 8*n, "the biased input and tanh")
	fmt.Printf(row, "SwiGLU", 0, 8*n, "the sigmoid and silu")
	fmt.Printf(row, "Rotary", 0, 4*n, "its input")
	fmt.Printf(row, "Dropout", 0, n, "a mask of bytes")
	fmt.Printf("Rotary and back differs from its input by %.1g; Dropout's masks differ by %v\n",
		distance(turned, x), distance(out, up))
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
