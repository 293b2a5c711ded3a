package measure

import (
	"fmt"
	"math"
)

// Lost counts updates that rounding has lost: the update of an element is the difference between the value that an
// optimizer computed in float32 and the value that was stored before. It is lost if the value that is stored after is
// the same as before.
type Lost struct {
	Updates     int64   // updates that are finite and not 0
	Lost        int64   // those of them that are lost
	Squares     float64 // sum of the squares of the updates
	LostSquares float64 // sum of the squares of the lost ones
	Stochastic  bool    // values are rounded at random: what some elements lose, others gain
	Remedy      string  // what would keep the updates
}

// Add adds what o has counted.
func (l *Lost) Add(o Lost) {
	l.Updates, l.Lost = l.Updates+o.Updates, l.Lost+o.Lost
	l.Squares, l.LostSquares = l.Squares+o.Squares, l.LostSquares+o.LostSquares
	l.Stochastic, l.Remedy = o.Stochastic, o.Remedy
}

// Count counts the updates of some elements: the values stored before, computed and stored after, which have one
// length.
func (l *Lost) Count(before, computed, after []float32) {
	for i, old := range before {
		u := float64(computed[i]) - float64(old)
		if u == 0 || u-u != 0 {
			continue
		}
		l.Updates++
		l.Squares += u * u
		if after[i] == old {
			l.Lost++
			l.LostSquares += u * u
		}
	}
}

// Share returns the share of the updates that are lost, from 0 to 1; 0 without updates.
func (l Lost) Share() float64 {
	if l.Updates == 0 {
		return 0
	}
	return float64(l.Lost) / float64(l.Updates)
}

// NormShare returns the norm of the lost updates as a share of the norm of all; 0 without updates.
func (l Lost) NormShare() float64 {
	if !(l.Squares > 0) {
		return 0
	}
	return math.Sqrt(l.LostSquares / l.Squares)
}

// String says the shares, and what would help if any are lost.
func (l Lost) String() string {
	text := fmt.Sprintf("%.2f %% of %d updates lost to rounding, %.2f %% of their norm", 100*l.Share(), l.Updates, 100*l.NormShare())
	switch {
	case l.Lost == 0:
		return text
	case l.Stochastic:
		text += "; none on average, as they round at random"
	}
	if l.Remedy != "" {
		text += "; what would help: " + l.Remedy
	}
	return text
}
