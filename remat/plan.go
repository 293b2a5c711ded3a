package remat

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
)

// Kind is what an operation does. The package documentation has the table of
// what each needs and how much memory it takes.
type Kind uint8

// The kinds of operations. The zero Kind is none.
const (
	ForwardDiscard Kind = iota + 1 // run the stage, keep its output
	ForwardSave                    // run the stage, keep its saved set, which holds its output
	Backward                       // run the stage's backward step, use up its saved set
	DropOutput                     // release the output that ForwardDiscard kept
	DropSaved                      // release the saved set
)

// notation is how operations are written, followed by the number of the stage.
var notation = [...]string{"?", "F", "S", "B", "-F", "-S"}

// String returns the notation of the kind: F, S and B for the two forward
// operations and the backward one, -F and -S for dropping what F and S kept.
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
	for k := ForwardDiscard; k <= DropSaved; k++ {
		if digits, ok := strings.CutPrefix(s, notation[k]); ok {
			stage, err := strconv.ParseUint(digits, 10, 31)
			return Op{k, int(stage)}, err == nil
		}
	}
	return Op{}, false
}

// Plan is one forward and backward pass over a chain. The operations are the
// vocabulary of non-persistent plans too: a value may be computed, dropped and
// computed again any number of times before its backward step.
//
// A Plan is data: make one with a planner, by hand, or from JSON with
// [ParsePlan].
type Plan struct {
	Name   string // of the planner and its parameter, for people
	Stages int    // stages of the chain
	Ops    []Op
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

// Validate reports whether p can run: every operation finds what it needs, no
// value is computed while it is held, and every stage has one backward step,
// from the last to the first, with no forward step after it. Nothing but a_0
// and d_0 is then held at the end. The error names the operation and wraps
// [snug.ErrConfig]. It takes one byte of memory per stage.
func (p Plan) Validate() error {
	return p.walk(func(Op, form) {})
}

// walk validates p. It calls visit with every operation and the form in which
// the output of its stage was held before it.
func (p Plan) walk(visit func(op Op, before form)) error {
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
	// A backward step takes its stage's values with it and none come after, so
	// that nothing is left when all are done.
	if s.next >= 0 {
		return fmt.Errorf("remat: plan: the backward steps of stages 0 to %d are missing: %w", s.next, snug.ErrConfig)
	}
	return nil
}

// form is how a stage's output is held.
type form uint8

const (
	absent form = iota
	output      // by itself
	saved       // within the stage's saved set
)

// state is what a plan has done so far.
type state struct {
	forms []form // of the stages' outputs
	next  int    // the stage whose backward step comes next, -1 when all are done
}

func newState(stages int) *state {
	return &state{forms: make([]form, stages), next: stages - 1}
}

// apply carries out op and returns how the output of its stage was held
// before, or why op is not possible.
func (s *state) apply(op Op) (before form, problem string) {
	i := op.Stage
	if i < 0 || i >= len(s.forms) {
		return absent, "there is no such stage"
	}
	before = s.forms[i]
	switch op.Kind {
	case ForwardDiscard:
		problem = s.forward(i, before != absent)
		s.forms[i] = output
	case ForwardSave:
		problem = s.forward(i, before == saved)
		s.forms[i] = saved
	case Backward:
		problem = s.backward(i)
		s.forms[i] = absent
		s.next--
	case DropOutput:
		if before != output {
			problem = "the output is not held by itself"
		}
		s.forms[i] = absent
	case DropSaved:
		if before != saved {
			problem = "the saved set is not held"
		}
		s.forms[i] = absent
	default:
		problem = "there is no such operation"
	}
	return before, problem
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
	case s.forms[i] != saved:
		return "the saved set is not held"
	case !s.hasInput(i):
		return "the stage's input is not held"
	}
	return ""
}

func (s *state) hasInput(i int) bool { return i == 0 || s.forms[i-1] != absent }
