package console

import (
	"math"
	"strings"
)

// maxSpark is the largest number of letters of a sparkline.
const maxSpark = 60

// sparkline is a picture of numbers in a line of text. It has up to 2·maxSpark means of as many numbers each.
type sparkline struct {
	means []float64 // of the numbers that are finite, NaN if there are none
	each  int       // numbers of a mean
	in    int       // numbers of the last mean
	known int       // those of them that are finite
}

// add adds a number.
func (s *sparkline) add(x float64) {
	if math.Abs(x) > math.MaxFloat32 {
		x = math.NaN()
	}
	s.each = max(1, s.each)
	n := len(s.means)
	if n > 0 && s.in < s.each {
		last := &s.means[n-1]
		s.in++
		if math.IsNaN(x) {
			return
		}
		if s.known++; s.known == 1 {
			*last = x
		}
		*last += (x - *last) / float64(s.known)
		return
	}
	if n == 2*maxSpark {
		for i := range maxSpark {
			a, b := s.means[2*i], s.means[2*i+1]
			switch {
			case math.IsNaN(a):
				a = b
			case !math.IsNaN(b):
				a = (a + b) / 2
			}
			s.means[i] = a
		}
		s.means, s.each = s.means[:maxSpark], 2*s.each
	}
	s.means, s.in, s.known = append(s.means, x), 1, 1
	if math.IsNaN(x) {
		s.known = 0
	}
}

// draw returns the picture in at most a number of letters, with a space where there is no finite number.
func (s *sparkline) draw(letters int) string {
	const levels = "▁▂▃▄▅▆▇" // the next is fullBlock
	list := s.means
	if letters < 1 || len(list) == 0 {
		return ""
	}
	if len(list) > letters {
		list = list[len(list)-letters:]
	}
	least, most := math.Inf(1), math.Inf(-1)
	for _, x := range list {
		if !math.IsNaN(x) {
			least, most = min(least, x), max(most, x)
		}
	}
	var b strings.Builder
	for _, x := range list {
		if math.IsNaN(x) {
			b.WriteByte(' ')
			continue
		}
		level := 3
		if most > least {
			level = int(6.999 * (x - least) / (most - least))
		}
		b.WriteString(string([]rune(levels)[level]))
	}
	return b.String()
}
