package gguf

import (
	"math"

	"github.com/snug-ml/snug/internal/ggml"
)

// This file writes blocks whose numbers of 4 bits name values of a table.

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
		inv := 2 / float64(ggml.HalfPower(b[0]))
		for j := range 16 {
			b[j+1] = nearestE2M1(x[j], inv) | nearestE2M1(x[j+16], inv)<<4
		}
	}
}

// toE2M1 are the codes of magnitudes by twice the value in the units of ggml.E2M1, rounded up: halfway goes to the smaller.
var toE2M1 = func() (code [33]byte) {
	for u := range code {
		for c := range byte(7) {
			if float32(u) > ggml.E2M1[c]+ggml.E2M1[c+1] {
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
