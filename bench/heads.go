package main

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// head is the output layer with what its losses take.
type head struct {
	c, taught         fused.CrossEntropy // taught: of the teacher
	x, w, dx, dw, ws  snug.View
	teacher, teacherW snug.View
	logp, lse         snug.View
	targets           []int32
}

// heads are losses of a linear layer without logits: the cross-entropy, a policy gradient by log-probabilities, and
// the divergence from a teacher of the same shape. products is how many products of rows × cols × vocab each has at
// least.
func (s sizes) heads(dt snug.DType, rows, cols int) (all []work) {
	for _, k := range []struct {
		name      string
		products  float64
		gradients bool
		run       func(h *head) error
	}{
		{"cross-entropy", 1, false, func(h *head) error {
			_, err := fused.CrossEntropyLoss(h.c, h.x, h.w, h.targets, h.ws)
			return err
		}},
		{"cross-entropy backward", 3, true, func(h *head) error {
			_, err := fused.CrossEntropyBackward(h.c, h.dx, h.dw, h.x, h.w, h.targets, 1/float32(rows), snug.Into{}, h.ws)
			return err
		}},
		{"log-probs", 1, false, (*head).logProbs},
		{"log-probs step", 3, true, func(h *head) error {
			if err := h.logProbs(); err != nil {
				return err
			}
			return fused.LogProbsBackward(h.c, h.dx, h.dw, h.logp, snug.View{}, h.lse, h.x, h.w, h.targets, snug.Into{}, h.ws)
		}},
		{"distill step", 4, true, func(h *head) error {
			_, err := fused.DistillBackward(h.c, h.taught, h.dx, h.dw, h.x, h.w, h.teacher, h.teacherW, 1/float32(rows), snug.Into{}, h.ws)
			return err
		}},
	} {
		w := layer(k.name, dt, rows, cols, 1, 0, 0, func(mem *memory) (run, done func() error, err error) {
			h := s.head(mem, dt, rows, cols, k.name == "distill step")
			return func() error { return k.run(h) }, nil, nil
		})
		w.shape += fmt.Sprintf(" vocab=%d", s.vocab)
		w.bf16 = dt == snug.BF16
		w.peers = append(w.peers, withoutAMX(dt)...)
		w.reads += size(dt, s.vocab*cols)
		if k.gradients {
			w.writes += size(dt, rows*cols) + size(snug.F32, s.vocab*cols)
		}
		w.products = 2 * k.products * float64(rows) * float64(cols) * float64(s.vocab)
		w.ops = w.products
		all = append(all, w)
	}
	return all
}

func (h *head) logProbs() error {
	return fused.LogProbs(h.c, h.logp, h.lse, h.x, h.w, h.targets, h.ws)
}

// head makes a layer whose logits have the deviation 1: larger ones would give denormal probabilities.
func (s sizes) head(mem *memory, dt snug.DType, rows, cols int, taught bool) *head {
	c := fused.CrossEntropy{Vocab: s.vocab, Cols: cols}
	h := &head{c: c, taught: c}
	if !mem.dev.IsCPU() {
		h.c.Chunk = c.DeviceChunk() // as package transformer
	}
	weights := func() snug.View { return mem.scaled(dt, s.vocab*cols, 1/math.Sqrt(float64(cols))) }
	h.x, h.w, h.dx, h.dw = mem.operand(dt, rows*cols), weights(), mem.empty(dt, rows*cols), mem.empty(snug.F32, s.vocab*cols)
	h.logp, h.lse, h.targets = mem.empty(snug.F32, rows), mem.empty(snug.F32, rows), tokens(rows, s.vocab)
	n := h.c.WorkspaceLen(rows)
	if taught {
		h.teacher, h.teacherW = mem.operand(dt, rows*cols), weights()
		n = fused.DistillWorkspaceLen(h.c, h.taught, rows)
	}
	h.ws = mem.empty(snug.F32, n)
	return h
}
