package blockq

import "math"

// Lines find codes without a comparison. The limits of a dynamic map lie on a few straight lines: over a bucket of
// quotients, code c begins where a line is c. With x the magnitude of a quotient, scaled and raised to
//
//	y = x·lineScale + lineBias    from 2^-16 to 1
//
// the bucket of y is its lowest 4 bits of exponent and highest 4 of fraction, and
//
//	t = slope·y + offset    with offset[key[bucket]]
//
// is the code that x has above the code of 0, plus 256 and lineMargin. In float32 t has 15 bits of fraction. Where
// it is less than 2·lineMargin, rounding may have moved x over a limit, and the code is looked for in another way.
// Everywhere else the code is right: fit has proven it for every bucket.
type Lines struct {
	key           [256]uint8
	slope, offset [maxLines]float32
	zero          uint8 // the code of 0
	keep          uint8 // the least difference of the code of a negative value from zero
}

// The scale and the bias put the ends of the lines of both dynamic maps into different buckets.
const (
	lineScale  = 121.0 / 128
	lineBias   = 0x1.02p-16
	lineMargin = 0x1p-13
	lineBase   = 256
	maxLines   = 16
	buckets    = 256
)

// bucket returns the ends of bucket i, counted from the least y.
func bucket(i int) (low, high float64) {
	return bucketEnd(i), min(bucketEnd(i+1), lineScale+lineBias)
}

func bucketEnd(i int) float64 { return math.Ldexp(1+float64(i%16)/16, i/16-16) }

// line is slope·y + offset, without lineBase and lineMargin.
type line struct{ slope, offset float64 }

// through returns the line that is c at y and c+n at z, as float32 holds it.
func through(y, z float64, c, n int) line {
	slope := float64(float32(float64(n) / (z - y)))
	return line{slope, rounded(float64(c) - slope*y)}
}

func rounded(offset float64) float64 {
	const base = lineBase + lineMargin
	return float64(float32(offset+base)) - base
}

// fitter finds the lines of the limits above 0, in the units of y.
type fitter struct {
	limits []float64
	lines  []line
}

// below returns how many limits are below y.
func (f *fitter) below(y float64) int {
	n := 0
	for n < len(f.limits) && f.limits[n] < y {
		n++
	}
	return n
}

// fits says whether a line gives the codes of bucket i.
func (f *fitter) fits(l line, i int) bool {
	low, high := bucket(i)
	// The kernel rounds to y three times, and once to t, the quotient once.
	far := lineMargin - 4*0x1p-24*l.slope*high - 0x1p-16
	low, high = max(low*(1-0x1p-22), lineBias), high*(1+0x1p-22)
	first, last := f.below(low), f.below(high)
	for c := first; c < last; c++ {
		if math.Abs(l.slope*f.limits[c]+l.offset-float64(c+1)) > far {
			return false
		}
	}
	end := float64(last + 1)
	if last == len(f.limits) {
		end -= 2 * lineMargin // t stays below twice the base
	}
	return far > 0 && l.slope*low+l.offset >= float64(first)-far && l.slope*high+l.offset < end+far
}

// reach returns how many buckets from i on a line fits.
func (f *fitter) reach(l line, i int) int {
	n := 0
	for i+n < buckets && bucketEnd(i+n) < lineScale+lineBias && f.fits(l, i+n) {
		n++
	}
	return n
}

// next returns a line for bucket i, an earlier one if possible, and how many buckets it fits.
func (f *fitter) next(i int) (number, n int) {
	for number, l := range f.lines {
		if n := f.reach(l, i); n > 0 {
			return number, n
		}
	}
	low, _ := bucket(i)
	first := f.below(low)
	best := line{0, float64(first) + 0.5}
	n = f.reach(best, i)
	try := func(l line) {
		if r := f.reach(l, i); r > n {
			best, n = l, r
		}
	}
	for c := max(first-1, 0); c <= first && c+1 < len(f.limits); c++ {
		last, gap := c+1, f.limits[c+1]-f.limits[c]
		for last+1 < len(f.limits) && math.Abs(f.limits[last+1]-f.limits[last]-gap) < gap/1024 {
			last++
		}
		try(through(f.limits[c], f.limits[last], c+1, last-c))
		try(through(f.limits[c], f.limits[c+1], c+1, 1))
	}
	f.lines = append(f.lines, best)
	return len(f.lines) - 1, n
}

// fit sets the lines of an encoder whose limits are known. It is not ok if they have none: the values below 0 are
// not the negatives of values above it, or the limits lie on too many lines.
func (l *Lines) fit(e *Encoder) (ok bool) {
	*l = Lines{zero: e.zero, keep: e.keep()}
	if !e.symmetric() {
		return false
	}
	var f fitter
	for _, limit := range e.limit[e.zero:255] {
		f.limits = append(f.limits, float64(limit)*lineScale+lineBias)
	}
	for i := 0; i < buckets && bucketEnd(i) < lineScale+lineBias; {
		number, n := f.next(i)
		if n == 0 || number == maxLines {
			return false
		}
		for range n {
			l.key[uint8(i-16)] = uint8(number) // the exponent of bucket 0 ends in 1111
			i++
		}
	}
	for i, x := range f.lines {
		l.slope[i], l.offset[i] = float32(x.slope), float32(x.offset+lineBase+lineMargin)
	}
	return true
}
