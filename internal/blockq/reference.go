package blockq

import "math"

var reference = Kernels{absMax, decode, decode, encode}

func decode(x []float32, codes []uint8, m *[256]float32, absmax []float32, block int) {
	for _, a := range absmax {
		n := min(block, len(codes))
		decodeBlock(x[:n], codes[:n], m, a)
		x, codes = x[n:], codes[n:]
	}
}

const (
	magnitude = 0x7fffffff // the bits of a float32 but its sign
	infinity  = 0x7f800000 // as an integer, the magnitudes keep their order
)

func absMax(x []float32) float32 { return FromMagnitude(largest(x)) }

func largest(x []float32) uint32 {
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&magnitude)
	}
	return top
}

// FromMagnitude returns the float32 with these bits, which have no sign, or NaN
// for the bits of an infinity.
func FromMagnitude(bits uint32) float32 {
	if bits >= infinity {
		return float32(math.NaN())
	}
	return math.Float32frombits(bits)
}

func decodeBlock(x []float32, codes []uint8, m *[256]float32, absmax float32) {
	x = x[:len(codes)]
	for i, c := range codes {
		x[i] = m[c] * absmax
	}
}

func encode(codes []uint8, x []float32, absmax float32, e *Encoder) {
	codes = codes[:len(x)]
	for i, v := range x {
		codes[i] = e.Code((v + 0) / absmax)
	}
}
