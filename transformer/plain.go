package transformer

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
)

// This file has attention without tiles, for comparison. It keeps the probabilities, a matrix of tokens × tokens for
// each head of a sequence.

// keepScores returns what attend keeps for the backward pass: a number for each row and head, or
// all probabilities.
func (o *ops) keepScores() *tensor {
	if o.options.PlainAttention {
		return o.get(o.config.Heads * (o.batch.longest + o.config.sinkColumns()))
	}
	return o.stat(o.config.Heads)
}

// sinkColumns returns the number of probabilities of a row that are not of keys: its sink's, if there is one.
func (c *Config) sinkColumns() int {
	if c.Sinks {
		return 1
	}
	return 0
}

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

// eachHead calls do for the heads of all sequences. packed says that q, k and v lie side by side.
func (o *ops) eachHead(packed bool, do func(h plainHead) error) error {
	c, b := &o.config, &o.batch
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	h := plainHead{rowQ: queries, rowK: keys, rowOut: queries}
	if packed {
		h.rowQ, h.rowK = queries+2*keys, queries+2*keys
	}
	for s := range b.sequences {
		lo, hi := s*b.longest, (s+1)*b.longest
		if b.starts != nil {
			lo, hi = b.starts[s], b.starts[s+1]
		}
		h.n = hi - lo
		for i := range c.Heads {
			group := c.Heads / c.KVHeads
			h.q, h.k, h.out = lo*h.rowQ+i*c.HeadDim, lo*h.rowK+i/group*c.HeadDim, lo*h.rowOut+i*c.HeadDim
			sink := c.sinkColumns()
			h.probs, h.head, h.shared = lo*c.Heads*(b.longest+sink)+i*h.n*(h.n+sink), i, i%group > 0
			if err := do(h); err != nil {
				return err
			}
		}
	}
	return nil
}

// rest returns the elements of v from lo on.
func rest(v snug.View, lo int) snug.View { return part(v, lo, v.Len()-lo) }

func (o *ops) plainForward(out, probs, q, k, v *tensor, c attention.Options) error {
	packed, width := k == nil, o.config.HeadDim
	vq, vk, vv := o.split(q, k, v)
	return o.eachHead(packed, func(h plainHead) error {
		s := part(o.ws.v, 0, h.n*h.n)
		err := amp.MatMul(s, rest(vq, h.q), rest(vk, h.k), amp.MatMulOptions{M: h.n, N: h.n, K: width, TransB: true,
			LDA: h.rowQ, LDB: h.rowK, Into: snug.Into{Alpha: c.Scale}})
		if err != nil {
			return err
		}
		sunk := part(o.ws.v, h.n*h.n, h.n*o.config.sinkColumns())
		sink := math.Inf(-1)
		if sunk.Len() > 0 {
			sink = float64(c.Sinks.X.Float32s()[h.head])
		}
		softmaxRows(s.Float32s(), h.n, c.Window.Left, sink, sunk.Float32s())
		if probs != nil {
			if err := amp.Cast(part(probs.View, h.probs, h.n*h.n+sunk.Len()), part(o.ws.v, 0, h.n*h.n+sunk.Len())); err != nil {
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

func (o *ops) plainBackward(dq, dk, dv, dout, q, k, v, probs *tensor, c attention.Options) error {
	packed, width, scale := k == nil, o.config.HeadDim, c.Scale
	clear(c.Sinks.Grad.Float32s())
	vq, vk, vv := o.split(q, k, v)
	gq, gk, gv := o.split(dq, dk, dv)
	return o.eachHead(packed, func(h plainHead) error {
		n := h.n
		p, dp := part(o.ws.v, 0, n*n), part(o.ws.v, n*n, n*n)
		do, sum := rest(dout.View, h.out), snug.Into{}
		if h.shared {
			sum = snug.Into{Alpha: 1, Beta: 1}
		}
		if err := amp.Cast(p, part(probs.View, h.probs, n*n)); err != nil {
			return err
		}
		sunk := part(o.ws.v, 2*n*n, n*o.config.sinkColumns())
		if err := amp.Cast(sunk, part(probs.View, h.probs+n*n, sunk.Len())); err != nil {
			return err
		}
		err := amp.MatMul(rest(gv, h.k), p, do, amp.MatMulOptions{M: n, N: width, K: n, TransA: true, LDB: h.rowOut, LDC: h.rowK, Into: sum})
		if err != nil {
			return err
		}
		err = amp.MatMul(dp, do, rest(vv, h.k), amp.MatMulOptions{M: n, N: n, K: width, TransB: true, LDA: h.rowOut, LDB: h.rowK})
		if err != nil {
			return err
		}
		dsink := softmaxBackward(dp.Float32s(), p.Float32s(), n, sunk.Float32s())
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
