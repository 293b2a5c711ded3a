package main

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// This file is attention as it is written on paper, for comparison: it keeps
// the matrix of probabilities, tokens × tokens for every head.

// head is one head of one sequence: where it begins in qkv and in the output,
// and its probabilities.
type head struct {
	qkv, out int
	probs    int
}

func (o *ops) eachHead(do func(h head) error) error {
	width := o.dim / o.heads
	for b := range o.sequences {
		for i := range o.heads {
			h := head{
				qkv:   b*o.tokens*3*o.dim + i*width,
				out:   b*o.tokens*o.dim + i*width,
				probs: (b*o.heads + i) * o.tokens * o.tokens,
			}
			if err := do(h); err != nil {
				return err
			}
		}
	}
	return nil
}

// from returns the rest of a tensor from element lo on.
func from(t *tensor, lo int) snug.View { return sub(t.View, lo, t.Len()-lo) }

func (o *ops) naiveForward(out, probs, qkv *tensor) error {
	n, width := o.tokens, o.dim/o.heads
	s := sub(o.ws, 0, n*n)
	return o.eachHead(func(h head) error {
		q, k, v := from(qkv, h.qkv), from(qkv, h.qkv+o.dim), from(qkv, h.qkv+2*o.dim)
		err := amp.MatMul(s, q, k, amp.MatMulOptions{M: n, N: n, K: width, TransB: true,
			LDA: 3 * o.dim, LDB: 3 * o.dim, Into: snug.Into{Alpha: float32(1 / math.Sqrt(float64(width)))}})
		if err != nil {
			return err
		}
		causalSoftmax(s.Float32s(), n)
		if probs != nil {
			if err := amp.Cast(sub(probs.View, h.probs, n*n), s); err != nil {
				return err
			}
		}
		return amp.MatMul(from(out, h.out), s, v, amp.MatMulOptions{M: n, N: width, K: n, LDB: 3 * o.dim, LDC: o.dim})
	})
}

// causalSoftmax turns n×n scores into probabilities; row i sees columns 0 to i.
func causalSoftmax(s []float32, n int) {
	for i := range n {
		row := s[i*n:][:n]
		top := row[0]
		for _, x := range row[:i+1] {
			top = max(top, x)
		}
		sum := 0.0
		for j, x := range row[:i+1] {
			e := math.Exp(float64(x - top))
			row[j] = float32(e)
			sum += e
		}
		for j := range row[:i+1] {
			row[j] = float32(float64(row[j]) / sum)
		}
		clear(row[i+1:])
	}
}

func (o *ops) naiveBackward(dqkv, dout, qkv, probs *tensor) error {
	n, width := o.tokens, o.dim/o.heads
	p, dp := sub(o.ws, 0, n*n), sub(o.ws, n*n, n*n)
	scale := float32(1 / math.Sqrt(float64(width)))
	return o.eachHead(func(h head) error {
		q, k, v := from(qkv, h.qkv), from(qkv, h.qkv+o.dim), from(qkv, h.qkv+2*o.dim)
		dq, dk, dv := from(dqkv, h.qkv), from(dqkv, h.qkv+o.dim), from(dqkv, h.qkv+2*o.dim)
		do := from(dout, h.out)
		if err := amp.Cast(p, sub(probs.View, h.probs, n*n)); err != nil {
			return err
		}
		err := amp.MatMul(dv, p, do, amp.MatMulOptions{M: n, N: width, K: n, TransA: true, LDB: o.dim, LDC: 3 * o.dim})
		if err != nil {
			return err
		}
		err = amp.MatMul(dp, do, v, amp.MatMulOptions{M: n, N: n, K: width, TransB: true, LDA: o.dim, LDB: 3 * o.dim})
		if err != nil {
			return err
		}
		softmaxBackward(dp.Float32s(), p.Float32s(), n)
		err = amp.MatMul(dq, dp, k, amp.MatMulOptions{M: n, N: width, K: n, LDB: 3 * o.dim, LDC: 3 * o.dim, Into: snug.Into{Alpha: scale}})
		if err != nil {
			return err
		}
		return amp.MatMul(dk, dp, q, amp.MatMulOptions{M: n, N: width, K: n, TransA: true, LDB: 3 * o.dim, LDC: 3 * o.dim, Into: snug.Into{Alpha: scale}})
	})
}

// softmaxBackward turns the gradient of n×n probabilities into that of the
// scores: ds = p·(dp − Σ dp·p).
func softmaxBackward(dp, p []float32, n int) {
	for i := range n {
		pr, dr := p[i*n:][:n], dp[i*n:][:n]
		dot := 0.0
		for j, x := range pr {
			dot += float64(x) * float64(dr[j])
		}
		for j, x := range pr {
			dr[j] = x * float32(float64(dr[j])-dot)
		}
	}
}
