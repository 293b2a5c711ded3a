package main

import "fmt"

const planColumns = "  %8s %12s  %-9s %-14s %14s %14s %10s %9s %6s %6s %7s"

// head follows the row of the pass that keeps everything, before the rows of plans. What
// that pass takes next to itself is noise.
func (p *planned) head() string {
	return fmt.Sprintf("  everything kept: %d bytes simulated, %d measured; %s simulated; measured next to itself %s, ±%s\n",
		p.Simulated, p.Measured, seconds(p.Time), percent(p.Overhead), percent(p.OverheadSpread)[1:]) +
		"  bytes are of activations and their gradients only, by the chain's ledger, not of parameters and of temporaries of a step\n" +
		"  simulated times count whole forward steps; a stage that is computed again leaves out its last product if nothing uses that\n" +
		"  lean: norms and gelu are not saved but computed in every backward step; DTR's: in PyTorch on a Titan V, whole models\n" +
		fmt.Sprintf(planColumns, "of all", "budget", "method", "plan", "peak simulated", "peak measured", "time sim.", "measured", "±", "gap", "DTR's")
}

// line is the row of a plan.
func (p *planned) line() string {
	published := "–"
	if p.Published != nil {
		published = percent(*p.Published)
	}
	of, budget := fmt.Sprintf("%.1f%%", 100*p.Fraction), fmt.Sprint(p.Budget)
	if p.Minimum > 0 {
		return fmt.Sprintf(planColumns, of, budget, p.Method, fmt.Sprintf("none below %d", p.Minimum), "", "", "", "", "", "", published)
	}
	return fmt.Sprintf(planColumns, of, budget, p.Method, p.Plan, fmt.Sprint(p.Simulated), fmt.Sprint(p.Measured),
		percent(p.SimulatedOverhead), percent(p.Overhead), percent(p.OverheadSpread)[1:], percent(p.Gap)[1:], published)
}

// percent formats a fraction with its sign.
func percent(x float64) string { return fmt.Sprintf("%+.1f%%", 100*x) }
