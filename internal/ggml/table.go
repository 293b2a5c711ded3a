package ggml

import (
	"encoding/binary"
	"math"
)

// Types whose numbers of 4 bits name values of a table: x = d table[q].

// E2M1 are the values of the 4-bit floats of OCP's Microscaling Formats, doubled.
var E2M1 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// Nonlinear are the values of IQ4_NL and IQ4_XS.
var Nonlinear = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// HalfPower returns 2^(e-128), half of what OCP's E8M0 means by e.
func HalfPower(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func decodeMXFP4(dst []float32, src []byte) {
	for ; len(src) >= 17 && len(dst) >= 32; dst, src = dst[32:], src[17:] {
		b := (*[17]byte)(src)
		named((*[32]float32)(dst), (*[16]byte)(b[1:]), HalfPower(b[0]), &E2M1)
	}
}

func decodeIQ4NL(dst []float32, src []byte) {
	for ; len(src) >= 18 && len(dst) >= 32; dst, src = dst[32:], src[18:] {
		b := (*[18]byte)(src)
		named((*[32]float32)(dst), (*[16]byte)(b[2:]), scaleAt(b[:2]), &Nonlinear)
	}
}

// decodeIQ4XS: after the scale of the block come 2 upper bits of each group's scale in a uint16, 4 lower bits in 4 bytes, and
// the groups' numbers.
func decodeIQ4XS(dst []float32, src []byte) {
	for ; len(src) >= 136 && len(dst) >= SuperBlock; dst, src = dst[SuperBlock:], src[136:] {
		b, x := (*[136]byte)(src), (*[SuperBlock]float32)(dst)
		d, high := scaleAt(b[:2]), binary.LittleEndian.Uint16(b[2:4])
		for g := range 8 {
			scale := int32(b[4+g/2]>>(g%2*4)&15|byte(high>>(2*g))&3<<4) - 32
			named((*[32]float32)(x[32*g:]), (*[16]byte)(b[8+16*g:]), d*float32(scale), &Nonlinear)
		}
	}
}

// named writes d times the values that the numbers name.
func named(x *[32]float32, b *[16]byte, d float32, table *[16]float32) {
	var v [16]float32
	for i, t := range table {
		v[i] = d * t
	}
	for j, q := range b {
		x[j] = v[q&15]
		x[j+16] = v[q>>4]
	}
}
