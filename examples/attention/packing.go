package main

import (
	"fmt"
	"math"
	"time"

	"github.com/snug-ml/snug/attention"
)

// packing attends within sequences of several lengths that lie one after the other, and
// in the same ones padded to the longest.
func packing(seq, heads, dim int) error {
	starts := []int{0}
	for _, n := range []int{2, 16, 0, 64, 4, 32, 128} { // one is empty
		starts = append(starts, starts[len(starts)-1]+seq/max(n, 1)*min(n, 1))
	}
	batch, total, longest := len(starts)-1, starts[len(starts)-1], seq/2
	row := heads * dim

	packed := attention.SequenceMajor(attention.Options{Batch: batch, Heads: heads, SeqQ: total, SeqK: total, Dim: dim, Causal: true, QStarts: starts})
	q, k, v, out := make([]float32, total*row), make([]float32, total*row), make([]float32, total*row), make([]float32, total*row)
	random(q, k, v)
	start := time.Now()
	if err := attention.Forward(out, []float32(nil), q, k, v, packed); err != nil {
		return err
	}
	packedTime := time.Since(start)

	padded := attention.SequenceMajor(attention.Options{Batch: batch, Heads: heads, SeqQ: longest, SeqK: longest, Dim: dim, Causal: true})
	pad := func(x []float32) []float32 {
		y := make([]float32, batch*longest*row)
		for b, at := range starts[:batch] {
			copy(y[b*longest*row:], x[at*row:starts[b+1]*row])
		}
		return y
	}
	pq, pk, pv := pad(q), pad(k), pad(v)
	pout := make([]float32, len(pq))
	start = time.Now()
	if err := attention.Forward(pout, []float32(nil), pq, pk, pv, padded); err != nil {
		return err
	}
	paddedTime := time.Since(start)

	worst := 0.0
	for b, at := range starts[:batch] {
		for i := range (starts[b+1] - at) * row {
			worst = max(worst, math.Abs(float64(out[at*row+i]-pout[b*longest*row+i])))
		}
	}
	fmt.Printf("\n%d sequences of up to %d rows, forward: packed %d rows in %v, padded %d rows in %v; largest difference %.1e\n",
		batch, longest, total, packedTime.Round(time.Millisecond), batch*longest, paddedTime.Round(time.Millisecond), worst)
	return nil
}
