package quant8

import (
	"math"
	"sync"
)

// encoder finds the nearest code. Between the entries of codes c and c+1 lies
// a midpoint; x belongs to c when x is not above it. limit[c] is the largest
// float32 not above that midpoint, so that the float32 comparison x > limit[c]
// has the outcome of the exact one. The nearest code is then the number of
// limits below x.
//
// Where to begin counting is read from a table by the upper 16 bits of x: sign,
// exponent and 7 fraction bits. The table's cells are narrower than the spacing
// of the dynamic maps, so that one comparison is left, and one that ends the
// loop. Other maps may take more.
type encoder struct {
	m     Map
	zero  uint8          // the code of 0
	limit [256]float32   // +Inf at 255
	first [1 << 16]uint8 // the code of the lowest value in the cell
}

func newEncoder(m *Map) *encoder {
	e := new(encoder)
	e.build(m)
	return e
}

func (e *encoder) build(m *Map) {
	e.m = *m
	for c := range 255 {
		e.limit[c] = floorMidpoint(m[c], m[c+1])
	}
	e.limit[255] = float32(math.Inf(1))

	// Walk the cells from -Inf to +Inf. NaNs compare false and do not count.
	c := uint8(0)
	enter := func(cell, lowest uint32) {
		for math.Float32frombits(lowest) > e.limit[c] {
			c++
		}
		e.first[cell] = c
	}
	for cell := uint32(0xffff); cell >= 0x8000; cell-- {
		enter(cell, cell<<16|0xffff)
	}
	for cell := range uint32(0x8000) {
		enter(cell, cell<<16)
	}
	e.zero = e.code(0)
}

// floorMidpoint returns the largest float32 not above (a+b)/2, for finite
// a <= b.
func floorMidpoint(a, b float32) float32 {
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

// code returns the nearest code of x, which is not NaN. The first comparison is
// added and not branched on, since it comes out either way; the second nearly
// always fails.
func (e *encoder) code(x float32) uint8 {
	c := e.first[math.Float32bits(x)>>16]
	more := uint8(0)
	if x > e.limit[c] {
		more = 1
	}
	c += more
	for x > e.limit[c] {
		c++
	}
	return c
}

// The encoders of the two dynamic maps are built at first use. Others are
// pooled: most callers use one map over and over.
var (
	signed   = sync.OnceValue(func() *encoder { return newEncoder(DynamicMap(true)) })
	unsigned = sync.OnceValue(func() *encoder { return newEncoder(DynamicMap(false)) })
	others   = sync.Pool{New: func() any { return newEncoder(new(Map)) }}
)

// encoderOf returns an encoder of m, to be given back with release.
func encoderOf(m *Map) *encoder {
	if s := signed(); s.m == *m {
		return s
	}
	if u := unsigned(); u.m == *m {
		return u
	}
	e := others.Get().(*encoder)
	if e.m != *m {
		e.build(m)
	}
	return e
}

func (e *encoder) release() {
	if e != signed() && e != unsigned() {
		others.Put(e)
	}
}
