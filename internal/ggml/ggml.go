// Package ggml reads blocks of the quantized types of llama.cpp's files: what their bytes mean, their elements, and products
// with them. Elements have the bits of gguf.quants.dequantize of the Python package gguf, with products and sums rounded
// one after another, on all tiers; a NaN may be another one. It runs on the calling goroutine and allocates nothing.
package ggml

import (
	"encoding/binary"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// Format is a type of blocks. Each name is that of ggml.
type Format int

// The formats.
const (
	Q4_0 Format = iota
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2K
	Q3K
	Q4K
	Q5K
	Q6K
	IQ4NL
	IQ4XS
	MXFP4
	Formats // how many there are
)

// SuperBlock is the elements of a block of the formats with groups.
const SuperBlock = 256

// layout is what a block has.
type layout struct {
	number          uint32 // of the type in files
	elements, bytes int
	scales          []int // where its scales in binary16 lie
	power           bool  // the first byte is the exponent of a power of two
}

var layouts = [Formats]layout{
	Q4_0:  {number: 2, elements: 32, bytes: 18, scales: []int{0}},
	Q4_1:  {number: 3, elements: 32, bytes: 20, scales: []int{0, 2}},
	Q5_0:  {number: 6, elements: 32, bytes: 22, scales: []int{0}},
	Q5_1:  {number: 7, elements: 32, bytes: 24, scales: []int{0, 2}},
	Q8_0:  {number: 8, elements: 32, bytes: 34, scales: []int{0}},
	Q2K:   {number: 10, elements: SuperBlock, bytes: 84, scales: []int{80, 82}},
	Q3K:   {number: 11, elements: SuperBlock, bytes: 110, scales: []int{108}},
	Q4K:   {number: 12, elements: SuperBlock, bytes: 144, scales: []int{0, 2}},
	Q5K:   {number: 13, elements: SuperBlock, bytes: 176, scales: []int{0, 2}},
	Q6K:   {number: 14, elements: SuperBlock, bytes: 210, scales: []int{208}},
	IQ4NL: {number: 20, elements: 32, bytes: 18, scales: []int{0}},
	IQ4XS: {number: 23, elements: SuperBlock, bytes: 136, scales: []int{0}},
	MXFP4: {number: 39, elements: 32, bytes: 17, power: true},
}

// Of returns the format that files number so, and whether there is one.
func Of(number uint32) (Format, bool) {
	for f, l := range layouts {
		if l.number == number {
			return Format(f), true
		}
	}
	return 0, false
}

// Elements returns the elements of a block.
func (f Format) Elements() int { return layouts[f].elements }

// Bytes returns the bytes of a block.
func (f Format) Bytes() int { return layouts[f].bytes }

// NotFinite returns the first block that has a scale which is NaN or infinite, or -1.
func (f Format) NotFinite(blocks []byte) int {
	const exponent = 0x7c00
	l := &layouts[f]
	if l.power {
		for i := 0; i < len(blocks); i += l.bytes {
			if blocks[i] == 0xff {
				return i / l.bytes
			}
		}
		return -1
	}
	first, last := l.scales[0], l.scales[len(l.scales)-1]
	for i := 0; len(blocks) >= l.bytes; blocks, i = blocks[l.bytes:], i+1 {
		a, b := binary.LittleEndian.Uint16(blocks[first:]), binary.LittleEndian.Uint16(blocks[last:])
		if a&exponent == exponent || b&exponent == exponent {
			return i
		}
	}
	return -1
}

// Kernels are the loops of one tier, by format.
type Kernels struct {
	Decode [Formats]Decoder
	Dot    [Formats]Dot  // nil where there is none
	Axpy   [Formats]Axpy // likewise
	Encode [Formats]Encoder
}

// Encoder writes whole blocks, as many as fit, of finite elements: the bytes of package gguf's encoder in Go. nil where there is none.
type Encoder = func(blocks []byte, x []float32)

// Decoder writes the elements of whole blocks, as many as fit.
type Decoder = func(x []float32, blocks []byte)

// Dot writes to y[r] the product of row r of x and the elements of whole blocks. x has len(y) rows, at least one, which begin
// stride elements apart. It adds in float32 lanes, 8 or more, and these at the end, a row in the same
// order beside any others. Differences of products, as of q4_k, may be rounded once in place of twice:
// the error is at most (n/8+12)·2^-24·Σ|x|(|d s q|+|m n|) for n elements.
type Dot = func(y, x []float32, stride int, blocks []byte)

// Axpy adds a[r] times the elements of whole blocks to row r of y. y has len(a) rows, at least one, which begin stride
// elements apart. The error is at most 3·2^-24·(|y|+|a|(|d s q|+|m n|)).
type Axpy = func(y []float32, stride int, a []float32, blocks []byte)

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, Kernels{Decode: inGo}) }

// inGo are the decoders in Go.
var inGo = [Formats]Decoder{
	Q4_0: decodeQ4_0, Q4_1: decodeQ4_1, Q5_0: decodeQ5_0, Q5_1: decodeQ5_1, Q8_0: decodeQ8_0,
	Q2K: decodeQ2K, Q3K: decodeQ3K, Q4K: decodeQ4K, Q5K: decodeQ5K, Q6K: decodeQ6K,
	IQ4NL: decodeIQ4NL, IQ4XS: decodeIQ4XS, MXFP4: decodeMXFP4,
}

// scaleAt returns the binary16 number of two bytes.
func scaleAt(b []byte) float32 {
	return half.F16ToFloat32(snug.Float16(binary.LittleEndian.Uint16(b)))
}
