package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug/remat"
)

const batch, width = 32, 48

// layer is one stage, y = x + tanh(x·W)·V with hidden values between that are several
// times as wide as x.
type layer struct {
	hidden       int
	w, v, dw, dv []float32 // width×hidden, hidden×width
}

// saved is what a backward step needs besides x.
type saved struct{ y, h []float32 }

func bytesOf(x []float32) int64 { return int64(4 * len(x)) }
func savedBytes(s saved) int64  { return bytesOf(s.y) + bytesOf(s.h) }

// product adds a·b to c, for a of n columns and b of m.
func product(c, a, b []float32, n, m int) {
	for r := range len(a) / n {
		for i, x := range a[r*n : (r+1)*n] {
			for j, w := range b[i*m : (i+1)*m] {
				c[r*m+j] += x * w
			}
		}
	}
}

// productBackward adds the gradients of c = a·b to those of a and b.
func productBackward(da, db, dc, a, b []float32, n, m int) {
	for r := range len(a) / n {
		for i, x := range a[r*n : (r+1)*n] {
			for j, g := range dc[r*m : (r+1)*m] {
				db[i*m+j] += x * g
				da[r*n+i] += b[i*m+j] * g
			}
		}
	}
}

func (l *layer) hiddenOf(x []float32) []float32 {
	h := make([]float32, batch*l.hidden)
	product(h, x, l.w, width, l.hidden)
	for i, v := range h {
		h[i] = float32(math.Tanh(float64(v)))
	}
	return h
}

// Forward keeps y only.
func (l *layer) Forward(ctx context.Context, x []float32) ([]float32, error) {
	y, _, err := l.ForwardSave(ctx, x)
	return y, err
}

// ForwardSave keeps y and the hidden values.
func (l *layer) ForwardSave(_ context.Context, x []float32) ([]float32, saved, error) {
	s := saved{slices.Clone(x), l.hiddenOf(x)}
	product(s.y, s.h, l.v, l.hidden, width)
	return s.y, s, nil
}

// Resave leaves out y, which the backward step does not need.
func (l *layer) Resave(_ context.Context, x []float32) (saved, error) {
	return saved{make([]float32, len(x)), l.hiddenOf(x)}, nil
}

// Backward turns dy into dx and adds to dw and dv.
func (l *layer) Backward(_ context.Context, x []float32, s saved, dy []float32) ([]float32, error) {
	dh := make([]float32, len(s.h))
	productBackward(dh, l.dv, dy, s.h, l.v, l.hidden, width)
	for i, h := range s.h {
		dh[i] *= 1 - h*h
	}
	productBackward(dy, l.dw, dh, x, l.w, width, l.hidden)
	return dy, nil
}

// newChain returns a chain of layers of different widths, with all weights and all
// gradients in one slice each.
func newChain(depth int) (chain *remat.Chain[[]float32, saved], w, dw []float32) {
	chain = &remat.Chain[[]float32, saved]{Bytes: bytesOf, SavedBytes: savedBytes}
	chain.Costs = &remat.Costs{Input: 4 * batch * width, Stages: make([]remat.Cost, depth)}
	hidden := func(i int) int { return width * (1 + i*5%7) }
	n := 0
	for i := range depth {
		n += 2 * width * hidden(i)
	}
	w, dw = make([]float32, n), make([]float32, n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range w {
		w[i] = float32(random.NormFloat64()) / width
	}
	left, leftGrad := w, dw
	take := func(n int) (a, b []float32) {
		a, b = left[:n], leftGrad[:n]
		left, leftGrad = left[n:], leftGrad[n:]
		return a, b
	}
	for i := range depth {
		l := &layer{hidden: hidden(i)}
		l.w, l.dw = take(width * l.hidden)
		l.v, l.dv = take(width * l.hidden)
		chain.Stages = append(chain.Stages, l)
		chain.Costs.Stages[i].BackwardExtra = int64(4 * batch * l.hidden) // dh; the rest is measured
	}
	return chain, w, dw
}
