package blockq

import "math"

// Encoder finds nearest codes. Between the entries of codes c and c+1 of its
// map lies a midpoint; x belongs to c when x is not above it. limit[c] is the
// largest float32 not above that midpoint, so that the float32 comparison
// x > limit[c] has the outcome of the exact one. The nearest code is then the
// number of limits below x.
//
// Where to begin counting is read from a table by the upper 16 bits of x: sign,
// exponent and 7 fraction bits. A cell of the table has the code of its lowest
// value and, above it, the lower 16 bits of its first limit, so that one look-up
// and one comparison pass that. The cells are narrower than the spacing of the
// dynamic maps, so that there is no other limit. Other maps may have more in a
// cell.
type Encoder struct {
	m     [256]float32
	zero  uint8        // the code of 0
	more  int          // limits that a cell has beside the first, at most
	limit [256]float32 // +Inf at 255
	cell  [numCells]uint32
}

// The order of a float32 is its bits, turned such that they ascend with the
// value, as unsigned integers: -0 comes just before 0. These are the upper 16
// bits for -1 and 1, the ends of the table.
const (
	lowestCell  = 0x407f
	highestCell = 0xbf80
	numCells    = highestCell - lowestCell + 1
)

func order(x float32) uint32 {
	bits := math.Float32bits(x)
	return bits ^ (uint32(int32(bits)>>31) | 1<<31)
}

func fromOrder(u uint32) float32 {
	return math.Float32frombits(u ^ (uint32(^int32(u)>>31) | 1<<31))
}

// Map returns the map of the last Build.
func (e *Encoder) Map() *[256]float32 { return &e.m }

// Build makes e the encoder of a map, whose entries are finite and ascend.
func (e *Encoder) Build(m *[256]float32) {
	e.m = *m
	for c := range 255 {
		e.limit[c] = floorMidpoint(m[c], m[c+1])
	}
	e.limit[255] = float32(math.Inf(1))

	c, most := 0, 0
	for i := range e.cell {
		lowest := uint32(lowestCell+i) << 16
		for fromOrder(lowest) > e.limit[c] {
			c++
		}
		inside := 0
		for c+inside < 255 && order(e.limit[c+inside]) < lowest|0xffff {
			inside++
		}
		first := uint32(0xffff) // none
		if inside > 0 {
			first = order(e.limit[c]) & 0xffff
		}
		e.cell[i], most = first<<16|uint32(c), max(most, inside)
	}
	e.more = max(most-1, 0)
	e.zero = e.Code(0)
}

// Code returns the nearest code of x, which is from -1 to 1.
func (e *Encoder) Code(x float32) uint8 {
	u := order(x)
	cell := e.cell[u>>16-lowestCell]
	c := uint8(cell)
	if u&0xffff > cell>>16 {
		c++
	}
	for range e.more {
		if x > e.limit[c] {
			c++
		}
	}
	return c
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
