package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
)

// param is one weight: rows × cols elements from start on in the vector of
// all weights.
type param struct {
	name       string
	rows, cols int
	start      int
	scale      float64   // standard deviation of its first values
	fill       float32   // its first value, when scale is 0
	value      snug.View // in the low type
}

func (p *param) len() int { return p.rows * p.cols }

// model is a GPT: embedding, blocks, final norm, and an output layer that
// shares the embedding's table.
type model struct {
	config
	dev               *snug.Device
	sequences, tokens int // of the micro-batch at hand

	params    []*param
	table     *param // token embedding, also the output layer
	positions *param // position embedding
	last      norm
	chain     *remat.Chain[*tensor, *saved]
	runner    *remat.Runner[*tensor, *saved]
	window    *accum.Window
	meter     *plan.Monitor
	pool      *pool
	ws        snug.View // float32 scratch of the layers
	loss      fused.CrossEntropy
	position  []int32
}

// newModel makes a model with undefined weights on dev.
func newModel(dev *snug.Device, c config) (*model, error) {
	meter, err := newMeter(c.limit)
	if err != nil {
		return nil, err
	}
	m := &model{config: c, dev: dev, meter: meter}
	m.pool = newPool(dev, m.meter)
	m.shape(c.batch().Micro, c.context)
	m.layout()
	n := 0
	for _, p := range m.params {
		p.start = n
		n += p.len()
	}
	all, err := newVector(dev, c.policy.Compute, n)
	if err != nil {
		return nil, err
	}
	m.meter.Add(plan.OnDevice, plan.Weights, int64(all.Bytes()))
	for _, p := range m.params {
		p.value = sub(all, p.start, p.len())
	}
	if m.window, err = newWindow(dev, c, m.params); err != nil {
		return nil, err
	}
	m.meter.Add(plan.OnDevice, plan.Gradients, 4*int64(n))
	m.loss = fused.CrossEntropy{Vocab: c.vocab, Cols: c.dim, Chunk: c.lossRows}
	if m.ws, err = newVector(dev, snug.F32, m.workspaceLen()); err != nil {
		return nil, err
	}
	m.meter.Add(plan.OnDevice, plan.Workspace, int64(m.ws.Bytes()))
	plan, err := c.plan()
	if err != nil {
		return nil, err
	}
	if m.runner, err = m.chain.NewRunner(plan); err != nil {
		return nil, err
	}
	return m, nil
}

// shape sets the micro-batch that the next calls work on.
func (m *model) shape(sequences, tokens int) {
	m.sequences, m.tokens = sequences, tokens
	m.position = m.position[:0]
	for i := range sequences * tokens {
		m.position = append(m.position, int32(i%tokens))
	}
}

func (m *model) add(name string, rows, cols int, scale float64, fill float32) *param {
	p := &param{name: name, rows: rows, cols: cols, scale: scale, fill: fill}
	m.params = append(m.params, p)
	return p
}

func (m *model) addNorm(name string) norm {
	return norm{m.add(name+".gain", 1, m.dim, 0, 1), m.add(name+".bias", 1, m.dim, 0, 0)}
}

// layout makes the chain of blocks and names all parameters.
func (m *model) layout() {
	m.table = m.add("embedding.tokens", m.vocab, m.dim, m.initScale(false), 0)
	m.positions = m.add("embedding.positions", m.context, m.dim, m.initScale(false), 0)
	m.chain = &remat.Chain[*tensor, *saved]{
		Bytes: bytesOf, SavedBytes: savedBytes,
		Release:      func(t *tensor) { m.pool.put(t) },
		ReleaseSaved: func(s *saved) { m.pool.put(s.tensors()...) },
		Costs:        m.costs(),
	}
	for i := range m.layers {
		m.addLayer(fmt.Sprintf("block%d", i))
	}
	m.last = m.addNorm("norm")
}

// addLayer adds the two halves of a transformer layer to the chain.
func (m *model) addLayer(name string) {
	d := m.dim
	m.chain.Stages = append(m.chain.Stages, &attentionHalf{
		model: m,
		norm:  m.addNorm(name + ".norm1"),
		qkv:   m.add(name+".qkv", 3*d, d, m.initScale(false), 0),
		proj:  m.add(name+".proj", d, d, m.initScale(true), 0),
	}, &perceptronHalf{
		model: m,
		norm:  m.addNorm(name + ".norm2"),
		up:    m.add(name+".up", 4*d, d, m.initScale(false), 0),
		bias:  m.add(name+".up.bias", 1, 4*d, 0, 0),
		down:  m.add(name+".down", d, 4*d, m.initScale(true), 0),
	})
}

// workspaceLen returns the float32 elements that the hungriest layer needs;
// only one runs at a time.
func (m *model) workspaceLen() int {
	rows := m.sequences * m.tokens
	n := max(m.loss.WorkspaceLen(rows),
		fused.LayerNormWorkspaceLen(rows, m.dim),
		fused.BiasGELUWorkspaceLen(rows, 4*m.dim))
	if m.on[useAttention] {
		return max(n, m.attentionConfig().WorkspaceLen())
	}
	return max(n, 2*m.tokens*m.tokens)
}

// firstValues writes elements lo to lo+len(w)-1 of a parameter before
// training. They depend on the seed and the parameter only.
func (m *model) firstValues(index int) func(lo int, w []float32) error {
	p := m.params[index]
	rng := rand.New(rand.NewPCG(m.seed, uint64(index)))
	return func(_ int, w []float32) error {
		for i := range w {
			w[i] = p.fill
			if p.scale > 0 {
				w[i] = float32(p.scale * rng.NormFloat64())
			}
		}
		return nil
	}
}

// embed returns the input of the first block.
func (m *model) embed(inputs []int32) (*tensor, error) {
	o := &ops{model: m, rows: len(inputs)}
	x := o.result("embedding", m.dim, &tensor{View: m.table.value})
	if err := cmp.Or(o.err, m.pool.err); err != nil {
		return nil, err
	}
	if err := fused.Embedding(x.View, m.table.value, inputs, m.positions.value, m.position, m.dim); err != nil {
		m.pool.put(x)
		return nil, err
	}
	return x, nil
}

// backprop runs one micro-batch forward and backward and adds its gradients,
// scaled by lossScale, to the window. It returns the sum of the losses.
func (m *model) backprop(ctx context.Context, inputs, targets []int32, lossScale float32) (float64, error) {
	x, err := m.embed(inputs)
	if err != nil {
		return 0, err
	}
	defer m.pool.put(x)
	var loss fused.Loss
	dx, _, err := m.runner.Run(ctx, x, func(y *tensor) (dy *tensor, err error) {
		dy, loss, err = m.head(y, targets, lossScale/float32(len(targets)))
		return dy, err
	})
	if err != nil {
		return 0, err
	}
	defer m.pool.put(dx)
	return loss.Sum, m.embedBackward(dx, inputs)
}

// head computes the losses of the last block's output and their gradient in
// it: final norm, output layer and cross-entropy.
func (m *model) head(y *tensor, targets []int32, scale float32) (*tensor, fused.Loss, error) {
	o := &ops{model: m, rows: len(targets)}
	var loss fused.Loss
	h, mean, rstd := o.result("layer_norm", m.dim, y), o.stat(o.rows), o.stat(o.rows)
	o.layerNorm(h, mean, rstd, y, m.last)
	o.do(func() error {
		acc, into, err := o.gradient(m.table)
		if err != nil {
			return err
		}
		loss, err = fused.CrossEntropyBackward(m.loss, h.View, acc, h.View, m.table.value, targets, scale, into, m.ws)
		return err
	})
	o.layerNormBackward(h, h, y, mean, rstd, m.last, 0)
	m.pool.put(mean, rstd)
	if o.err != nil {
		m.pool.put(h)
		return nil, loss, o.err
	}
	return h, loss, nil
}

func (m *model) embedBackward(dx *tensor, inputs []int32) error {
	for _, e := range []struct {
		p    *param
		rows []int32
	}{{m.table, inputs}, {m.positions, m.position}} {
		acc, into, err := m.window.Into(e.p.name)
		if err != nil {
			return err
		}
		if err := fused.EmbeddingBackward(acc, dx.View, e.rows, m.dim, into); err != nil {
			return err
		}
	}
	return nil
}

// evaluate returns the sum of the losses of sequences without training on
// them.
func (m *model) evaluate(ctx context.Context, inputs, targets []int32) (float64, error) {
	h, err := m.lastHidden(ctx, inputs)
	if err != nil {
		return 0, err
	}
	defer m.pool.put(h)
	loss, err := fused.CrossEntropyLoss(m.loss, h.View, m.table.value, targets, m.ws)
	return loss.Sum, err
}

// lastHidden returns the normalized output of the last block.
func (m *model) lastHidden(ctx context.Context, inputs []int32) (*tensor, error) {
	x, err := m.embed(inputs)
	if err != nil {
		return nil, err
	}
	defer m.pool.put(x)
	y, err := m.chain.Eval(ctx, x)
	if err != nil {
		return nil, err
	}
	o := &ops{model: m, rows: len(inputs)}
	o.layerNorm(y, nil, nil, y, m.last)
	if o.err != nil {
		m.pool.put(y)
	}
	return y, o.err
}

// logits computes the output layer for one row of hidden values.
func (m *model) logits(out []float32, hidden snug.View) error {
	o := &ops{model: m, rows: 1}
	y := o.alloc(m.policy.Output, m.vocab)
	defer m.pool.put(y)
	o.linear(y, &tensor{View: hidden}, m.table, 0)
	o.do(func() error { return snug.Copy(out, y.View) })
	return o.err
}
