package recurrent

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in race
func TestZeroGatedNorm(t *testing.T) {
	kerneltest.Zero(t, GatedNorm{}, GatedNormForward[[]float32], GatedNormForward[snug.View], GatedNormBackward[[]float32, []float32], GatedNormBackward[snug.View, snug.View])
}

// TestGatedNorm compares values and gradients with the definition and its central differences.
func TestGatedNorm(t *testing.T) {
	for _, n := range []GatedNorm{
		{Rows: 3, Groups: 1, Dim: 5, Eps: 1e-5},
		{Rows: 40, Groups: 2, Dim: 3, Eps: 1e-5, Factor: 0.7},
		{Rows: 3, Groups: 3, Dim: 2, Eps: 0.1, Before: true, Factor: -2},
		{Rows: 2, Groups: 1, Dim: 7, Eps: 1e-5, GateRow: 9},
	} {
		for _, weighted := range []bool{true, false} {
			for dt, tolerance := range tolerances {
				t.Run(fmt.Sprintf("%+v weighted %v %v", n, weighted, dt), func(t *testing.T) {
					width := n.width()
					gateRow := step(n.GateRow, width)
					x, gate, dy, y := vector(t, dt, n.Rows*width, 1, 1, 0), vector(t, dt, n.Rows*gateRow, 2, 1, 0), vector(t, dt, n.Rows*width, 3, 1, 0), vector(t, dt, n.Rows*width, 4, 1, 0)
					w := &wide{}
					if weighted {
						w = vector(t, dt, width, 5, 0.3, 1)
					}
					define := func() []float64 {
						out, factor := make([]float64, len(x.x)), float64(n.Factor)
						if factor == 0 {
							factor = 1
						}
						for row := range n.Rows {
							for g := range n.Groups {
								u, mean, lo := make([]float64, n.Dim), 0.0, row*width+g*n.Dim
								for i := range u {
									z := factor * gate.x[row*gateRow+g*n.Dim+i]
									u[i] = z / (1 + math.Exp(-z))
									out[lo+i] = x.x[lo+i]
									if !n.Before || !weighted {
										out[lo+i] *= u[i]
									}
									mean += out[lo+i] * out[lo+i] / float64(n.Dim)
								}
								for i := range u {
									if weighted {
										out[lo+i] *= w.x[g*n.Dim+i] / math.Sqrt(mean+float64(n.Eps))
									}
									if n.Before && weighted {
										out[lo+i] *= u[i]
									}
								}
							}
						}
						return out
					}
					differentiate(func() float64 { return dot(define(), dy.x) }, x, gate, w)
					require.NoError(t, GatedNormForward(y.in, x.in, gate.in, w.in, n))
					near(t, "y", define(), y.in, tolerance)
					var dw []float32
					if weighted {
						dw = kerneltest.Normal(6, width)
					}
					for i, was := range dw {
						w.grad[i] = 0.5*w.grad[i] + 2*float64(was)
					}
					ws := kerneltest.Normal(7, n.WorkspaceLen())
					require.NoError(t, GatedNormBackward(x.back, gate.back, snug.ViewOf(dw), dy.in, x.in, gate.in, w.in, snug.ViewOf(ws), n, snug.Into{Alpha: 0.5, Beta: 2}))
					near(t, "dx", x.grad, x.back, tolerance)
					near(t, "dgate", gate.grad, gate.back, tolerance)
					near(t, "dw", w.grad, snug.ViewOf(dw), 2e-5)
				})
			}
		}
	}
}

func TestGatedNormRefused(t *testing.T) {
	x := make([]float32, 12)
	for name, row := range map[string]struct {
		n    GatedNorm
		w    []float32
		dw   []float32
		want error
	}{
		"no rows":      {GatedNorm{Groups: 2, Dim: 3}, x[:6], nil, snug.ErrShape},
		"epsilon":      {GatedNorm{Rows: 2, Groups: 2, Dim: 3, Eps: -1}, x[:6], nil, snug.ErrConfig},
		"factor":       {GatedNorm{Rows: 2, Groups: 2, Dim: 3, Factor: float32(math.Inf(1))}, x[:6], nil, snug.ErrConfig},
		"w":            {GatedNorm{Rows: 2, Groups: 2, Dim: 3}, x[:5], nil, snug.ErrShape},
		"rows of gate": {GatedNorm{Rows: 2, Groups: 2, Dim: 3, GateRow: 5}, x[:6], nil, snug.ErrShape},
		"workspace":    {GatedNorm{Rows: 2, Groups: 2, Dim: 3}, x[:6], x[:6], snug.ErrShape},
		"dw alone":     {GatedNorm{Rows: 2, Groups: 2, Dim: 3}, nil, x[:6], snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			err := GatedNormBackward(x, x, row.dw, x, x, x, row.w, nil, row.n, snug.Into{})
			require.ErrorIs(t, err, row.want)
			kerneltest.Error(t, "recurrent.GatedNormBackward", err)
		})
	}
}

// TestGatedNormAllocations: calls allocate nothing.
func TestGatedNormAllocations(t *testing.T) {
	n := GatedNorm{Rows: 100, Groups: 2, Dim: 8}
	x, y, g, dg, w, dw, ws := make([]float32, 1600), make([]float32, 1600), make([]float32, 1600), make([]float32, 1600), make([]float32, 16), make([]float32, 16), make([]float32, n.WorkspaceLen())
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, GatedNormForward(y, x, g, w, n))
		require.NoError(t, GatedNormBackward(y, dg, dw, y, x, g, w, ws, n, snug.Into{}))
	})
}
