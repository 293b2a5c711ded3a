package gomlx

import (
	stdcontext "context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	gotrain "github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
)

// model is a model of GoMLX as package train sees it.
type model struct {
	backend backends.Backend
	ctx     *context.Context
	fn      gotrain.ModelFn
	loss    gotrain.LossFn

	execs  map[kind]*context.Exec
	built  map[graph.GraphId]*built
	params []*param
	named  map[string]*param
	used   map[*context.Variable]bool // by the first graph; nil until New has built it
	moved  []*context.Variable        // that the first graph changes, ordered by name
	frozen []*context.Variable        // that the first graph uses and no graph of training changes
	global *context.Variable          // global_step
	first  int64                      // its value before step 1

	before  map[*context.Variable]bool // variables before the graph that is built; nil if none is
	touched []*context.Variable        // that graphs of evaluation change
	saved   *snapshot                  // of these, during Evaluate
}

// kind is what graphs differ in besides shapes.
type kind struct {
	spec           any
	inputs, labels int
	training       bool
}

// built is what a graph of training was built with.
type built struct {
	trains, moved, used []*context.Variable
	rate                bool // the graph sets the learning rate
}

// param is a variable that trains.
type param struct {
	name  string
	v     *context.Variable
	value snug.View
	data  unsafe.Pointer
}

// newModel builds the graph for a batch and gives the variables their first values.
func newModel(backend backends.Backend, ctx *context.Context, fn gotrain.ModelFn, loss gotrain.LossFn, b Batch) (*model, error) {
	if backend == nil || ctx == nil || fn == nil {
		return nil, fmt.Errorf("the backend, the context or the model is nil: %w", snug.ErrConfig)
	}
	m := &model{backend: backend, ctx: ctx, fn: fn, loss: loss, execs: map[kind]*context.Exec{}, built: map[graph.GraphId]*built{}, named: map[string]*param{}}
	if err := b.check(); err != nil {
		return nil, err
	}
	return m, catch("GoMLX", func() error {
		if err := m.tryOut(b); err != nil {
			return err
		}
		m.global = optimizers.GetGlobalStepVar(ctx)
		if err := thrown(ctx.InitializeVariables(backend, nil)); err != nil {
			return err
		}
		m.first = optimizers.GetGlobalStep(ctx)
		for _, g := range m.built { // one
			return m.collect(g)
		}
		return fmt.Errorf("the model built no graph: %w", snug.ErrConfig)
	})
}

var errBuilt = errors.New("the graph is built")

// tryOut builds the graph for a batch and throws it away, which makes the variables. GoMLX's Exec.PreCompile would keep
// the graph, but takes the values of the variables that it changes.
func (m *model) tryOut(b Batch) error {
	exec, err := context.NewExec(m.backend, m.ctx, func(ctx *context.Context, nodes []*graph.Node) []*graph.Node {
		m.build(ctx, kind{b.Spec, len(b.Inputs), len(b.Labels), true}, nodes)
		panic(errBuilt)
	})
	if err == nil {
		_, err = exec.Exec(b.arguments(1)...)
		exec.Finalize()
	}
	if errors.Is(err, errBuilt) {
		return nil
	}
	return thrown(err)
}

// thrown makes a configuration error of an error of GoMLX.
func thrown(err error) error {
	if err == nil || errors.Is(err, snug.ErrConfig) {
		return err
	}
	return fmt.Errorf("%w: %w", err, snug.ErrConfig)
}

// collect takes up the variables of the first graph.
func (m *model) collect(g *built) error {
	for _, v := range g.trains {
		p := &param{name: v.ScopeAndName(), v: v}
		t, err := v.Value()
		if err != nil {
			return thrown(err)
		}
		// The first access ends a tensor that is only on the device, and the second one gives it the memory in which it
		// stays: shared with the backend if it can share.
		if err := access(t, t.MutableFlatData, func(snug.View) error { return nil }); err != nil {
			return fmt.Errorf("variable %q: %w", p.name, err)
		}
		if m.backend.HasSharedBuffers() {
			if err := t.MaterializeOnDevice(m.backend, true, 0); err != nil {
				return thrown(err)
			}
		}
		err = access(t, t.MutableFlatData, func(view snug.View) error {
			p.value, p.data = view, address(view)
			return nil
		})
		if err != nil {
			return fmt.Errorf("variable %q: %w", p.name, err)
		}
		m.params, m.named[p.name] = append(m.params, p), p
	}
	if len(m.params) == 0 {
		return fmt.Errorf("the model uses no variable that trains: %w", snug.ErrConfig)
	}
	m.used = map[*context.Variable]bool{m.global: true}
	for _, v := range g.used {
		m.used[v] = true
		switch {
		case v.Trainable || v == m.global:
		case slices.Contains(g.moved, v):
			m.moved = append(m.moved, v)
		case v.Name() != optimizers.ParamLearningRate:
			m.frozen = append(m.frozen, v)
		}
	}
	slices.SortFunc(m.moved, func(a, b *context.Variable) int { return strings.Compare(a.ScopeAndName(), b.ScopeAndName()) })
	return nil
}

// exec returns what runs batches like b.
func (m *model) exec(b Batch, training bool) (*context.Exec, error) {
	k := kind{b.Spec, len(b.Inputs), len(b.Labels), training}
	if e := m.execs[k]; e != nil {
		return e, nil
	}
	// The variables are there since New.
	e, err := context.NewExec(m.backend, m.ctx.Checked(false), func(ctx *context.Context, nodes []*graph.Node) []*graph.Node {
		return m.build(ctx, k, nodes)
	})
	if err != nil {
		return nil, thrown(err)
	}
	e.SetMaxCache(-1) // else a graph for more than 32 shapes is an error
	m.execs[k] = e
	return e, nil
}

// build builds a graph. It panics, as such functions do.
func (m *model) build(ctx *context.Context, k kind, nodes []*graph.Node) []*graph.Node {
	m.note()
	loss := m.lossOf(ctx, k, nodes[:k.inputs], nodes[k.inputs:k.inputs+k.labels])
	if m.used != nil {
		m.compare(loss.Graph(), k.training)
	}
	if !k.training {
		return []*graph.Node{loss}
	}
	return m.gradientsOf(ctx, loss, nodes[len(nodes)-1])
}

// lossOf builds the graph of the loss, as GoMLX's train.Trainer does, in float32.
func (m *model) lossOf(ctx *context.Context, k kind, inputs, labels []*graph.Node) *graph.Node {
	g := inputs[0].Graph()
	ctx.SetTraining(g, k.training)
	predictions := m.fn(ctx, k.spec, inputs)
	if m.loss != nil {
		loss := m.loss(labels, predictions)
		if !loss.Shape().IsScalar() {
			loss = graph.ReduceAllMean(loss)
		}
		gotrain.SetLossNoRegularization(ctx, loss)
		gotrain.AddLoss(ctx, loss)
	}
	sum, found := ctx.InAbsPath(gotrain.TrainerAbsoluteScope).GetGraphParam(g, gotrain.TrainerLossGraphParamKey)
	if !found {
		panic(errors.New("there is no loss: neither a loss function nor train.AddLoss in the model"))
	}
	loss := sum.(*graph.Node)
	if loss.DType() != dtypes.Float32 {
		loss = graph.ConvertDType(loss, dtypes.Float32)
	}
	return loss
}

// gradientsOf builds the graph of the gradients, and notes the variables of the graph.
func (m *model) gradientsOf(ctx *context.Context, loss, scale *graph.Node) []*graph.Node {
	g := loss.Graph()
	ctx.EnumerateGraphParams(g, func(scope, key string, _ any) {
		if key == gotrain.TrainerPerStepUpdateGraphFnParamKey {
			panic(fmt.Errorf("the model adds an update for after each step in scope %q, which is not supported", scope))
		}
	})
	note := &built{}
	for v := range ctx.IterVariables() {
		if !v.InUseByGraph(g) {
			continue
		}
		note.used = append(note.used, v)
		changed := v.ChangedInGraph(g)
		switch {
		case v.Trainable && changed:
			panic(fmt.Errorf("the model changes the variable %q, which trains", v.ScopeAndName()))
		case v.Trainable:
			note.trains = append(note.trains, v)
		case changed:
			note.moved = append(note.moved, v)
			note.rate = note.rate || v.Name() == optimizers.ParamLearningRate
		}
	}
	outputs := []*graph.Node{loss}
	if len(note.trains) > 0 {
		outputs = append(outputs, ctx.BuildTrainableVariablesGradientsGraph(graph.Mul(loss, scale))...)
	}
	m.built[g.GraphId()] = note
	return outputs
}

// rated reports whether a graph sets the learning rate.
func (m *model) rated() bool {
	for _, g := range m.built {
		if g.rate {
			return true
		}
	}
	return false
}

// held returns an error if a variable that trains is no longer where it was. On a backend that does not share memory it
// also ends the copy on the device, which the optimizer has not updated.
func (m *model) held() error {
	for _, p := range m.params {
		same := false
		if t, err := p.v.Value(); err == nil {
			err = access(t, t.MutableFlatData, func(v snug.View) error {
				same = address(v) == p.data && v.Len() == p.value.Len()
				return nil
			})
			if err != nil {
				return err
			}
		}
		if !same {
			return fmt.Errorf("variable %q has got another tensor since New: %w", p.name, snug.ErrConfig)
		}
	}
	return nil
}

// Trainable yields the variables that train.
func (m *model) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, p := range m.params {
			if !yield(p.name, p.value) {
				return
			}
		}
	}
}

// Matrix returns the shape of a variable with two axes, except tables of embeddings.
func (m *model) Matrix(name string) (rows, cols int) {
	p := m.named[name]
	if p == nil || p.v.Shape().Rank() != 2 || p.v.Name() == "embeddings" {
		return 0, 0
	}
	return p.v.Shape().Dimensions[0], p.v.Shape().Dimensions[1]
}

// Weight returns the weight of a micro-batch, which was checked.
func (m *model) Weight(b Batch) float64 {
	switch b.Weight {
	case 0:
		return float64(b.rows())
	case NoWeight:
		return 0
	}
	return b.Weight
}

// Backprop runs a micro-batch forward and backward.
func (m *model) Backprop(ctx stdcontext.Context, b Batch, scale float32, w train.Window) (loss fused.Loss, err error) {
	outputs, id, err := m.run(ctx, b, true, scale)
	if err != nil {
		return loss, err
	}
	defer func() { err = errors.Join(err, finalize(outputs)) }()
	g := m.built[id]
	done, _ := w.(train.Completer)
	for i, v := range slices.Backward(g.trains) { // the order of a backward pass, in which shards are complete early
		grad := outputs[1+i]
		err := access(grad, grad.ConstFlatData, func(grad snug.View) error {
			acc, into, err := w.Into(v.ScopeAndName())
			if err != nil {
				return err
			}
			return accumulate(acc, grad, into)
		})
		if err == nil {
			err = thrown(grad.FinalizeAll())
		}
		if err == nil && done != nil {
			err = done.Done(v.ScopeAndName())
		}
		if err != nil {
			return loss, fmt.Errorf("the gradient of %q: %w", v.ScopeAndName(), err)
		}
	}
	return m.lossFrom(outputs[0], b)
}

// Evaluate returns the loss of a micro-batch.
func (m *model) Evaluate(ctx stdcontext.Context, b Batch) (loss fused.Loss, err error) {
	if err := b.check(); err != nil || m.Weight(b) == 0 {
		return loss, err
	}
	outputs, _, err := m.run(ctx, b, false, 1)
	if err != nil {
		return loss, err
	}
	defer func() { err = errors.Join(err, finalize(outputs)) }()
	return m.lossFrom(outputs[0], b)
}

// run runs the graph for a micro-batch.
func (m *model) run(ctx stdcontext.Context, b Batch, training bool, scale float32) (outputs []*tensors.Tensor, id graph.GraphId, err error) {
	if ctx == nil {
		return nil, 0, fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if err := b.check(); err != nil {
		return nil, 0, err
	}
	if err := m.held(); err != nil {
		return nil, 0, err
	}
	m.before = nil
	err = catch("GoMLX", func() error {
		exec, err := m.exec(b, training)
		if err != nil {
			return err
		}
		arguments := b.arguments(scale)
		if !training {
			arguments = arguments[:len(arguments)-1]
		}
		out, g, err := exec.ExecWithGraph(arguments...)
		if err != nil {
			return thrown(err)
		}
		outputs, id = out, g.GraphId()
		return nil
	})
	if err != nil && m.before != nil {
		err = errors.Join(err, m.forget())
	}
	return outputs, id, err
}

// lossFrom makes the loss of a micro-batch of its mean.
func (m *model) lossFrom(mean *tensors.Tensor, b Batch) (loss fused.Loss, err error) {
	err = access(mean, mean.ConstFlatData, func(v snug.View) error {
		n := m.Weight(b)
		loss = fused.Loss{Sum: n * float64(v.Float32s()[0]), Targets: int(math.Round(n)), Weight: n}
		return nil
	})
	return loss, err
}

// accumulate adds a gradient of any float type.
func accumulate(acc, grad snug.View, into snug.Into) error {
	switch grad.DType() {
	case snug.F32:
		return accum.Accumulate(acc.Float32s(), grad.Float32s(), into.Alpha, into.Beta)
	case snug.F16:
		return accum.Accumulate(acc.Float32s(), grad.Float16s(), into.Alpha, into.Beta)
	}
	return accum.Accumulate(acc.Float32s(), grad.BFloat16s(), into.Alpha, into.Beta)
}

func finalize(list []*tensors.Tensor) (err error) {
	for _, t := range list {
		if t.Ok() {
			err = errors.Join(err, t.FinalizeAll())
		}
	}
	return err
}
