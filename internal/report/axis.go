package report

import (
	"math"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/meter"
)

// Tick is a label of an axis.
type Tick struct {
	At   Share
	Text string
}

// Share is a position along an axis or a length, in percent of the axis.
type Share float64

// String writes the share as SVG wants it, such as "12.5%".
func (s Share) String() string { return strconv.FormatFloat(float64(s), 'f', 2, 64) + "%" }

// axis maps numbers to positions.
type axis struct {
	from, to float64
	ticks    []float64
	format   func(float64) string
}

// at returns the position of a number, from 0 to 1.
func (a axis) at(x float64) float64 {
	if a.to == a.from {
		return 0.5
	}
	return min(max((x-a.from)/(a.to-a.from), 0), 1)
}

// labels returns the ticks of an axis that goes to the right, or of one that goes up.
func (a axis) labels(up bool) (list []Tick) {
	for _, x := range a.ticks {
		at := a.at(x)
		if up {
			at = 1 - at
		}
		list = append(list, Tick{Share(100 * at), a.format(x)})
	}
	return list
}

// maxTicks is the largest number of steps between the ticks of an axis. The labels have room on a telephone.
const maxTicks = 5

// stepsAxis is an axis of steps, whose ticks are whole numbers.
func stepsAxis(first, last int) axis {
	a := axis{from: float64(first), to: float64(max(first, last)), format: func(x float64) string { return grouped(int64(x)) }}
	if last >= 1e6 {
		a.format = func(x float64) string { return strconv.FormatFloat(x/1e6, 'g', 4, 64) + "M" }
	}
	step := 1.0
	for a.to-a.from > step*maxTicks {
		step = next(step)
	}
	for x := math.Ceil(a.from/step) * step; x <= a.to; x += step {
		a.ticks = append(a.ticks, x)
	}
	return a
}

// next returns the number that follows in 1, 2, 5, 10, 20, ...
func next(step float64) float64 {
	digit := math.Round(step / math.Pow(10, math.Floor(math.Log10(step)+1e-9)))
	if digit == 2 {
		return step * 2.5
	}
	return step * 2
}

// numbersAxis is an axis for numbers from least to most, with ends on ticks.
func numbersAxis(least, most float64) axis {
	if !(most > least) {
		room := max(math.Abs(most)*0.1, 1e-6)
		least, most = least-room, most+room
	}
	step := math.Pow(10, math.Floor(math.Log10(most-least))-1)
	for math.Ceil(most/step)-math.Floor(least/step) > maxTicks {
		step = next(step)
	}
	digits := max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	a := axis{from: math.Floor(least/step) * step, to: math.Ceil(most/step) * step}
	largest := max(math.Abs(a.from), math.Abs(a.to))
	a.format = func(x float64) string {
		switch x = math.Round(x/step) * step; {
		case x == 0:
			return "0"
		case largest >= 1e6 || digits > 6:
			return strconv.FormatFloat(x, 'g', int(math.Ceil(math.Log10(largest/step)-1e-9))+1, 64)
		case digits == 0:
			return grouped(int64(x))
		}
		return strconv.FormatFloat(x, 'f', digits, 64)
	}
	for i := 0.0; a.from+i*step <= a.to+step/2; i++ {
		a.ticks = append(a.ticks, a.from+i*step)
	}
	return a
}

// bytesAxis is an axis for 0 to most bytes, with ticks at powers of two and their multiples.
func bytesAxis(most int64) axis {
	step, top := 1.0, float64(max(1, most))
	for top > step*(maxTicks-1) {
		step *= 2
	}
	a := axis{to: top * 1.02, format: func(x float64) string { return strings.Replace(meter.FormatBytes(int64(x)), ".00 ", " ", 1) }}
	for x := 0.0; x <= top; x += step {
		a.ticks = append(a.ticks, x)
	}
	return a
}

// grouped writes a number with commas between groups of three digits.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, text = "−", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}
