package transformer

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Derive computes the derivatives dlogp of a loss from the log-probabilities logp of the labels of a batch, one for each
// token. Those of ignored labels are 0, and their derivatives are not read; dlogp is zeros at first. Both belong to the
// model and are valid during the call.
type Derive = func(logp, dlogp []float32) error

// LogProbs writes to logp, for each token of the batch, the log-probability of its label, and 0 for a label that is
// ignored; the logits of all tokens never exist. The sum over a sequence is the log-probability of its labels. The batch
// has no Weights.
//
// Errors are the errors of Backprop; a logp that is not as long as the tokens is one that wraps [snug.ErrShape].
func (m *Model) LogProbs(ctx context.Context, logp []float32, b Batch) error {
	if err := m.logProbs(ctx, logp, b); err != nil {
		return fmt.Errorf("transformer: LogProbs: %w", err)
	}
	return nil
}

func (m *Model) logProbs(ctx context.Context, logp []float32, b Batch) error {
	if err := m.beginProbs(b); err != nil {
		return err
	}
	defer m.end()
	if len(logp) != len(b.Tokens) {
		return fmt.Errorf("logp has %d elements, want one for each of %d tokens: %w", len(logp), len(b.Tokens), snug.ErrShape)
	}
	h, err := m.hidden(ctx)
	if err != nil {
		return err
	}
	out, _, lse := m.probs()
	if err := m.headProbs(out, lse, m.counted.gather(h.View, m.config.Dim)); err != nil {
		return err
	}
	m.pool.put(h)
	m.counted.scatter(out, 1)
	return snug.Copy(logp, out)
}

// BackpropLogProbs runs one micro-batch forward and backward with a loss of the caller, such as a preference loss (DPO)
// or a policy gradient (PPO, GRPO). When the log-probabilities of the labels are known it calls derive, and then adds to
// the window the gradients of Σ dlogp·logp: of the loss, if dlogp has its derivatives. With an [accum.Window] the loss is
// a mean over what the weight of the window's Begin counts. The batch has no Weights, and Options.Smoothing and ZLoss do
// not count.
//
// The error is derive's, or as those of Backprop. It wraps [snug.ErrNonFinite] for a derivative that is not finite.
func (m *Model) BackpropLogProbs(ctx context.Context, b Batch, derive Derive, w Window) error {
	if err := m.backpropProbs(ctx, b, derive, w); err != nil {
		return fmt.Errorf("transformer: BackpropLogProbs: %w", err)
	}
	return nil
}

func (m *Model) backpropProbs(ctx context.Context, b Batch, derive Derive, w Window) error {
	if w == nil || derive == nil {
		return fmt.Errorf("the window or derive is nil: %w", snug.ErrConfig)
	}
	if err := m.beginProbs(b); err != nil {
		return err
	}
	defer m.end()
	m.backward = call{window: w, done: completerOf(w), derive: derive}
	return m.run(ctx, m.probsOf)
}

// beginProbs begins a batch, with memory for the log-probabilities of its labels.
func (m *Model) beginProbs(b Batch) error {
	if err := m.usable(); err != nil {
		return err
	}
	if b.Weights != nil {
		return fmt.Errorf("the batch has Weights, which a loss of log-probabilities has not: %w", snug.ErrConfig)
	}
	if err := m.labels(b); err != nil {
		return err
	}
	if err := m.begin(b); err != nil {
		return err
	}
	m.counted.set(b.Labels, nil, m.dev)
	n := m.batch.rows
	if err := m.ws.grow(m.workspaceLen(n) + 3*n); err != nil {
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
	n := m.batch.rows
	at := m.ws.v.Len() - 3*n
	return part(m.ws.v, at, n), part(m.ws.v, at+n, n), part(m.ws.v, at+2*n, n)
}

// probsAndGradient is lossAndGradient of a loss of the caller.
func (m *Model) probsAndGradient(y *tensor) (*tensor, error) {
	return m.headBackward(y, func(h, acc snug.View, into snug.Into) error {
		logp, dlogp, lse := m.probs()
		if err := m.headProbs(logp, lse, h); err != nil {
			return err
		}
		m.counted.scatter(logp, 1)
		if err := m.derive(logp, dlogp); err != nil {
			return err
		}
		n := len(m.counted.labels)
		dlogp, lse = part(m.counted.gather(dlogp, 1), 0, n), part(lse, 0, n)
		return fused.LogProbsBackward(m.loss, h, acc, dlogp, snug.View{}, lse, h, m.head.Value, m.counted.labels, into, m.ws.v)
	})
}

// headProbs writes the log-probabilities of the counted rows h to the front of logp, and what their backward pass needs
// to the front of lse.
func (m *Model) headProbs(logp, lse, h snug.View) error {
	n := len(m.counted.labels)
	return fused.LogProbs(m.loss, part(logp, 0, n), part(lse, 0, n), h, m.head.Value, m.counted.labels, m.ws.v)
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
	if err := m.backward.derive(p, d); err != nil {
		return err
	}
	for i, x := range d {
		if math.IsNaN(float64(x-x)) && !m.ignored(i) {
			return fmt.Errorf("derive set dlogp[%d] to %v: %w", i, x, snug.ErrNonFinite)
		}
	}
	if m.dev.IsCPU() {
		return nil
	}
	return snug.Copy(dlogp, d)
}

// ignored reports whether the label of a row is ignored.
func (m *Model) ignored(row int) bool {
	if m.counted.some {
		_, found := slices.BinarySearch(m.counted.rows, int32(row))
		return !found
	}
	return m.counted.labels[row] < 0
}
