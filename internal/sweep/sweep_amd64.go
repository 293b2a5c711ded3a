//go:build !noasm && gc

package sweep

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.AVX2, Kernels{
		F32:          passes(loops[float32]{scaleF32AVX2, clampF32AVX2, squaresF32AVX2, belowF32AVX2, accumulateF32AVX2, accumulateFarF32AVX2, assignF32AVX2}, reference.F32),
		F16:          passes(loops[uint16]{scaleF16AVX2, clampF16AVX2, squaresF16AVX2, belowF16AVX2, accumulateF16AVX2, accumulateFarF16AVX2, assignF16AVX2}, reference.F16),
		BF16:         passes(loops[uint16]{scaleBF16AVX2, clampBF16AVX2, squaresBF16AVX2, belowBF16AVX2, accumulateBF16AVX2, accumulateFarBF16AVX2, assignBF16AVX2}, reference.BF16),
		ScaleSquares: scaleSquares(scaleSquaresF32AVX2),
	})
	Registry.Add(cpu.AVX512, Kernels{
		F32:          passes(loops[float32]{scaleF32AVX512, clampF32AVX512, squaresF32AVX512, belowF32AVX512, accumulateF32AVX512, accumulateFarF32AVX512, assignF32AVX512}, reference.F32),
		F16:          passes(loops[uint16]{scaleF16AVX512, clampF16AVX512, squaresF16AVX512, belowF16AVX512, accumulateF16AVX512, accumulateFarF16AVX512, assignF16AVX512}, reference.F16),
		BF16:         passes(loops[uint16]{scaleBF16AVX512, clampBF16AVX512, squaresBF16AVX512, belowBF16AVX512, accumulateBF16AVX512, accumulateFarBF16AVX512, assignBF16AVX512}, reference.BF16),
		ScaleSquares: scaleSquares(scaleSquaresF32AVX512),
	})
}

// loops are the assembly loops over vectors whose elements are as wide as W,
// for n > 0 elements.
type loops[W float32 | uint16] struct {
	scale      func(x *W, n int, factor float32)
	clamp      func(x *W, n int, limit float32)
	squares    func(x *W, n int) [len(Sums{})]float64
	below      func(x *W, n int, scale float32, limit uint32) int
	accumulate func(acc *float32, x *W, n int, alpha, beta float32)
	far        func(acc *float32, x *W, n int, alpha, beta float32)
	assign     func(acc *float32, x *W, n int, alpha float32)
}

// passes joins the passes of assembly loops with the passes of the Go tier for the
// remaining elements.
func passes[T snug.Element, W float32 | uint16](l loops[W], rest Passes[T]) Passes[T] {
	return Passes[T]{
		Scale: func(x []T, factor float32) {
			n := whole(len(x))
			if n > 0 {
				l.scale(first[T, W](x), n, factor)
			}
			rest.Scale(x[n:], factor)
		},
		Clamp: func(x []T, limit float32) {
			n := whole(len(x))
			if n > 0 {
				l.clamp(first[T, W](x), n, limit)
			}
			rest.Clamp(x[n:], limit)
		},
		Squares: func(x []T) (s Sums) {
			n := len(x) / lanes * lanes
			if n > 0 {
				s = l.squares(first[T, W](x), n)
			}
			return s.plus(rest.Squares(x[n:]))
		},
		FirstNotBelow: func(x []T, scale float32, limit uint32) int {
			n := whole(len(x))
			if n > 0 {
				n = l.below(first[T, W](x), n, scale, limit)
			}
			if i := rest.FirstNotBelow(x[n:], scale, limit); i >= 0 {
				return n + i
			}
			return -1
		},
		Accumulate:    accumulator(l.accumulate, l.assign, rest),
		AccumulateFar: accumulator(l.far, l.assign, rest),
	}
}

func accumulator[T snug.Element, W float32 | uint16](
	add func(acc *float32, x *W, n int, alpha, beta float32), assign func(acc *float32, x *W, n int, alpha float32), rest Passes[T],
) func(acc []float32, g []T, alpha, beta float32) {
	return func(acc []float32, g []T, alpha, beta float32) {
		n := whole(len(acc))
		if n > 0 {
			_ = g[n-1]
			if beta == 0 {
				assign(&acc[0], first[T, W](g), n, alpha)
			} else {
				add(&acc[0], first[T, W](g), n, alpha, beta)
			}
		}
		rest.Accumulate(acc[n:], g[n:], alpha, beta)
	}
}

func scaleSquares(fast func(x *float32, n int, factor float32) [len(Sums{})]float64) func(x []float32, factor float32) Sums {
	return func(x []float32, factor float32) (s Sums) {
		n := len(x) / lanes * lanes
		if n > 0 {
			s = fast(&x[0], n, factor)
		}
		return s.plus(reference.ScaleSquares(x[n:], factor))
	}
}

// plus adds the sums of the last elements, less than one a lane.
func (s Sums) plus(rest Sums) Sums {
	for l, x := range rest {
		s[l] += x
	}
	return s
}

// step is what the other loops do at a time; the Go tier does the rest.
const step = 16

func whole(n int) int { return n / step * step }

func first[T snug.Element, W float32 | uint16](x []T) *W { return (*W)(unsafe.Pointer(&x[0])) }
