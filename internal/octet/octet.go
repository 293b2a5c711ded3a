// Package octet is the arithmetic of frozen weights of 8 bits an element: floating-point numbers or integers that share
// scales. Codes are numbers, no NaN or infinity, and the product of a scale and the largest of them is finite. The
// package runs on the calling goroutine and allocates nothing. All tiers decode to the same bits.
package octet

import (
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// Format is the numbers that codes stand for. The formats are those below.
type Format struct {
	Values [256]float32 // by code; what is no number is 0
	// Factor is what decoders multiply the product of a value and a scale by, and round once more.
	Factor float32
	// Unit is a power of two in which [Dot] and [Axpy] take values.
	Unit  float32
	units [256]float32 // Values/Unit
	loops int          // index of its assembly
}

// The formats.
var (
	E4M3 = float8(0, snug.F8E4M3)
	E5M2 = float8(1, snug.F8E5M2)
	// Int8 divides by 127 as bitsandbytes does: by a product with a rounded number.
	Int8 = int8s()
)

func float8(loops int, dt snug.DType) *Format {
	f := &Format{Factor: 1, Unit: 1, loops: loops}
	if dt == snug.F8E4M3 {
		f.Unit = 256
	}
	for c := range f.Values {
		v := snug.Float8E5M2(c).Float32()
		if dt == snug.F8E4M3 {
			v = snug.Float8E4M3(c).Float32()
		}
		if v-v == 0 {
			f.Values[c], f.units[c] = v, v/f.Unit
		}
	}
	return f
}

func int8s() *Format {
	f := &Format{Factor: 7.874015718698502e-3, Unit: 1, loops: 2}
	for c := range f.Values {
		f.Values[c], f.units[c] = float32(int8(c)), float32(int8(c))
	}
	return f
}

// Largest returns the largest magnitude of a value.
func (f *Format) Largest() float32 { return max(slices.Max(f.Values[:]), -slices.Min(f.Values[:])) }

// Number reports whether a code is a number.
func (f *Format) Number(c uint8) bool { return f.Values[c] != 0 || c&0x7f == 0 }

// Kernels are the loops of one tier over the len(scales) blocks of x. The last block may be partial.
type Kernels struct {
	DecodeF32  Decoder[float32]
	DecodeF16  Decoder[snug.Float16]
	DecodeBF16 Decoder[snug.BFloat16]
	Dot        Dot
	Axpy       Axpy
}

// Decoder writes Values[code]·scale·Factor, computed in float32 and rounded to the type of x.
type Decoder[T any] func(x []T, codes []uint8, scales []float32, block int, f *Format)

// DotRows is how many rows [Dot] and [Axpy] take at most.
const DotRows = 8

// Step divides the vectors of [Dot] and [Axpy], in elements.
const Step = 32

// Dot writes to y[r] the product of row r of x and a vector of codes, a multiple of [Step]:
//
//	y[r] = Σ x[r,i]·(Values[code i]/Unit)
//
// x has len(y) rows, at least one, of len(codes) elements, which begin stride elements apart. Sums are float32, in
// lanes whose number, 8 or more, depends on the tier, and which are added at the end, pair by pair. The error is at
// most (len/8+6)·2^-24·Σ|x|·|value|. It does not depend on the other rows of x in more than how many there are.
type Dot func(y, x []float32, stride int, codes []uint8, f *Format)

// Axpy adds multiples of vectors of codes to rows of sums:
//
//	y[r,i] += Σ_j a[j,r]·(Values[code j,i]/Unit)
//
// y has 1, 2, 4 or 8 rows, in groups of [Step] columns, see [Gather]. Each vector has rows elements of a, side by
// side, and codes that begin stride bytes after those of the one before. Vectors are added in order, one by one: the
// error of n vectors is at most n·2^-24·Σ|a|·|value| in a y that begins at 0.
type Axpy func(y, a []float32, rows int, codes []uint8, stride int, f *Format)

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, Kernels{decodeF32, decodeF16, decodeBF16, dot, axpy}) }

// Decode decodes to a floating-point host view.
func Decode(x snug.View, codes []uint8, scales []float32, block int, f *Format) {
	k := Registry.Best()
	switch x.DType() {
	case snug.F32:
		k.DecodeF32(x.Float32s(), codes, scales, block, f)
	case snug.F16:
		k.DecodeF16(x.Float16s(), codes, scales, block, f)
	case snug.BF16:
		k.DecodeBF16(x.BFloat16s(), codes, scales, block, f)
	}
}

func decodeF32(x []float32, codes []uint8, scales []float32, block int, f *Format) {
	decode(x, codes, scales, block, f, func(v float32) float32 { return v })
}

func decodeF16(x []snug.Float16, codes []uint8, scales []float32, block int, f *Format) {
	decode(x, codes, scales, block, f, half.Float32ToF16)
}

func decodeBF16(x []snug.BFloat16, codes []uint8, scales []float32, block int, f *Format) {
	decode(x, codes, scales, block, f, snug.ToBFloat16)
}

func decode[T any](x []T, codes []uint8, scales []float32, block int, f *Format, round func(float32) T) {
	for _, s := range scales {
		n := min(block, len(x))
		for i, c := range codes[:n] {
			x[i] = round(float32(f.Values[c]*s) * f.Factor)
		}
		x, codes = x[n:], codes[n:]
	}
}

const dotLanes = 8

func dot(y, x []float32, stride int, codes []uint8, f *Format) {
	var sums [DotRows][dotLanes]float32
	for i := 0; i < len(codes); i += dotLanes {
		var w [dotLanes]float32
		for l, c := range (*[dotLanes]uint8)(codes[i:]) {
			w[l] = f.units[c]
		}
		for r := range y {
			sum := &sums[r]
			for l, v := range (*[dotLanes]float32)(x[r*stride+i:]) {
				sum[l] += v * w[l]
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

func axpy(y, a []float32, rows int, codes []uint8, stride int, f *Format) {
	for n := len(y) / rows; len(a) > 0; a = a[rows:] {
		sums := y
		for part := codes[:n]; len(part) > 0; part = part[Step:] {
			var w [Step]float32
			for l, c := range (*[Step]uint8)(part) {
				w[l] = f.units[c]
			}
			for _, s := range a[:rows] {
				for l := range (*[Step]float32)(sums) {
					sums[l] += s * w[l]
				}
				sums = sums[Step:]
			}
		}
		codes = codes[min(stride, len(codes)):]
	}
}

// Gather writes row r of the sums of [Axpy] to x. A group of columns has its rows one after the other.
func Gather(x, y []float32, r, rows int) {
	for i := 0; i < len(x); i += Step {
		copy(x[i:i+Step], y[i*rows+r*Step:])
	}
}
