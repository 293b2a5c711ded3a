package gguf

import (
	"math"

	"github.com/snug-ml/snug/internal/ggml"
)

// encodeIQ4NL takes, for each block, the d of the least error of a search like that of [signed], and then the nearest values.
func encodeIQ4NL(dst []byte, src []float32) {
	for ; len(dst) >= 18 && len(src) >= 32; dst, src = dst[18:], src[32:] {
		b, x := (*[18]byte)(dst), (*[32]float32)(src)
		var w [32]float32
		squares(x, &w)
		d := putScale(b[:2], float32(fitTable(x, &w)))
		putNonlinear((*[16]byte)(b[2:]), x, d)
	}
}

// encodeIQ4XS does so for groups: d reaches the largest factor, and s is the nearest, one less or one more.
func encodeIQ4XS(dst []byte, src []float32) {
	for ; len(dst) >= 136 && len(src) >= superBlock; dst, src = dst[136:], src[superBlock:] {
		b := (*[136]byte)(dst)
		var w [8][32]float32
		var a [8]float64
		top := 0.0
		for g := range a {
			x := (*[32]float32)(src[32*g:])
			squares(x, &w[g])
			if a[g] = fitTable(x, &w[g]); math.Abs(a[g]) > math.Abs(top) {
				top = a[g]
			}
		}
		d := putScale(b[:2], step(float32(top), 32, 4))
		high := uint16(0)
		for g := range a {
			x := (*[32]float32)(src[32*g:])
			s := chooseTable(x, &w[g], d, float32(a[g]))
			putNonlinear((*[16]byte)(b[8+16*g:]), x, d*float32(s))
			if b[4+g/2] = b[4+g/2]&15 | byte(s+32)<<4; g%2 == 0 {
				b[4+g/2] = byte(s+32) & 15
			}
			high |= uint16(s+32) >> 4 << (2 * g)
		}
		le.PutUint16(b[2:4], high)
	}
}

// squares sets the weights of elements to their squares, with half of their mean.
func squares(x, w *[32]float32) {
	sum := float32(0)
	for j, v := range x {
		w[j] = v * v
		sum += w[j]
	}
	for j := range w {
		w[j] += sum / 64
	}
}

// fitTable returns the factor of the values of the least error, where the element of the largest magnitude has a value near the
// first or the last.
func fitTable(x, w *[32]float32) (a float64) {
	top := largest(x[:])
	if top > -tiny && top < tiny {
		return 0
	}
	most := 0.0
	for _, end := range [2]float32{ggml.Nonlinear[0], ggml.Nonlinear[15]} {
		for t := float32(-7); t <= 7; t++ {
			inv := (end + t) / top
			qq, qx := 0.0, 0.0
			for j, v := range x {
				q := float64(ggml.Nonlinear[nearestNonlinear(v*inv)])
				wq := float64(w[j]) * q
				qq += float64(wq * q)
				qx += float64(wq * float64(v))
			}
			if e := qx * qx / qq; e > most {
				most, a = e, qx/qq
			}
		}
	}
	return a
}

// chooseTable returns s of a group whose factor is a.
func chooseTable(x, w *[32]float32, d, a float32) (s int32) {
	if d == 0 {
		return 0
	}
	s0 := nearest(bounded(a/d, -32, 31))
	least := float32(math.Inf(1))
	for i := max(s0-1, -32); i <= min(s0+1, 31); i++ {
		ds, e := d*float32(i), float32(0)
		inv := inverse(ds)
		for j, v := range x {
			diff := float32(ds*ggml.Nonlinear[nearestNonlinear(v*inv)]) - v
			e += float32(float32(w[j]*diff) * diff)
		}
		if e < least {
			least, s = e, i
		}
	}
	return s
}

func putNonlinear(b *[16]byte, x *[32]float32, d float32) {
	inv := inverse(d)
	for j := range b {
		b[j] = nearestNonlinear(x[j]*inv) | nearestNonlinear(x[j+16]*inv)<<4
	}
}

// toNonlinear are the numbers of the values nearest to v, by 2 v + 256 rounded down: the sum of two values next to each
// other is a whole number.
var toNonlinear = func() (code [512]byte) {
	for u := range code {
		for c := range byte(15) {
			if float32(u-256) >= ggml.Nonlinear[c]+ggml.Nonlinear[c+1] {
				code[u] = c + 1
			}
		}
	}
	return code
}()

func nearestNonlinear(v float32) byte {
	return toNonlinear[int32(float32(bounded(2*v, -256, 255))+256)]
}
