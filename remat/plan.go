package remat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
)

// Kind is the kind of an operation. A table in the package's doc says what each
// operation needs and how many bytes it takes.
type Kind uint8

// The kinds of operations. The zero Kind is none.
const (
	ForwardDiscard Kind = iota + 1 // run the stage, keep its output
	ForwardSave                    // run the stage, keep its saved set, which holds its output
	Backward                       // run the stage's backward step, use up its saved set
	DropOutput                     // release the output that ForwardDiscard kept
	DropSaved                      // release the saved set
	Pack                           // copy the saved set into a smaller, lossy form
	PageHost                       // begin to copy what is held, saved set or output, to host memory
	PageDisk                       // begin to copy it to disk
	Fetch                          // begin to bring back what the copy is of
	DropCopy                       // release the copy
)

// notation has the letters of the operations; the number of the stage follows them.
var notation = [...]string{"?", "F", "S", "B", "-F", "-S", "P", "H", "D", "L", "-C"}

// String returns the notation of the kind: F and S for the two forward operations, B for
// the backward one, -F and -S for dropping the values of F and S, P, H and D for making a
// copy, L for loading it and -C for dropping it.
func (k Kind) String() string {
	if int(k) >= len(notation) {
		return notation[0]
	}
	return notation[k]
}

// Op is one operation on one stage.
type Op struct {
	Kind  Kind
	Stage int
}

// String returns the notation of the operation, such as "S3" or "-F0".
func (o Op) String() string { return o.Kind.String() + strconv.Itoa(o.Stage) }

func (o Op) isForward() bool { return o.Kind == ForwardDiscard || o.Kind == ForwardSave }

// parseOp is the inverse of Op.String.
func parseOp(s string) (Op, bool) {
	for k := ForwardDiscard; k <= DropCopy; k++ {
		if digits, ok := strings.CutPrefix(s, notation[k]); ok {
			stage, err := strconv.ParseUint(digits, 10, 31)
			return Op{k, int(stage)}, err == nil
		}
	}
	return Op{}, false
}

// Plan is one forward and backward pass over a chain. Plans may be non-persistent: they
// may compute a value, drop it and compute it again any number of times before its
// backward step.
//
// A Plan is data: make one with a planner, by hand, or from JSON with
// [ParsePlan]. A plan without operations, such as the zero Plan, is [KeepAll] for any chain with its number of stages,
// or for every chain if that is 0.
type Plan struct {
	Name   string // of the planner and its parameter, for people
	Stages int    // stages of the chain
	Ops    []Op
}

// For returns p as a plan with operations for a chain of so many stages. The error wraps [snug.ErrShape] if p is for
// another number of stages, and [snug.ErrConfig] if p has no operations and stages is below 1 or above 2^20.
func (p Plan) For(stages int) (Plan, error) {
	if p.Stages != stages && (p.Stages != 0 || len(p.Ops) > 0) {
		return Plan{}, fmt.Errorf("remat: plan for %d stages, chain of %d: %w", p.Stages, stages, snug.ErrShape)
	}
	if len(p.Ops) > 0 {
		return p, nil
	}
	if stages < 1 || stages > maxStages {
		return Plan{}, fmt.Errorf("remat: plan without operations for %d stages, want 1 to %d: %w", stages, maxStages, snug.ErrConfig)
	}
	return Plan{Name: segmentsName(1), Stages: stages, Ops: appendSegments(make([]Op, 0, 2*stages), stages, 1)}, nil
}

// String returns the operations, separated by spaces: "S0 S1 B1 B0".
func (p Plan) String() string {
	var b strings.Builder
	for i, op := range p.Ops {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(op.String())
	}
	return b.String()
}

// Validate reports whether p can run: every operation finds its operands, no value is
// computed while it is held, and every stage has one backward step, from the last stage to
// the first, with no forward step after it. At the end the plan then holds only a_0 and
// d_0. So can a plan without operations. The error names the operation and wraps [snug.ErrConfig]. Validate takes three bytes
// of memory per stage.
func (p Plan) Validate() error {
	if p.Stages >= 0 && len(p.Ops) == 0 {
		return nil
	}
	return p.walk(func(Op, held) {})
}

// walk validates p. It calls visit with every operation and the state of its stage's
// result before it.
func (p Plan) walk(visit func(op Op, before held)) error {
	// Every stage takes two operations, so that a damaged number of stages
	// cannot make the state large.
	if p.Stages < 1 || len(p.Ops)/2 < p.Stages {
		return fmt.Errorf("remat: plan of %d operations for %d stages: want at least one stage and two operations for each: %w", len(p.Ops), p.Stages, snug.ErrConfig)
	}
	s := newState(p.Stages)
	for i, op := range p.Ops {
		before, problem := s.apply(op)
		if problem != "" {
			return fmt.Errorf("remat: plan: operation %d (%v) of a chain of %d stages: %s: %w", i, op, p.Stages, problem, snug.ErrConfig)
		}
		visit(op, before)
	}
	// A backward step uses up its stage's values, and none are made after it, so nothing is
	// left when all are done.
	if s.next >= 0 {
		return fmt.Errorf("remat: plan: the backward steps of stages 0 to %d are missing: %w", s.next, snug.ErrConfig)
	}
	return nil
}

// copies reports whether p has operations on copies.
func (p Plan) copies() bool {
	return slices.ContainsFunc(p.Ops, func(op Op) bool { return op.Kind >= Pack })
}

// unusedOutputs reports, for each operation of a valid plan, whether it saves an output
// that neither the next stage, nor the loss, nor a copy uses before it is dropped.
func unusedOutputs(p Plan) []bool {
	unused := make([]bool, len(p.Ops))
	last := make([]int, p.Stages) // operation that saved the output, plus one, if it is not used yet
	lossDone := false
	for k, op := range p.Ops {
		if i := op.Stage - 1; i >= 0 && op.Kind <= Backward {
			last[i] = 0 // it is the input
		}
		switch i := op.Stage; op.Kind {
		case ForwardSave:
			last[i] = k + 1
			if i == p.Stages-1 && !lossDone {
				last[i], lossDone = 0, true
			}
		case ForwardDiscard:
			lossDone = lossDone || i == p.Stages-1
		case Backward, DropSaved:
			if last[i] > 0 {
				unused[last[i]-1] = true
			}
			last[i] = 0
		case Pack, PageHost, PageDisk, Fetch:
			last[i] = 0
		}
	}
	return unused
}

// form is the form in which a stage's output is held.
type form uint8

const (
	absent form = iota
	output      // by itself
	saved       // within the stage's saved set
)

// held is the state of a stage's result.
type held struct {
	form   form
	copied form // form of the copied value, absent without a copy
	tier   Tier // of the copy
}

// state is the progress of a plan.
type state struct {
	results []held // of the stages
	next    int    // the stage whose backward step comes next, -1 when all are done
}

func newState(stages int) *state {
	return &state{results: make([]held, stages), next: stages - 1}
}

// apply carries out op and returns the state of its stage's result before, or why op is
// not possible.
func (s *state) apply(op Op) (before held, problem string) {
	i := op.Stage
	if i < 0 || i >= len(s.results) {
		return held{}, "there is no such stage"
	}
	before = s.results[i]
	at := &s.results[i]
	switch op.Kind {
	case ForwardDiscard:
		problem = s.forward(i, at.form != absent)
		at.form = output
	case ForwardSave:
		problem = s.forward(i, at.form == saved)
		at.form = saved
	case Backward:
		problem = s.backward(i)
		*at = held{}
		s.next--
	case DropOutput:
		if at.form != output {
			problem = "the output is not held by itself"
		}
		at.form = absent
	case DropSaved:
		if at.form != saved {
			problem = "the saved set is not held"
		}
		at.form = absent
	case Pack, PageHost, PageDisk:
		problem = at.copy(op.Kind)
	case Fetch:
		switch {
		case at.copied == absent:
			problem = "there is no copy"
		case at.form != absent:
			problem = "the result is held already"
		}
		at.form = at.copied
	case DropCopy:
		if at.copied == absent {
			problem = "there is no copy"
		}
		at.copied = absent
	default:
		problem = "there is no such operation"
	}
	return before, problem
}

// copy makes a copy.
func (h *held) copy(kind Kind) (problem string) {
	switch {
	case h.copied != absent:
		return "there is a copy already"
	case h.form == absent:
		return "nothing is held of the stage's result"
	case kind == Pack && h.form != saved:
		return "the saved set is not held"
	}
	h.copied, h.tier = h.form, kind.tier()
	return ""
}

func (s *state) forward(i int, held bool) (problem string) {
	switch {
	case i > s.next:
		return "the stage's backward step is done"
	case !s.hasInput(i):
		return "the stage's input is not held"
	case held:
		return "the result is held already"
	}
	return ""
}

func (s *state) backward(i int) (problem string) {
	switch {
	case i != s.next:
		return fmt.Sprintf("the next backward step is that of stage %d", s.next)
	case s.results[i].form != saved:
		return "the saved set is not held"
	case !s.hasInput(i):
		return "the stage's input is not held"
	}
	return ""
}

func (s *state) hasInput(i int) bool { return i == 0 || s.results[i-1].form != absent }
