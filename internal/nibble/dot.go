package nibble

import "github.com/snug-ml/snug/internal/cpu"

// DotRows is how many rows [Dot] and [Axpy] take at most.
const DotRows = 8

// Lines are vectors of codes, all of Blocks whole blocks of Block elements.
type Lines struct {
	N, Blocks, Block int
	Packed           []uint8 // a line begins Pitch bytes after the one before
	Pitch            int
	Absmax           []float32 // AbsmaxPitch elements after the one before
	AbsmaxPitch      int
}

// Dot adds to y[r,j] the product of row r of x and line j of codes:
//
//	y[r,j] += Σ x[r,i]·(Values[code j,i]·absmax)
//
// y has rows of N elements, 1 to [DotRows], one after the other. x has as many, of Blocks·Block elements in the order that [Product] says, which begin
// stride elements apart. The second factor is that which the decoders write in float32. Sums are float32, in lanes whose number, 8 or
// more, depends on the tier, and which are added at the end, pair by pair. The
// error is at most (len/8+8)·2^-24·Σ|x|·|value|. It does not depend on the other rows of x in
// more than how many there are.
type Dot func(y, x []float32, rows, stride int, l Lines, f *Format)

// Product is the loop of a tier, and the order in which it takes the elements of x.
type Product struct {
	Dot
	EvensFirst bool // as [EvensFirst] orders them
}

// Dots holds the loop of every tier.
var Dots cpu.Registry[Product]

func init() { Dots.Add(cpu.Go, Product{Dot: dot}) }

// EvensFirst reorders x, a multiple of 8 elements: of each 8 those at even places come before the others. The upper halves of 4 bytes of
// codes, and their lower halves, stand for them.
func EvensFirst(x []float32) {
	for ; len(x) >= 8; x = x[8:] {
		g := (*[8]float32)(x)
		*g = [8]float32{g[0], g[2], g[4], g[6], g[1], g[3], g[5], g[7]}
	}
}

func dot(y, x []float32, rows, stride int, l Lines, f *Format) {
	for j := range l.N {
		dotLine(y[j:], l.N, x, rows, stride, l.Packed[j*l.Pitch:], l.Absmax[j*l.AbsmaxPitch:][:l.Blocks], l.Block, f)
	}
}

const dotLanes = 8

// dotLine adds the products of a line to elements of y that are n apart.
func dotLine(y []float32, n int, x []float32, rows, stride int, packed []uint8, absmax []float32, block int, f *Format) {
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
			for r := range rows {
				s := &sums[r]
				for l, v := range (*[dotLanes]float32)(x[r*stride+i:]) {
					s[l] += v * w[l]
				}
			}
		}
	}
	for r := range rows {
		s := &sums[r]
		for half := dotLanes / 2; half > 0; half /= 2 {
			for l := range half {
				s[l] += s[l+half]
			}
		}
		y[r*n] += s[0]
	}
}
