package snug

import (
	"fmt"
	"math"
)

// Float8E4M3 is a floating-point number of 8 bits: 1 sign, 4 exponent and 3 fraction bits, with a bias of 7. It is the
// "fn" form of OCP's OFP8 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning", arXiv:2209.05433), torch's
// float8_e4m3fn: the largest magnitude is 448, the smallest 2^-9, there are no infinities, and NaN is 0x7f or 0xff.
type Float8E4M3 uint8

// Float8E5M2 is the upper half of a binary16 number: 1 sign, 5 exponent and 2 fraction bits, with a bias of 15. It is
// OCP's OFP8 of that name, torch's float8_e5m2: the largest magnitude is 57344, the smallest 2^-16, and infinities and
// NaNs are IEEE 754's.
type Float8E5M2 uint8

// float8 is the shape of a type of 8 bits.
type float8 struct {
	fraction int    // bits
	bias     int    // of the exponent
	top      uint32 // bits, as float32, of the least magnitude that does not round
	most     uint8  // what that and all above become
}

var (
	e4m3 = float8{3, 7, 0x43e00000, 0x7e}  // 448 and more
	e5m2 = float8{2, 15, 0x47800000, 0x7c} // 65536 and more; what is above 61440 rounds up to it
)

// ToFloat8E4M3 rounds x to the nearest Float8E4M3, ties to even. What is above 448, infinity too, becomes 448, as in
// torch 2.15. A NaN becomes 0x7f with its sign.
func ToFloat8E4M3(x float32) Float8E4M3 { return Float8E4M3(e4m3.round(math.Float32bits(x))) }

// ToFloat8E5M2 rounds x to the nearest Float8E5M2, ties to even. 61440 and more become infinity. A NaN becomes 0x7f
// with its sign.
func ToFloat8E5M2(x float32) Float8E5M2 { return Float8E5M2(e5m2.round(math.Float32bits(x))) }

func (f *float8) round(b uint32) uint8 {
	sign := uint8(b >> 24 & 0x80)
	b &= 0x7fffffff
	cut := 23 - f.fraction
	switch {
	case b > 0x7f800000:
		return sign | 0x7f
	case b >= f.top:
		return sign | f.most
	case b < uint32(127+1-f.bias)<<23: // below the smallest normal
		// The sum has the unit of the smallest magnitude in its last place, and rounds as wanted.
		unit := uint32(127+1-f.bias+cut) << 23
		return sign | uint8(math.Float32bits(math.Float32frombits(b)+math.Float32frombits(unit))-unit)
	}
	b += 1<<(cut-1) - 1 + b>>cut&1 // a carry goes into the exponent
	return sign | uint8((b-uint32(127-f.bias)<<23)>>cut)
}

// Float32 returns the value of x, which float32 holds exactly.
func (x Float8E4M3) Float32() float32 { return values8.e4m3[x] }

// Float32 returns the value of x, which float32 holds exactly. A NaN becomes quiet.
func (x Float8E5M2) Float32() float32 { return values8.e5m2[x] }

// String formats x as a decimal number.
func (x Float8E4M3) String() string { return fmt.Sprint(x.Float32()) }

// String formats x as a decimal number.
func (x Float8E5M2) String() string { return fmt.Sprint(x.Float32()) }

// values8 are the values of all codes.
var values8 = func() (v struct{ e4m3, e5m2 [256]float32 }) {
	for c := range 256 {
		v.e4m3[c], v.e5m2[c] = e4m3.value(uint8(c)), e5m2.value(uint8(c))
	}
	for c := 0x7f; c < 256; c += 0x80 {
		v.e4m3[c] = math.Float32frombits(uint32(c&0x80)<<24 | 0x7ff00000)
		v.e5m2[c-3] = math.Float32frombits(uint32(c&0x80)<<24 | 0x7f800000)
		for n := c - 2; n <= c; n++ {
			v.e5m2[n] = math.Float32frombits(uint32(c&0x80)<<24 | 0x7fc00000 | uint32(n&3)<<21)
		}
	}
	return v
}()

// value returns the value of a code that is a number.
func (f *float8) value(c uint8) float32 {
	exponent, fraction := int(c&0x7f)>>f.fraction, int(c)&(1<<f.fraction-1)
	v := math.Ldexp(float64(fraction), 1-f.bias-f.fraction)
	if exponent > 0 {
		v = math.Ldexp(float64(fraction+1<<f.fraction), exponent-f.bias-f.fraction)
	}
	if c >= 0x80 {
		v = -v
	}
	return float32(v)
}
