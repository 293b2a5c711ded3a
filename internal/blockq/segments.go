package blockq

import "math"

// Segments find codes with one multiply-add, where a table of 256 bytes cannot stay in registers. Seven limits of a
// dynamic map, the bounds, cut its positive values into segments, in each of which the other limits lie on a straight
// line: code c begins where the line is c. With q the magnitude of a quotient and s the number of bounds below it,
//
//	t = min(slope[s]·q + offset[s], top[s])
//
// is the code that q has above the code of 0, plus 256 and lineMargin. As for [Lines], where t has less than 2·lineMargin
// above a code, rounding may have moved it over a limit, and the code is looked for in another way. Bounds are
// compared exactly, and top keeps t in the last code before a bound. A quotient that is a midpoint belongs to the lower
// code, which is nearer to 0 above it and farther below it. So what is compared is 2·q as an integer, plus 1 for a
// negative quotient, with twice the bound, plus 1 unless that is a midpoint.
//
// Three comparisons find s: with search[0], then with the value of search[1] at -s/4 modulo 8, then of search[2] at -s/2. The other
// tables are for a permutation by -s modulo 8.
type Segments struct {
	search             [3][maxSegments]int32
	slope, offset, top [maxSegments]float32
	zero, keep         [32]uint8 // as in Lines, in every lane
}

const maxSegments = 8

// segment is the codes from first to last.
type segment struct {
	line
	first, last int
}

// segmenter cuts the limits above 0 into segments. Code c lies above limits[c-1].
type segmenter struct{ limits []float64 }

// lowest returns the limit below code c.
func (s segmenter) lowest(c int) float64 {
	if c == 0 {
		return 0
	}
	return s.limits[c-1]
}

// from returns the longest segment that begins with code c.
func (s segmenter) from(c int) segment {
	best := segment{line{0, float64(c) + 0.5}, c, c}
	if c == len(s.limits) {
		return best
	}
	if x, low := s.limits[c], s.lowest(c); low < x { // half a code before the first limit
		slope := float64(float32(0.5 / (x - low)))
		if l := (segment{line{slope, rounded(float64(c+1) - slope*x)}, c, c + 1}); s.holds(l) {
			best = l
		}
	}
	if c+1 == len(s.limits) || s.limits[c] == s.limits[c+1] {
		return best
	}
	last, gap := c+2, s.limits[c+1]-s.limits[c]
	for last < len(s.limits) && math.Abs(s.limits[last]-s.limits[last-1]-gap) < gap/1024 {
		last++
	}
	if l := (segment{through(s.limits[c], s.limits[last-1], c+1, last-c-1), c, last}); s.holds(l) {
		best = l
	}
	return best
}

// holds reports whether a segment gives all its codes.
func (s segmenter) holds(g segment) bool {
	const far = lineMargin - 0x1p-15 // t is rounded twice
	for c := g.first; c < g.last; c++ {
		if math.Abs(g.slope*s.limits[c]+g.offset-float64(c+1)) > far {
			return false
		}
	}
	return g.slope*s.lowest(g.first)+g.offset >= float64(g.first)+2*lineMargin
}

// all returns the fewest segments that have all codes.
func (s segmenter) all() (list []segment) {
	n := len(s.limits) + 1
	best, count := make([]segment, n), make([]int, n+1) // for the codes from each on
	for c := n - 1; c >= 0; c-- {
		g := s.from(c)
		for last := g.last; last >= c; last-- {
			if count[c] == 0 || count[last+1] < count[c]-1 {
				best[c], count[c] = segment{g.line, c, last}, count[last+1]+1
			}
		}
	}
	for c := 0; c < n; c = best[c].last + 1 {
		list = append(list, best[c])
	}
	return list
}

// fit sets the segments of an encoder whose limits are known. It is not ok if they have none: the values below 0
// are not the negatives of values above it, or the limits lie in too many segments.
func (s *Segments) fit(e *Encoder) (ok bool) {
	*s = Segments{}
	if !e.symmetric() {
		return false
	}
	for lane := range s.zero {
		s.zero[lane], s.keep[lane] = e.zero, e.keep()
	}
	var above segmenter
	for _, limit := range e.limit[e.zero:255] {
		above.limits = append(above.limits, float64(limit))
	}
	list := above.all()
	if len(list) > maxSegments {
		return false
	}
	for i := range maxSegments {
		g := list[min(i, len(list)-1)]
		s.slope[lane(i)], s.offset[lane(i)] = float32(g.slope), float32(g.offset+lineBase+lineMargin)
		s.top[lane(i)] = float32(g.last) + 0.5 + lineBase
		if i == 0 {
			continue
		}
		bound := int32(math.MaxInt32)
		if i < len(list) {
			bound = e.bound(g.first)
		}
		switch { // i is the least s of the upper half of a part
		case i%4 == 0:
			for l := range s.search[0] {
				s.search[0][l] = bound
			}
		case i%2 == 0:
			s.search[1][lane(i/4)] = bound
		default:
			s.search[2][lane(i/2)] = bound
		}
	}
	return true
}

// lane is where a permutation by -i modulo 8 finds its value.
func lane(i int) int { return -i & (maxSegments - 1) }

// bound returns what the doubled quotients are compared with for the limit below code c above the code of 0.
func (e *Encoder) bound(c int) int32 {
	zero := int(e.zero)
	limit := e.limit[zero+c-1]
	bound := int32(2 * math.Float32bits(limit))
	if zero >= c && e.limit[zero-c] != -limit {
		bound++
	}
	return bound
}

// symmetric reports whether the values below 0 are the negatives of values above it.
func (e *Encoder) symmetric() bool {
	zero := int(e.zero)
	for c := range zero {
		if up := 2*zero - c; up > 255 || e.m[c] != -e.m[up] {
			return false
		}
	}
	return zero == 0 || e.m[zero] == 0
}

// keep returns the least difference of the code of a negative value from the code of 0.
func (e *Encoder) keep() uint8 {
	if e.zero > 0 && e.limit[e.zero-1] == 0 {
		return 1
	}
	return 0
}
