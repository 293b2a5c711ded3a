// Command accum accumulates the gradient of a batch of unequal rows over
// micro-batches and compares it with the gradient of the whole batch.
//
// The model is a table of next-token logits under softmax cross-entropy. Rows
// differ in length, so micro-batches differ in targets. The weighted mean of
// package accum gives the gradient of the whole batch; dividing the gradient
// of each micro-batch by their number, as loops commonly do, gives another.
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
)

const vocabulary = 256

func main() {
	log.SetFlags(0)
	rng := rand.New(rand.NewPCG(1, 2))
	var batch [][]int
	for _, length := range []int{2, 3, 2, 5, 9, 17, 33, 64} {
		for range 4 {
			row := make([]int, length)
			for i := range row {
				row[i] = rng.IntN(vocabulary)
			}
			batch = append(batch, row)
		}
	}
	logits := make([]float64, vocabulary*vocabulary)
	for i := range logits {
		logits[i] = rng.NormFloat64()
	}

	const micros = 8
	window, err := accum.New([]accum.Param{{Name: "logits", Len: len(logits)}}, accum.Options{Schedule: accum.Constant(micros)})
	check(err)
	naive := make([]float32, len(logits))
	grad := make([]float32, len(logits))
	largest := 0
	for i := range micros {
		rows := batch[i*len(batch)/micros : (i+1)*len(batch)/micros]
		targets := gradient(grad, logits, rows)
		check(window.Begin(float64(targets)))
		check(window.Add("logits", snug.ViewOf(grad)))
		_, err := window.End()
		check(err)
		for j, g := range grad {
			naive[j] += g / micros
		}
		largest = max(largest, targets)
	}

	whole := make([]float32, len(logits))
	targets := gradient(whole, logits, batch)
	mean, err := window.Gradient("logits")
	check(err)
	fmt.Printf("%d micro-batches, %d targets in all, %d in the largest\n", micros, targets, largest)
	fmt.Printf("largest tensor of logits: %d bytes instead of %d\n", 4*vocabulary*largest, 4*vocabulary*targets)
	report("weighted mean (accum)", mean.Float32s(), whole)
	report("mean of means", naive, whole)
}

// gradient sets grad to the gradient of the mean loss over all targets of
// rows, and returns their number. Each token but the last predicts the next.
func gradient(grad []float32, logits []float64, rows [][]int) (targets int) {
	sum := make([]float64, len(logits))
	for _, row := range rows {
		for i, token := range row[:len(row)-1] {
			line, out := logits[token*vocabulary:][:vocabulary], sum[token*vocabulary:]
			z := 0.0
			for _, l := range line {
				z += math.Exp(l)
			}
			for v, l := range line {
				out[v] += math.Exp(l) / z
			}
			out[row[i+1]]--
			targets++
		}
	}
	for i, s := range sum {
		grad[i] = float32(s / float64(targets))
	}
	return targets
}

func report(name string, got, want []float32) {
	var gg, ww, gw, dd float64
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		gg, ww, gw, dd = gg+g*g, ww+w*w, gw+g*w, dd+(g-w)*(g-w)
	}
	fmt.Printf("%-22s norm ratio %.4f, cosine %.4f, relative error %.1e\n",
		name, math.Sqrt(gg/ww), gw/math.Sqrt(gg*ww), math.Sqrt(dd/ww))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
