package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestApplyChannels compares with the definition, for all types, parts that begin anywhere, and elements that are
// skipped. Every tier of the loop for one factor is that of package sweep.
func TestApplyChannels(t *testing.T) {
	const rows, cols, n = 37, 613, 37 * 613
	for _, byRow := range []bool{false, true} {
		for _, skip := range []uint32{0, 0x3f000000} {
			for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
				h := Hyper{Rule: Adam, LR: 0.1, WeightDecay: 0.5, DecayFirst: true, GradScale: 0.25, Skip: skip, Beta1: 0.9, Beta2: 0.9, Step: 1}
				c := h.Coef()
				p, g := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, kerneltest.Normal(1, n)), kerneltest.PutFloats(t, kerneltest.Backend{}, dt, kerneltest.Normal(2, n))
				f := Channels{Factors: kerneltest.Normal(3, max(rows, cols)), Rows: byRow, Cols: cols}
				want, gradient := p.Get(), g.Get()
				pre := float32(1 - 0.1*0.5)
				for i, x := range want {
					factor := f.Factors[i%cols]
					if byRow {
						factor = f.Factors[i/cols]
					}
					if s := gradient[i] * 0.25; skip == 0 || math.Float32bits(s)&(1<<31-1) < skip {
						want[i] = float32(x*pre) - float32(factor*gradient[i])
					}
				}
				for lo := 0; lo < n; lo += 5000 {
					c.ApplyChannels(Operands{P: p.View, G: g.View}, lo, min(lo+5000, n), f, make([]float32, 2*half.Chunk))
				}
				require.Equal(t, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, want).Get(), p.Get())
			}
		}
	}
}

func TestCorrected(t *testing.T) {
	h := Hyper{Rule: Adam, LR: 1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-3, Step: 3, GradScale: 1}
	c1, c2 := 1-math.Pow(0.9, 3), math.Sqrt(1-math.Pow(0.99, 3))
	require.InEpsilon(t, c2/c1, h.Corrected(), 1e-12)
	require.InEpsilon(t, 1e-3*c2, h.Coef().eps, 1e-6)
	h.PlainEps = true
	require.Equal(t, float32(1e-3), h.Coef().eps)
}
