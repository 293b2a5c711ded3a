package transformer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/rowwise"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
	"github.com/x448/float16"
)

// Window takes gradients; an [accum.Window] is one. Into returns the float32 accumulator of a parameter, which has the
// parameter's length, and how a gradient enters it. Further calls for the same name in one micro-batch must return a
// Beta of 1: a tied head has two gradients.
//
// If a Window is an [accum.Completer], Backprop calls Done as soon as the gradient of a parameter is
// complete.
type Window = interface {
	Into(name string) (acc snug.View, into snug.Into, err error)
}

// call is a running call of Backprop.
type call struct {
	window Window
	done   accum.Completer    // the window, if it is one, else nil
	head   fused.CrossEntropy // with the weights of the counted rows
	scale  float32            // factor of the sum of losses, whose gradients enter the window
	derive Derive             // of BackpropLogProbs
	refuse error              // of derive
	loss   fused.Loss

	balances bool      // the loss includes the balancing loss of experts
	whole    float32   // factor of the mean loss
	balance  []float32 // derivatives of the balancing loss in the scores of experts, empty until the last layer has run
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
func (m *Model) Backprop(ctx context.Context, b Batch, scale float32, w Window) (fused.Loss, error) {
	loss, err := m.backprop(ctx, b, scale, w)
	if err != nil {
		return fused.Loss{}, fmt.Errorf("transformer: Backprop: %w", err)
	}
	return loss, nil
}

func (m *Model) backprop(ctx context.Context, b Batch, scale float32, w Window) (fused.Loss, error) {
	if err := m.usable(); err != nil {
		return fused.Loss{}, err
	}
	if w == nil {
		return fused.Loss{}, fmt.Errorf("the window is nil: %w", snug.ErrConfig)
	}
	if scale-scale != 0 {
		return fused.Loss{}, fmt.Errorf("scale is %v, want a finite number: %w", scale, snug.ErrConfig)
	}
	if err := m.labels(b); err != nil {
		return fused.Loss{}, err
	}
	if err := b.plain(); err != nil {
		return fused.Loss{}, err
	}
	weight := b.Weight()
	if weight == 0 {
		return fused.Loss{}, nil
	}
	if err := m.begin(b); err != nil {
		return fused.Loss{}, err
	}
	m.backward = call{window: w, done: completerOf(w), head: m.lossOn(b), scale: scale / float32(weight)}
	m.backward.head.Smoothing, m.backward.head.ZLoss = m.options.Smoothing, m.options.ZLoss
	m.backward.head.Losses = m.options.Losses
	m.backward.whole = scale
	defer m.end()
	if err := m.beginBalance(); err != nil {
		return fused.Loss{}, err
	}
	if err := m.run(ctx, m.lossOf); err != nil {
		return fused.Loss{}, err
	}
	return m.backward.loss, nil
}

// run runs the batch forward and backward. last returns the gradient of the last stage's output.
func (m *Model) run(ctx context.Context, last func(*tensor) (*tensor, error)) error {
	_, _, err := m.runner.Run(ctx, &m.input, last)
	return cmp.Or(err, m.pool.err)
}

func completerOf(w Window) accum.Completer {
	c, _ := w.(accum.Completer)
	return c
}

// holdsOne says whether a window holds a gradient only until it is complete.
func holdsOne(w Window) bool {
	c, ok := w.(accum.OneHolder)
	return ok && c.HoldsOne()
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
	m.pool.putAll()
	m.options.Monitor.Enter(meter.Idle, "")
	m.backward, m.batch.tokens, m.batch.starts = call{}, nil, nil
	m.counted.drop()
}

// embed returns the embedding of the batch's tokens, which the first stage computes when it needs it.
func (o *ops) embed() *tensor {
	x, m := o.get(o.config.Dim), o.Model
	o.do(func() error {
		table, err := m.hold(m.table)
		if err != nil {
			return err
		}
		positions, at := part(table, 0, 0), []int32(nil)
		if m.positions != nil {
			if positions, err = m.hold(m.positions); err != nil {
				return errors.Join(err, m.drop(m.table, false))
			}
			at = m.batch.positions
		}
		err = fused.Embedding(x.View, table, m.batch.tokens, positions, at, m.config.Dim)
		if m.positions != nil {
			err = errors.Join(err, m.drop(m.positions, false))
		}
		return errors.Join(err, m.drop(m.table, false))
	})
	if scale := m.embeddingScale(); scale != 1 {
		o.do(func() error { // a product without inner columns multiplies x by beta, and adds nothing
			return amp.MatMul(x.View, part(x.View, 0, 0), part(x.View, 0, 0), amp.MatMulOptions{M: m.batch.rows, N: m.config.Dim, Into: snug.Into{Alpha: 1, Beta: scale}})
		})
	}
	return x
}

// embeddingScale returns the factor of the embedding, which transformers rounds to the type of
// the weights.
func (m *Model) embeddingScale() float32 {
	scale := float32(m.config.EmbeddingScale)
	switch m.dtype {
	case snug.BF16:
		return snug.ToBFloat16(scale).Float32()
	case snug.F16:
		return float16.Fromfloat32(scale).Float32()
	}
	return scale
}

// embedBackward adds to the gradients of the embedding and of the positions.
func (o *ops) embedBackward(dx *tensor) {
	for _, e := range [...]struct {
		p    *Param
		rows []int32
	}{{o.table, o.batch.tokens}, {o.positions, o.batch.positions}} {
		if e.p == nil || !e.p.Trains {
			continue
		}
		o.do(func() error {
			acc, into, err := o.gradient(e.p)
			if err != nil {
				return err
			}
			if into.Alpha == 0 {
				into.Alpha = 1
			}
			into.Alpha *= o.embeddingScale()
			return fused.EmbeddingBackward(acc, dx.View, e.rows, o.config.Dim, into)
		})
		o.done(e.p)
	}
}

// lossAndGradient computes the final norm, the head and the cross-entropy of the last stage's output, and returns the
// gradient of the loss with respect to that output.
func (m *Model) lossAndGradient(y *tensor) (*tensor, error) {
	c := &m.backward
	return m.headBackward(y, func(w, h, acc snug.View, into snug.Into) (err error) {
		c.loss, err = fused.CrossEntropyBackward(c.head, h, acc, h, w, m.counted.labels, c.scale, into, m.ws.v)
		return cmp.Or(err, m.balanceLoss())
	})
}

// headBackward computes the final norm of the last stage's output, and returns the gradient of that output. backward
// replaces the counted rows h of the norm's result by their gradient, and puts the gradient of the head w into acc.
func (m *Model) headBackward(y *tensor, backward func(w, h, acc snug.View, into snug.Into) error) (*tensor, error) {
	m.turned = true
	o := m.begins(m.headStage(), meter.Backward)
	h, s := o.get(m.config.Dim), o.stats(m.last)
	o.norm(h, s, y, m.last)
	o.do(func() error {
		acc, into, err := o.gradient(m.head)
		if err != nil {
			return err
		}
		w, err := m.hold(m.head)
		if err != nil {
			return err
		}
		err = backward(w, m.counted.gather(h.View, m.config.Dim), acc, into)
		m.counted.scatter(h.View, m.config.Dim)
		return errors.Join(err, m.drop(m.head, false))
	})
	if m.head != m.table { // the gradient of a tied head is complete with the embedding's
		o.done(m.head)
	}
	o.normBackward(h, h, s, y, m.last, 0)
	m.pool.put(s.mean, s.rstd)
	m.pool.give(h, m.holders.flowing)
	return h, o.err
}

// Evaluate returns the loss of a batch without a backward pass. Errors are the errors of Backprop.
func (m *Model) Evaluate(ctx context.Context, b Batch) (fused.Loss, error) {
	loss, err := m.evaluate(ctx, b)
	if err != nil {
		return fused.Loss{}, fmt.Errorf("transformer: Evaluate: %w", err)
	}
	return loss, nil
}

func (m *Model) evaluate(ctx context.Context, b Batch) (fused.Loss, error) {
	if err := m.usable(); err != nil {
		return fused.Loss{}, err
	}
	if err := m.labels(b); err != nil {
		return fused.Loss{}, err
	}
	if err := b.plain(); err != nil {
		return fused.Loss{}, err
	}
	if err := m.begin(b); err != nil {
		return fused.Loss{}, err
	}
	defer m.end()
	h, err := m.hidden(ctx)
	if err != nil {
		return fused.Loss{}, err
	}
	c := m.lossOn(b)
	w, err := m.hold(m.head)
	if err != nil {
		return fused.Loss{}, err
	}
	loss, err := fused.CrossEntropyLoss(c, m.counted.gather(h.View, m.config.Dim), w, m.counted.labels, m.ws.v)
	m.pool.put(h)
	return loss, errors.Join(err, m.drop(m.head, false))
}

// hidden returns the normalized output of the last stage.
func (m *Model) hidden(ctx context.Context) (*tensor, error) {
	y, err := m.chain.Eval(ctx, &m.input)
	if err != nil {
		return nil, err
	}
	o := m.begins(m.headStage(), meter.Forward)
	o.norm(y, stats{}, y, m.last)
	return y, o.err
}

// Logits writes to out, [len(rows), Vocab], the logits of the token that follows each of the given tokens, capped by
// Config.LogitCap. rows are numbers of tokens in the batch; nil is the last token of each sequence.
//
// The error wraps [snug.ErrShape] for an out of another length, for a row that the batch lacks, and for a batch whose
// fields do not fit each other or the model. Or it comes from the device or ctx.
func (m *Model) Logits(ctx context.Context, out []float32, b Batch, rows []int32) error {
	if err := m.logits(ctx, out, b, rows); err != nil {
		return fmt.Errorf("transformer: Logits: %w", err)
	}
	return nil
}

func (m *Model) logits(ctx context.Context, out []float32, b Batch, rows []int32) (err error) {
	if err := m.usable(); err != nil {
		return err
	}
	if err := b.plain(); err != nil {
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
	chosen := m.stage().get(dim)
	if m.pool.err != nil {
		return m.pool.err
	}
	most := m.batch.rows
	if !m.dev.IsCPU() {
		most = min(most, m.ws.v.Len()/vocab) // the workspace has at least a row
	}
	err = m.with(m.head, func(head snug.View) error { return m.logitsOf(out, h, chosen, head, rows, most) })
	m.pool.put(h, chosen)
	return err
}

// logitsOf writes the logits of rows of h, most at a time. chosen is memory for these rows.
func (m *Model) logitsOf(out []float32, h, chosen *tensor, head snug.View, rows []int32, most int) error {
	vocab, dim := m.config.Vocab, m.config.Dim
	for len(rows) > 0 {
		n := min(len(rows), most)
		picked, y := part(chosen.View, 0, n*dim), snug.ViewOf(out[:n*vocab])
		if !m.dev.IsCPU() {
			y = part(m.ws.v, 0, n*vocab)
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
	rows := make([]int32, m.batch.sequences)
	for i := range rows {
		if rows[i] = int32((i+1)*m.batch.longest - 1); m.batch.starts != nil {
			rows[i] = int32(m.batch.starts[i+1] - 1)
		}
	}
	return rows
}

// SetPlan makes Backprop run a plan, which says what each stage keeps for its backward step and what it computes again.
// Stages 2·i and 2·i+1 are the attention and the MLP of layer i; [remat.Only] makes plans by their names. A new model keeps everything, as does a plan without
// operations. Every plan gives the same gradients, bit for bit.
//
// A plan may put outputs of stages on disk, if there are Options.Checkpoints, as [remat.HRevolve] does.
//
// The error wraps [snug.ErrConfig] for a plan that is not valid, and for one that packs values, pages them to the host,
// pages saved sets, or pages outputs without Checkpoints; and [snug.ErrShape] for a plan of another number of stages.
func (m *Model) SetPlan(p remat.Plan) error {
	if err := m.usable(); err != nil {
		return fmt.Errorf("transformer: SetPlan: %w", err)
	}
	for _, op := range p.Ops {
		if op.Kind == remat.Pack || op.Kind == remat.PageHost {
			return fmt.Errorf("transformer: SetPlan: the operation %s moves values in a way that a Model does not: %w", op, snug.ErrConfig)
		}
	}
	r, err := m.chain.NewRunner(p)
	if err != nil {
		return fmt.Errorf("transformer: SetPlan: %w", err)
	}
	m.runner = r
	return nil
}

// attention returns the options of the attention of a layer, whose q, k and v lie side by side in
// each row if they are packed.
func (m *Model) attention(window int, rope *angles, packed bool) attention.Options {
	c, b := &m.config, &m.batch
	o := attention.Options{
		Batch: b.sequences, Heads: c.Heads, KVHeads: c.KVHeads, SeqQ: b.rows / b.sequences, Dim: c.HeadDim,
		Causal: true, Window: attention.Window{Left: window}, Scale: float32(m.scoreScale(rope)), Softcap: float32(c.ScoreCap),
	}
	if b.starts != nil {
		o.SeqQ, o.QStarts = b.rows, b.starts
	}
	if packed {
		return attention.PackedQKV(o)
	}
	return attention.SequenceMajor(o)
}

// scoreScale returns the factor of q·k. The factor a of a rope multiplies its sines and
// cosines, and so both q and k; it enters here as a², because the angles that
// [fused.Rotary] takes are plain rotations. Gradients of q and k are then right too.
func (m *Model) scoreScale(rope *angles) float64 {
	if rope == nil {
		return m.config.ScoreScale
	}
	return m.config.ScoreScale * rope.attention * rope.attention
}
