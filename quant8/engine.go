package quant8

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// method is what a rule does beside its equation, and what it keeps once for all parameters of an optimizer. Most rules
// have the method plain.
type method interface {
	// engine returns the engine of a parameter. The error wraps a sentinel; it follows the name of the parameter.
	engine(o *options, p added) (engine, error)
	// begin is called before a step begins, which becomes step a.t+1.
	begin(a *Optimizer, lr float32)
	// scale returns the factor of gradients in the moments.
	scale(gradScale float32) (float32, error)
	// constants changes the constants of a step.
	constants(h optim.Hyper) optim.Hyper
	// numbers returns the numbers that are saved, and restore takes them back.
	numbers(a *Optimizer) []float64
	restore(a *Optimizer, numbers []float64)
	// valid says whether number i of a state that was saved at a step can be x.
	valid(i int, x float64, step uint64) bool
	// savable returns an error where a step cannot be interrupted and saved.
	savable(a *Optimizer) error
}

// engine makes the steps of a parameter. [Optimizer.Add] chooses it. Most parameters have the engine elements.
type engine interface {
	keeps() *form
	// option names the option that decides how many bytes the parameter keeps, with its value; empty if none does.
	option() string
	// step makes the step of a job whose constants are h, of elements lo on. gradScale is that of the caller.
	step(a *Optimizer, dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, gradScale float32) error
}

// added is a parameter of n elements for which an engine is made. A vector has no rows and columns.
type added struct {
	n, rows, cols int
	shared        int   // of its ParamOptions
	bits          int   // of a saved state, and
	saved         int64 // its bytes; 0 elsewhere
}

// form is what a parameter keeps, and what a step of it takes. It is zero for rules that update each element by itself.
type form struct {
	shape           // if it is saved
	kept      int   // elements of each state; 0: all of the parameter
	factors   int64 // bytes beside the states
	replaced  int   // states that the factors replace
	wide      bool  // states have 32 bits whatever the options say
	alone     bool  // steps are made on the CPU, by a process that has all of the parameter
	whole     bool  // a step takes all elements
	multiple  int   // unless 0, a step takes a multiple of so many elements
	workspace scratch
}

// scratch is what a step takes of the workspace, in elements, and the floating-point operations of its products.
type scratch struct {
	nFloats, nSums, nSides, nOrder int
	operations                     float64
}

// shape is the shape of a matrix.
type shape struct{ rows, cols int }

// held returns the number of elements of each state of a parameter of n elements.
func (f *form) held(n int) int { return cmp.Or(f.kept, n) }

// stateBytes returns the size of the states, in the form l, of a parameter of n elements, and of its factors.
func (f *form) stateBytes(l layout, n int) int64 { return f.factors + l.bytes(f.held(n)) }

// layoutOf returns the layout of states of a width.
func (o *options) layoutOf(bits int, f *form) layout {
	l := layout{states: o.states() - f.replaced, bits: bits, block: o.Block}
	if f.wide {
		l.bits = 32
	}
	return l
}

// elements is the engine of parameters whose elements are updated each by itself, or with norms of all. Other engines
// contain it.
type elements struct{ form }

func (e *elements) keeps() *form   { return &e.form }
func (e *elements) option() string { return "" }

func (e *elements) step(a *Optimizer, dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, _ float32) error {
	return a.stepVector(dev, q, lo, h, j)
}

// plain is the method of rules that are their equation and nothing else. Other methods contain it.
type plain struct{}

func (plain) engine(*options, added) (engine, error)   { return new(elements), nil }
func (plain) begin(*Optimizer, float32)                {}
func (plain) scale(gradScale float32) (float32, error) { return gradScale, nil }
func (plain) constants(h optim.Hyper) optim.Hyper      { return h }
func (plain) numbers(*Optimizer) []float64             { return nil }
func (plain) restore(*Optimizer, []float64)            {}
func (plain) valid(_ int, x float64, _ uint64) bool    { return x >= 0 }
func (plain) savable(*Optimizer) error                 { return nil }

// parameter checks the sides of a vector or a matrix, and returns the parameter.
func parameter(sides []int) (added, error) {
	switch len(sides) {
	case 1:
		return added{n: sides[0]}, nil
	case 2:
		rows, cols := sides[0], sides[1]
		if rows >= 0 && cols >= 0 && rows <= maxSide && cols <= maxSide && (cols == 0 || rows <= maxSide/cols) {
			return added{n: rows * cols, rows: rows, cols: cols}, nil
		}
		return added{}, fmt.Errorf("of %d×%d elements: %w", rows, cols, snug.ErrShape)
	}
	return added{}, fmt.Errorf("of %d dimensions, want 1 or 2: %w", len(sides), snug.ErrShape)
}
