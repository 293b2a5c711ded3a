package main

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
)

// attentions are forward and backward passes of a fixed number of tokens times
// heads, so that work grows with the length and not with its square.
func attentions(o options) (all []work) {
	lens, dims, positions := []int{1 << 10, 1 << 11, 1 << 12, 1 << 13}, []int{64, 128}, 1<<14
	switch {
	case o.short:
		lens, dims, positions = []int{1 << 9}, []int{64}, 1<<10
	case o.long:
		lens = append(lens, 1<<14)
	}
	for _, pass := range []string{"forward", "backward"} {
		for _, dt := range both {
			for _, d := range dims {
				for _, mask := range []string{"full", "causal"} {
					for _, n := range lens {
						c := attention.Config{Batch: 1, Heads: positions / n, SeqQ: n, SeqK: n, Dim: d, Causal: mask == "causal"}
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
		prepare: func() (run, done func() error, err error) {
			return prepareAttention(pass, dt, c)
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

func prepareAttention(pass string, dt snug.DType, c attention.Config) (run, done func() error, err error) {
	rows := c.Heads * c.SeqQ
	n := rows * c.Dim
	q, k, v, out := operand(dt, n), operand(dt, n), operand(dt, n), empty(dt, n)
	lse := empty(snug.F32, rows)
	forward := func() error { return attention.Forward(out, lse, q, k, v, c) }
	if pass == "forward" {
		return forward, nil, nil
	}
	if err := forward(); err != nil {
		return nil, nil, err
	}
	dq, dk, dv, dout := empty(dt, n), empty(dt, n), empty(dt, n), operand(dt, n)
	ws := empty(snug.F32, c.WorkspaceLen())
	return func() error { return attention.Backward(dq, dk, dv, dout, q, k, v, out, lse, c, ws) }, nil, nil
}
