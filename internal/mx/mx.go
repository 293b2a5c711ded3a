// Package mx is the format MXINT8 of the Open Compute Project's "Microscaling
// Formats (MX) Specification" 1.0 (2023): blocks of 32 elements that share a
// power of two, each an 8-bit integer.
//
// A block is its scale byte s and 32 codes q, two's complement. Element i is
//
//	q[i] · 2^(s-133)
//
// where s is the exponent of the largest magnitude of the block as float32 has it,
// at least 7, so that codes reach from -127 to 127 and every step is a normal
// number. Elements are rounded to nearest, ties to even: the error is at most half
// a step, 2^-7 of the largest magnitude, and in the sixty-fourth of the range next
// to that largest, where a code would be 128, one step. s = 255 says that an
// element was not finite; all of the block are NaN then. All tiers give the same
// bits.
package mx

import (
	"math"
	"sync"

	"github.com/snug-ml/snug/internal/cpu"
)

const (
	// Block is the elements that share a scale.
	Block = 32

	// NaN is the scale byte of a block with a NaN or an infinity.
	NaN = 255

	minScale = 7   // scale byte
	bias     = 133 // of a scale byte, less which it is the exponent of a step
	top      = 127 // code
)

// Kernels code and decode whole blocks: len(scales) of them, with Block times as
// many codes and elements.
type Kernels struct {
	Encode func(codes []uint8, scales []uint8, x []float32)
	Decode func(x []float32, codes []uint8, scales []uint8)
}

// Registry holds the kernels of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, Kernels{encode, decode}) }

// padded is the memory for a last block.
type padded struct {
	x     [Block]float32
	codes [Block]uint8
}

var paddings = sync.Pool{New: func() any { return new(padded) }}

// Pad codes the last block of a vector, of len(x) elements, at most Block, as if
// zeros followed.
func (k *Kernels) Pad(codes []uint8, scale []uint8, x []float32) {
	p := paddings.Get().(*padded)
	defer paddings.Put(p)
	clear(p.x[copy(p.x[:], x):])
	k.Encode(p.codes[:], scale, p.x[:])
	copy(codes, p.codes[:len(x)])
}

// Unpad decodes what Pad coded.
func (k *Kernels) Unpad(x []float32, codes []uint8, scale []uint8) {
	p := paddings.Get().(*padded)
	defer paddings.Put(p)
	clear(p.codes[copy(p.codes[:], codes):])
	k.Decode(p.x[:], p.codes[:], scale)
	copy(x, p.x[:len(x)])
}

func encode(codes, scales []uint8, x []float32) {
	for b := range scales {
		block := x[b*Block:][:Block]
		largest := uint32(0)
		for _, v := range block {
			largest = max(largest, math.Float32bits(v)&0x7fffffff)
		}
		s := max(largest>>23, minScale)
		scales[b] = uint8(s)
		out := codes[b*Block:][:Block]
		if s == NaN {
			clear(out)
			continue
		}
		inverse := math.Float32frombits((bias + 127 - s) << 23)
		for i, v := range block {
			q := int32(math.RoundToEven(float64(v * inverse)))
			out[i] = uint8(max(-top, min(top, q)))
		}
	}
}

func decode(x []float32, codes, scales []uint8) {
	for b, s := range scales {
		step := steps[s]
		out := x[b*Block:][:Block]
		for i, q := range codes[b*Block:][:Block] {
			out[i] = float32(int8(q)) * step
		}
	}
}

// steps are the steps of all scale bytes.
var steps = func() (t [256]float32) {
	for s := range t {
		t[s] = float32(math.Ldexp(1, s-bias))
	}
	t[NaN] = float32(math.NaN())
	return t
}()
