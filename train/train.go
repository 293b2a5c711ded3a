package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// Window takes the gradients of a backward pass. Into returns the float32 accumulator of a parameter, which has the
// length of the parameter, and how a gradient enters it; further calls for the same name in one micro-batch return a
// Beta of 1.
//
// If a Window has the method Done(name string) error, a model may call it as soon as the gradient of a parameter is
// complete. Options.InBackward needs a model that does. Its Window also has the method HoldsOne() bool, which says that
// the model saves memory if it completes the gradient of a parameter before it begins the next one.
type Window = interface {
	Into(name string) (acc snug.View, into snug.Into, err error)
}

// Model is what a Trainer trains, with micro-batches of type B.
type Model[B any] interface {
	// Trainable yields the parameters that train, always in the same order, of float32, bfloat16 or
	// float16 on one device.
	Trainable() iter.Seq2[string, snug.View]
	// Weight returns the weight of a micro-batch in the mean of a step, such as its number of
	// targets. A micro-batch of weight 0 is left out.
	Weight(batch B) float64
	// Backprop runs a micro-batch forward and backward. It adds to the window the gradients of the
	// mean loss of the micro-batch times scale, and returns the loss, not scaled.
	Backprop(ctx context.Context, batch B, scale float32, w Window) (fused.Loss, error)
	// Evaluate returns the loss of a micro-batch without training on it.
	Evaluate(ctx context.Context, batch B) (fused.Loss, error)
}

// Matrices is the method of a Model that [quant8.Apollo], [quant8.GaLore] and [quant8.SOAP] need. Matrix returns the
// rows and columns of a parameter whose gradient they may project: a matrix of a layer. It returns 0, 0 for others, such
// as embeddings, the output layer and vectors, which take AdamW.
type Matrices interface {
	Matrix(name string) (rows, cols int)
}

// Blocks is an optional method of a Model, for [quant8.AdamMini]. Block returns how many elements of a parameter share a
// second moment, see [quant8.ParamOptions]. 0 stands for all elements; so does a model without the method.
type Blocks interface {
	Block(name string) (elements int)
}

// Paged is an optional method of a Model whose parameters lie in an [accum.Pages], as those of ZeRO-3 do. Paged returns the
// key in the Pages, the type and the number of elements of a parameter that lies there, and an empty key for others. The
// elements that Trainable yields for such a parameter are empty.
type Paged interface {
	Paged(name string) (key string, dt snug.DType, elements int)
}

// Report is the result of a step.
type Report struct {
	Step    int     // number of steps done, this one included
	Loss    float64 // mean over the targets of the step, in nats
	Targets int
	Norm    float64 // norm of all gradients before clipping, 0 if not measured; with Fold and MeZO see package quant8
	Rate    float32 // learning rate
	Scale   float32 // loss scale of the step, 1 without one
	Skipped string  // why nothing was updated; empty if the step updated the parameters
}

// Trainer trains a model. It is not safe for concurrent use.
type Trainer[B any] struct {
	model   Model[B]
	options Options
	params  []param
	window  *accum.Window // nil with shards, InBackward and MeZO
	count   micros        // schedule of the window
	shards  *accum.Sharded
	once    bool                        // the shards add their gradients once in a step
	weights *accum.Pages                // the Reducer, if it is one
	value   func(name string) snug.View // of the parameters, with shards
	into    Window                      // what the model sees of window or shards
	backing []func() error
	opt     *quant8.Optimizer   // nil with MeZO
	zeroth  *quant8.ZerothOrder // nil without MeZO
	scaler  *amp.Scaler
	master  *amp.Master // nil without master weights
	pages   *staging    // copies chunks between a device and the host for the pages; nil without a device or pages
	single  *single     // with InBackward
	holders holders
	buffer  snug.View // the gradients of the window
	// averaged says that the model holds the averages, and buffer the parameters in training, see Average.
	averaged, ready bool

	updating string // the layer whose parameters the optimizer updates
	whole    int64  // bytes of the buffer in which master weights become whole matrices of float32

	sums   []float64 // loss, targets and weight over all ranks, and the rate of each
	flags  []float64 // one for each rank
	found  []float64 // of joinStats
	weighs []float64 // weights of the micro-batches of a step

	step   int
	splits int // how many times each micro-batch is divided in two
	divide func(batch B) (x, y B, ok bool)
	// begun says that a failed attempt in the backward pass has begun the next step of the optimizer. halfway says that
	// a failed attempt may have changed parameters or the optimizer's state.
	begun, halfway bool
	folder         *checkpoint.Folder
	opened         *Folder // of Options.Dir, which the Trainer closes
	notes          any
	received       json.RawMessage // notes of the checkpoint that was resumed, from rank 0
	saved          int             // step of the newest checkpoint
	due            bool            // a checkpoint of SaveEvery is not yet written
}

// param is a parameter that trains.
type param struct {
	name     string
	value    snug.View // without elements if the ranks divide it
	n        int       // elements
	key      string    // in the accum.Pages, if the ranks divide it
	mastered bool
}

// micros is the schedule of a window that ends after n micro-batches.
type micros struct{ n *int }

func (m micros) Target(accum.Progress) accum.Target { return accum.Target{Micros: *m.n} }

// New returns a Trainer for a model. With Options.Dir it owns the folder until Close, and resumes its newest
// checkpoint, which replaces the values of the parameters.
//
// The error wraps [snug.ErrConfig] for options that do not fit together and for a checkpoint of another run,
// [snug.ErrDType] and [snug.ErrDevice] for the parameters, [snug.ErrCorrupt] for a damaged checkpoint, and
// [snug.ErrNoMemory], or comes from the Storage or the file system.
func New[B any](model Model[B], o Options) (*Trainer[B], error) {
	t := &Trainer[B]{model: model, options: o, saved: -1}
	if err := t.make(); err != nil {
		return nil, fmt.Errorf("train: New: %w", errors.Join(err, t.Close()))
	}
	return t, nil
}

func (t *Trainer[B]) make() (err error) {
	o := &t.options
	if err := o.check(t.model == nil); err != nil {
		return err
	}
	if err := t.collect(); err != nil {
		return err
	}
	if err := t.alike(); err != nil {
		return err
	}
	if o.follows() {
		o.Dir = ""
	}
	if o.Dir != "" {
		if t.opened, err = openFolder(o.Dir, o.Keep); err != nil {
			return err
		}
		o.Folder = t.opened
	}
	if o.Folder != nil {
		t.folder = o.Folder.folder
		if notes := t.Notes(); notes != nil {
			t.notes = notes
		}
	}
	if o.Shard != plan.Replicate {
		if err := t.makeShards(); err != nil {
			return err
		}
	}
	if rule, is := o.mezo(); is {
		if t.zeroth, err = quant8.NewMeZO(rule, quant8.MeZOOptions{Seed: o.Seed, Params: o.Params}); err != nil {
			return err
		}
	} else if err := t.makeOptimizer(); err != nil {
		return err
	}
	if t.zeroth != nil || t.shards != nil {
		// MeZO holds no gradients
	} else if o.inBackward() {
		t.single = &single{params: t.params, dev: t.params[0].value.Device(), values: map[string]snug.View{}, holders: &t.holders}
		for _, p := range t.params {
			t.single.values[p.name] = p.value
		}
	} else if err := t.makeWindow(); err != nil {
		return err
	}
	t.makeInto()
	if err := t.begin(); err != nil {
		return err
	}
	if err := t.equal(); err != nil {
		return err
	}
	t.countBytes()
	t.ready = true
	return nil
}

// collect lists the parameters.
func (t *Trainer[B]) collect() error {
	t.weights, _ = t.options.Reducer.(*accum.Pages)
	params := t.model.Trainable()
	if params == nil {
		return fmt.Errorf("the model's Trainable is nil: %w", snug.ErrConfig)
	}
	_, zeroth := t.options.mezo()
	for name, v := range params {
		n, key, err := v.Len(), "", error(nil)
		if m, ok := t.model.(Paged); ok {
			if v, n, key, err = t.divided(m, name, v); err != nil {
				return err
			}
		}
		if !v.DType().IsFloat() {
			return fmt.Errorf("parameter %q holds %s, want f32, f16 or bf16: %w", name, v.DType(), snug.ErrDType)
		}
		if len(t.params) > 0 && v.Device() != t.params[0].value.Device() {
			return fmt.Errorf("parameter %q is on %s, and %q on %s: %w", name, v.Device().Name(),
				t.params[0].name, t.params[0].value.Device().Name(), snug.ErrDevice)
		}
		if v.DType() == snug.F16 && t.options.Scaler == nil && !zeroth {
			if t.options.inBackward() {
				return fmt.Errorf("parameter %q is f16, which needs a loss scale, and InBackward has none: %w", name, snug.ErrConfig)
			}
			t.options.Scaler = &amp.ScalerOptions{}
		}
		t.params = append(t.params, param{name, v, n, key, v.DType() != snug.F32 && !t.options.inBackward() && !zeroth})
	}
	if t.params == nil {
		return fmt.Errorf("the model has no parameters that train: %w", snug.ErrConfig)
	}
	return nil
}

// makeOptimizer makes the optimizer and the master weights.
func (t *Trainer[B]) makeOptimizer() (err error) {
	o, dev := &t.options, t.params[0].value.Device()
	adam := quant8.Options{Bits: o.StateBits, Chunk: o.Chunk, Storage: o.Storage, Stochastic: true, Seed: o.Seed, Params: o.Params, CountLost: o.CountLost}
	if _, mini := o.Optimizer.(quant8.AdamMini); mini {
		adam.Params = t.blocks
	}
	if o.SkipNonFinite && o.inBackward() {
		adam.NonFinite = quant8.SkipStep
	}
	if o.Storage != nil && !dev.IsCPU() {
		most := 0
		for _, p := range t.params {
			most = max(most, p.n)
		}
		if t.pages, err = newStaging(dev, o.Chunk, most); err != nil {
			return err
		}
	}
	if t.opt, err = quant8.New(o.Optimizer, adam); err != nil {
		return err
	}
	if o.Scaler != nil {
		if t.scaler, err = amp.NewScaler(*o.Scaler); err != nil {
			return err
		}
	}
	hold := amp.MasterOptions{Form: o.Masters, Stochastic: o.Stochastic, CountLost: o.CountLost, Storage: o.Storage, Chunk: o.Chunk, Seed: o.Seed}
	if o.Storage == nil {
		hold.Device = dev
	}
	if t.pages != nil {
		hold.Sender = t.pages
	}
	shapes, err := t.matrices(&hold)
	if err != nil {
		return err
	}
	t.holders.monitor = o.Monitor
	for _, p := range t.params {
		var rows, cols int
		if shapes != nil {
			rows, cols = shapes.Matrix(p.name)
		}
		before := t.held(t.opt.StateBytes)
		if rows > 0 || cols > 0 {
			err = t.opt.AddMatrix(p.name, rows, cols)
		} else {
			lo, hi := t.share(p)
			err = t.opt.AddShard(p.name, p.n, lo, hi)
		}
		if err != nil {
			return err
		}
		t.holders.add(plan.State, p.name, t.held(t.opt.StateBytes)-before)
		if p.mastered && t.master == nil {
			if t.master, err = amp.NewMaster(hold); err != nil {
				return err
			}
		}
	}
	return nil
}

// blocks returns the options of a parameter for quant8.AdamMini, with the blocks of the model unless Params has some.
func (t *Trainer[B]) blocks(name string) (p quant8.ParamOptions) {
	if t.options.Params != nil {
		p = t.options.Params(name)
	}
	if b, ok := t.model.(Blocks); ok && p.Shared == 0 {
		p.Shared = b.Block(name)
	}
	return p
}

// matrices returns the shapes of the parameters for an optimizer that projects gradients, and nil for others. For such an
// optimizer and for quant8.AdamMini it enlarges hold.Chunk, so that a whole parameter fits in a chunk of master weights.
func (t *Trainer[B]) matrices(hold *amp.MasterOptions) (Matrices, error) {
	mini := false
	switch t.options.Optimizer.(type) {
	case quant8.Apollo, quant8.GaLore, quant8.SOAP:
	case quant8.AdamMini:
		mini = true
	default:
		return nil, nil
	}
	shapes, ok := t.model.(Matrices)
	if !ok && !mini {
		return nil, fmt.Errorf("the optimizer %T projects gradients of matrices, and the model has no method Matrix: %w", t.options.Optimizer, snug.ErrConfig)
	}
	for _, p := range t.params {
		rows, cols := 1, p.n
		if !mini {
			rows, cols = shapes.Matrix(p.name)
		}
		switch {
		case rows <= 0 && cols <= 0:
			continue
		case rows < 0 || cols < 0 || rows == 0 || p.n/rows != cols || p.n%rows != 0:
			return nil, fmt.Errorf("parameter %q of %d elements is a matrix of %d×%d: %w", p.name, p.n, rows, cols, snug.ErrShape)
		case !p.value.Device().IsCPU():
			return nil, fmt.Errorf("parameter %q is on %s, and the optimizer %T works on the cpu: %w", p.name, p.value.Device().Name(), t.options.Optimizer, snug.ErrDevice)
		case p.mastered && hold.Storage != nil:
			return nil, fmt.Errorf("the optimizer %T takes whole parameters, and Storage has pages of the master weights of %q: %w", t.options.Optimizer, p.name, snug.ErrConfig)
		}
		pages := (p.n + t.options.Chunk - 1) / t.options.Chunk // hold.Chunk stays a multiple of the optimizer's
		hold.Chunk = max(hold.Chunk, pages*t.options.Chunk)
		if p.mastered && hold.Form != amp.FullMaster {
			t.whole = max(t.whole, 4*int64(p.n))
		}
	}
	if mini {
		return nil, nil
	}
	return shapes, nil
}

// makeWindow makes the accumulators.
func (t *Trainer[B]) makeWindow() error {
	list, n := make([]accum.Param, len(t.params)), 0
	for i, p := range t.params {
		list[i] = accum.Param{Name: p.name, Len: p.n}
		n += p.n
		t.holders.add(plan.Gradients, p.name, 4*int64(p.n))
	}
	buffer, free, err := snug.MakeView(t.params[0].value.Device(), snug.F32, n)
	if err != nil {
		return fmt.Errorf("gradients of %d elements: %w", n, err)
	}
	t.backing, t.buffer = append(t.backing, free), buffer
	t.count = micros{new(int)}
	*t.count.n = 1
	t.window, err = accum.New(list, accum.Options{Schedule: t.count, Buffer: buffer, Measure: t.options.Measure,
		Reducer: t.options.Reducer, Bucket: t.options.Bucket})
	return err
}

// Step returns the number of steps done, with the steps before a resume.
func (t *Trainer[B]) Step() int { return t.step }

// Saved returns the step of the newest checkpoint that this Trainer has written or resumed, 0 for none.
func (t *Trainer[B]) Saved() int { return max(0, t.saved) }

// Notes returns the notes of the checkpoint that New resumed, as JSON: nil if it resumed none, and null if the
// checkpoint had no notes.
func (t *Trainer[B]) Notes() json.RawMessage {
	if t.received != nil {
		return t.received
	}
	_, notes, _ := t.options.Folder.Newest()
	return notes
}

// SetNotes sets the notes of the next checkpoints, which they hold as JSON in addition to Options.About. Notes may
// differ when the run is resumed; the loss before training is an example. Without a call, checkpoints keep the notes of
// the checkpoint that New resumed.
func (t *Trainer[B]) SetNotes(notes any) { t.notes = notes }

// Scale returns the loss scale of the next step, 1 without one.
func (t *Trainer[B]) Scale() float32 {
	if t.scaler == nil {
		return 1
	}
	return t.scaler.Scale()
}

// Bytes returns the bytes of gradients, master weights and optimizer state that the Trainer holds, in pages or not, and
// of the workspace of the optimizer and of master weights: nothing after Close.
func (t *Trainer[B]) Bytes() plan.Bytes {
	var b plan.Bytes
	if t.opt == nil { // closed, or with MeZO
		return b
	}
	switch {
	case t.shards != nil:
		b[plan.Gradients] = t.shards.Bytes()
	case t.window != nil:
		for _, p := range t.params {
			b[plan.Gradients] += 4 * int64(p.n)
		}
	default:
		b[plan.Gradients] = t.single.held
	}
	if t.master != nil {
		b[plan.Masters] = t.master.Bytes()
	}
	b[plan.State] = t.opt.StateBytes()
	b[plan.Workspace] = t.opt.WorkspaceBytes() + t.whole
	return b
}

// countBytes tells the monitor what is held in memory, without pages.
func (t *Trainer[B]) countBytes() {
	if t.options.Monitor == nil {
		return
	}
	b := t.Bytes()
	if t.single == nil { // single counts as it allocates
		t.holders.set(plan.Gradients, b[plan.Gradients])
	}
	t.holders.set(plan.Workspace, b[plan.Workspace])
	if t.options.Storage == nil {
		t.holders.set(plan.Masters, b[plan.Masters])
		t.holders.set(plan.State, b[plan.State])
	}
}

// Evaluate calls [Trainer.Average] and returns the loss over all batches, without training on them. With Options.Reducer it
// is the loss of this rank's batches. The error wraps
// [snug.ErrConfig] for a nil sequence, and is otherwise that of the model.
func (t *Trainer[B]) Evaluate(ctx context.Context, batches iter.Seq[B]) (all fused.Loss, err error) {
	if batches == nil {
		return all, fmt.Errorf("train: Evaluate: the sequence of batches is nil: %w", snug.ErrConfig)
	}
	if !t.closed() {
		if err := t.average(); err != nil {
			return all, fmt.Errorf("train: Evaluate: %w", err)
		}
	}
	for b := range batches {
		loss, err := t.evaluate(ctx, b, t.splits)
		if err != nil {
			return fused.Loss{}, fmt.Errorf("train: Evaluate: %w", err)
		}
		all = all.Plus(loss)
	}
	return all, nil
}

// Close calls [Trainer.Average], closes the folder of checkpoints unless it is Options.Folder, and frees memory of a
// device. The caller then closes the model and the Storage. Closing twice does nothing.
func (t *Trainer[B]) Close() (err error) {
	if t.ready && !t.closed() && !t.halfway {
		err = t.average()
	}
	err = errors.Join(err, t.opened.Close(), t.pages.close())
	if t.master != nil {
		err = errors.Join(err, t.master.Close())
	}
	if t.opt != nil {
		err = errors.Join(err, t.opt.Close())
	}
	if t.single != nil {
		err = errors.Join(err, t.single.close())
	}
	if t.shards != nil {
		err = errors.Join(err, t.shards.Close())
	}
	for _, free := range t.backing {
		err = errors.Join(err, free())
	}
	t.holders.close()
	t.folder, t.opened, t.master, t.opt, t.zeroth, t.single, t.shards, t.backing = nil, nil, nil, nil, nil, nil, nil, nil
	return err
}
