package sweep

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

func init() { Registry.Add(cpu.Go, reference) }

var reference = Kernels{
	F32: Passes[float32]{scale, clamp, squares, firstNotBelow, accumulate, accumulate},
	F16: tiled[snug.Float16]{
		widen:  func(dst []float32, src []snug.Float16) { half.Registry.Best().F16ToF32(dst, src) },
		narrow: func(dst []snug.Float16, src []float32) { half.Registry.Best().F32ToF16(dst, src) },
	}.passes(),
	BF16: tiled[snug.BFloat16]{
		widen:  func(dst []float32, src []snug.BFloat16) { half.Registry.Best().BF16ToF32(dst, src) },
		narrow: func(dst []snug.BFloat16, src []float32) { half.Registry.Best().F32ToBF16(dst, src) },
	}.passes(),
	ScaleSquares: func(x []float32, factor float32) Sums {
		scale(x, factor)
		return squares(x)
	},
}

func scale(x []float32, factor float32) {
	for i := range x {
		x[i] *= factor
	}
}

func clamp(x []float32, limit float32) {
	for i, v := range x {
		switch {
		case v-v != 0:
			x[i] = v - v
		case v > limit:
			x[i] = limit
		case v < -limit:
			x[i] = -limit
		}
	}
}

func squares(x []float32) (s Sums) {
	for ; len(x) >= block; x = x[block:] {
		for q := range quarters {
			s.add(q, x[q*quarter:(q+1)*quarter])
		}
	}
	s.add(0, x)
	return s
}

// add adds the squares of x to the lanes of quarter q. The square of a float32
// is exact in float64, so it does not matter whether the compiler fuses the
// addition.
func (s *Sums) add(q int, x []float32) {
	to := s[q*lanes:][:lanes]
	for ; len(x) >= lanes; x = x[lanes:] {
		for l, v := range x[:lanes] {
			to[l] += float64(v) * float64(v)
		}
	}
	for l, v := range x {
		to[l] += float64(v) * float64(v)
	}
}

func firstNotBelow(x []float32, scale float32, limit uint32) int {
	const magnitude = 0x7fffffff // as integers, magnitudes keep their order
	for i, v := range x {
		if math.Float32bits(v*scale)&magnitude >= limit {
			return i
		}
	}
	return -1
}

func accumulate(acc, g []float32, alpha, beta float32) {
	g = g[:len(acc)]
	if beta == 0 {
		for i := range acc {
			acc[i] = alpha * g[i]
		}
		return
	}
	for i := range acc {
		acc[i] = float32(alpha*g[i]) + float32(beta*acc[i])
	}
}

// tiled has the passes over vectors of 16 bits: those above, over tiles of
// float32.
type tiled[T snug.Element] struct {
	widen  func(dst []float32, src []T)
	narrow func(dst []T, src []float32)
}

// tiles are the float32 scratch of running passes. The length of a tile divides
// a quarter, so that none lies in two and each begins at lane 0.
var tiles cpu.Scratch

func (t tiled[T]) passes() Passes[T] {
	return Passes[T]{t.scale, t.clamp, t.squares, t.firstNotBelow, t.accumulate, t.accumulate}
}

// each calls do for the tiles of x, which begin at element lo, until it returns
// false.
func (t tiled[T]) each(x []T, do func(lo int, tile []float32) bool) {
	scratch := tiles.Get(half.Chunk)
	defer tiles.Put(scratch)
	for lo := 0; lo < len(x); lo += half.Chunk {
		tile := (*scratch)[:min(half.Chunk, len(x)-lo)]
		t.widen(tile, x[lo:lo+len(tile)])
		if !do(lo, tile) {
			return
		}
	}
}

func (t tiled[T]) scale(x []T, factor float32) {
	t.each(x, func(lo int, tile []float32) bool {
		scale(tile, factor)
		t.narrow(x[lo:lo+len(tile)], tile)
		return true
	})
}

func (t tiled[T]) clamp(x []T, limit float32) {
	t.each(x, func(lo int, tile []float32) bool {
		clamp(tile, limit)
		t.narrow(x[lo:lo+len(tile)], tile)
		return true
	})
}

func (t tiled[T]) squares(x []T) (s Sums) {
	whole := len(x) / block * block
	t.each(x, func(lo int, tile []float32) bool {
		q := 0
		if lo < whole {
			q = lo / quarter % quarters
		}
		s.add(q, tile)
		return true
	})
	return s
}

func (t tiled[T]) firstNotBelow(x []T, scale float32, limit uint32) int {
	first := -1
	t.each(x, func(lo int, tile []float32) bool {
		if i := firstNotBelow(tile, scale, limit); i >= 0 {
			first = lo + i
		}
		return first < 0
	})
	return first
}

func (t tiled[T]) accumulate(acc []float32, g []T, alpha, beta float32) {
	t.each(g[:len(acc)], func(lo int, tile []float32) bool {
		accumulate(acc[lo:lo+len(tile)], tile, alpha, beta)
		return true
	})
}
