package main

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// matmuls are square products, with all transposes, and those of a few rows
// with a large weight.
func matmuls(s sizes) (all []work) {
	for _, dt := range both {
		for _, op := range s.ops {
			for _, n := range s.squares {
				all = append(all, matmul(dt, n, n, n, op))
			}
		}
		for _, op := range []string{"nn", "nt"} {
			for _, m := range s.rows {
				all = append(all, matmul(dt, m, s.width, s.width, op))
			}
		}
	}
	return all
}

// gonumMost is the most multiply-adds for which gonum is asked; larger ones take it seconds.
const gonumMost = 512 * 512 * 512

// matmul is c = op(a)·op(b) with c of m×n, all of one type; op says for each
// operand whether it is stored transposed.
func matmul(dt snug.DType, m, n, k int, op string) work {
	flops := 2 * float64(m) * float64(n) * float64(k)
	peers := []string{torch}
	if dt == snug.F32 {
		if peers = append(peers, numpy); float64(m)*float64(n)*float64(k) <= gonumMost {
			peers = append(peers, gonum)
		}
	}
	return work{
		kernel: "matmul", dtype: dt.String(), shape: fmt.Sprintf("m=%d n=%d k=%d op=%s", m, n, k, op),
		reads: size(dt, m*k) + size(dt, k*n), writes: size(dt, m*n), ops: flops, products: flops, bf16: dt == snug.BF16,
		peers: slices.Concat(peers, withoutAMX(dt)),
		prepare: func(mem *memory) (run, done func() error, err error) {
			a, b, c := mem.operand(dt, m*k), mem.operand(dt, k*n), mem.empty(dt, m*n)
			cfg := amp.MatMulOptions{M: m, N: n, K: k, TransA: op[0] == 't', TransB: op[1] == 't'}
			return func() error { return amp.MatMul(c, a, b, cfg) }, nil, nil
		},
	}
}
