package quant8

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Map is the 256 values that codes stand for: code c stands for Map[c] times
// the absmax of its block. The entries are finite and strictly ascending.
type Map [256]float32

// DynamicMap returns a new copy of the dynamic map of bitsandbytes
// (create_dynamic_map(signed, 7, 8)), 1 KiB that the caller may change. With
// the sign bit set aside, the number of leading zero bits of a code is its
// decimal exponent and the bits left are a linear fraction, so that small
// values have few codes and values near 1 have many. For every exponent i from
// 0 to 6 the entries are
//
//	10^(i-6) · the midpoints of n+1 equidistant points from 0.1 to 1
//
// with n = 2^i (signed) or 2^(i+1) (unsigned). The signed map has their
// negatives too, and both have 0 and 1. The signed map runs from -0.99296875
// to 1 with 0 at code 127; the unsigned one from 0 at code 0 to 1.
//
// Points, midpoints and products are rounded to float32 as in torch's scalar
// code. torch's vector code, whose width depends on the machine, may differ in
// the last bit: to decode a checkpoint exactly use the map stored with it.
func DynamicMap(signed bool) *Map {
	fractions := 1 // of exponent 0
	if !signed {
		fractions = 2
	}
	entries := []float32{0, 1}
	for _, scale := range [...]float32{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1} {
		for i := range fractions {
			mid := (point(i, fractions) + point(i+1, fractions)) / 2
			entries = append(entries, scale*mid)
			if signed {
				entries = append(entries, -scale*mid)
			}
		}
		fractions *= 2
	}
	slices.Sort(entries)
	return (*Map)(entries)
}

// point returns point i of the n+1 of torch.linspace(0.1, 1, n+1), which counts
// from the nearer end.
func point(i, n int) float32 {
	const lo, hi = float32(0.1), float32(1)
	step := (hi - lo) / float32(n)
	if i < (n+1)/2 {
		return lo + float32(step*float32(i))
	}
	return hi - float32(step*float32(n-i))
}

func (m *Map) check() error {
	if m == nil {
		return fmt.Errorf("the map is nil: %w", snug.ErrConfig)
	}
	for c, x := range m {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return fmt.Errorf("entry %d of the map is %g, want a finite value: %w", c, x, snug.ErrConfig)
		}
		if c > 0 && x <= m[c-1] {
			return fmt.Errorf("entry %d of the map, %g, is not above the one before it, %g: %w", c, x, m[c-1], snug.ErrConfig)
		}
	}
	return nil
}
