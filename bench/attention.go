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
						c := attention.Options{Batch: 1, Heads: s.positions / n, SeqQ: n, SeqK: n, Dim: d, Causal: mask == "causal"}
						all = append(all, attend(pass, dt, c, mask, n))
					}
				}
			}
		}
	}
	return all
}

// attentionFeatures are causal passes with a feature each, on the CPU: windows and masks
// that hide nothing, which cost nothing, and others, which multiply only the pairs
// that are seen.
func attentionFeatures(s sizes) (all []work) {
	n, d := s.seqs[len(s.seqs)-1], s.dims[0]
	c := attention.Options{Batch: 1, Heads: s.positions / n, SeqQ: n, SeqK: n, Dim: d, Causal: true}
	heads := make([]float32, c.Heads)
	for i := range heads {
		heads[i] = float32(i+1) / float32(len(heads))
	}
	mask, err := attention.NewTileMask(1, 1, n, n, func(b, h, i, j int) bool { return true })
	if err != nil {
		panic(err) // the lengths are those of sizes.go
	}
	for _, pass := range []string{"forward", "backward"} {
		for _, f := range []struct {
			name   string
			window int // keys before its own that a query sees
			change func(c *attention.Options)
		}{
			{"causal alone", n, func(c *attention.Options) {}},
			{"window of all", n, func(c *attention.Options) { c.Window = attention.Window{Left: n + 1} }},
			{"mask of all", n, func(c *attention.Options) { c.Mask = mask }},
			{"window of 1/8", n / 8, func(c *attention.Options) { c.Window = attention.Window{Left: n/8 + 1} }},
			{"sinks", n, func(c *attention.Options) { c.Sinks.X = snug.ViewOf(heads) }},
			{"ALiBi", n, func(c *attention.Options) { c.Slopes = snug.ViewOf(heads) }},
			{"bias", n, func(c *attention.Options) {
				c.Bias = attention.Bias{X: snug.ViewOf(make([]float32, n*n)), Dims: [4]int{1, 1, n, n}}
			}},
			{"softcap", n, func(c *attention.Options) { c.Softcap = 30 }},
			{"dropout", n, func(c *attention.Options) { c.Dropout = attention.Dropout{P: 0.1, Seed: 1} }},
		} {
			c := c
			f.change(&c)
			w := attend(pass, snug.F32, c, f.name, f.window)
			w.host, w.peers = true, nil
			all = append(all, w)
		}
	}
	return all
}

// pairs returns how many keys all queries see: with a causal mask, their own and at most
// `window` before it.
func pairs(c attention.Options, window int) float64 {
	sum := 0
	for i := range c.SeqQ {
		if c.Causal {
			sum += min(i, window) + 1
		} else {
			sum += c.SeqK
		}
	}
	return float64(c.Heads) * float64(sum)
}

func attend(pass string, dt snug.DType, c attention.Options, mask string, window int) work {
	pairs, rows := pairs(c, window), c.Heads*c.SeqQ
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

func prepareAttention(mem *memory, pass string, dt snug.DType, c attention.Options) (run, done func() error, err error) {
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
