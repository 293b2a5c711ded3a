package main

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
)

// attentions are forward and backward passes of a fixed number of tokens times
// heads, so that work grows with the length and not with its square.
func attentions(s sizes) (all []work) {
	for _, pass := range []string{"forward", "backward"} {
		for _, dt := range both {
			for _, d := range s.dims {
				for _, mask := range []string{"full", "causal"} {
					for _, n := range s.seqs {
						c := attention.Config{Batch: 1, Heads: s.positions / n, SeqQ: n, SeqK: n, Dim: d, Causal: mask == "causal"}
						all = append(all, attend(pass, dt, c, mask))
					}
				}
			}
		}
	}
	return all
}

func attend(pass string, dt snug.DType, c attention.Config, mask string) work {
	n, rows := float64(c.SeqQ), c.Heads*c.SeqQ
	pairs := float64(c.Heads) * n * n
	if c.Causal {
		pairs = float64(c.Heads) * n * (n + 1) / 2
	}
	tensor := size(dt, rows*c.Dim)
	w := work{
		kernel: "attention " + pass, dtype: dt.String(), bf16: dt == snug.BF16,
		shape: fmt.Sprintf("heads=%d n=%d d=%d %s", c.Heads, c.SeqQ, c.Dim, mask),
		peers: slices.Concat([]string{torch}, withoutAMX(dt)),
		prepare: func(mem *memory) (run, done func() error, err error) {
			return prepareAttention(mem, pass, dt, c)
		},
	}
	lse := size(snug.F32, rows)
	if pass == "forward" { // QKᵀ, PV
		w.products, w.reads, w.writes = 4*pairs*float64(c.Dim), 3*tensor, tensor+lse
	} else { // QKᵀ, dO·Vᵀ, dSᵀQ, dS·K, PᵀdO
		w.products, w.reads, w.writes = 10*pairs*float64(c.Dim), 5*tensor+lse, 3*tensor
	}
	w.ops = w.products
	return w
}

func prepareAttention(mem *memory, pass string, dt snug.DType, c attention.Config) (run, done func() error, err error) {
	rows := c.Heads * c.SeqQ
	n := rows * c.Dim
	q, k, v, out := mem.operand(dt, n), mem.operand(dt, n), mem.operand(dt, n), mem.empty(dt, n)
	lse := mem.empty(snug.F32, rows)
	forward := func() error { return attention.Forward(out, lse, q, k, v, c) }
	if pass == "forward" {
		return forward, nil, nil
	}
	if err := forward(); err != nil {
		return nil, nil, err
	}
	dq, dk, dv, dout := mem.empty(dt, n), mem.empty(dt, n), mem.empty(dt, n), mem.operand(dt, n)
	ws := mem.empty(snug.F32, c.WorkspaceLen())
	return func() error { return attention.Backward(dq, dk, dv, dout, q, k, v, out, lse, c, ws) }, nil, nil
}
