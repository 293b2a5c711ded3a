//go:build !noasm && gc

package sweep

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.NEON, Kernels{
		F32:          loops[float32]{scaleF32NEON, clampF32NEON, squaresF32NEON, belowF32NEON, accumulateF32NEON, assignF32NEON}.passes(reference.F32),
		F16:          loops[snug.Float16]{scaleF16NEON, clampF16NEON, squaresF16NEON, belowF16NEON, accumulateF16NEON, assignF16NEON}.passes(reference.F16),
		BF16:         loops[snug.BFloat16]{scaleBF16NEON, clampBF16NEON, squaresBF16NEON, belowBF16NEON, accumulateBF16NEON, assignBF16NEON}.passes(reference.BF16),
		ScaleSquares: scaleSquares,
	})
}

// loops are the assembly loops over vectors of T.
type loops[T snug.Element] struct {
	scale      func(x []T, factor float32)
	clamp      func(x []T, limit float32)
	squares    func(x []T) [len(Sums{})]float64
	below      func(x []T, scale float32, limit uint32) int
	accumulate func(acc []float32, x []T, alpha, beta float32)
	assign     func(acc []float32, x []T, alpha float32)
}

// passes joins the passes of assembly loops with the passes of the Go tier for the
// elements that some loops leave.
func (l loops[T]) passes(rest Passes[T]) Passes[T] {
	return Passes[T]{
		Scale: l.scale,
		Clamp: l.clamp,
		Squares: func(x []T) Sums {
			return Sums(l.squares(x)).plus(rest.Squares(x[len(x)/lanes*lanes:]))
		},
		FirstNotBelow: func(x []T, scale float32, limit uint32) int {
			n := l.below(x, scale, limit)
			if i := rest.FirstNotBelow(x[n:], scale, limit); i >= 0 {
				return n + i
			}
			return -1
		},
		Accumulate:    l.add,
		AccumulateFar: l.add,
	}
}

func (l loops[T]) add(acc []float32, g []T, alpha, beta float32) {
	if beta == 0 {
		l.assign(acc, g, alpha)
	} else {
		l.accumulate(acc, g, alpha, beta)
	}
}

func scaleSquares(x []float32, factor float32) Sums {
	return Sums(scaleSquaresF32NEON(x, factor)).plus(reference.ScaleSquares(x[len(x)/lanes*lanes:], factor))
}

// plus adds the sums of the last elements, less than one a lane.
func (s Sums) plus(rest Sums) Sums {
	for l, x := range rest {
		s[l] += x
	}
	return s
}
