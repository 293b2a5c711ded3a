package measure

import (
	"fmt"
	"math"
)

// Lost counts the updates that rounding has lost. The update of an element is the difference between the value that an
// optimizer computed in float32 and the value that was stored before the step. The update is lost if the stored value
// is the same after the step as before it.
type Lost struct {
	Updates     int64   // updates that are finite and not 0
	Lost        int64   // lost updates among Updates
	Squares     float64 // sum of the squares of all counted updates
	LostSquares float64 // sum of the squares of the lost updates
	Stochastic  bool    // values are rounded at random: what some elements lose, others gain
	Remedy      string  // what would keep the lost updates
}

// Add adds the counts of o, and takes over its Stochastic and Remedy.
func (l *Lost) Add(o Lost) {
	l.Updates, l.Lost = l.Updates+o.Updates, l.Lost+o.Lost
	l.Squares, l.LostSquares = l.Squares+o.Squares, l.LostSquares+o.LostSquares
	l.Stochastic, l.Remedy = o.Stochastic, o.Remedy
}

// Count counts the updates of some elements, given the values that were stored before the step, the values that the
// step computed, and the values that were stored after it. The three slices have the same length.
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

// Share returns Lost/Updates, from 0 to 1, or 0 if there are no updates.
func (l Lost) Share() float64 {
	if l.Updates == 0 {
		return 0
	}
	return float64(l.Lost) / float64(l.Updates)
}

// NormShare returns the norm of the lost updates as a share of the norm of all updates, from 0 to 1, or 0 if there are
// no updates.
func (l Lost) NormShare() float64 {
	if !(l.Squares > 0) {
		return 0
	}
	return math.Sqrt(l.LostSquares / l.Squares)
}

// String returns both shares, the number of updates and, if any update is lost, the remedy.
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
