package layers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Sample is a micro-batch of a [Model].
type Sample struct {
	X      []float32 // [rows, width]: the input, nil if the first layer is an [Embedding]
	Tokens []int32   // [rows]: the input of an Embedding
	Y      []float32 // targets of [MSE], [ElementLoss] and [DiceLoss], in the shape of the output
	Labels []int32   // targets of [CrossEntropy], one for each row or position; negative ones are ignored
	// Sequences is the number of sequences of equal length, for [Attention]; 0 is 1. Starts, unless nil, packs sequences of
	// different lengths instead: sequence i has the rows Starts[i] to Starts[i+1]-1.
	Sequences int
	Starts    []int
	Parts     []int     // of sequences, see [Batch.Part]; nil: each is one part
	Positions [][]int32 // for a Rope: in one axis or in three, see [Batch.Place], and below 2^20; nil: those of each sequence count from 0
	Decoder   *Sample   // the sample of the second model, if the loss is a [Decoder]
	Draw      uint64    // with Options.Seed it determines the random numbers of dropout; below 2^48
}

// mostPosition is more than any position of a sample.
const mostPosition = 1 << 20

// Model is a chain of layers with a loss; each layer is a stage of package remat. It is a train.Model, and holds the parameters,
// activations and a workspace. A Model is not safe for concurrent use.
type Model struct {
	// Report says what the last call of Backprop computed, and the bytes that it held.
	Report remat.Report

	pass   *Pass
	loss   Loss
	layers []Layer
	params []*Param
	free   []func() error
	chain  *remat.Chain[*Tensor, Saved]
	runner *remat.Runner[*Tensor, Saved]
	plan   remat.Plan
	width  int // elements of a row of the input
	fits   int // rows of the largest batch that the pass has reserved memory for, with this plan

	balances []*Balance // of the layers, each once
	held     held
	ends     counted // the input, the loss and the gradient of the output
}

// NewModel returns a model of layers for inputs of width elements a row, or 0 if the first layer is an [Embedding]. It allocates the
// parameters that have no values, in the type of the options or for a Buffer in float32. It fills them with initial values, which
// depend on Options.Seed and on the order of the parameters only. The layers belong to the model. A new model keeps all saved sets,
// see [Model.SetPlan].
//
// The error wraps [snug.ErrConfig] for a nil loss, no layers or a nil layer, for parameters that are nil, without a name or with the
// name of another, for a layer with a Buffer that is in the model twice, and for two Dropouts with one Number. It wraps
// [snug.ErrShape] for layers that do not fit
// each other, otherwise [snug.ErrDType], [snug.ErrDevice] or [snug.ErrNoMemory].
func NewModel(width int, loss Loss, o Options, list ...Layer) (*Model, error) {
	if loss == nil || width < 0 {
		return nil, fmt.Errorf("layers: NewModel: the loss is nil, or the width %d below 0: %w", width, snug.ErrConfig)
	}
	out, err := Sequential(list).Width(width)
	if err == nil {
		err = loss.Check(out)
	}
	if l, is := loss.(interface{ checkImages(image) error }); is && err == nil {
		_, rows := Sequential(list).images()
		err = l.checkImages(rows)
	}
	if err != nil {
		return nil, err
	}
	p, err := NewPass(o)
	if err != nil {
		return nil, err
	}
	m := &Model{pass: p, loss: loss, layers: list, width: width, chain: p.Chain()}
	m.chain.Monitor = marks{&p.pool}
	m.held = held{weights: map[string]*heldWeights{}, workspace: o.Monitor.Holder(meter.OnDevice, meter.Workspace, "of all layers")}
	m.ends = newCounted(o.Monitor, "input and loss")
	for i, l := range list {
		m.chain.Stages = append(m.chain.Stages, stage{l, p, i == 0, newCounted(o.Monitor, stageName(i, l))})
	}
	if err = m.makeParams(); err == nil {
		err = m.collect(list, map[uint64]bool{})
	}
	if err == nil {
		err = errors.Unwrap(m.SetPlan(remat.Plan{}))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("layers: NewModel: %w", err), m.Close())
	}
	return m, nil
}

// collect lists the balances of the [Experts] in a list of layers, and in the layers inside of these, and checks the numbers of
// dropouts.
func (m *Model) collect(list []Layer, dropouts map[uint64]bool) (err error) {
	for _, l := range list {
		if n, is := l.(NoGrad); is {
			err = cmp.Or(err, n.check())
		}
		switch l := l.(type) {
		case interface{ inside() []Layer }:
			err = cmp.Or(err, m.collect(l.inside(), dropouts))
		case *Dropout:
			err = cmp.Or(err, m.collect([]Layer{*l}, dropouts))
		case Dropout:
			if l.P > 0 && dropouts[l.Number] {
				err = cmp.Or(err, fmt.Errorf("two Dropouts have the Number %d, so that their masks are equal: %w", l.Number, snug.ErrConfig))
			}
			dropouts[l.Number] = dropouts[l.Number] || l.P > 0
		case *Experts:
			if l.Balance != nil && !slices.Contains(m.balances, l.Balance) {
				m.balances = append(m.balances, l.Balance)
			}
			if err = cmp.Or(err, l.Balance.Grow(m.pass, len(l.Experts))); err == nil && l.Balance != nil && l.Router.Weight.uses > 1 {
				err = fmt.Errorf("Experts with a Balance are in the model twice: %w", snug.ErrConfig)
			}
		}
	}
	return err
}

// makeParams lists and allocates the parameters.
func (m *Model) makeParams() (err error) {
	seen, names := map[*Param]bool{}, map[string]bool{}
	add := func(w *Param) bool {
		switch {
		case err != nil:
			return false
		case w == nil:
			err = fmt.Errorf("a layer has a nil parameter: %w", snug.ErrConfig)
			return false
		case w.Buffer && (w.Trains || seen[w]):
			err = fmt.Errorf("%s is a Buffer that trains, or its layer is in the model twice: %w", w.Name, snug.ErrConfig)
			return false
		case seen[w]:
			w.uses++
			return true
		}
		w.uses = 1
		if seen[w] = true; w.Name == "" || names[w.Name] || w.Len() < 1 {
			err = fmt.Errorf("a parameter %q of %v elements: want a name of its own and elements: %w", w.Name, w.Shape, snug.ErrConfig)
			return false
		}
		names[w.Name] = true
		if err = m.makeParam(w); err != nil {
			err = fmt.Errorf("%s of %v elements: %w", w.Name, w.Shape, err)
		}
		m.params = append(m.params, w)
		return err == nil
	}
	for _, l := range m.layers {
		if l.Params(add); err != nil {
			return err
		}
	}
	m.loss.Params(add)
	return err
}

// makeParam allocates a parameter and fills it with initial values, unless it has values already.
func (m *Model) makeParam(w *Param) error {
	if w.Quantized != nil || w.Pages != nil {
		return nil
	}
	if w.Value.Len() > 0 {
		if w.Value.Len() != w.Len() || w.Value.Device() != m.pass.dev || w.Buffer && w.Value.DType() != snug.F32 {
			return fmt.Errorf("a Value of %d elements on %s, want it on %s: %w", w.Value.Len(), w.Value.Device().Name(), m.pass.dev.Name(), snug.ErrShape)
		}
		return nil
	}
	dt := m.pass.DType
	if w.Buffer {
		dt = snug.F32
	}
	v, free, err := snug.MakeView(m.pass.dev, dt, w.Len())
	if err != nil {
		return err
	}
	w.Value, m.free = v, append(m.free, free)
	if w.Buffer {
		m.held.buffers += int64(v.Bytes())
		m.held.workspace.Set(m.held.buffers)
	} else {
		m.held.add(m.pass.Monitor, w.Name, int64(v.Bytes()))
	}
	rng, x := rand.New(rand.NewPCG(m.pass.Seed, uint64(len(m.params)))), make([]float32, w.Len())
	for i := range x {
		if x[i] = w.constant; w.deviation > 0 {
			x[i] = float32(w.deviation * rng.NormFloat64())
		}
	}
	return m.pass.set(v, x)
}

// Params returns the parameters, each once, in the order in which the model uses them. The list belongs to the model.
func (m *Model) Params() []*Param {
	if m == nil {
		return nil
	}
	return m.params
}

// Trainable yields the names and values of the parameters that train, for package train.
func (m *Model) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, w := range m.Params() {
			if w.Trains && !yield(w.Name, w.Value) {
				return
			}
		}
	}
}

// Buffers yields the names and values, in float32, of the parameters with Buffer set, such as the running averages of a [BatchNorm].
// A Model is thereby a train.Buffered.
func (m *Model) Buffers() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, w := range m.Params() {
			if w.Buffer && !yield(w.Name, w.Value) {
				return
			}
		}
	}
}

// Matrix returns the rows and columns of a parameter with two dimensions or more as a matrix, for optimizers that take matrices: the
// first dimension, and the product of the others. For embeddings, output layers, vectors and unknown names it returns 0, 0.
func (m *Model) Matrix(name string) (rows, cols int) {
	for _, w := range m.Params() {
		if w.Name == name && len(w.Shape) >= 2 && !w.table {
			return w.Shape[0], w.Len() / max(1, w.Shape[0])
		}
	}
	return 0, 0
}

// Shape returns the dimensions of a parameter, nil for unknown names.
func (m *Model) Shape(name string) []int {
	for _, w := range m.Params() {
		if w.Name == name {
			return w.Shape
		}
	}
	return nil
}

// rows returns the number of rows of a sample, rounded down if they are not whole.
func (m *Model) rows(s Sample) int {
	if m == nil || m.pass == nil {
		return 0
	}
	if m.width == 0 {
		return len(s.Tokens)
	}
	return len(s.X) / m.width
}

// Weight returns the weight of a sample in a mean over several, such as the number of its targets: see [Loss].
func (m *Model) Weight(s Sample) float64 {
	if m == nil || m.loss == nil {
		return 0
	}
	return m.loss.Weight(s, m.rows(s))
}

// Costs returns the costs of each layer for batches of so many sequences with so many rows each, for the planners of package remat.
// Sizes are exactly the bytes that Backprop holds. The unit of times is 10⁹ multiply-adds of matrix products.
//
// The name of a stage, by which [remat.Only] selects it, is the common prefix of its parameters' names, such as "0.mlp". A layer
// without a common prefix has its number, such as "layers.3". The error wraps [snug.ErrConfig].
func (m *Model) Costs(sequences, rows int) (remat.Costs, error) {
	const most = 1<<31 - 1
	if m == nil || m.pass == nil || sequences < 1 || rows < 1 || rows > most/sequences {
		return remat.Costs{}, fmt.Errorf("layers: Costs: %d sequences of %d rows, or a model that NewModel did not make: want 1 to 2^31-1 rows: %w", sequences, rows, snug.ErrConfig)
	}
	costs := m.costs(Batch{Rows: sequences * rows, Sequences: sequences, Longest: rows})
	m.chain.Costs = &costs
	return costs, nil
}

// costs is Costs for any batch.
func (m *Model) costs(b Batch) remat.Costs {
	width := m.width
	costs := remat.Costs{Input: int64(m.pass.DType.Size()) * int64(b.Rows) * int64(width)}
	for i, l := range m.layers {
		c := m.pass.Cost(l, width, b)
		c.Name = stageName(i, l)
		costs.Stages = append(costs.Stages, c)
		width, _ = l.Width(width)
	}
	return costs
}

// stageName returns the common prefix of a layer's parameter names in whole parts between dots, never with the last part of a name. If
// there is none, it is the number of the layer.
func stageName(i int, l Layer) string {
	var common []string
	first := true
	l.Params(func(w *Param) bool {
		if w == nil {
			return true
		}
		parts := strings.Split(w.Name, ".")
		parts = parts[:len(parts)-1]
		if first {
			common, first = parts, false
		}
		n := 0
		for n < min(len(common), len(parts)) && common[n] == parts[n] {
			n++
		}
		common = common[:n]
		return n > 0
	})
	return cmp.Or(strings.Join(common, "."), fmt.Sprint("layers.", i))
}

// SetPlan makes Backprop run a plan, which says what each layer keeps for its backward step and what it computes again. A plan
// without operations keeps everything. Every plan gives the same gradients, bit for bit. After Backprop, Report.Mismatches lists
// where the bytes held differ from those of the last call of Costs.
//
// The error wraps [snug.ErrConfig] for a plan that is not valid, and [snug.ErrShape] for one of another number of layers.
func (m *Model) SetPlan(plan remat.Plan) (err error) {
	defer fault.Named(&err, "layers: SetPlan")
	if m == nil || m.pass == nil {
		return fmt.Errorf("a model that NewModel did not make: %w", snug.ErrConfig)
	}
	if len(plan.Ops) == 0 {
		m.chain.Costs = nil
	}
	r, err := m.chain.NewRunner(plan)
	if err == nil {
		m.runner, m.plan, m.fits = r, plan, 0
	}
	return err
}

// begin prepares for a sample, and returns its input as a tensor.
func (m *Model) begin(s Sample) (*Tensor, error) {
	rows := m.rows(s)
	switch {
	case m == nil || m.pass == nil:
		return nil, fmt.Errorf("a model that NewModel did not make, or is closed: %w", snug.ErrConfig)
	case rows < 1 || m.width > 0 && (len(s.X) != rows*m.width || s.Tokens != nil) || m.width == 0 && s.X != nil:
		return nil, fmt.Errorf("a sample of %d elements and %d tokens, want rows of %d elements, or for 0 tokens: %w", len(s.X), len(s.Tokens), m.width, snug.ErrShape)
	}
	b := &m.pass.Batch
	b.Draw, b.Tokens = s.Draw, s.Tokens
	err := b.Shape(rows, s.Sequences, s.Starts)
	if err == nil && s.Parts != nil {
		err = b.Part(s.Parts)
	}
	if err == nil && s.Positions != nil {
		err = b.Place(s.Positions, mostPosition)
	}
	if err != nil {
		return nil, errors.Unwrap(err) // without the name of the function
	}
	for _, w := range m.params {
		w.used = 0
	}
	m.pass.Number++
	m.pass.Begin()
	if m.pass.Window != nil && rows > m.fits {
		if err := m.pass.Reserve(m.plan, m.costs(*b)); err != nil {
			return nil, err
		}
		m.fits = rows
	}
	m.ends.enter(context.Background(), m.pass, meter.Forward)
	x := m.pass.Get(m.width)
	m.pass.Do(func() error {
		if m.width == 0 {
			return nil
		}
		return m.pass.set(x.View, s.X)
	})
	return x, m.pass.Failed()
}

// end frees the tensors of a call.
func (m *Model) end() {
	if m != nil && m.pass != nil {
		m.pass.PutAll()
		m.held.workspace.Set(m.held.buffers + m.pass.WorkspaceBytes())
		m.pass.Window, m.pass.Batch.Tokens, m.pass.Batch.Starts = nil, nil, nil
	}
}

// Backprop runs a micro-batch forward and backward. It adds to the window the gradients of scale times the mean loss, and returns
// the loss, not scaled. The error wraps [snug.ErrShape] for a sample that does not fit the model, and [snug.ErrConfig] for a nil
// window or a scale that is not finite. Or it comes from the window, the device or ctx. After an error the gradients in the window
// are wrong.
func (m *Model) Backprop(ctx context.Context, s Sample, scale float32, w Window) (loss fused.Loss, err error) {
	defer fault.Named(&err, "layers: Backprop")
	switch {
	case ctx == nil || w == nil:
		return loss, fmt.Errorf("the context or the window is nil: %w", snug.ErrConfig)
	case scale-scale != 0:
		return loss, fmt.Errorf("the scale is %v, want a finite one: %w", scale, snug.ErrConfig)
	}
	defer m.end()
	if m.Weight(s) > 0 && m.pass != nil {
		m.pass.Window = w
	}
	x, err := m.begin(s)
	if err == nil && m.pass.Window != nil {
		for _, b := range m.balances {
			defer b.End()
			err = cmp.Or(err, b.Begin())
		}
	}
	if err == nil && m.pass.Window != nil {
		_, m.Report, err = m.runner.Run(ctx, x, func(y *Tensor) (d *Tensor, err error) {
			m.ends.enter(ctx, m.pass, meter.Backward)
			d, loss = m.loss.Backward(m.pass.Start(ctx), y, s, scale)
			for _, b := range m.balances {
				balance, e := b.Loss(scale)
				loss.Sum += balance * loss.Weight
				err = cmp.Or(err, e)
			}
			return d, cmp.Or(err, m.pass.Failed())
		})
	}
	if err != nil {
		return fused.Loss{}, err
	}
	return loss, nil
}

// Evaluate returns the loss of a sample without training on it. Errors are those of Backprop.
func (m *Model) Evaluate(ctx context.Context, s Sample) (loss fused.Loss, err error) {
	defer fault.Named(&err, "layers: Evaluate")
	err = m.eval(ctx, s, func(y *Tensor) error {
		m.ends.enter(ctx, m.pass, meter.Forward)
		loss = m.loss.Evaluate(m.pass.Start(ctx), y, s)
		return m.pass.Failed()
	})
	if err != nil {
		return fused.Loss{}, err
	}
	return loss, nil
}

// Predict writes the output of the last layer for a sample to out, [rows, width of the output], in float32. Errors are those of
// Backprop, and [snug.ErrShape] for an out of another length.
func (m *Model) Predict(ctx context.Context, out []float32, s Sample) (err error) {
	defer fault.Named(&err, "layers: Predict")
	return m.eval(ctx, s, func(y *Tensor) error {
		if y.Len() != len(out) {
			return fmt.Errorf("out has %d elements, want %d: %w", len(out), y.Len(), snug.ErrShape)
		}
		return m.pass.read(out, y.View)
	})
}

func (m *Model) eval(ctx context.Context, s Sample, do func(y *Tensor) error) error {
	if ctx == nil {
		return fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	}
	defer m.end()
	x, err := m.begin(s)
	if err != nil {
		return err
	}
	y, err := m.chain.Eval(ctx, x)
	if err != nil {
		return err
	}
	return do(y)
}

// Close frees the memory of a device; the model cannot be used afterwards. On the CPU the garbage collector frees it.
func (m *Model) Close() (err error) {
	if m == nil || m.pass == nil {
		return nil
	}
	m.held.close()
	for _, b := range m.balances {
		err = errors.Join(err, b.Close())
	}
	for _, free := range m.free {
		err = errors.Join(err, free())
	}
	err = errors.Join(err, m.pass.Close())
	m.pass, m.params, m.free = nil, nil, nil
	return err
}
