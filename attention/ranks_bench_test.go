package attention_test

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// BenchmarkRanks computes one sequence on ranks that share the processor: what more than one take longer is the cost
// of dividing it.
func BenchmarkRanks(b *testing.B) {
	c := attention.Options{Batch: 1, Heads: 4, KVHeads: 4, SeqQ: 4096, Dim: 64, Causal: true}
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for _, d := range divisions {
			for _, size := range []int{1, 2, 4} {
				b.Run(fmt.Sprintf("%s/%s/%d", d.name, dt, size), func(b *testing.B) {
					all := make([]*operands, size)
					for i := range all {
						o := operandsOf(c, mirror{i, size}, d.divided)
						for n, v := range []*snug.View{&o.q, &o.k, &o.v, &o.out, &o.dq, &o.dk, &o.dv, &o.dout} {
							*v = kerneltest.PutFloats(b, kerneltest.Backend{}, dt, kerneltest.Normal(uint64(8*i+n), v.Len())).View
						}
						all[i] = o
					}
					for b.Loop() {
						for _, err := range onRanks(b, size, func(r rank) error {
							o := all[r.Rank()]
							o.ranks = r
							if err := o.forward(d.divided); err != nil {
								return err
							}
							return o.backward(d.divided)
						}) {
							require.NoError(b, err)
						}
					}
				})
			}
		}
	}
}
