package plan

import (
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/qlora"
)

// Teacher is a second model, which does not train. The loss compares its predictions with the predictions of the model
// that learns, as BackpropDistill of package transformer does. For each micro-batch the teacher runs forward first. Its
// weights have the compute type of the run, except matrices in the form Base, and lie on the device.
type Teacher struct {
	Model Model
	// Base is the form of the teacher's matrices; 0 is the compute type. FP8 has scales by block.
	Base qlora.Type
	// Both says that the loss has cross-entropy in addition to the divergence. The gradient of the head's input then
	// takes memory twice, once for each of the two.
	Both bool
}

// check returns an error unless the teacher can teach a model.
func (p *Teacher) check(t Task) error {
	if p == nil {
		return nil
	}
	if err := p.Model.Validate(); err != nil {
		return err
	}
	a, b := t.Model.Head, p.Model.Head
	switch {
	case a.Classes != b.Classes || a.Rows != b.Rows || a.Classes < 1:
		return invalid("the Teacher has %d classes for %d rows of a sample, want the model's %d for %d", b.Classes, b.Rows, a.Classes, a.Rows)
	case p.Base != 0 && p.Base.String() == "invalid":
		return invalid("the Base of the Teacher is %d, want a type of package qlora", p.Base)
	case a.LogProbs:
		return invalid("a loss of log-probabilities has no Teacher")
	case !(16*p.Model.perSample()*float64(t.Batch) < 1<<60):
		return shapeless("a batch of %d samples of the Teacher is too large", t.Batch)
	}
	return nil
}

// task returns the teacher as a task and a run, with its matrices frozen in the form Base.
func (p *Teacher) task(t Task, r Run) (Task, Run) {
	teacher := Task{Model: p.Model, Device: t.Device, Batch: t.Batch, LossRows: 1, Rank: 1, Base: p.Base}
	run := Run{Micro: r.Micro, Window: r.Window, Compute: r.Compute, Tiled: r.Tiled, Tiles: r.Tiles, Frozen: 16}
	if p.Base != 0 {
		run.Frozen = teacher.baseBits()
	}
	return teacher, run
}

// weightBytes returns the bytes of the teacher's weights.
func (p *Teacher) weightBytes(t Task, r Run) (bytes int64) {
	if p == nil {
		return 0
	}
	teacher, run := p.task(t, r)
	for w := range p.Model.tensors() {
		n := saturate.Mul(w.len(), r.elem())
		if w.linear {
			n = teacher.frozenBytes(run, w)
		}
		bytes = saturate.Add(bytes, saturate.Mul(int64(w.times), n))
	}
	return bytes
}

// forward returns the most bytes of activations that the teacher uses at one time.
func (p *Teacher) forward(t Task, r Run) (used int64) {
	if p == nil {
		return 0
	}
	teacher, run := p.task(t, r)
	teacher.Rank = 0
	c := teacher.costs(run, int64(r.Micro))
	input := c.Input
	for _, s := range c.Stages {
		used = max(used, input+s.Output+s.ForwardExtra)
		input = s.Output
	}
	return used
}

// tileBytes returns the bytes of the tile of the teacher's matrices.
func (p *Teacher) tileBytes(t Task, r Run) int64 {
	if p == nil {
		return 0
	}
	teacher, run := p.task(t, r)
	return teacher.tileBytes(run)
}

// workspaceBytes returns the bytes of float32 workspace of the teacher, and of the loss that compares the two models.
func (p *Teacher) workspaceBytes(t Task, r Run) (own, loss int64) {
	if p == nil {
		return 0, 0
	}
	teacher, run := p.task(t, r)
	own = teacher.workspaceBytes(run) + 4*p.Model.Tables + r.elem()*(p.Model.Vectors+int64(r.Micro)*p.Model.Beside) + p.tileBytes(t, r)
	h := p.Model.Head
	loss = 4 * int64(fused.DistillWorkspaceLen(t.loss(), fused.CrossEntropy{Vocab: h.Classes, Cols: h.Cols}, r.Micro*t.Model.Head.Rows))
	return own, loss
}

// seconds returns the time that the teacher adds for a sample: its forward pass, and its product in the loss, which is
// computed twice where the vocabulary is cut into tiles. With Both, the products of cross-entropy come in addition.
func (p *Teacher) seconds(t Task, r Run) (sum float64) {
	if p == nil {
		return 0
	}
	teacher, run := p.task(t, r)
	for _, l := range p.Model.Layers {
		forward, _ := teacher.seconds(l, run)
		sum += forward * float64(l.repeat())
	}
	times, h := 1.0, p.Model.Head
	if t.loss().Tiles() > 1 {
		times = 2
	}
	sum += times * 2 * float64(h.Rows) * float64(h.Cols) * float64(h.Classes) / t.Device.rate(r.Compute)
	if p.Both {
		sum += 6 * float64(t.Model.Head.Rows) * float64(t.Model.Head.Cols) * float64(t.Model.Head.Classes) / t.Device.rate(r.Compute)
	}
	return sum
}
