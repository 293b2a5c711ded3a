package attention

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/limits"
	"github.com/snug-ml/snug/internal/rowwise"
)

// BenchmarkAttention reports the share of the float32 multiply-add rate, of
// the fastest round, by the usual count: 4·N²·D operations forward, 2.5 times
// that backward, and half of it under a causal mask. Two passes of the backward
// kernel do 3.5 times the work of forward.
func BenchmarkAttention(b *testing.B) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for _, dim := range []int{64, 128} {
			for _, seq := range []int{1024, 4096} {
				for _, causal := range []bool{true, false} {
					c := Options{Batch: 1, Heads: 2, SeqQ: seq, SeqK: seq, Dim: dim, Causal: causal}
					benchmark(b, c, dt)
				}
			}
		}
	}
}

func benchmark(b *testing.B, c Options, dt snug.DType) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := c.Heads * c.SeqQ * c.Dim
	flops := 4 * float64(n) * float64(c.SeqK)
	if c.Causal {
		flops /= 2
	}
	tensor := func() snug.View {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return kerneltest.PutFloats(b, kerneltest.Backend{}, dt, x).View
	}
	q, k, v, out, dout := tensor(), tensor(), tensor(), tensor(), tensor()
	dq, dk, dv := tensor(), tensor(), tensor()
	lse, ws := snug.ViewOf(make([]float32, c.queries())), snug.ViewOf(make([]float32, c.queries()))
	run := func(pass string, flops float64, f func() error) {
		b.Run(fmt.Sprintf("%s/%v/D%d/N%d/causal=%v", pass, dt, c.Dim, c.SeqQ, c.Causal), func(b *testing.B) {
			best, peak := time.Hour, 0.0
			for b.Loop() {
				peak = max(peak, limits.FMA(rowwise.Registry.Tier(), runtime.GOMAXPROCS(0)))
				start := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(100*flops/best.Seconds()/peak, "%FMA")
		})
	}
	run("forward", flops, func() error { return Forward(out, lse, q, k, v, c) })
	run("backward", 2.5*flops, func() error { return Backward(dq, dk, dv, dout, q, k, v, out, lse, c, ws) })
}
