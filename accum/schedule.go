package accum

import "math"

// Progress is what a run has seen before a window.
type Progress struct {
	Step   int     // full windows
	Weight float64 // of their micro-batches that counted
}

// Target says when a window is full: as soon as it has Micros micro-batches, or
// micro-batches of a total weight of Weight, whichever comes first. 0 is no
// limit.
type Target struct {
	Micros int
	Weight float64
}

// valid reports whether t ends a window.
func (t Target) valid() bool {
	return t.Micros >= 0 && t.Weight >= 0 && t.Weight <= math.MaxFloat64 && (t.Micros > 0 || t.Weight > 0)
}

// reached reports whether a window of micro-batches with a weight is full.
func (t Target) reached(micros int, weight float64) bool {
	return t.Micros > 0 && micros >= t.Micros || t.Weight > 0 && weight >= t.Weight
}

// Schedule says how large windows are. It is asked when the first micro-batch of a window
// begins. A Schedule that is an
// encoding.BinaryAppender and an encoding.BinaryUnmarshaler is saved and
// restored with the [Window].
type Schedule interface {
	// Target returns when the window after p is full. One limit at least is
	// above 0.
	Target(p Progress) Target
}

// Constant is the Schedule with the same number of micro-batches in every
// window.
type Constant int

// Target returns a limit of c micro-batches.
func (c Constant) Target(Progress) Target { return Target{Micros: int(c)} }

// Weight is the Schedule whose windows are full when their micro-batches have
// this weight: so many samples, or, with tokens as weights, a batch of so many
// tokens however long the sequences are. The last micro-batch may exceed it.
type Weight float64

// Target returns a limit of w.
func (w Weight) Target(Progress) Target { return Target{Weight: float64(w)} }

// Ramp is the Schedule whose windows grow from a weight of Start by steps of
// Increment to Global, spread evenly over the first Over of weight that is
// seen, as Megatron-LM's --rampup-batch-size. All are weights on this rank.
// Global is reached after Over, and also when the steps do not end there; Start
// may be Global. Of a Ramp that starts at 0, has a Start above Global or does not
// grow, [New] says that it is wrong.
type Ramp struct {
	Start, Increment, Global, Over float64
}

// Target returns a limit of the weight after p.
func (r Ramp) Target(p Progress) Target {
	switch {
	case !(r.Start > 0) || !(r.Start <= r.Global) || !(r.Over >= 0) || r.Start < r.Global && !(r.Increment > 0):
		return Target{}
	case p.Weight >= r.Over || r.Start == r.Global:
		return Target{Weight: r.Global}
	}
	steps := math.Ceil((r.Global - r.Start) / r.Increment)
	return Target{Weight: min(r.Global, r.Start+r.Increment*math.Floor(p.Weight/r.Over*steps))}
}
