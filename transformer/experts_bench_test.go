package transformer

import (
	"fmt"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
)

// BenchmarkExpertProducts compares the products of 8 experts, each with its own matrix and a part of 2048 rows, with the
// product of all rows by one matrix, in turns. It prints the ratio of their rates: 1 says that groups cost nothing.
func BenchmarkExpertProducts(b *testing.B) {
	const rows, dim, hidden = 2048, 1024, 1024
	even := []int{256, 256, 256, 256, 256, 256, 256, 256}
	uneven := []int{733, 412, 300, 217, 161, 121, 71, 33}
	random := func(dt snug.DType, seed uint64, n int) snug.View {
		v, _, err := snug.MakeView(snug.CPU(), dt, n)
		if err == nil {
			err = amp.Cast(v, kerneltest.Uniform(seed, n))
		}
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
	for _, form := range []struct {
		name string
		dt   snug.DType
		base qlora.Type
	}{
		{"f32", snug.F32, 0}, {"bf16", snug.BF16, 0}, {"f16", snug.F16, 0}, {"nf4 f32", snug.F32, qlora.NF4}, {"nf4 bf16", snug.BF16, qlora.NF4},
		{"mxfp4 bf16", snug.BF16, qlora.MXFP4}, {"fp8 bf16", snug.BF16, qlora.FP8}, {"int8 bf16", snug.BF16, qlora.INT8},
	} {
		x, y := random(form.dt, 1, rows*dim), random(form.dt, 2, rows*hidden)
		var weights [8]snug.View
		var frozen [8]*qlora.Linear
		for i := range weights {
			weights[i] = random(form.dt, uint64(i), dim*hidden)
			if form.base == 0 {
				continue
			}
			w, err := qlora.NewWeight(weights[i], []int{hidden, dim}, qlora.Options{Type: form.base})
			if err == nil && i == 0 {
				frozen[0], err = qlora.NewLinear(w, form.dt, 0)
			} else if err == nil {
				frozen[i], err = frozen[0].Share(w)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		gradient := snug.ViewOf(make([]float32, 8*dim*hidden))
		for _, product := range []struct {
			name string
			run  func(lo, n, expert int) error
		}{
			{"forward", func(lo, n, e int) error {
				x, y := part(x, lo*dim, n*dim), part(y, lo*hidden, n*hidden)
				if frozen[e] != nil {
					return frozen[e].Forward(y, x, 0)
				}
				return amp.MatMul(y, x, weights[e], amp.MatMulOptions{M: n, N: hidden, K: dim, TransB: true})
			}},
			{"input", func(lo, n, e int) error {
				x, y := part(x, lo*dim, n*dim), part(y, lo*hidden, n*hidden)
				if frozen[e] != nil {
					return frozen[e].Backward(x, y, 0)
				}
				return amp.MatMul(x, y, weights[e], amp.MatMulOptions{M: n, N: dim, K: hidden})
			}},
			{"weight", func(lo, n, e int) error {
				x, y, g := part(x, lo*dim, n*dim), part(y, lo*hidden, n*hidden), part(gradient, e*dim*hidden, dim*hidden)
				return amp.MatMul(g, y, x, amp.MatMulOptions{M: hidden, N: dim, K: n, TransA: true, Into: snug.Into{Alpha: 1, Beta: 1}})
			}},
		} {
			if form.base != 0 && product.name == "weight" {
				continue
			}
			for i, split := range [][]int{even, uneven} {
				b.Run(fmt.Sprintf("%s/%s/%s", form.name, product.name, []string{"even", "uneven"}[i]), func(b *testing.B) {
					var whole, grouped time.Duration
					best := [2]time.Duration{1 << 62, 1 << 62}
					for range b.N {
						start := time.Now()
						err := product.run(0, rows, 0)
						middle := time.Now()
						lo := 0
						for e, n := range split {
							if err == nil {
								err = product.run(lo, n, e)
							}
							lo += n
						}
						if err != nil {
							b.Fatal(err)
						}
						end := time.Now()
						whole, grouped = whole+middle.Sub(start), grouped+end.Sub(middle)
						best = [2]time.Duration{min(best[0], middle.Sub(start)), min(best[1], end.Sub(middle))}
					}
					b.ReportMetric(float64(whole)/float64(grouped), "of-dense")
					b.ReportMetric(float64(best[0])/float64(best[1]), "of-dense-best")
				})
			}
		}
	}
}
