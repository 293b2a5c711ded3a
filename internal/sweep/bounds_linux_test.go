package sweep

import (
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// No operand is read or written beyond its ends.
func TestStaysWithinOperands(t *testing.T) {
	n := 4 * os.Getpagesize()
	acc, f32 := kerneltest.Alone[float32](t, n), kerneltest.Alone[float32](t, n)
	f16, bf16 := kerneltest.Alone[snug.Float16](t, n), kerneltest.Alone[snug.BFloat16](t, n)
	for _, k := range Registry.All() {
		for _, cut := range kerneltest.Cuts(n) {
			lo, hi := cut[0], cut[1]
			k.F32.within(acc[lo:hi], f32[lo:hi])
			k.F16.within(acc[lo:hi], f16[lo:hi])
			k.BF16.within(acc[lo:hi], bf16[lo:hi])
			k.ScaleSquares(f32[lo:hi], 1)
		}
	}
}

// within calls all passes over x.
func (p Passes[T]) within(acc []float32, x []T) {
	p.Scale(x, 1)
	p.Clamp(x, 1)
	p.Squares(x)
	p.FirstNotBelow(x, 1, Infinity)
	for _, beta := range []float32{0, 1} {
		p.Accumulate(acc, x, 1, beta)
		p.AccumulateFar(acc, x, 1, beta)
	}
}
