package quant8

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Map is the 256 values that codes stand for: code c stands for Map[c] times the absmax
// of its block. The entries are finite, do not descend, and are not all equal. Of equal
// entries only the lowest code is given, but all are decoded; 100 equal entries make the
// CPU compare 100 times.
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
// with n = 2^i (signed) or 2^(i+1) (unsigned). The signed map has their negatives too,
// and both have 0 and 1. The signed map runs from -0.99296875 to 1 with 0 at code 127;
// the unsigned map runs from 0 at code 0 to 1.
//
// Points, midpoints and products are rounded to float32 as in torch's scalar
// code. torch's vector code, whose width depends on the machine, may differ in
// the last bit: to decode a checkpoint exactly use the map stored with it.
func DynamicMap(signed bool) *Map {
	fractions := 1
	if !signed {
		fractions = 2
	}
	return (*Map)(dynamicEntries(signed, fractions, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1))
}

// dynamicEntries returns the entries of a dynamic map of the given powers of ten. The
// first power has the given number of fractions, and each other power has twice as many
// as the power before it.
func dynamicEntries(signed bool, fractions int, powers ...float32) []float32 {
	entries := []float32{0, 1}
	for _, scale := range powers {
		for i := range fractions {
			mid := (point(0.1, 1, i, fractions) + point(0.1, 1, i+1, fractions)) / 2
			entries = append(entries, scale*mid)
			if signed {
				entries = append(entries, -scale*mid)
			}
		}
		fractions *= 2
	}
	slices.Sort(entries)
	return entries
}

// point returns point i of the n+1 of torch.linspace(lo, hi, n+1), which counts
// from the nearer end.
func point(lo, hi float32, i, n int) float32 {
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
		if c > 0 && x < m[c-1] {
			return fmt.Errorf("entry %d of the map, %g, is below the one before it, %g: %w", c, x, m[c-1], snug.ErrConfig)
		}
	}
	if m[0] == m[255] {
		return fmt.Errorf("all entries of the map are %g: %w", m[0], snug.ErrConfig)
	}
	return nil
}

// LinearMap returns a new copy of the linear map of bitsandbytes
// (create_linear_map(signed)), 1 KiB that the caller may change: equidistant
// entries from 0 to 1, or 255 of them from -1 to 1, where 0 has codes 127 and
// 128. bitsandbytes' second 0 can be off by the rounding of torch's vector code,
// up to 4e-9.
func LinearMap(signed bool) *Map {
	m := new(Map)
	for c := range m {
		switch {
		case !signed:
			m[c] = point(0, 1, c, 255)
		case c < 128:
			m[c] = point(-1, 1, c, 254)
		default:
			m[c] = point(-1, 1, c-1, 254)
		}
	}
	return m
}

// QuantileMap returns the quantile map of x, whose codes are about equally frequent in
// vectors distributed like x (Dettmers et al. 2022, arXiv:2110.02861, 3.1): the sample
// quantiles of x at the 255 probabilities (i+½)/255, and 0, all divided by their largest
// magnitude. Older versions of bitsandbytes had it as create_quantile_map, with quantiles
// estimated by blocks; version 0.50 lacks it. It sorts a copy of x.
//
// Errors wrap [snug.ErrConfig] (x has no element, or all its quantiles are 0) or
// [snug.ErrNonFinite], which names the index.
func QuantileMap(x []float32) (*Map, error) {
	if len(x) == 0 {
		return nil, fmt.Errorf("quant8: quantile map of an empty vector: %w", snug.ErrConfig)
	}
	if i := slices.IndexFunc(x, func(v float32) bool { return !finite(v) }); i >= 0 {
		return nil, fmt.Errorf("quant8: quantile map: x[%d] is %g: %w", i, x[i], snug.ErrNonFinite)
	}
	sorted := slices.Sorted(slices.Values(x))
	m := new(Map) // with the 0 at the end
	for i := range 255 {
		p := (float64(i) + 0.5) / 255
		m[i] = sorted[int(math.Round(float64(p*float64(len(x)-1))))]
	}
	slices.Sort(m[:])
	most := max(-m[0], m[255])
	if most == 0 {
		return nil, fmt.Errorf("quant8: quantile map: all quantiles are 0: %w", snug.ErrConfig)
	}
	for c := range m {
		m[c] = m[c]/most + 0 // without a -0
	}
	return m, nil
}
