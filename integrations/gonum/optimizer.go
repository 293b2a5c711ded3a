package gonum

import (
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/quant8"
	"gonum.org/v1/gonum/mat"
)

// Param is a parameter: a matrix or a vector under a name, which selects its options in [quant8.Options] and finds its
// state in a saved one.
type Param struct {
	Name  string
	Value mat.Matrix
}

// Optimizer updates parameters by a rule of package quant8, whose state it holds.
type Optimizer struct {
	opt    *quant8.Optimizer
	params []param
	piece  int       // elements that are updated at a time, or 0 for all of a parameter
	checks bool      // gradients that are not finite are errors
	p, g   []float32 // scratch
}

type param struct {
	name  string
	value mat.Matrix
	rows  // of value, as of the last step
}

// New returns an optimizer of parameters with different names. It keeps the matrices, not copies. Between steps a
// matrix may get other memory, as by CloneFrom, but no other shape. Vectors are added as by [quant8.Optimizer.Add],
// which a rule for matrices only refuses.
//
// Memory: the state, as [quant8.Options] says, allocated at the first step, and scratch of 8 bytes an element. The
// scratch has the elements of the largest parameter, or of a Chunk if that is less and the optimizer can step piece by
// piece: the Traits of its rule have Shards, Block is the default, MaxUpdate is 0 and NonFinite is quant8.Fail. By default a
// Chunk takes 512 KiB.
//
// Errors wrap snug.ErrConfig or snug.ErrShape: options, a name that is empty or taken, a Value that is no matrix in
// memory, none at all.
func New(rule quant8.Rule, o quant8.Options, params ...Param) (*Optimizer, error) {
	opt, err := quant8.New(rule, o)
	if err != nil {
		return nil, err
	}
	t := &Optimizer{opt: opt, checks: o.NonFinite == quant8.Fail}
	if t.checks && quant8.TraitsOf(rule).Shards && o.MaxUpdate == 0 {
		t.piece = o.Chunk
		if o.Chunk == 0 && o.Block == 0 {
			t.piece = 1 << 16 // the Chunk that quant8 takes
		}
	}
	if len(params) == 0 {
		return nil, fmt.Errorf("%w: gonum.New: no parameters", snug.ErrConfig)
	}
	for _, p := range params {
		r, err := rowsOf("gonum.New: parameter "+p.Name, p.Value)
		if err != nil {
			return nil, err
		}
		if _, vector := p.Value.(mat.Vector); vector {
			err = opt.Add(p.Name, r.rows)
		} else {
			err = opt.AddMatrix(p.Name, r.rows, r.cols)
		}
		if err != nil {
			return nil, err
		}
		t.params = append(t.params, param{p.Name, p.Value, r})
	}
	return t, nil
}

// Step updates each parameter by its gradient, at a learning rate. Gradients come in the order of New's parameters, each
// of the shape of its parameter; it keeps and changes none. See the package for the precision.
//
// A NaN or an infinity in a parameter, or in a gradient unless NonFinite says otherwise, as a value that float32 cannot hold,
// is an error that wraps snug.ErrNonFinite and names the parameter and the row and column. Other errors wrap
// snug.ErrShape (a gradient of another shape, or too few; a parameter that has another shape than in New), snug.ErrConfig (a gradient that is no matrix in memory, a rate
// that is negative or not finite) or are those of Storage. Except with those of Storage nothing is written, and the step may be repeated.
func (t *Optimizer) Step(rate float64, grads ...mat.Matrix) error {
	if len(grads) != len(t.params) {
		return fmt.Errorf("%w: gonum.Step: %d gradients for %d parameters", snug.ErrShape, len(grads), len(t.params))
	}
	if !(rate >= 0 && rate <= math.MaxFloat32) {
		return fmt.Errorf("%w: gonum.Step: learning rate %g", snug.ErrConfig, rate)
	}
	all := make([]rows, len(grads))
	for i := range t.params {
		p := &t.params[i]
		now, err := rowsOf("gonum.Step: parameter "+p.name, p.value)
		if err != nil {
			return err
		}
		if now.rows != p.rows.rows || now.cols != p.cols {
			return fmt.Errorf("%w: gonum.Step: parameter %s is %d×%d, in New it was %d×%d", snug.ErrShape, p.name, now.rows, now.cols, p.rows.rows, p.cols)
		}
		p.rows = now
		g, err := rowsOf("gonum.Step: gradient of "+p.name, grads[i])
		if err != nil {
			return err
		}
		if g.rows != p.rows.rows || g.cols != p.cols {
			return fmt.Errorf("%w: gonum.Step: gradient of %s is %d×%d, the parameter %d×%d", snug.ErrShape, p.name, g.rows, g.cols, p.rows.rows, p.cols)
		}
		if err := check("parameter "+p.name, p.rows, math.MaxFloat32); err != nil {
			return err
		}
		if t.checks {
			if err := check("gradient of "+p.name, g, 1<<63); err != nil {
				return err
			}
		}
		all[i] = g
	}
	t.opt.Advance(float32(rate))
	for i, p := range t.params {
		if err := t.update(p, all[i]); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error for the first element that is not finite, or whose magnitude is not below a limit.
func check(what string, r rows, limit float64) error {
	i := r.find(func(x float64) bool { return !(math.Abs(x) < limit) })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("%w: gonum.Step: %s: %g at (%d, %d)", snug.ErrNonFinite, what, r.at(i), i/r.cols, i%r.cols)
}

// update makes the step of one parameter, piece by piece.
func (t *Optimizer) update(p param, g rows) error {
	piece := p.len()
	if t.piece > 0 {
		piece = min(piece, t.piece)
	}
	if len(t.p) < piece {
		t.p, t.g = make([]float32, piece), make([]float32, piece)
	}
	for lo := 0; ; lo += piece {
		n := min(piece, p.len()-lo)
		to, by := t.p[:n], t.g[:n]
		p.load(to, lo)
		g.load(by, lo)
		if err := t.opt.StepRange(p.name, lo, snug.ViewOf(to), snug.ViewOf(by), 1); err != nil {
			return err
		}
		p.move(to, lo)
		if lo+n == p.len() {
			return nil
		}
	}
}

// Steps returns the number of steps that were made, the restored ones included.
func (t *Optimizer) Steps() int { return t.opt.Steps() }

// StateBytes returns the bytes of the state, 0 before the first step.
func (t *Optimizer) StateBytes() int64 { return t.opt.StateBytes() }

// WriteTo saves the state, as [quant8.Optimizer.WriteTo] does. The matrices are yours to save, in full, so that a run
// goes on with the same bits: by their MarshalBinaryTo, for instance.
func (t *Optimizer) WriteTo(w io.Writer) (int64, error) { return t.opt.WriteTo(w) }

// ReadFrom restores a state that WriteTo saved, of an optimizer with the same rule, options and parameters, as
// [quant8.Optimizer.ReadFrom] does. After an error the optimizer may be unusable until a ReadFrom succeeds.
func (t *Optimizer) ReadFrom(r io.Reader) (int64, error) { return t.opt.ReadFrom(r) }
