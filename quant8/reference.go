package quant8

import "math"

// encode writes the codes of one block and returns its absmax. A block with a
// NaN or an infinity gets absmax NaN and codes of 0.
func (e *encoder) encode(codes []uint8, x []float32) float32 {
	a := absMax(x)
	if a == 0 || a != a {
		for i := range codes {
			codes[i] = e.zero
		}
		return a
	}
	codes = codes[:len(x)]
	for i, v := range x {
		codes[i] = e.code(v / a)
	}
	return a
}

// keepSign lowers the code of a negative value that was rounded to 0 by one, so
// that the sign of its momentum survives, as bitsandbytes does for the first
// moment.
func (e *encoder) keepSign(codes []uint8, x []float32) {
	codes = codes[:len(x)]
	for i, v := range x {
		if codes[i] == e.zero && v < 0 {
			codes[i]--
		}
	}
}

// decode writes the values of one block.
func (m *Map) decode(x []float32, codes []uint8, absmax float32) {
	x = x[:len(codes)]
	for i, c := range codes {
		x[i] = m[c] * absmax
	}
}

const (
	magnitude = 0x7fffffff // the bits of a float32 but its sign
	infinity  = 0x7f800000 // as an integer, the magnitudes keep their order
)

// absMax returns the largest magnitude of x, or NaN if not all of x is finite.
func absMax(x []float32) float32 {
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&magnitude)
	}
	if top >= infinity {
		return float32(math.NaN())
	}
	return math.Float32frombits(top)
}

// firstNotBelow returns the index of the first element of scale·x whose
// magnitude has bits of limit or more, or -1. A NaN is above every limit.
func firstNotBelow(x []float32, scale float32, limit uint32) int {
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v*scale)&magnitude)
	}
	if top < limit {
		return -1
	}
	for i, v := range x {
		if math.Float32bits(v*scale)&magnitude >= limit {
			return i
		}
	}
	return -1
}
