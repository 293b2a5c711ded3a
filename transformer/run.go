package transformer

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/rowwise"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Window takes gradients, see [layers.Window]. A tied head has two gradients.
type Window = layers.Window

// call is a running call of Backprop.
type call struct {
	head   fused.CrossEntropy // with the weights of the counted rows
	scale  float32            // factor of the sum of losses, whose gradients enter the window
	derive Derive             // of BackpropLogProbs
	refuse error              // of derive
	loss   fused.Loss

	whole float32 // factor of the mean loss
}

// Backprop runs one micro-batch forward and backward. It adds to the window the gradients of scale times the mean loss,
// weighted by Batch.Weights, of the labels that are not ignored; scale is the loss scale, or 1. It returns the loss,
// not scaled, see also Options.Losses. With an [accum.Window], first call Begin with [Batch.Weight]. For a batch of weight 0 it only returns a
// loss of 0.
//
// The error wraps [snug.ErrShape] for a batch whose fields do not fit each other or the model, and [snug.ErrConfig] for
// a scale that is not finite, for a weight that is negative or not finite, for both Sequences and Starts, and for a nil
// window. Or it comes from the window, the device or ctx. After an error the gradients in the window are wrong: reset
// it.
func (m *Model) Backprop(ctx context.Context, b Batch, scale float32, w Window) (_ fused.Loss, err error) {
	defer fault.Named(&err, "transformer: Backprop")
	if err := m.usable(); err != nil {
		return fused.Loss{}, err
	}
	if err := checkTarget(scale, w); err != nil {
		return fused.Loss{}, err
	}
	if err := cmp.Or(m.labels(b), b.plain()); err != nil {
		return fused.Loss{}, err
	}
	weight := b.Weight()
	if weight == 0 {
		return fused.Loss{}, m.withoutLabels(b)
	}
	if err := m.begin(b); err != nil {
		return fused.Loss{}, err
	}
	m.pass.Window, m.backward = w, call{head: m.lossOn(b), scale: scale / float32(weight)}
	m.backward.head.Smoothing, m.backward.head.ZLoss = m.options.Smoothing, m.options.ZLoss
	m.backward.head.Losses = m.options.Losses
	m.backward.whole = scale
	defer m.end()
	if err := m.balance.Begin(); err != nil {
		return fused.Loss{}, err
	}
	if err := m.run(ctx, m.lossOf); err != nil {
		return fused.Loss{}, err
	}
	return m.backward.loss, nil
}

// run runs the batch forward and backward. last returns the gradient of the last stage's output.
func (m *Model) run(ctx context.Context, last func(*tensor) (*tensor, error)) error {
	if err := m.reserve(); err != nil {
		return err
	}
	_, _, err := m.runner.Run(ctx, &m.input, last)
	return cmp.Or(err, m.pass.Failed())
}

// checkTarget returns an error unless gradients, scaled, can enter a window.
func checkTarget(scale float32, w Window) error {
	switch {
	case w == nil:
		return fmt.Errorf("the window is nil: %w", snug.ErrConfig)
	case scale-scale != 0:
		return fmt.Errorf("scale is %v, want a finite number: %w", scale, snug.ErrConfig)
	}
	return nil
}

// lossOn returns the loss of a batch's counted rows, with their weights.
func (m *Model) lossOn(b Batch) fused.CrossEntropy {
	m.counted.set(b.Labels, b.Weights, m.dev)
	c := m.loss
	c.Weights = m.counted.weights
	return c
}

// labels checks the labels and their weights.
func (m *Model) labels(b Batch) error {
	if len(b.Labels) != len(b.Tokens) {
		return fmt.Errorf("%d labels, want one for each of %d tokens: %w", len(b.Labels), len(b.Tokens), snug.ErrShape)
	}
	for i, t := range b.Labels {
		if int(t) >= m.config.Vocab {
			return fmt.Errorf("label %d is %d, want less than %d: %w", i, t, m.config.Vocab, snug.ErrShape)
		}
	}
	if b.Weights != nil && len(b.Weights) != len(b.Labels) {
		return fmt.Errorf("%d weights, want one for each of %d labels: %w", len(b.Weights), len(b.Labels), snug.ErrShape)
	}
	for i, x := range b.Weights {
		if !(x >= 0 && x <= math.MaxFloat32) {
			return fmt.Errorf("weight %d is %v, want a finite number of 0 or more: %w", i, x, snug.ErrConfig)
		}
	}
	return nil
}

// end drops what the caller gave, and frees the tensors that an error left in use.
func (m *Model) end() {
	m.pass.PutAll()
	m.balance.End()
	m.options.Monitor.Enter(meter.Idle, "")
	m.backward, m.pass.Window = call{}, nil
	m.pass.Batch, m.added = layers.Batch{Positions: m.pass.Batch.Positions[:0]}, nil // whose memory is the model's
	m.counted.labels, m.counted.weights = nil, nil
}

// lossAndGradient computes the final norm, the head and the cross-entropy of the last stage's output, and returns the
// gradient of the loss with respect to that output.
func (m *Model) lossAndGradient(y *tensor) (*tensor, error) {
	c := &m.backward
	return m.headBackward(y, func(w, h, acc snug.View, into snug.Into) (err error) {
		c.loss, err = fused.CrossEntropyBackward(c.head, h, acc, h, w, m.counted.labels, c.scale, into, m.ws())
		if err != nil {
			return err
		}
		balance, err := m.balance.Loss(c.whole)
		c.loss.Sum += balance * c.loss.Weight
		return err
	})
}

// headBackward computes the final norm of the last stage's output, and returns the gradient of that output. backward
// replaces the counted rows h of the norm's result by their gradient, and puts the gradient of the head w into acc.
func (m *Model) headBackward(y *tensor, backward func(w, h, acc snug.View, into snug.Into) error) (*tensor, error) {
	m.turned = true
	o := m.begins(context.Background(), m.headStage(), meter.Backward)
	h, s := o.Get(m.config.Dim), m.last.NewStats(o, 1)
	m.normalize(o, h, s, y)
	o.Do(func() error {
		acc, into, err := o.Gradient(m.head)
		if err != nil {
			return err
		}
		return m.head.With(false, func(w snug.View) error {
			err := backward(w, m.counted.gather(h.View, m.config.Dim), acc, into)
			m.counted.scatter(h.View, m.config.Dim)
			return err
		})
	})
	if m.head != m.table.Table { // the gradient of a tied head is complete with the embedding's
		o.Done(m.head)
	}
	m.scaleLogits(o, h)
	m.last.Gradients(o, h, h, s, y, 0)
	s.Release(o)
	o.Give(h, m.holders.flowing)
	return h, o.Err
}

// Evaluate returns the loss of a batch without a backward pass. Errors are the errors of Backprop.
func (m *Model) Evaluate(ctx context.Context, b Batch) (loss fused.Loss, err error) {
	defer fault.Named(&err, "transformer: Evaluate")
	if err := m.usable(); err != nil {
		return loss, err
	}
	if err := cmp.Or(m.labels(b), b.plain()); err != nil {
		return loss, err
	}
	if err := m.begin(b); err != nil {
		return loss, err
	}
	defer m.end()
	c := m.lossOn(b)
	err = m.atHead(ctx, func(h, w snug.View) (err error) {
		loss, err = fused.CrossEntropyLoss(c, h, w, m.counted.labels, m.ws())
		return err
	})
	return loss, err
}

// atHead runs the batch forward, and calls do with the counted rows of the last stage's normalized output and the head.
func (m *Model) atHead(ctx context.Context, do func(h, w snug.View) error) error {
	h, err := m.hidden(ctx)
	if err != nil {
		return err
	}
	err = m.head.With(false, func(w snug.View) error { return do(m.counted.gather(h.View, m.config.Dim), w) })
	m.pass.Put(h)
	return err
}

// hidden returns the normalized output of the last stage.
func (m *Model) hidden(ctx context.Context) (*tensor, error) {
	y, err := m.chain.Eval(ctx, &m.input)
	if err != nil {
		return nil, err
	}
	o := m.begins(ctx, m.headStage(), meter.Forward)
	m.normalize(o, y, layers.Stats{}, y)
	return y, o.Err
}

// Logits writes to out, [len(rows), Vocab], the logits of the token that follows each of the given tokens, capped by
// Config.LogitCap. rows are numbers of tokens in the batch; nil is the last token of each sequence.
//
// The error wraps [snug.ErrShape] for an out of another length, for a row that the batch lacks, and for a batch whose
// fields do not fit each other or the model. Or it comes from the device or ctx.
func (m *Model) Logits(ctx context.Context, out []float32, b Batch, rows []int32) (err error) {
	defer fault.Named(&err, "transformer: Logits")
	if err := cmp.Or(m.usable(), b.plain()); err != nil {
		return err
	}
	if err := m.begin(b); err != nil {
		return err
	}
	defer m.end()
	if rows == nil {
		rows = m.lastRows()
	}
	vocab, dim := m.config.Vocab, m.config.Dim
	if len(out)/vocab != len(rows) || len(out)%vocab != 0 {
		return fmt.Errorf("out has %d elements, want %d rows of %d: %w", len(out), len(rows), vocab, snug.ErrShape)
	}
	h, err := m.hidden(ctx)
	if err != nil {
		return err
	}
	chosen := m.pass.Get(dim)
	if err := m.pass.Failed(); err != nil {
		return err
	}
	most := m.pass.Batch.Rows
	if !m.dev.IsCPU() {
		most = min(most, m.ws().Len()/vocab) // the workspace has at least a row
	}
	err = m.head.With(false, func(head snug.View) error { return m.logitsOf(out, h, chosen, head, rows, most) })
	m.pass.Put(h, chosen)
	return err
}

// logitsOf writes the logits of rows of h, most at a time. chosen is memory for these rows.
func (m *Model) logitsOf(out []float32, h, chosen *tensor, head snug.View, rows []int32, most int) error {
	vocab, dim := m.config.Vocab, m.config.Dim
	for len(rows) > 0 {
		n := min(len(rows), most)
		picked, y := part(chosen.View, 0, n*dim), snug.ViewOf(out[:n*vocab])
		if !m.dev.IsCPU() {
			y = part(m.ws(), 0, n*vocab)
		}
		if err := fused.Embedding(picked, h.View, rows[:n], part(h.View, 0, 0), nil, dim); err != nil {
			return err
		}
		if err := amp.MatMul(y, picked, head, amp.MatMulOptions{M: n, N: vocab, K: dim, TransB: true}); err != nil {
			return err
		}
		if err := snug.Copy(out[:n*vocab], y); err != nil { // from a device
			return err
		}
		m.capLogits(out[:n*vocab])
		out, rows = out[n*vocab:], rows[n:]
	}
	return nil
}

// capLogits replaces logits z by c·tanh(z/c), if the model has a cap c.
func (m *Model) capLogits(z []float32) {
	if limit := float32(m.config.LogitCap); limit != 0 {
		rowwise.Registry.Best().Softcap(z, 1/limit, limit)
	}
}

// lastRows returns the last row of each sequence.
func (m *Model) lastRows() []int32 {
	rows := make([]int32, m.pass.Batch.Sequences)
	for i := range rows {
		if rows[i] = int32((i+1)*m.pass.Batch.Longest - 1); m.pass.Batch.Starts != nil {
			rows[i] = int32(m.pass.Batch.Starts[i+1] - 1)
		}
	}
	return rows
}

// SetPlan makes Backprop run a plan, which says what each stage keeps for its backward step and what it computes again.
// Stages 2·i and 2·i+1 are the attention and the MLP of layer i, and with Config.Parallel stage i is layer i; [remat.Only] makes plans by their names. A new model keeps everything, as does a plan without
// operations. Every plan gives the same gradients, bit for bit.
//
// A plan may put outputs of stages on disk, if there are Options.Checkpoints, as [remat.HRevolve] does.
//
// The error wraps [snug.ErrConfig] for a plan that is not valid, and for one that packs values, pages them to the host,
// pages saved sets, or pages outputs without Checkpoints; and [snug.ErrShape] for a plan of another number of stages.
func (m *Model) SetPlan(p remat.Plan) (err error) {
	defer fault.Named(&err, "transformer: SetPlan")
	if err := m.opened(); err != nil {
		return err
	}
	for _, op := range p.Ops {
		if op.Kind == remat.Pack || op.Kind == remat.PageHost {
			return fmt.Errorf("the operation %s moves values in a way that a Model does not: %w", op, snug.ErrConfig)
		}
	}
	r, err := m.chain.NewRunner(p)
	if err == nil {
		m.runner, m.plan, m.fits = r, p, 0
	}
	return err
}
