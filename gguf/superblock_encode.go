package gguf

import (
	"math"

	"github.com/snug-ml/snug/internal/half"
)

var (
	q2K = ranged{size: 16, top: 3, most: 15, first: -5, last: 10}
	q3K = signed{half: 4, most: 32}
	q4K = ranged{size: 32, top: 15, most: 63, first: -10, last: 10}
	q5K = ranged{size: 32, top: 31, most: 63, first: -5, last: 10}
	q6K = signed{half: 32, most: 128}
)

func encodeQ2K(dst []byte, src []float32) {
	for ; len(dst) >= 84 && len(src) >= superBlock; dst, src = dst[84:], src[superBlock:] {
		b, c := (*[84]byte)(dst), block{x: (*[superBlock]float32)(src)}
		c.weighMagnitudes()
		q2K.encode(&c)
		putScale(b[80:82], c.d)
		putScale(b[82:84], c.m)
		for g := range 16 {
			b[g] = byte(c.s[g] | c.n[g]<<4)
		}
		c.putTwoBits((*[64]byte)(b[16:]))
	}
}

func encodeQ3K(dst []byte, src []float32) {
	for ; len(dst) >= 110 && len(src) >= superBlock; dst, src = dst[110:], src[superBlock:] {
		b, c := (*[110]byte)(dst), block{x: (*[superBlock]float32)(src)}
		c.weighSquares()
		q3K.encode(&c)
		putScale(b[108:110], c.d)
		scales := (*[12]byte)(b[96:])
		*scales = [12]byte{}
		for g, s := range c.s {
			s += 32
			scales[g%8] |= byte(s & 15 << (g / 8 * 4))
			scales[8+g%4] |= byte(s >> 4 << (g / 4 * 2))
		}
		high := (*[32]byte)(b[:])
		*high = [32]byte{}
		for i, q := range c.q {
			high[i%32] |= byte((q + 4) >> 2 << (i / 32))
			c.q[i] = (q + 4) & 3
		}
		c.putTwoBits((*[64]byte)(b[32:]))
	}
}

// putTwoBits writes q as q2_k has it.
func (b *block) putTwoBits(dst *[64]byte) {
	for h := range 2 {
		q, y := (*[32]byte)(dst[32*h:]), (*[128]int32)(b.q[128*h:])
		for l := range q {
			q[l] = byte(y[l] | y[l+32]<<2 | y[l+64]<<4 | y[l+96]<<6)
		}
	}
}

func encodeQ4K(dst []byte, src []float32) {
	for ; len(dst) >= 144 && len(src) >= superBlock; dst, src = dst[144:], src[superBlock:] {
		b, c := (*[144]byte)(dst), block{x: (*[superBlock]float32)(src)}
		c.weighSums()
		q4K.encode(&c)
		c.putScales((*[16]byte)(b[:]))
		for g := 0; g < 8; g += 2 {
			q, y := (*[32]byte)(b[16+16*g:]), (*[64]int32)(c.q[32*g:])
			for j := range q {
				q[j] = byte(y[j] | y[j+32]<<4)
			}
		}
	}
}

func encodeQ5K(dst []byte, src []float32) {
	for ; len(dst) >= 176 && len(src) >= superBlock; dst, src = dst[176:], src[superBlock:] {
		b, c := (*[176]byte)(dst), block{x: (*[superBlock]float32)(src)}
		c.weighSums()
		q5K.encode(&c)
		c.putScales((*[16]byte)(b[:]))
		high := (*[32]byte)(b[16:])
		*high = [32]byte{}
		for g := 0; g < 8; g += 2 {
			q, y := (*[32]byte)(b[48+16*g:]), (*[64]int32)(c.q[32*g:])
			for j := range q {
				q[j] = byte(y[j]&15 | y[j+32]<<4)
				high[j] |= byte(y[j]>>4<<g | y[j+32]>>4<<(g+1))
			}
		}
	}
}

func encodeQ6K(dst []byte, src []float32) {
	for ; len(dst) >= 210 && len(src) >= superBlock; dst, src = dst[210:], src[superBlock:] {
		b, c := (*[210]byte)(dst), block{x: (*[superBlock]float32)(src)}
		c.weighSquares()
		q6K.encode(&c)
		putScale(b[208:210], c.d)
		for g, s := range c.s {
			b[192+g] = byte(s)
		}
		for h := range 2 {
			low, high, y := (*[64]byte)(b[64*h:]), (*[32]byte)(b[128+32*h:]), (*[128]int32)(c.q[128*h:])
			for l := range high {
				q0, q1, q2, q3 := y[l]+32, y[l+32]+32, y[l+64]+32, y[l+96]+32
				low[l], low[l+32] = byte(q0&15|q2<<4), byte(q1&15|q3<<4)
				high[l] = byte(q0>>4 | q1>>4<<2 | q2>>4<<4 | q3>>4<<6)
			}
		}
	}
}

// weighSums sets the weights of elements to their magnitudes plus the root of the mean square of their group of 32, so that an error
// counts more in what counts more in a product.
func (b *block) weighSums() {
	for g := 0; g < superBlock; g += 32 {
		x, w := (*[32]float32)(b.x[g:]), (*[32]float32)(b.w[g:])
		sum := float32(0)
		for _, v := range x {
			sum += float32(v * v)
		}
		root := float32(math.Sqrt(float64(sum / 32)))
		for j, v := range x {
			w[j] = root + float32(math.Abs(float64(v)))
		}
	}
}

// weighMagnitudes sets the weights of elements to their magnitudes, with a 64th of the mean of their group of 16, so that
// zeros count, too.
func (b *block) weighMagnitudes() {
	for g := 0; g < superBlock; g += 16 {
		x, w := (*[16]float32)(b.x[g:]), (*[16]float32)(b.w[g:])
		sum := float32(0)
		for j, v := range x {
			w[j] = float32(math.Abs(float64(v)))
			sum += w[j]
		}
		for j := range w {
			w[j] += sum / 1024
		}
	}
}

// weighSquares sets the weights of elements to their squares, with half of the mean square of their group of 16.
func (b *block) weighSquares() {
	for g := 0; g < superBlock; g += 16 {
		x, w := (*[16]float32)(b.x[g:]), (*[16]float32)(b.w[g:])
		sum := float32(0)
		for j, v := range x {
			w[j] = v * v
			sum += w[j]
		}
		for j := range w {
			w[j] += sum / 32
		}
	}
}

// putScales writes what q4_k and q5_k begin with.
func (b *block) putScales(dst *[16]byte) {
	putScale(dst[:2], b.d)
	putScale(dst[2:4], b.m)
	var s, n [8]byte
	for g := range s {
		s[g], n[g] = byte(b.s[g]), byte(b.n[g])
	}
	putSixBits((*[12]byte)(dst[4:]), &s, &n)
}

// rounded16 returns the nearest binary16 number.
func rounded16(x float32) float32 { return half.F16ToFloat32(half.Float32ToF16(x)) }

// putSixBits writes s and n of the 8 groups in the 12 bytes of q4_k and q5_k.
func putSixBits(b *[12]byte, s, n *[8]byte) {
	for g := range 4 {
		b[g], b[g+4] = s[g]|s[g+4]>>4<<6, n[g]|n[g+4]>>4<<6
		b[g+8] = s[g+4]&15 | n[g+4]<<4
	}
}
