package transformer

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
)

// Distillation says how a model, the student, learns from another model, the teacher (Hinton, Vinyals and Dean 2015,
// "Distilling the Knowledge in a Neural Network", arXiv:1503.02531).
type Distillation struct {
	// Teacher has the same vocabulary as the student and lies on the same device. Its type, the form of its matrices
	// and its architecture may differ. It runs forward only and does not change. Its Options.Monitor must not be that
	// of the student.
	Teacher *Model
	// Weight is the share of the divergence in the loss, above 0 and up to 1. The rest is cross-entropy.
	Weight float32
	// Embeddings are the vectors of the teacher where the batch has Embeddings. Without any they are those of the batch, for
	// a teacher of the same width. The teacher has no gradient, and leaves a Grad alone.
	Embeddings Embeddings
	// Added are the same for a batch with Added.
	Added []Embeddings
	// Temperature divides the logits of both models in the divergence, from 2^-20 to 2^20; 0 is 1.
	Temperature float32
}

// distilling is the Distillation of a running call.
type distilling struct {
	Distillation
	hidden  *tensor   // the teacher's normalized output
	weights []float32 // of the counted rows in the divergence; nil: all are 1
	some    []float32 // memory for weights
}

// BackpropDistill is [Model.Backprop] with the loss
//
//	(1−W)·cross-entropy + W·T²·KL(teacher ‖ student)
//
// where W is Weight and T is Temperature. Cross-entropy and KL are means over the labels that are not ignored, weighted
// by Batch.Weights. The logits of the two models exist for only Options.LossRows rows and Options.LossClasses classes
// at a time; both options are the student's. Options.Smoothing and ZLoss are part of the cross-entropy. The dropout of
// the teacher's adapters is not applied.
//
// In addition to the memory of Backprop, the student holds the workspace of [fused.DistillWorkspaceLen] and, with a
// Weight below 1, a second gradient of the head's input. The teacher holds buffers for its forward pass. Its workspace
// is smallest with an Options.LossRows of 1.
//
// The error wraps [snug.ErrConfig] for a Weight or Temperature out of range, and for a teacher that is nil, closed or
// the student itself. It wraps [snug.ErrShape] for another vocabulary and [snug.ErrDevice] for another device. Other
// errors are as for Backprop.
func (m *Model) BackpropDistill(ctx context.Context, b Batch, scale float32, d Distillation, w Window) (_ fused.Loss, err error) {
	defer fault.Named(&err, "transformer: BackpropDistill")
	if err := checkTarget(scale, w); err != nil {
		return fused.Loss{}, err
	}
	weight, err := m.beginDistill(ctx, b, d)
	if err != nil {
		return fused.Loss{}, err
	}
	if weight == 0 {
		return fused.Loss{}, m.withoutLabels(b)
	}
	defer m.endDistill()
	m.pass.Window, m.backward = w, call{head: m.lossOn(b), scale: scale / float32(weight)}
	m.backward.head.Smoothing, m.backward.head.ZLoss = m.options.Smoothing, m.options.ZLoss
	if err := m.run(ctx, m.distillOf); err != nil {
		return fused.Loss{}, err
	}
	return m.backward.loss, nil
}

// Divergence returns the loss KL(teacher ‖ student) at the Temperature, without the factors W and T², over the labels
// of a batch that are not ignored. There is no backward pass, and Weight is ignored. Errors and the teacher's memory
// are as for BackpropDistill.
func (m *Model) Divergence(ctx context.Context, b Batch, d Distillation) (loss fused.Loss, err error) {
	defer fault.Named(&err, "transformer: Divergence")
	d.Weight = 1
	weight, err := m.beginDistill(ctx, b, d)
	if err != nil || weight == 0 {
		return loss, err
	}
	defer m.endDistill()
	student, teacher := m.distillHeads()
	err = m.atHead(ctx, func(h, w snug.View) error {
		return m.distill.Teacher.head.With(false, func(taught snug.View) (err error) {
			loss, err = fused.Distill(student, teacher, h, w, m.taught(), taught, m.ws())
			return err
		})
	})
	if err != nil {
		return fused.Loss{}, err
	}
	return fused.Loss{Sum: loss.Sum, Targets: m.targets(), Weight: weight}, nil
}

// checkDistillation checks a batch and a Distillation, and fills in its default.
func (m *Model) checkDistillation(b Batch, d *Distillation) error {
	if err := m.usable(); err != nil {
		return err
	}
	t := d.Teacher
	d.Temperature = cmp.Or(d.Temperature, 1)
	switch {
	case t == nil:
		return fmt.Errorf("the teacher is nil: %w", snug.ErrConfig)
	case t == m:
		return fmt.Errorf("the teacher is the student: %w", snug.ErrConfig)
	case !(d.Weight > 0 && d.Weight <= 1):
		return fmt.Errorf("the Weight of the divergence is %v, want above 0 and up to 1: %w", d.Weight, snug.ErrConfig)
	case !(d.Temperature >= 0x1p-20 && d.Temperature <= 0x1p20):
		return fmt.Errorf("the Temperature is %v, want 0 or 2^-20 to 2^20: %w", d.Temperature, snug.ErrConfig)
	}
	if err := t.usable(); err != nil {
		return fmt.Errorf("the teacher: %w", err)
	}
	switch {
	case t.config.Vocab != m.config.Vocab:
		return fmt.Errorf("the teacher has a vocabulary of %d tokens, want the student's %d: %w", t.config.Vocab, m.config.Vocab, snug.ErrShape)
	case t.dev != m.dev:
		return fmt.Errorf("the teacher is on %s, and the student on %s: %w", t.dev.Name(), m.dev.Name(), snug.ErrDevice)
	}
	if err := t.checkEmbeddings(d.batch(b)); err != nil {
		return fmt.Errorf("the teacher: %w", err)
	}
	return cmp.Or(m.labels(b), b.plain())
}

// batch returns the batch of the teacher.
func (d *Distillation) batch(b Batch) Batch {
	if len(d.Embeddings.Rows) > 0 {
		b.Embeddings = d.Embeddings
	}
	b.Embeddings.Grad = snug.View{}
	if b.Added = slices.Clone(b.Added); len(d.Added) > 0 {
		b.Added = slices.Clone(d.Added)
	}
	for i := range b.Added {
		b.Added[i].Grad = snug.View{}
	}
	return b
}

// beginDistill checks and begins a batch, and runs the teacher forward. With a weight of 0 it has begun nothing.
func (m *Model) beginDistill(ctx context.Context, b Batch, d Distillation) (weight float64, err error) {
	if err := m.checkDistillation(b, &d); err != nil {
		return 0, err
	}
	if weight = b.Weight(); weight == 0 {
		return 0, nil
	}
	if err := m.begin(b); err != nil {
		return 0, err
	}
	m.counted.set(b.Labels, b.Weights, m.dev)
	m.distill.Distillation = d
	m.divergenceWeights(b)
	student, teacher := m.distillHeads()
	err = m.growWorkspace(fused.DistillWorkspaceLen(student, teacher, m.pass.Batch.Rows))
	if err == nil {
		err = m.countHeld()
	}
	if err == nil {
		err = m.teach(ctx, b)
	}
	if err != nil {
		m.endDistill()
	}
	return weight, err
}

// teach runs the teacher forward and keeps its output.
func (m *Model) teach(ctx context.Context, b Batch) (err error) {
	t := m.distill.Teacher
	if err := t.begin(m.distill.batch(b)); err != nil {
		return fmt.Errorf("the teacher: %w", err)
	}
	if m.distill.hidden, err = t.hidden(ctx); err == nil {
		err = t.pass.Failed()
	}
	if err != nil {
		return fmt.Errorf("the teacher: %w", err)
	}
	m.counted.gather(m.distill.hidden.View, t.config.Dim)
	return nil
}

// endDistill drops what the call holds, also of the teacher.
func (m *Model) endDistill() {
	m.distill.Teacher.end()
	m.distill = distilling{some: m.distill.some}
	m.end()
}

// divergenceWeights sets the weights of the counted rows. A device counts all rows; there the weight of an ignored
// label is 0.
func (m *Model) divergenceWeights(b Batch) {
	m.distill.weights = m.counted.weights
	if m.dev.IsCPU() {
		return
	}
	list := m.distill.some[:0]
	for i, label := range b.Labels {
		switch {
		case label < 0:
			list = append(list, 0)
		case b.Weights != nil:
			list = append(list, b.Weights[i])
		default:
			list = append(list, 1)
		}
	}
	m.distill.weights, m.distill.some = list, list
}

// taught returns the rows of the teacher's output that are counted.
func (m *Model) taught() snug.View {
	return part(m.distill.hidden.View, 0, len(m.counted.labels)*m.distill.Teacher.config.Dim)
}

// targets returns how many labels are not ignored.
func (m *Model) targets() (n int) {
	for _, t := range m.counted.labels {
		if t >= 0 {
			n++
		}
	}
	return n
}

// distillHeads returns the heads of both models, at the temperature.
func (m *Model) distillHeads() (student, teacher fused.CrossEntropy) {
	t := m.distill.Teacher
	student = m.loss
	student.Weights, student.Temperature = m.distill.weights, m.distill.Temperature
	teacher = fused.CrossEntropy{Vocab: t.config.Vocab, Cols: t.config.Dim, Cap: float32(t.config.LogitCap), Temperature: m.distill.Temperature}
	return student, teacher
}

// distillAndGradient is lossAndGradient of BackpropDistill.
func (m *Model) distillAndGradient(y *tensor) (*tensor, error) {
	return m.headBackward(y, func(w, h, acc snug.View, into snug.Into) error {
		c, d := &m.backward, &m.distill
		share := float64(d.Weight)
		if share == 1 {
			return m.distillBackward(w, h, acc, into, 1)
		}
		whole := m.pass.Get(m.config.Dim)
		defer m.pass.Put(whole)
		if err := m.pass.Failed(); err != nil {
			return err
		}
		dx := part(whole.View, 0, h.Len())
		loss, err := fused.CrossEntropyBackward(c.head, dx, acc, h, w, m.counted.labels, float32(1-share)*c.scale, into, m.ws())
		if err != nil {
			return err
		}
		c.loss.Sum = (1 - share) * loss.Sum
		into.Beta = 1
		if err := m.distillBackward(w, h, acc, into, share); err != nil {
			return err
		}
		return fused.Add(h, h, dx)
	})
}

// distillBackward replaces the counted rows h by the gradient of share·T² times the divergence, and adds to the loss.
func (m *Model) distillBackward(w, h, acc snug.View, into snug.Into, share float64) error {
	c, d := &m.backward, &m.distill
	factor := share * math.Pow(float64(d.Temperature), 2)
	student, teacher := m.distillHeads()
	var loss fused.Loss
	err := d.Teacher.head.With(false, func(taught snug.View) (err error) {
		loss, err = fused.DistillBackward(student, teacher, h, acc, h, w, m.taught(), taught, float32(factor)*c.scale, into, m.ws())
		return err
	})
	if err != nil {
		return err
	}
	c.loss.Sum += factor * loss.Sum
	c.loss.Targets = m.targets()
	c.loss.Weight = float64(c.loss.Targets)
	if c.head.Weights != nil {
		c.loss.Weight = 0
		for _, x := range c.head.Weights {
			c.loss.Weight += float64(x)
		}
	}
	return nil
}
