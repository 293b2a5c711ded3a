package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Report is the memory and time of a plan, predicted by [Plan.Simulate] or measured by
// [Chain.Run]. Sizes are in bytes and follow the package's memory model.
type Report struct {
	Peak   int64   // largest number of bytes held at one time
	PeakOp int     // the first operation that reaches Peak; -1 if the start does
	Time   float64 // simulated: by the declared times; measured: seconds without the loss
	Extra  int     // forward steps beyond one a stage

	Again  float64 // simulated: the time of the extra forward steps
	Waited float64 // of Time: for transfers; measured: in seconds
	Host   int64   // largest number of bytes of copies in host memory
	Disk   int64   // and on disk
	Packed int     // saved sets that were packed, with a loss

	// Bound is a lower bound of the time of all plans under the budget that the plan
	// was made for. Only a [Planner] fills it.
	Bound float64

	// Timeline has one entry for every operation.
	Timeline []Bytes
	// Mismatches lists each value whose measured size differs from the declared one, once, and transient bytes beyond
	// the declared ones. Only a run of a Chain that has Costs fills it.
	Mismatches []Mismatch
}

// Bytes counts the memory that a plan holds at one operation.
type Bytes struct {
	Peak int64 // while it runs
	Held int64 // after it
	Host int64 // in host memory, after it
	Disk int64 // on disk, after it
}

// Mismatch is a value whose measured size differs from its declared size.
type Mismatch struct {
	Value    ValueKind
	Index    int // i of a_i, s_i, d_i, f_i or b_i
	Declared int64
	Measured int64 // in the first computation that differs; of f_i and b_i the most
}

// ValueKind is a kind of value in the package's memory model.
type ValueKind uint8

// The kinds of values.
const (
	Activation        ValueKind = iota // a_i
	SavedSet                           // s_i
	Gradient                           // d_i
	ForwardTransient                   // f_i
	BackwardTransient                  // b_i
	valueKinds
)

func (k ValueKind) transient() bool { return k >= ForwardTransient }

// String returns "a", "s", "d", "f" or "b".
func (k ValueKind) String() string {
	if k >= valueKinds {
		return "?"
	}
	return "asdfb"[k : k+1]
}

// String formats the mismatch as "s3: 4096 bytes declared, 8192 measured".
func (m Mismatch) String() string {
	return fmt.Sprintf("%v%d: %d bytes declared, %d measured", m.Value, m.Index, m.Declared, m.Measured)
}

// Simulate predicts what p takes on a chain of costs c. The error wraps
// [snug.ErrConfig] when p or c is not valid, or p makes copies in a tier that c has
// no rates or sizes for, and [snug.ErrShape] when they differ in the number of
// stages. It takes 32 bytes of memory per operation, for the timeline.
func (p Plan) Simulate(c Costs) (Report, error) {
	if err := c.Validate(); err != nil {
		return Report{}, err
	}
	p, err := p.For(len(c.Stages))
	if err != nil {
		return Report{}, err
	}
	if err := p.checkTiers(c); err != nil {
		return Report{}, err
	}
	return p.simulate(c, make([]Bytes, 0, len(p.Ops)))
}

// checkTiers reports whether c has the rates and sizes that the copies of p need.
func (p Plan) checkTiers(c Costs) error {
	for i, op := range p.Ops {
		missing := false
		switch op.Kind {
		case Pack:
			missing = op.Stage >= 0 && op.Stage < len(c.Stages) && c.Stages[op.Stage].Packed == 0
		case PageHost, PageDisk:
			missing = c.rates(op.Kind.tier()) == Rates{}
		}
		if missing {
			return fmt.Errorf("remat: plan: operation %d (%v): the costs have no such tier: %w", i, op, snug.ErrConfig)
		}
	}
	return nil
}

// simulate is Simulate after its checks. It appends to timeline if that is not
// nil.
func (p Plan) simulate(c Costs, timeline []Bytes) (Report, error) {
	s := simulation{c: c}
	s.ledger.start(c.Input, timeline)
	s.ledger.reserve(c.value(p.Stages))
	if p.copies() {
		s.clock.start(p.Stages)
	}
	if err := p.walk(s.do); err != nil {
		return Report{}, err
	}
	r := s.ledger.report()
	r.Time, r.Waited, r.Packed = s.clock.now, s.clock.waited, s.packed
	r.Extra, r.Again = s.forwards-p.Stages, s.forward
	for _, stage := range c.Stages {
		r.Again -= stage.ForwardTime
	}
	if r.Extra == 0 {
		r.Again = 0 // whatever the order of the additions
	}
	return r, nil
}

// simulation is a plan's way through the costs of a chain.
type simulation struct {
	c        Costs
	ledger   ledger
	clock    clock
	forwards int
	forward  float64 // time of the forward steps
	packed   int
}

func (s *simulation) do(op Op, before held) {
	stage := &s.c.Stages[op.Stage]
	switch op.Kind {
	case ForwardDiscard:
		s.compute(op.Stage, stage.ForwardTime)
		s.ledger.step(0, stage.Output, stage.ForwardExtra, 0)
	case ForwardSave:
		s.settle(op.Stage, before)
		replaced := int64(0)
		if before.form == output {
			replaced = stage.Output
		}
		s.compute(op.Stage, stage.ForwardTime)
		s.ledger.step(replaced, stage.Saved, stage.ForwardExtra, 0)
	case Backward:
		s.await(op.Stage)
		s.compute(op.Stage, stage.BackwardTime)
		s.settle(op.Stage, before)
		freed := stage.Saved + s.uncopy(op.Stage, before)
		s.ledger.step(stage.Output, s.c.value(op.Stage), stage.BackwardExtra, freed)
	case DropOutput:
		s.settle(op.Stage, before)
		s.ledger.step(stage.Output, 0, 0, 0)
	case DropSaved:
		s.settle(op.Stage, before)
		s.ledger.step(stage.Saved, 0, 0, 0)
	case Pack, PageHost, PageDisk:
		s.store(op, before.form)
	case Fetch:
		s.fetch(op.Stage, before)
	case DropCopy:
		s.settle(op.Stage, before)
		s.ledger.step(s.uncopy(op.Stage, before), 0, 0, 0)
	}
	if op.isForward() {
		s.forward += stage.ForwardTime
		s.forwards++
	}
}

// compute takes the time of a step, once its input is there.
func (s *simulation) compute(stage int, time float64) {
	if stage > 0 {
		s.await(stage - 1)
	}
	s.clock.now += time
}

// await waits until the loads of the result of a stage are complete.
func (s *simulation) await(stage int) {
	if s.clock.loaded != nil {
		s.clock.wait(s.clock.loaded[stage])
	}
}

// settle waits for the transfers of the result of a stage.
func (s *simulation) settle(stage int, before held) {
	s.await(stage)
	if before.copied != absent {
		s.clock.wait(s.clock.stored[stage])
	}
}

// store makes a copy of the result of a stage.
func (s *simulation) store(op Op, copied form) {
	t := op.Kind.tier()
	size := s.c.copySize(op.Stage, copied, t)
	s.await(op.Stage)
	if t == Packed {
		s.packed++
		s.clock.now += s.c.Stages[op.Stage].PackTime
		s.ledger.step(0, size, 0, 0)
		return
	}
	s.clock.write(op.Stage, t, size, s.c.rates(t))
	s.ledger.copy(t, size)
}

// fetch loads the copy of the result of a stage.
func (s *simulation) fetch(stage int, before held) {
	cost := &s.c.Stages[stage]
	if before.tier == Packed {
		s.clock.now += cost.UnpackTime
	} else {
		s.clock.read(stage, before.tier, s.c.copySize(stage, before.copied, before.tier), s.c.rates(before.tier))
	}
	size := cost.Output
	if before.copied == saved {
		size = cost.Saved
	}
	s.ledger.step(0, size, 0, 0)
}

// uncopy takes the copy of the result of a stage out of the account, and returns
// the bytes that it had in device memory.
func (s *simulation) uncopy(stage int, before held) (device int64) {
	if before.copied == absent {
		return 0
	}
	size := s.c.copySize(stage, before.copied, before.tier)
	if before.tier == Packed {
		return size
	}
	s.ledger.uncopy(before.tier, size)
	return 0
}

// ledger is the memory model's account of bytes, for simulated and for real
// values.
type ledger struct {
	held     int64
	peak     int64
	ops      int // steps so far
	peakOp   int
	timeline []Bytes // nil: not kept

	copies, copiesPeak [tiers]int64 // by tier, outside of device memory
}

// report returns the totals of the account.
func (l *ledger) report() Report {
	return Report{Peak: l.peak, PeakOp: l.peakOp, Host: l.copiesPeak[Host], Disk: l.copiesPeak[Disk], Timeline: l.timeline}
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

// step accounts for one operation: it replaces `replaced` bytes by added ones, takes extra
// bytes while it runs, and frees some at its end.
func (l *ledger) step(replaced, added, extra, freed int64) {
	l.held += added - replaced
	peak := l.held + extra
	if peak > l.peak {
		l.peak, l.peakOp = peak, l.ops
	}
	l.held -= freed
	l.ops++
	if l.timeline != nil {
		l.timeline = append(l.timeline, Bytes{Peak: peak, Held: l.held, Host: l.copies[Host], Disk: l.copies[Disk]})
	}
}

// copy accounts for an operation that puts a copy of a value in a tier.
func (l *ledger) copy(t Tier, size int64) {
	l.copies[t] += size
	l.copiesPeak[t] = max(l.copiesPeak[t], l.copies[t])
	l.step(0, 0, 0, 0)
}

// uncopy removes a copy, before the step of the operation that drops it.
func (l *ledger) uncopy(t Tier, size int64) { l.copies[t] -= size }
