package transformer

import (
	"context"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
)

// Derive sets dlogp to the derivatives of a loss by the log-probabilities logp of a batch's labels, both with one element
// for each token. At ignored labels logp is 0, and dlogp is not read. dlogp is zeros at first. Both belong to the model:
// do not keep them, and do not call the model from Derive.
type Derive = func(logp, dlogp []float32) error

// LogProbs writes to logp, for each token of the batch, the log-probability of its label, and 0 for a label that is
// ignored; the logits of all tokens never exist. The sum over a sequence is the log-probability of its labels. The batch
// has no Weights.
//
// Set Batch.Temperature to the temperature that the labels were sampled at. For the reference model of DPO, which is the
// model before it is tuned, call LogProbs before the first step, when fresh adapters have no effect yet, or open the
// folder a second time. LogProbs applies no dropout of adapters, while BackpropLogProbs does.
//
// Errors are the errors of Backprop; a logp that is not as long as the tokens is one that wraps [snug.ErrShape].
func (m *Model) LogProbs(ctx context.Context, logp []float32, b Batch) (err error) {
	defer fault.Named(&err, "transformer: LogProbs")
	if err := m.checkProbs(b); err != nil {
		return err
	}
	if len(logp) != len(b.Tokens) {
		return fmt.Errorf("logp has %d elements, want one for each of %d tokens: %w", len(logp), len(b.Tokens), snug.ErrShape)
	}
	if err := m.beginProbs(b); err != nil {
		return err
	}
	defer m.end()
	out, _, lse := m.probs()
	err = m.atHead(ctx, func(h, w snug.View) error { return m.headProbs(m.probsOn(b), out, lse, h, w) })
	if err != nil {
		return err
	}
	m.counted.scatter(out, 1)
	return snug.Copy(logp, out)
}

// BackpropLogProbs runs one micro-batch forward and backward with a loss of the caller, such as a preference loss (DPO)
// or a policy gradient (PPO, GRPO). When the log-probabilities of the labels are known it calls derive. It then adds to
// the window the gradients of scale·Σ dlogp·logp, which are those of scale times the loss. scale is the loss scale, or 1.
// If all labels of the batch are ignored, derive is not called, and nothing is added.
//
// An [accum.Window] averages micro-batches, by the weight n that was passed to its Begin. So the loss of a micro-batch
// must be a mean, and n counts what it is a mean over: tokens, sequences or pairs. In a train.Model, n is what Weight
// returns; when the trainer runs a micro-batch again, as it does when memory runs out, derive is called again too.
//
// The batch must have no Weights. Options.Smoothing and ZLoss are not applied.
//
// The error is derive's, or as those of Backprop. It wraps [snug.ErrNonFinite] for a derivative that is not finite.
func (m *Model) BackpropLogProbs(ctx context.Context, b Batch, scale float32, derive Derive, w Window) (err error) {
	defer fault.Named(&err, "transformer: BackpropLogProbs")
	if err := checkTarget(scale, w); err != nil {
		return err
	}
	if derive == nil {
		return fmt.Errorf("derive is nil: %w", snug.ErrConfig)
	}
	if err := m.checkProbs(b); err != nil {
		return err
	}
	if b.Weight() == 0 {
		return m.withoutLabels(b)
	}
	if err := m.beginProbs(b); err != nil {
		return err
	}
	defer m.end()
	m.pass.Window, m.backward = w, call{derive: derive, head: m.probsOn(b), scale: scale}
	err = m.run(ctx, m.probsOf)
	if m.backward.refuse != nil { // not where in the chain that was
		return fmt.Errorf("derive: %w", m.backward.refuse)
	}
	return err
}

// checkProbs checks a batch of labels whose log-probabilities are wanted.
func (m *Model) checkProbs(b Batch) error {
	if err := m.usable(); err != nil {
		return err
	}
	if b.Weights != nil {
		return fmt.Errorf("the batch has Weights, which a loss of log-probabilities has not: %w", snug.ErrConfig)
	}
	if t := b.Temperature; t != 0 && !(t >= 0x1p-100 && t <= 0x1p100) {
		return fmt.Errorf("the Temperature of the batch is %v, want 0 or 2^-100 to 2^100: %w", t, snug.ErrConfig)
	}
	return m.labels(b)
}

// probsOn returns the head of a batch whose log-probabilities are wanted.
func (m *Model) probsOn(b Batch) fused.CrossEntropy {
	c := m.loss
	c.Temperature = b.Temperature
	return c
}

// beginProbs begins a batch, with memory for the log-probabilities of its labels.
func (m *Model) beginProbs(b Batch) error {
	if err := m.begin(b); err != nil {
		return err
	}
	m.counted.set(b.Labels, nil, m.dev)
	n := m.pass.Batch.Rows
	if err := m.growWorkspace(m.workspaceLen(n) + 3*n); err != nil {
		return err
	}
	if !m.dev.IsCPU() && len(m.host) < 2*n {
		m.host = make([]float32, 2*n)
	}
	return m.countHeld()
}

// probs returns the part of the workspace for log-probabilities, their derivatives, and what LogProbs leaves for
// LogProbsBackward. No other operation uses it.
func (m *Model) probs() (logp, dlogp, lse snug.View) {
	n := m.pass.Batch.Rows
	at := m.ws().Len() - 3*n
	return part(m.ws(), at, n), part(m.ws(), at+n, n), part(m.ws(), at+2*n, n)
}

// probsAndGradient is lossAndGradient of a loss of the caller.
func (m *Model) probsAndGradient(y *tensor) (*tensor, error) {
	return m.headBackward(y, func(w, h, acc snug.View, into snug.Into) error {
		logp, dlogp, lse := m.probs()
		if err := m.headProbs(m.backward.head, logp, lse, h, w); err != nil {
			return err
		}
		m.counted.scatter(logp, 1)
		if err := m.derive(logp, dlogp); err != nil {
			return err
		}
		n := len(m.counted.labels)
		dlogp, lse = part(m.counted.gather(dlogp, 1), 0, n), part(lse, 0, n)
		return fused.LogProbsBackward(m.backward.head, h, acc, dlogp, snug.View{}, lse, h, w, m.counted.labels, into, m.ws())
	})
}

// headProbs writes the log-probabilities of the counted rows h for the head w to the front of logp, and what their backward
// pass needs to the front of lse.
func (m *Model) headProbs(c fused.CrossEntropy, logp, lse, h, w snug.View) error {
	n := len(m.counted.labels)
	return fused.LogProbs(c, part(logp, 0, n), part(lse, 0, n), h, w, m.counted.labels, m.ws())
}

// derive calls the caller's function, with copies of what is on a device.
func (m *Model) derive(logp, dlogp snug.View) error {
	p, d := logp.Float32s(), dlogp.Float32s()
	if !m.dev.IsCPU() {
		n := logp.Len()
		p, d = m.host[:n], m.host[n:2*n]
		if err := snug.Copy(p, logp); err != nil {
			return err
		}
	}
	clear(d)
	if err := m.callDerive(p, d); err != nil {
		m.backward.refuse = err
		return err
	}
	for i, x := range d {
		if x-x != 0 && !m.ignored(i) {
			m.backward.refuse = fmt.Errorf("dlogp[%d] is %v, want a finite number: %w", i, x, snug.ErrNonFinite)
			return m.backward.refuse
		}
		d[i] = m.backward.scale * x
	}
	if m.dev.IsCPU() {
		return nil
	}
	return snug.Copy(dlogp, d)
}

// callDerive calls the caller's function, which may not call the model.
func (m *Model) callDerive(logp, dlogp []float32) error {
	m.deriving = true
	defer func() { m.deriving = false }()
	return m.backward.derive(logp, dlogp)
}

// ignored reports whether the label of a row is ignored.
func (m *Model) ignored(row int) bool {
	if m.counted.some {
		_, found := slices.BinarySearch(m.counted.rows, int32(row))
		return !found
	}
	return m.counted.labels[row] < 0
}
