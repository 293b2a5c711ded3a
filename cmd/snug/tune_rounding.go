package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/console"
)

// lossy is a parameter that lost updates to rounding.
type lossy struct {
	name string
	amp.LostUpdates
}

// mostLossy is how many parameters a report names.
const mostLossy = 8

// reportRounding prints which updates rounding lost in the steps of this process: over all parameters, and for those that
// lost the largest shares. It stores the share over all parameters in r.
func (t *tuning) reportRounding(w io.Writer, r *result) {
	if !t.rounding {
		return
	}
	var all amp.LostUpdates
	var list []lossy
	for name, l := range t.trainer.LostUpdates() {
		all.Add(l)
		if l.Lost > 0 {
			list = append(list, lossy{name, l})
		}
	}
	if all.Updates == 0 {
		fmt.Fprintln(w, "updates lost to rounding: none, as the weights that train are kept in float32 as a whole")
		return
	}
	r.LostShare = all.Share()
	fmt.Fprintf(w, "updates of weights: %s\n", all)
	slices.SortStableFunc(list, func(a, b lossy) int { return cmp.Compare(b.Share(), a.Share()) })
	for _, p := range list[:min(mostLossy, len(list))] {
		fmt.Fprintf(w, "  %s: %.2f %% of %d, %.2f %% of their norm\n", printable(p.name), 100*p.Share(), p.Updates, 100*p.NormShare())
	}
	if more := len(list) - mostLossy; more > 0 {
		fmt.Fprintf(w, "  and less of %s\n", console.Count(more, "other parameter"))
	}
}
