package blockq

import "math"

// Encoder finds nearest codes. Between the entries of codes c and c+1 of its
// map lies a midpoint; x belongs to c when x is not above it. limit[c] is the
// largest float32 not above that midpoint, so that the float32 comparison
// x > limit[c] has the outcome of the exact one. The nearest code is then the
// number of limits below x. Of equal entries the lowest code is used: the limits
// between them are that above the last.
//
// Where to begin counting is read from a table by the upper 16 bits of x: sign,
// exponent and 7 fraction bits. In its lowest byte a cell of the table has the
// code of the values whose lower half, as an integer, is not above the upper
// half of the cell, and in the next byte the code of the others. The cells are
// narrower than the spacing of the dynamic maps, so that no more limits lie in
// one. Other maps may have more.
type Encoder struct {
	m     [256]float32
	value [256]float32 // what the codes count as in an update
	plane Planes       // of value
	zero  uint8        // the code of 0
	more  int          // most limits of a cell after the first
	quick bool         // tiers may multiply by the reciprocal of absmax
	limit [256]float32 // +Inf at 255
	cell  [numCells]uint32
	lines Lines
	lined bool // there are lines

	segments  Segments
	segmented bool // there are segments
}

// The upper halves of 1 and -1, beyond which there is no value to encode. The
// cells between the cell of 1 and the cell of -0 are not used.
const (
	lastPositive = 0x3f80
	lastNegative = 0xbf80
	numCells     = lastNegative + 1
)

// order returns the bits of x, turned such that they ascend with the value, as
// unsigned integers: -0 comes just before 0.
func order(x float32) uint32 {
	bits := math.Float32bits(x)
	return bits ^ (uint32(int32(bits)>>31) | 1<<31)
}

// Planes are the bytes of 256 float32: all lowest bytes first, and all highest last.
type Planes [4][256]uint8

func (p *Planes) split(m *[256]float32) {
	for c, x := range m {
		for i := range p {
			p[i][c] = uint8(math.Float32bits(x) >> (8 * i))
		}
	}
}

// Map returns the map of the last Build.
func (e *Encoder) Map() *[256]float32 { return &e.m }

// Values returns what the codes of a state count as in an update, times absmax: the map,
// unless [Encoder.KeepDivisor] was called.
func (e *Encoder) Values() *[256]float32 { return &e.value }

// KeepDivisor makes a code of 0 count as the largest value that has it in an update, so
// that what divides by the root of a state never divides by less than the state was
// before it was encoded. The codes and the map stay as they are. The map has no negative
// entries.
func (e *Encoder) KeepDivisor() {
	for c := range e.value {
		if e.m[c] == 0 {
			e.value[c] = e.limit[e.zero]
		}
	}
	e.plane.split(&e.value)
}

// Build makes e the encoder of a map, whose entries are finite and do not
// descend. With
// keepSign negative values whose nearest code is the code of 0 get the code below,
// so that the sign of a momentum survives, as bitsandbytes does; 0 has a code of
// its own in such a map.
func (e *Encoder) Build(m *[256]float32, keepSign bool) {
	e.m, e.value = *m, *m
	e.plane.split(m)
	e.limit[255] = float32(math.Inf(1))
	for c := 254; c >= 0; c-- {
		if e.limit[c] = e.limit[c+1]; m[c] != m[c+1] {
			e.limit[c] = FloorMidpoint(m[c], m[c+1])
		}
	}
	e.zero = uint8(e.below(order(0), 0))
	if keepSign {
		e.limit[e.zero-1] = float32(math.Copysign(0, -1))
	}

	c, most := 0, 0 // by ascending values, so that the search goes on
	for i := lastNegative; i >= 0x8000; i-- {
		c, most = e.buildCell(uint32(i)<<16, c, most)
	}
	for i := 0; i <= lastPositive; i++ {
		c, most = e.buildCell(uint32(i)<<16, c, most)
	}
	e.more = max(most-1, 0)
	e.quick = e.more == 0 && e.coarse()
	e.lined = e.quick && e.lines.fit(e)
	e.segmented = e.more == 0 && e.segments.fit(e)
}

// below returns how many limits come before u, the order of a value. At least the
// first c do.
func (e *Encoder) below(u uint32, c int) int {
	for c < 255 && order(e.limit[c]) < u {
		c++
	}
	return c
}

// buildCell sets the cell of the values that begin with the upper half of bits. At
// least c limits come before all of them. It returns the number of limits before the
// highest value, and the larger of most and the number of limits inside.
func (e *Encoder) buildCell(bits uint32, c, most int) (above, inside int) {
	first, last := order(math.Float32frombits(bits)), order(math.Float32frombits(bits|0xffff))
	low, high := e.below(min(first, last), c), e.below(max(first, last), c)
	at := math.Float32bits(e.limit[low]) & 0xffff // the lower half of the first limit
	switch {
	case low == high:
		e.cell[bits>>16] = 0xffff<<16 | uint32(low)<<8 | uint32(low)
	case first < last:
		e.cell[bits>>16] = at<<16 | uint32(low+1)<<8 | uint32(low)
	default: // the negative values above the limit are those with lower halves before at, which is not 0
		e.cell[bits>>16] = (at-1)<<16 | uint32(low)<<8 | uint32(low+1)
	}
	return high, max(most, high-low)
}

// Code returns the nearest code of x, which is from -1 to 1.
func (e *Encoder) Code(x float32) uint8 {
	bits := math.Float32bits(x)
	cell := e.cell[bits>>16]
	c := uint8(cell)
	if bits&0xffff > cell>>16 {
		c = uint8(cell >> 8)
	}
	for range e.more {
		if x > e.limit[c] {
			c++
		}
	}
	return c
}

// FloorMidpoint returns the largest float32 not above (a+b)/2, for finite
// a <= b.
func FloorMidpoint(a, b float32) float32 {
	// sum + rest is a+b exactly (Knuth's two-sum); half of it is exact too,
	// since no float32 comes near the smallest float64.
	x, y := float64(a), float64(b)
	sum := x + y
	t := sum - x
	rest := (x - (sum - t)) + (y - t)
	mid := float32(sum / 2)
	if above := float64(mid) - sum/2; above > 0 || above == 0 && rest < 0 {
		return math.Nextafter32(mid, float32(math.Inf(-1)))
	}
	return mid
}

// The magnitudes of absmax for which tiers may multiply by the reciprocal, and
// the least magnitude of a limit other than 0. The remainder of a quotient that
// is not below that is then a float32, and no reciprocal is denormal.
const (
	minQuick  = 0x1p-80
	mostQuick = 0x1p100
	minLimit  = 0x1p-23
)

func (e *Encoder) coarse() bool {
	for _, x := range e.limit {
		if x != 0 && float32(math.Abs(float64(x))) < minLimit {
			return false
		}
	}
	return true
}
