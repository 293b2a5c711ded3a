package main

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug/attention"
)

// ranks are the parts of a sequence.
const ranks = 4

// ring gives every rank a part of the queries, the keys and the values. The keys and values
// go round: in every step a rank attends to the part that it holds and merges what comes
// out. The backward pass goes round once more, with the merged results.
func ring(seq, heads, dim int) error {
	part := seq / ranks
	n := part * heads * dim
	var q, k, v, out, dout, dq, dk, dv [ranks][]float32
	var lse [ranks][]float32
	for r := range ranks {
		for _, x := range []*[ranks][]float32{&q, &k, &v, &out, &dout, &dq, &dk, &dv} {
			x[r] = make([]float32, n)
		}
		random(q[r], k[r], v[r], dout[r])
		lse[r] = make([]float32, part*heads)
		for i := range lse[r] {
			lse[r][i] = float32(math.Inf(-1)) // nothing seen yet
		}
	}
	// step is what rank r computes with the keys of rank from, which lie before its own.
	step := func(r, from int) attention.Options {
		return attention.SequenceMajor(attention.Options{
			Batch: 1, Heads: heads, SeqQ: part, SeqK: part, Dim: dim,
			Causal: true, Align: attention.Shifted, Shift: (r - from) * part,
		})
	}
	some, someLSE := make([]float32, n), make([]float32, part*heads)
	for r := range ranks {
		for from := r; from >= 0; from-- {
			c := step(r, from)
			if err := attention.Forward(some, someLSE, q[r], k[from], v[from], c); err != nil {
				return err
			}
			if err := attention.Merge(out[r], lse[r], out[r], lse[r], some, someLSE, c); err != nil {
				return err
			}
		}
	}
	gq, gk, gv := make([]float32, n), make([]float32, n), make([]float32, n)
	for r := range ranks {
		for from := r; from >= 0; from-- {
			c := step(r, from)
			ws := make([]float32, c.WorkspaceLen())
			err := attention.Backward(gq, gk, gv, dout[r], q[r], k[from], v[from], out[r], lse[r], c, ws)
			if err != nil {
				return err
			}
			add(dq[r], gq)
			add(dk[from], gk)
			add(dv[from], gv)
		}
	}
	return compareRing(part, heads, dim, join(q), join(k), join(v), join(dout), [][]float32{join(out), join(dq), join(dk), join(dv)})
}

// compareRing prints how far results are from those of one call.
func compareRing(part, heads, dim int, q, k, v, dout []float32, got [][]float32) error {
	c := attention.SequenceMajor(attention.Options{Batch: 1, Heads: heads, SeqQ: ranks * part, SeqK: ranks * part, Dim: dim, Causal: true})
	out, lse := make([]float32, len(q)), make([]float32, c.WorkspaceLen())
	if err := attention.Forward(out, lse, q, k, v, c); err != nil {
		return err
	}
	dq, dk, dv := make([]float32, len(q)), make([]float32, len(q)), make([]float32, len(q))
	if err := attention.Backward(dq, dk, dv, dout, q, k, v, out, lse, c, make([]float32, c.WorkspaceLen())); err != nil {
		return err
	}
	fmt.Printf("\nthe same over a ring of %d, which merge their parts; largest difference from one call:\n", ranks)
	for i, want := range [][]float32{out, dq, dk, dv} {
		worst := 0.0
		for j, x := range want {
			worst = max(worst, math.Abs(float64(x-got[i][j])))
		}
		fmt.Printf("  %-3s %.1e\n", []string{"out", "dq", "dk", "dv"}[i], worst)
	}
	return nil
}

func add(sum, x []float32) {
	for i, v := range x {
		sum[i] += v
	}
}

// join puts the parts of a sequence one after the other.
func join(parts [ranks][]float32) (x []float32) {
	for _, p := range parts {
		x = append(x, p...)
	}
	return x
}
