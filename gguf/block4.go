package gguf

import (
	"encoding/binary"
	"math"
)

// Types whose numbers of 4 bits name values of a table: x = d table[q].

// e2m1 are the values of the 4-bit floats of OCP's Microscaling Formats, doubled.
var e2m1 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// nonlinear are the values of IQ4_NL and IQ4_XS.
var nonlinear = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// halfPower returns 2^(e-128), half of what OCP's E8M0 means by e.
func halfPower(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func decodeMXFP4(dst []float32, src []byte) {
	for ; len(src) >= 17 && len(dst) >= 32; dst, src = dst[32:], src[17:] {
		b := (*[17]byte)(src)
		named((*[32]float32)(dst), (*[16]byte)(b[1:]), halfPower(b[0]), &e2m1)
	}
}

// encodeMXFP4 has the exponent of the largest magnitude as that of a value between 4 and 6, and then the nearest values,
// of two the smaller.
func encodeMXFP4(dst []byte, src []float32) {
	for ; len(dst) >= 17 && len(src) >= 32; dst, src = dst[17:], src[32:] {
		b, x := (*[17]byte)(dst), (*[32]float32)(src)
		b[0] = 0
		if top := magnitude(x[:]); top > 0 {
			log := float32(math.Log2(float64(top)))
			b[0] = byte(max(math.Floor(float64(log))-2+127, 0))
		}
		inv := 2 / float64(halfPower(b[0]))
		for j := range 16 {
			b[j+1] = nearestE2M1(x[j], inv) | nearestE2M1(x[j+16], inv)<<4
		}
	}
}

// toE2M1 are the codes of magnitudes by twice the value in the units of e2m1, rounded up: halfway goes to the smaller.
var toE2M1 = func() (code [33]byte) {
	for u := range code {
		for c := range byte(7) {
			if float32(u) > e2m1[c]+e2m1[c+1] {
				code[u] = c + 1
			}
		}
	}
	return code
}()

// nearestE2M1 returns the code of x, where inv is twice the inverse of the scale.
func nearestE2M1(x float32, inv float64) byte {
	u := math.Abs(float64(x)) * inv
	n := int(u)
	if float64(n) < u {
		n++
	}
	code := toE2M1[min(n, len(toE2M1)-1)]
	if x < 0 && code > 0 {
		code |= 8
	}
	return code
}

func decodeIQ4NL(dst []float32, src []byte) {
	for ; len(src) >= 18 && len(dst) >= 32; dst, src = dst[32:], src[18:] {
		b := (*[18]byte)(src)
		named((*[32]float32)(dst), (*[16]byte)(b[2:]), scaleAt(b[:2]), &nonlinear)
	}
}

// decodeIQ4XS: after the scale of the block come 2 upper bits of each group's scale in a uint16, 4 lower bits in 4 bytes, and
// the groups' numbers.
func decodeIQ4XS(dst []float32, src []byte) {
	for ; len(src) >= 136 && len(dst) >= superBlock; dst, src = dst[superBlock:], src[136:] {
		b, x := (*[136]byte)(src), (*[superBlock]float32)(dst)
		d, high := scaleAt(b[:2]), binary.LittleEndian.Uint16(b[2:4])
		for g := range 8 {
			scale := int32(b[4+g/2]>>(g%2*4)&15|byte(high>>(2*g))&3<<4) - 32
			named((*[32]float32)(x[32*g:]), (*[16]byte)(b[8+16*g:]), d*float32(scale), &nonlinear)
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
