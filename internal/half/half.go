// Package half converts vectors between float32, binary16 and bfloat16. Every
// function but the stochastic one rounds to nearest, ties to even. All keep NaNs
// NaN: quiet, with the upper bits of their payload. dst and src have the same length, which the
// caller checks; they may not overlap.
package half

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Kernels are the conversions of one tier.
type Kernels struct {
	BF16ToF32 func(dst []float32, src []snug.BFloat16)
	F32ToBF16 func(dst []snug.BFloat16, src []float32)
	F16ToF32  func(dst []float32, src []snug.Float16)
	F32ToF16  func(dst []snug.Float16, src []float32)
	BF16ToF16 func(dst []snug.Float16, src []snug.BFloat16)
	F16ToBF16 func(dst []snug.BFloat16, src []snug.Float16)

	// F32ToBF16Stochastic rounds up if draws[i] and the lower half of src[i],
	// which is cut off, have a sum of 2^16 or more.
	F32ToBF16Stochastic func(dst []snug.BFloat16, src []float32, draws []uint16)
	// F32ToF16Stochastic is that for binary16, of whose cut off part it looks at
	// the upper 16 bits: all in the normal range.
	F32ToF16Stochastic func(dst []snug.Float16, src []float32, draws []uint16)

	// Limit copies src, except magnitudes above limit, which is 0 or more. NaNs
	// stay. dst may be src.
	Limit func(dst, src []float32, limit float32)
}

// Registry holds the conversions of every tier.
var Registry cpu.Registry[Kernels]

// Streams holds conversions that keep dst out of the caches where they can: for
// results that caches would not hold until they are read.
var Streams cpu.Registry[Kernels]

// StreamBytes is the size of a whole result from which on Streams is faster.
const StreamBytes = 16 << 20

func init() {
	Registry.Add(cpu.Go, reference)
	Streams.Add(cpu.Go, reference)
}

var reference = Kernels{bf16ToF32, f32ToBF16, f16ToF32, f32ToF16, bf16ToF16, f16ToBF16, f32ToBF16Stochastic, f32ToF16Stochastic, limit}

// Convert converts elements lo to hi-1 of src, a host view, to the other
// floating-point type of dst, with Streams if stream.
func Convert(dst, src snug.View, lo, hi int, stream bool) {
	k := Registry.Best()
	if stream {
		k = Streams.Best()
	}
	switch from, to := src.DType(), dst.DType(); {
	case from == snug.F32 && to == snug.F16:
		k.F32ToF16(dst.Float16s()[lo:hi], src.Float32s()[lo:hi])
	case from == snug.F32 && to == snug.BF16:
		k.F32ToBF16(dst.BFloat16s()[lo:hi], src.Float32s()[lo:hi])
	case from == snug.F16 && to == snug.F32:
		k.F16ToF32(dst.Float32s()[lo:hi], src.Float16s()[lo:hi])
	case from == snug.F16 && to == snug.BF16:
		k.F16ToBF16(dst.BFloat16s()[lo:hi], src.Float16s()[lo:hi])
	case from == snug.BF16 && to == snug.F32:
		k.BF16ToF32(dst.Float32s()[lo:hi], src.BFloat16s()[lo:hi])
	case from == snug.BF16 && to == snug.F16:
		k.BF16ToF16(dst.Float16s()[lo:hi], src.BFloat16s()[lo:hi])
	}
}

// Chunk is the number of elements that a caller should convert at a time when
// it goes through float32 scratch: 4 KiB of float32, well inside any L1.
const Chunk = 1024

// Load converts elements lo to lo+len(dst)-1 of a host view of floats, of 8 bits too, to
// float32.
func Load(dst []float32, src snug.View, lo int) {
	k := Registry.Best()
	switch src.DType() {
	case snug.F32:
		copy(dst, src.Float32s()[lo:lo+len(dst)])
	case snug.F16:
		k.F16ToF32(dst, src.Float16s()[lo:lo+len(dst)])
	case snug.BF16:
		k.BF16ToF32(dst, src.BFloat16s()[lo:lo+len(dst)])
	case snug.F8E4M3:
		Registry8.Best().E4M3ToF32(dst, snug.Host[snug.Float8E4M3](src)[lo:lo+len(dst)])
	case snug.F8E5M2:
		Registry8.Best().E5M2ToF32(dst, snug.Host[snug.Float8E5M2](src)[lo:lo+len(dst)])
	}
}

// Floats returns elements lo to lo+len(tile)-1 of a floating-point host view as
// float32: the view's own memory if it holds float32, else converted into tile.
func Floats(v snug.View, lo int, tile []float32) []float32 {
	if x := v.Float32s(); x != nil {
		return x[lo : lo+len(tile)]
	}
	Load(tile, v, lo)
	return tile
}

// Flush writes what Floats returned, and its caller has changed, back to elements
// lo and up.
func Flush(v snug.View, lo int, x []float32) {
	if v.DType() != snug.F32 {
		Store(v, lo, x)
	}
}

// Store converts src into elements lo to lo+len(src)-1 of a host view of floats, of 8 bits
// too. Of at most Chunk elements, it may narrow in place: they may begin where
// src does, or before.
func Store(dst snug.View, lo int, src []float32) { Registry.Best().store(dst, lo, src) }

// StoreStream is Store with Streams.
func StoreStream(dst snug.View, lo int, src []float32) { Streams.Best().store(dst, lo, src) }

func (k *Kernels) store(dst snug.View, lo int, src []float32) {
	switch dst.DType() {
	case snug.F32:
		copy(dst.Float32s()[lo:lo+len(src)], src)
	case snug.F16:
		k.F32ToF16(dst.Float16s()[lo:lo+len(src)], src)
	case snug.BF16:
		k.F32ToBF16(dst.BFloat16s()[lo:lo+len(src)], src)
	case snug.F8E4M3:
		Registry8.Best().F32ToE4M3(snug.Host[snug.Float8E4M3](dst)[lo:lo+len(src)], src)
	case snug.F8E5M2:
		Registry8.Best().F32ToE5M2(snug.Host[snug.Float8E5M2](dst)[lo:lo+len(src)], src)
	}
}

func bf16ToF32(dst []float32, src []snug.BFloat16) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = math.Float32frombits(uint32(x) << 16)
	}
}

func f32ToBF16(dst []snug.BFloat16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = snug.ToBFloat16(x)
	}
}

func f16ToF32(dst []float32, src []snug.Float16) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F16ToFloat32(x)
	}
}

func f32ToF16(dst []snug.Float16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = Float32ToF16(x)
	}
}

func f32ToBF16Stochastic(dst []snug.BFloat16, src []float32, draws []uint16) {
	dst, draws = dst[:len(src)], draws[:len(src)]
	for i, x := range src {
		if x != x {
			dst[i] = snug.ToBFloat16(x)
			continue
		}
		dst[i] = snug.BFloat16((math.Float32bits(x) + uint32(draws[i])) >> 16)
	}
}

func f32ToF16Stochastic(dst []snug.Float16, src []float32, draws []uint16) {
	dst, draws = dst[:len(src)], draws[:len(src)]
	for i, x := range src {
		dst[i] = f16AtRandom(x, uint32(draws[i]))
	}
}

// f16AtRandom returns x or one of its neighbours. The significand, shifted by 3
// and, below 2^-14, by what the exponent lacks, has the bits that stay above 16
// others, to which draw is added; a carry goes into the exponent.
func f16AtRandom(x float32, draw uint32) snug.Float16 {
	if x != x {
		return Float32ToF16(x)
	}
	const minExponent = 113 // the exponent of 2^-14
	b := math.Float32bits(x)
	exponent := b >> 23 & 0xff
	significand := (b&0x7fffff | 0x800000) << 3 >> (max(exponent, minExponent) - exponent)
	h := (max(exponent, minExponent)-minExponent)<<10 + (significand+draw)>>16
	return snug.Float16(b>>16&0x8000 | min(h, 0x7c00))
}

func limit(dst, src []float32, limit float32) {
	dst = dst[:len(src)]
	for i, v := range src {
		switch {
		case v > limit:
			v = limit
		case v < -limit:
			v = -limit
		}
		dst[i] = v
	}
}

// float32 holds both 16-bit types exactly, so these round once.

func bf16ToF16(dst []snug.Float16, src []snug.BFloat16) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = Float32ToF16(x.Float32())
	}
}

func f16ToBF16(dst []snug.BFloat16, src []snug.Float16) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = snug.ToBFloat16(F16ToFloat32(x))
	}
}

// F16ToFloat32 returns the value of h. The bits of the magnitude, moved to
// float32's place, are the value divided by 2^112, also for subnormals, so one
// exact multiplication restores it.
func F16ToFloat32(h snug.Float16) float32 {
	sign := uint32(h&0x8000) << 16
	mag := uint32(h&0x7fff) << 13
	if mag >= 0x7c00<<13 { // infinity or NaN
		bits := sign | 0x7f800000 | mag&0x007fffff
		if mag&0x007fffff != 0 {
			bits |= 0x00400000
		}
		return math.Float32frombits(bits)
	}
	const two112 = 0x1p112
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(mag)*two112))
}

// Float32ToF16 rounds x to the nearest binary16, ties to even.
func Float32ToF16(x float32) snug.Float16 {
	b := math.Float32bits(x)
	sign := snug.Float16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00 | snug.Float16(b>>13&0x1ff)
	case b >= 0x47800000: // 65536 and more, infinity
		return sign | 0x7c00
	case b < 0x38800000: // below the smallest normal, 2^-14
		// Adding 0.5 puts the result's bits at the end of the fraction, and
		// the addition rounds as wanted.
		f := math.Float32frombits(b) + 0.5
		return sign | snug.Float16(math.Float32bits(f)-0x3f000000)
	}
	b += 0xfff + b>>13&1                             // round; a carry goes into the exponent
	return sign | snug.Float16((b-(127-15)<<23)>>13) // may be infinity, as it should
}
