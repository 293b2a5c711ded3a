package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Report is what a plan takes, predicted by [Plan.Simulate] or measured by
// [Chain.Run]. Sizes are in bytes and follow the package's memory model.
type Report struct {
	Peak   int64   // largest number of bytes held at one time
	PeakOp int     // the first operation that reaches Peak; -1 if the start does
	Time   float64 // simulated: the sum of the declared times; measured: seconds without those of the loss
	Extra  int     // forward steps beyond one a stage

	// Bound is a lower bound of the time of all plans under the budget that the plan
	// was made for. Only a [Planner] fills it.
	Bound float64

	// Timeline has one entry for every operation.
	Timeline []Bytes
	// Mismatches lists the values whose measured sizes are not the declared
	// ones, each once. Only a run of a Chain that has Costs fills it.
	Mismatches []Mismatch
}

// Bytes is what is held around one operation.
type Bytes struct {
	Peak int64 // while it runs
	Held int64 // after it
}

// Mismatch is a value whose size is not what the costs say.
type Mismatch struct {
	Value    ValueKind
	Index    int // i of a_i, s_i or d_i
	Declared int64
	Measured int64 // of its first computation that differs
}

// ValueKind is a kind of value in the package's memory model.
type ValueKind uint8

// The kinds of values.
const (
	Activation ValueKind = iota // a_i
	SavedSet                    // s_i
	Gradient                    // d_i
	valueKinds
)

// String returns "a", "s" or "d".
func (k ValueKind) String() string {
	if k >= valueKinds {
		return "?"
	}
	return "asd"[k : k+1]
}

// String formats the mismatch as "s3: 4096 bytes declared, 8192 measured".
func (m Mismatch) String() string {
	return fmt.Sprintf("%v%d: %d bytes declared, %d measured", m.Value, m.Index, m.Declared, m.Measured)
}

// Simulate predicts what p takes on a chain of costs c. The error wraps
// [snug.ErrConfig] when p or c is not valid, [snug.ErrShape] when they differ
// in the number of stages. It takes 16 bytes of memory per operation, for the
// timeline.
func (p Plan) Simulate(c Costs) (Report, error) {
	if err := c.Validate(); err != nil {
		return Report{}, err
	}
	if p.Stages != len(c.Stages) {
		return Report{}, fmt.Errorf("remat: plan for %d stages, costs of %d: %w", p.Stages, len(c.Stages), snug.ErrShape)
	}
	return p.simulate(c, make([]Bytes, 0, len(p.Ops)))
}

// simulate is Simulate after its checks. It appends to timeline if that is not
// nil.
func (p Plan) simulate(c Costs, timeline []Bytes) (Report, error) {
	var (
		l        ledger
		elapsed  float64
		forwards int
	)
	l.start(c.Input, timeline)
	l.reserve(c.value(p.Stages))
	err := p.walk(func(op Op, before form) {
		stage := &c.Stages[op.Stage]
		switch op.Kind {
		case ForwardDiscard:
			l.step(0, stage.Output, stage.ForwardExtra, 0)
		case ForwardSave:
			replaced := int64(0)
			if before == output {
				replaced = stage.Output
			}
			l.step(replaced, stage.Saved, stage.ForwardExtra, 0)
		case Backward:
			l.step(stage.Output, c.value(op.Stage), stage.BackwardExtra, stage.Saved)
			elapsed += stage.BackwardTime
		case DropOutput:
			l.step(stage.Output, 0, 0, 0)
		case DropSaved:
			l.step(stage.Saved, 0, 0, 0)
		}
		if op.isForward() {
			elapsed += stage.ForwardTime
			forwards++
		}
	})
	if err != nil {
		return Report{}, err
	}
	return Report{Peak: l.peak, PeakOp: l.peakOp, Time: elapsed, Extra: forwards - p.Stages, Timeline: l.timeline}, nil
}

// ledger is the memory model's account of bytes, for simulated and for real
// values.
type ledger struct {
	held     int64
	peak     int64
	ops      int // steps so far
	peakOp   int
	timeline []Bytes // nil: not kept
}

// start opens the account with a_0.
func (l *ledger) start(input int64, timeline []Bytes) {
	*l = ledger{held: input, peak: input, peakOp: -1, timeline: timeline}
}

// reserve adds d_n to all that has been held so far: the executor learns its
// size only when the loss is evaluated.
func (l *ledger) reserve(gradient int64) {
	l.held += gradient
	l.peak += gradient
	for i := range l.timeline {
		l.timeline[i].Peak += gradient
		l.timeline[i].Held += gradient
	}
}

// step accounts for one operation: it puts added bytes in the place of
// replaced ones, takes extra bytes while it runs, and frees some at its end.
func (l *ledger) step(replaced, added, extra, freed int64) {
	l.held += added - replaced
	peak := l.held + extra
	if peak > l.peak {
		l.peak, l.peakOp = peak, l.ops
	}
	l.held -= freed
	l.ops++
	if l.timeline != nil {
		l.timeline = append(l.timeline, Bytes{Peak: peak, Held: l.held})
	}
}
