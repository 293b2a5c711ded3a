package nibble

import "github.com/snug-ml/snug/internal/cpu"

// DotRows is how many rows [Dot] and [Axpy] take at most.
const DotRows = 8

// Dot writes to y[r] the product of row r of x and a vector of codes, in whole blocks:
//
//	y[r] = Σ x[r,i]·(Values[code i]·absmax)
//
// x has len(y) rows, at least one, of len(absmax)·block elements, which begin stride
// elements apart. Each factor of x is
// that which the decoders write in float32. Sums are float32, in lanes whose number, 8 or
// more, depends on the tier, and which are added at the end, pair by pair. The
// error is at most (len/8+8)·2^-24·Σ|x|·|value|. It does not depend on the other rows of x in
// more than how many there are.
type Dot func(y, x []float32, stride int, packed []uint8, absmax []float32, block int, f *Format)

// Dots holds the loop of every tier.
var Dots cpu.Registry[Dot]

func init() { Dots.Add(cpu.Go, dot) }

const dotLanes = 8

func dot(y, x []float32, stride int, packed []uint8, absmax []float32, block int, f *Format) {
	var sums [DotRows][dotLanes]float32
	for b, a := range absmax {
		var values [16]float32
		for c, v := range f.Values {
			values[c] = v * a
		}
		for i := b * block; i < (b+1)*block; i += dotLanes {
			var w [dotLanes]float32
			for k, c := range (*[dotLanes / 2]uint8)(packed[i/2:]) {
				w[2*k], w[2*k+1] = values[c>>4], values[c&15]
			}
			for r := range y {
				s := &sums[r]
				for l, v := range (*[dotLanes]float32)(x[r*stride+i:]) {
					s[l] += v * w[l]
				}
			}
		}
	}
	for r := range y {
		s := &sums[r]
		for half := dotLanes / 2; half > 0; half /= 2 {
			for l := range half {
				s[l] += s[l+half]
			}
		}
		y[r] = s[0]
	}
}
