package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// updater is the optimizer, with the master weights through which it updates parameters of 16 bits.
type updater[B any] struct {
	t        *Trainer[B]
	opt      *quant8.Optimizer
	master   *amp.Master // without parameters unless some are mastered
	place    place
	whole    int64  // bytes of the buffer in which master weights become whole matrices of float32
	updating string // the layer whose parameters the optimizer updates
}

// place is where the optimizer works.
type place interface {
	// begin begins the updates of parameters with these gradients, in their order, and end ends them, also after an error.
	begin(params []param, gradient func(name string) (snug.View, error)) error
	end() error
	// gradient returns the next chunk of the gradients where the optimizer works.
	gradient(g snug.View) (snug.View, error)
	// update calls step for a parameter of float32, in chunks.
	update(value snug.View, step func(lo int, w snug.View) error) error
}

// inPlace is the device of the parameters and of the gradients.
type inPlace struct{ dev *snug.Device }

func (p inPlace) begin([]param, func(string) (snug.View, error)) error {
	device.Hold(p.dev)
	return nil
}

func (p inPlace) end() error { return device.Release(p.dev) }

func (inPlace) gradient(g snug.View) (snug.View, error) { return g, nil }

func (inPlace) update(value snug.View, step func(lo int, w snug.View) error) error {
	return step(0, value)
}

func (u *updater[B]) make() (err error) {
	t := u.t
	o, dev := &t.options, t.params[0].value.Device()
	adam := quant8.Options{Bits: o.StateBits, Chunk: o.Chunk, Storage: o.Storage, Stochastic: true, Seed: o.Seed, Params: o.Params, CountLost: o.CountLost}
	if quant8.TraitsOf(o.Optimizer).Blocks {
		adam.Params = u.blocks
	}
	if o.SkipNonFinite && !t.gradients.traits().held {
		adam.NonFinite = quant8.SkipStep
	}
	hold := amp.MasterOptions{Form: o.Masters, Stochastic: o.Stochastic, CountLost: o.CountLost, Storage: o.Storage, Chunk: o.Chunk, Seed: o.Seed}
	if u.place = (inPlace{dev}); o.Storage == nil {
		hold.Device = dev
	} else if !dev.IsCPU() {
		most := 0
		for _, p := range t.params {
			most = max(most, p.n)
		}
		s, err := newStaging(dev, o.Chunk, most)
		if err != nil {
			return err
		}
		t.closes(s.close)
		u.place, hold.Sender = s, s
	}
	if u.opt, err = quant8.New(o.Optimizer, adam); err != nil {
		return err
	}
	t.closes(u.opt.Close)
	shapes, err := u.matrices(&hold)
	if err != nil {
		return err
	}
	if u.master, err = amp.NewMaster(hold); err != nil {
		return err
	}
	t.closes(u.master.Close)
	for _, p := range t.params {
		rows, cols := shapes(p.name, p.n)
		before := t.held(u.opt.StateBytes)
		if rows > 0 || cols > 0 {
			err = u.opt.AddMatrix(p.name, rows, cols)
		} else {
			err = u.opt.AddShard(p.name, p.n, p.lo, p.hi)
		}
		if err != nil {
			return err
		}
		t.holders.add(meter.State, p.name, t.held(u.opt.StateBytes)-before)
	}
	return nil
}

// blocks returns the options of a parameter for an optimizer with Blocks, with the blocks of the model unless Params has some.
func (u *updater[B]) blocks(name string) (p quant8.ParamOptions) {
	if u.t.options.Params != nil {
		p = u.t.options.Params(name)
	}
	if b, ok := u.t.model.(Blocks); ok && p.Shared == 0 {
		p.Shared = b.Block(name)
	}
	return p
}

// shapes returns the rows and columns of a parameter of n elements, and 0, 0 of one that the optimizer takes as a vector.
type shapes func(name string, n int) (rows, cols int)

// shapesFor returns the shapes that a rule asks for.
func (u *updater[B]) shapesFor(rule quant8.Traits) (shapes, error) {
	switch {
	case rule.Unit == quant8.Matrix:
		m, ok := u.t.model.(Matrices)
		if !ok {
			return nil, fmt.Errorf("the optimizer %s takes whole matrices, and the model has no method Matrix: %w", rule.Name, snug.ErrConfig)
		}
		return func(name string, _ int) (rows, cols int) { return m.Matrix(name) }, nil
	case rule.Shaped && !rule.Blocks:
		if m, ok := u.t.model.(Shapes); ok {
			return func(name string, n int) (rows, cols int) {
				if shape := m.Shape(name); len(shape) > 1 && shape[0] > 0 {
					return shape[0], n / shape[0]
				}
				return 0, 0
			}, nil
		}
	}
	return func(string, int) (rows, cols int) { return 0, 0 }, nil
}

// matrices returns the shapes of the parameters. For an optimizer whose Unit is quant8.Matrix or quant8.Parameter it enlarges
// hold.Chunk, so that a whole one fits in a chunk of master weights.
func (u *updater[B]) matrices(hold *amp.MasterOptions) (shapes, error) {
	rule, chunk := quant8.TraitsOf(u.t.options.Optimizer), u.t.options.Chunk
	of, err := u.shapesFor(rule)
	if rule.Unit == quant8.Element || err != nil {
		return of, err
	}
	for _, p := range u.t.params {
		rows, cols := of(p.name, p.n)
		isMatrix := rows > 0 || cols > 0
		whole := isMatrix || rule.Unit == quant8.Parameter
		if isMatrix && (rows <= 0 || cols < 0 || p.n/rows != cols || p.n%rows != 0) {
			return nil, fmt.Errorf("parameter %q of %d elements is a matrix of %d×%d: %w", p.name, p.n, rows, cols, snug.ErrShape)
		}
		page := 0
		if hold.Storage != nil {
			page = chunk
		}
		if err := plan.CheckUnit(rule, fmt.Sprintf("%q", p.name), int64(p.n), whole, p.value.Device().IsCPU(), p.mastered, page); err != nil {
			return nil, err
		}
		if !whole {
			continue
		}
		pages := (p.n + chunk - 1) / chunk // hold.Chunk stays a multiple of the optimizer's
		hold.Chunk = max(hold.Chunk, pages*chunk)
		if p.mastered && hold.Form != amp.FullMaster {
			u.whole = max(u.whole, 4*int64(p.n))
		}
	}
	return of, nil
}

// update updates every parameter, or this rank's part of it, with its gradient, which is clipped. norm is the norm of all
// gradients. Where the updates of matrices may take seconds it looks between them whether ctx has ended.
func (u *updater[B]) update(ctx context.Context, rate float32, norm float64, gradient func(name string) (snug.View, error)) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	t, slow, coef := u.t, u.opt.Operations() > slowUpdate, float32(1)
	if t.options.Clip > 0 {
		coef = amp.ClipCoef(norm, t.options.Clip)
	}
	defer func() { err = errors.Join(err, u.place.end()) }()
	if err := u.place.begin(t.params, gradient); err != nil {
		return err
	}
	u.opt.Advance(rate)
	u.opt.Within(norm) // it was measured just now
	t.halfway, u.updating = true, ""
	for _, p := range t.params {
		if err := ctx.Err(); slow && err != nil {
			return err
		}
		u.enter(p.name)
		grad, err := gradient(p.name)
		if err != nil {
			return err
		}
		step := func(lo int, w snug.View) error {
			g, err := grad.Slice(lo, lo+w.Len())
			if err == nil {
				g, err = u.place.gradient(g)
			}
			if err != nil {
				return err
			}
			return u.opt.StepRange(p.name, lo, w, g, coef)
		}
		err = p.change(func(_ int, value snug.View) error {
			if p.mastered {
				return u.master.Update(p.name, value, step)
			}
			return u.place.update(value, step)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// slowUpdate is about the floating-point operations of a second, of the updates of all parameters.
const slowUpdate = 1e10

// enter tells the Monitor that the optimizer updates a parameter, if its layer is not that of the last update.
func (u *updater[B]) enter(name string) {
	if layer := meter.LayerOf(name); layer != u.updating {
		u.updating = layer
		u.t.options.Monitor.Enter(meter.Update, layer)
	}
}

// bytes returns the bytes of master weights, state and workspace, in pages or not.
func (u *updater[B]) bytes() (b meter.Bytes) {
	b[meter.Masters], b[meter.State], b[meter.Workspace] = u.master.Bytes(), u.opt.StateBytes(), u.opt.WorkspaceBytes()+u.whole
	return b
}

func (u *updater[B]) lost() []counter { return []counter{u.master, u.opt} }

func (u *updater[B]) begin() error     { return u.addMasters(u.t.options.Fill, false) }
func (*updater[B]) average(bool) error { return nil }
func (*updater[B]) gather() error      { return nil }

func (u *updater[B]) together(save func() error) error {
	if u.t.options.follows() {
		return nil
	}
	return save()
}
