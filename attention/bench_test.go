package attention

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// BenchmarkAttention reports GFLOP/s by the usual count: 4·N²·D forward, 2.5 times
// that backward, and half of it under a causal mask. Two passes of the backward
// kernel, which 16-bit types need, do 3.5 times the work of forward.
func BenchmarkAttention(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for _, dim := range []int{32, 64, 128} {
			const heads, seq = 2, 1024
			c := Config{Batch: 1, Heads: heads, SeqQ: seq, SeqK: seq, Dim: dim, Causal: true}
			flops := 2 * float64(heads*seq*seq*dim)
			tensor := func() snug.View {
				x := make([]float32, heads*seq*dim)
				for i := range x {
					x[i] = float32(rng.NormFloat64())
				}
				return kerneltest.PutFloats(b, kerneltest.Place{}, dt, x).View
			}
			q, k, v, out, dout := tensor(), tensor(), tensor(), tensor(), tensor()
			dq, dk, dv := tensor(), tensor(), tensor()
			lse, ws := snug.ViewOf(make([]float32, heads*seq)), snug.ViewOf(make([]float32, c.WorkspaceLen()))
			run := func(pass string, flops float64, f func() error) {
				b.Run(fmt.Sprintf("%s/%v/%d", pass, dt, dim), func(b *testing.B) {
					for b.Loop() {
						if err := f(); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
			run("forward", flops, func() error { return Forward(out, lse, q, k, v, c) })
			run("backward", 2.5*flops, func() error { return Backward(dq, dk, dv, dout, q, k, v, out, lse, c, ws) })
		}
	}
}
