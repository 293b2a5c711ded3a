package ggml

import "encoding/binary"

// Blocks of 32 elements: a scale d, in some types a minimum m, and a number q for each element.
//
//	q4_0, q5_0, q8_0:  x = d q        q from -8, -16, -127 on
//	q4_1, q5_1:        x = d q + m    q from 0 on
//
// Of numbers of 4 bits, byte j has elements j and j+16; the fifth bits follow one another in a uint32 before them.

func decodeQ4_0(dst []float32, src []byte) {
	for ; len(src) >= 18 && len(dst) >= 32; dst, src = dst[32:], src[18:] {
		b, x := (*[18]byte)(src), (*[32]float32)(dst)
		d := scaleAt(b[:2])
		for j, q := range b[2:] {
			x[j] = d * float32(int32(q&15)-8)
			x[j+16] = d * float32(int32(q>>4)-8)
		}
	}
}

func decodeQ4_1(dst []float32, src []byte) {
	for ; len(src) >= 20 && len(dst) >= 32; dst, src = dst[32:], src[20:] {
		b, x := (*[20]byte)(src), (*[32]float32)(dst)
		d, m := scaleAt(b[:2]), scaleAt(b[2:4])
		for j, q := range b[4:] {
			x[j] = float32(d*float32(q&15)) + m
			x[j+16] = float32(d*float32(q>>4)) + m
		}
	}
}

func decodeQ5_0(dst []float32, src []byte) {
	for ; len(src) >= 22 && len(dst) >= 32; dst, src = dst[32:], src[22:] {
		b, x := (*[22]byte)(src), (*[32]float32)(dst)
		d, high := scaleAt(b[:2]), binary.LittleEndian.Uint32(b[2:6])
		for j, q := range b[6:] {
			x[j] = d * float32(int32(uint32(q&15)|high>>j<<4&16)-16)
			x[j+16] = d * float32(int32(uint32(q>>4)|high>>(j+12)&16)-16)
		}
	}
}

func decodeQ5_1(dst []float32, src []byte) {
	for ; len(src) >= 24 && len(dst) >= 32; dst, src = dst[32:], src[24:] {
		b, x := (*[24]byte)(src), (*[32]float32)(dst)
		d, m, high := scaleAt(b[:2]), scaleAt(b[2:4]), binary.LittleEndian.Uint32(b[4:8])
		for j, q := range b[8:] {
			x[j] = float32(d*float32(int32(uint32(q&15)|high>>j<<4&16))) + m
			x[j+16] = float32(d*float32(int32(uint32(q>>4)|high>>(j+12)&16))) + m
		}
	}
}

func decodeQ8_0(dst []float32, src []byte) {
	for ; len(src) >= 34 && len(dst) >= 32; dst, src = dst[32:], src[34:] {
		b, x := (*[34]byte)(src), (*[32]float32)(dst)
		d := scaleAt(b[:2])
		for j, q := range b[2:] {
			x[j] = float32(int8(q)) * d
		}
	}
}
