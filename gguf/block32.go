package gguf

import (
	"encoding/binary"
	"math"
)

// This file writes blocks of 32 elements, whose layouts package ggml describes.

func encodeQ4_0(dst []byte, src []float32) {
	for ; len(dst) >= 18 && len(src) >= 32; dst, src = dst[18:], src[32:] {
		b, x := (*[18]byte)(dst), (*[32]float32)(src)
		d := largest(x[:]) / -8
		inv := inverse(d)
		putScale(b[:2], d)
		for j := range 16 {
			b[j+2] = centred(x[j], inv, 8) | centred(x[j+16], inv, 8)<<4
		}
	}
}

func encodeQ4_1(dst []byte, src []float32) {
	for ; len(dst) >= 20 && len(src) >= 32; dst, src = dst[20:], src[32:] {
		b, x := (*[20]byte)(dst), (*[32]float32)(src)
		d, m := span(x, 15)
		inv := inverse(d)
		putScale(b[:2], d)
		putScale(b[2:4], m)
		for j := range 16 {
			b[j+4] = above(x[j], m, inv, 15) | above(x[j+16], m, inv, 15)<<4
		}
	}
}

func encodeQ5_0(dst []byte, src []float32) {
	for ; len(dst) >= 22 && len(src) >= 32; dst, src = dst[22:], src[32:] {
		b, x := (*[22]byte)(dst), (*[32]float32)(src)
		d := largest(x[:]) / -16
		inv := inverse(d)
		putScale(b[:2], d)
		var q [32]byte
		for j := range q {
			q[j] = centred(x[j], inv, 16)
		}
		putFive((*[20]byte)(b[2:]), &q)
	}
}

func encodeQ5_1(dst []byte, src []float32) {
	for ; len(dst) >= 24 && len(src) >= 32; dst, src = dst[24:], src[32:] {
		b, x := (*[24]byte)(dst), (*[32]float32)(src)
		d, m := span(x, 31)
		inv := inverse(d)
		putScale(b[:2], d)
		putScale(b[2:4], m)
		var q [32]byte
		for j := range q {
			q[j] = above(x[j], m, inv, 31)
		}
		putFive((*[20]byte)(b[4:]), &q)
	}
}

func encodeQ8_0(dst []byte, src []float32) {
	for ; len(dst) >= 34 && len(src) >= 32; dst, src = dst[34:], src[32:] {
		b, x := (*[34]byte)(dst), (*[32]float32)(src)
		d := magnitude(x[:]) / 127
		inv := inverse(d)
		putScale(b[:2], d)
		for j, v := range x {
			q := float64(v * inv) // a sum with 0.5 is exact
			b[j+2] = byte(int8(int32(q + math.Copysign(0.5, q))))
		}
	}
}

// largest returns the first element of the largest magnitude.
func largest(x []float32) float32 {
	top, at := uint32(0), float32(0)
	for _, v := range x {
		if m := math.Float32bits(v) & 0x7fffffff; m > top {
			top, at = m, v
		}
	}
	return at
}

// magnitude returns the largest magnitude.
func magnitude(x []float32) float32 {
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&0x7fffffff)
	}
	return math.Float32frombits(top)
}

// span returns the minimum and the scale with which steps reach the maximum.
func span(x *[32]float32, steps float32) (d, m float32) {
	lo, hi := x[0], x[0]
	for _, v := range x {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	return (hi - lo) / steps, lo
}

// inverse returns 1/d, and 0 where that is no number: the scale is 0 in binary16 then.
func inverse(d float32) float32 {
	inv := 1 / d
	if math.Float32bits(inv)&0x7f800000 == 0x7f800000 {
		return 0
	}
	return inv
}

// centred returns x/d, rounded to nearest, plus half of the levels. The product and the sum are rounded to float32, as in ggml-quants.c
// without fused operations.
func centred(x, inv float32, half int32) byte {
	return byte(min(int32(float32(float32(x*inv)+(float32(half)+0.5))), 2*half-1))
}

// above returns (x-m)/d, rounded to nearest.
func above(x, m, inv float32, most int32) byte {
	return byte(min(int32(float32((x-m)*inv)+0.5), most))
}

// putFive writes numbers of 5 bits.
func putFive(b *[20]byte, q *[32]byte) {
	high := uint32(0)
	for j := range 16 {
		b[j+4] = q[j]&15 | q[j+16]<<4
		high |= uint32(q[j]>>4)<<j | uint32(q[j+16]>>4)<<(j+16)
	}
	binary.LittleEndian.PutUint32(b[:4], high)
}
