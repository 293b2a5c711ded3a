package layers

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
)

// This file has attention without tiles, for comparison. It keeps the probabilities, a matrix of tokens × tokens for
// each head of a sequence.

// plainHead is a head of a sequence: the offsets of its elements in the vectors of q, k, v, the output and the
// probabilities, and the lengths of the rows of q, and of k and v.
type plainHead struct {
	n           int // tokens
	q, k        int
	rowQ, rowK  int
	out, rowOut int
	probs       int // n·n probabilities of keys, and n of the sink, if there is one
	head        int
	shared      bool // an earlier head has the same k and v
}

// eachHead calls do for the heads of all sequences.
func (b *Attention) eachHead(p *Pass, do func(h plainHead) error) error {
	queries, keys := b.queries(), b.keys()
	h := plainHead{rowQ: queries, rowK: keys, rowOut: queries}
	if b.packed() {
		h.rowQ, h.rowK = queries+2*keys, queries+2*keys
	}
	for s := range p.Batch.Sequences {
		lo, hi := s*p.Batch.Longest, (s+1)*p.Batch.Longest
		if p.Batch.Starts != nil {
			lo, hi = p.Batch.Starts[s], p.Batch.Starts[s+1]
		}
		h.n = hi - lo
		for i := range b.Heads {
			group := b.Heads / b.KVHeads
			h.q, h.k, h.out = lo*h.rowQ+i*b.HeadDim, lo*h.rowK+i/group*b.HeadDim, lo*h.rowOut+i*b.HeadDim
			sink := b.sinkColumns()
			h.probs, h.head, h.shared = lo*b.Heads*(p.Batch.Longest+sink)+i*h.n*(h.n+sink), i, i%group > 0
			if err := do(h); err != nil {
				return err
			}
		}
	}
	return nil
}

// rest returns the elements of v from lo on.
func rest(v snug.View, lo int) snug.View { return part(v, lo, v.Len()-lo) }

func (b *Attention) plainWorkspace(p *Pass) (snug.View, error) {
	return p.Workspace(p.Batch.Longest * (2*p.Batch.Longest + b.sinkColumns()))
}

func (b *Attention) plainForward(p *Pass, out, probs, q, k, v *Tensor, c attention.Options) error {
	width := b.HeadDim
	ws, err := b.plainWorkspace(p)
	if err != nil {
		return err
	}
	vq, vk, vv := b.split(q, k, v)
	return b.eachHead(p, func(h plainHead) error {
		s := part(ws, 0, h.n*h.n)
		err := amp.MatMul(s, rest(vq, h.q), rest(vk, h.k), amp.MatMulOptions{M: h.n, N: h.n, K: width, TransB: true,
			LDA: h.rowQ, LDB: h.rowK, Into: snug.Into{Alpha: c.Scale}})
		if err != nil {
			return err
		}
		sunk := part(ws, h.n*h.n, h.n*b.sinkColumns())
		sink := math.Inf(-1)
		if sunk.Len() > 0 {
			sink = float64(c.Sinks.X.Float32s()[h.head])
		}
		softmaxRows(s.Float32s(), h.n, c.Window.Left, sink, sunk.Float32s())
		if probs != nil {
			if err := amp.Cast(part(probs.View, h.probs, h.n*h.n+sunk.Len()), part(ws, 0, h.n*h.n+sunk.Len())); err != nil {
				return err
			}
		}
		return amp.MatMul(rest(out.View, h.out), s, rest(vv, h.k), amp.MatMulOptions{M: h.n, N: width, K: h.n, LDB: h.rowK, LDC: h.rowOut})
	})
}

// softmaxRows turns n×n scores into probabilities. Row i sees columns 0 to i, or with a window the
// last of these, and a sink unless it is −Inf. sunk, unless it is empty, gets the probability of the sink of each row.
func softmaxRows(s []float32, n, window int, sink float64, sunk []float32) {
	for i := range n {
		lo := 0
		if window > 0 {
			lo = max(0, i+1-window)
		}
		row := s[i*n:][:n]
		seen := row[lo : i+1]
		top := seen[0]
		for _, x := range seen {
			top = max(top, x)
		}
		top = max(top, float32(sink))
		sum := math.Exp(sink - float64(top))
		if len(sunk) > 0 {
			sunk[i] = float32(sum)
		}
		for j, x := range seen {
			e := math.Exp(float64(x - top))
			seen[j] = float32(e)
			sum += e
		}
		if len(sunk) > 0 {
			sunk[i] = float32(float64(sunk[i]) / sum)
		}
		for j := range seen {
			seen[j] = float32(float64(seen[j]) / sum)
		}
		clear(row[:lo])
		clear(row[i+1:])
	}
}

func (b *Attention) plainBackward(p *Pass, dq, dk, dv, dout, q, k, v, probs *Tensor, c attention.Options) error {
	width, scale := b.HeadDim, c.Scale
	ws, err := b.plainWorkspace(p)
	if err != nil {
		return err
	}
	clear(c.Sinks.Grad.Float32s())
	vq, vk, vv := b.split(q, k, v)
	gq, gk, gv := b.split(dq, dk, dv)
	return b.eachHead(p, func(h plainHead) error {
		n := h.n
		pr, dp := part(ws, 0, n*n), part(ws, n*n, n*n)
		do, sum := rest(dout.View, h.out), snug.Into{}
		if h.shared {
			sum = snug.Into{Alpha: 1, Beta: 1}
		}
		if err := amp.Cast(pr, part(probs.View, h.probs, n*n)); err != nil {
			return err
		}
		sunk := part(ws, 2*n*n, n*b.sinkColumns())
		if err := amp.Cast(sunk, part(probs.View, h.probs+n*n, sunk.Len())); err != nil {
			return err
		}
		err := amp.MatMul(rest(gv, h.k), pr, do, amp.MatMulOptions{M: n, N: width, K: n, TransA: true, LDB: h.rowOut, LDC: h.rowK, Into: sum})
		if err != nil {
			return err
		}
		err = amp.MatMul(dp, do, rest(vv, h.k), amp.MatMulOptions{M: n, N: n, K: width, TransB: true, LDA: h.rowOut, LDB: h.rowK})
		if err != nil {
			return err
		}
		dsink := softmaxBackward(dp.Float32s(), pr.Float32s(), n, sunk.Float32s())
		if c.Sinks.Grad.Len() > 0 {
			c.Sinks.Grad.Float32s()[h.head] += float32(dsink)
		}
		err = amp.MatMul(rest(gq, h.q), dp, rest(vk, h.k), amp.MatMulOptions{M: n, N: width, K: n, LDB: h.rowK, LDC: h.rowQ, Into: snug.Into{Alpha: scale}})
		if err != nil {
			return err
		}
		sum.Alpha = scale
		return amp.MatMul(rest(gk, h.k), dp, rest(vq, h.q), amp.MatMulOptions{M: n, N: width, K: n, TransA: true, LDB: h.rowQ, LDC: h.rowK, Into: sum})
	})
}

// softmaxBackward turns the gradient of n×n probabilities into the gradient of the scores:
// ds = p·(dp − Σ dp·p). It returns the gradient of the sink, whose probabilities are sunk: −Σ sunk·Σ dp·p.
func softmaxBackward(dp, p []float32, n int, sunk []float32) (dsink float64) {
	for i := range n {
		pr, dr := p[i*n:][:n], dp[i*n:][:n]
		dot := 0.0
		for j, x := range pr {
			dot += float64(x) * float64(dr[j])
		}
		for j, x := range pr {
			dr[j] = x * float32(float64(dr[j])-dot)
		}
		if len(sunk) > 0 {
			dsink -= float64(sunk[i]) * dot
		}
	}
	return dsink
}
