package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// teacherFlags are the flags of distillation.
type teacherFlags struct {
	dir, base          string
	share, temperature float64
}

// Defaults of -distill-weight and -distill-temperature.
const defaultShare, defaultTemperature = 0.5, 1

// teacherRules are what does not go with -teacher.
func (f *tuneFlags) teacherRules() []fault.Rule {
	t := &f.teacher
	is := t.dir != ""
	return []fault.Rule{
		{is && f.beta > 0, "-teacher teaches tokens, and -dpo learns from pairs of answers"},
		{is && t.share == 1 && (f.smoothing != 0 || f.zLoss != 0), "-label-smoothing and -z-loss are for cross-entropy, and -distill-weight 1 leaves none"},
		{is && f.dir != "" && resolved(t.dir) == resolved(f.dir) && cmp.Or(f.form, "bf16") == cmp.Or(t.base, "bf16"),
			"-teacher is the folder of -model: want another model, or another -base"},
	}
}

// readTeacher reads the teacher's configuration, and checks that its tokens are those of the model.
func (m *material) readTeacher(f *tuneFlags) (err error) {
	t := &f.teacher
	if t.dir == "" {
		return nil
	}
	if err := wantFolderOf("tune", "-teacher", t.dir); err != nil {
		return err
	}
	if m.teacherConfig, err = transformer.ReadConfig(t.dir); err != nil {
		return fmt.Errorf("-teacher: %w", err)
	}
	c := m.teacherConfig
	if err := checkWeights(c, t.dir); err != nil {
		return fmt.Errorf("-teacher %s: %w", t.dir, err)
	}
	m.teacherConfig = c.Held(t.forms())
	if m.teacherSums, err = checksumsOf(t.dir); err != nil {
		return fmt.Errorf("-teacher: %w", err)
	}
	switch {
	case c.Vocab != m.config.Vocab:
		return usagef("tune: -teacher %s has a vocabulary of %d tokens, and -model of %d", t.dir, c.Vocab, m.config.Vocab)
	case c.LearnedPositions && m.context > c.Context:
		return usagef("tune: -teacher %s has %d positions, and a sample has %d tokens: give -context", t.dir, c.Context, m.context)
	}
	tok, err := tokenizer.Open(t.dir)
	if err != nil {
		return fmt.Errorf("-teacher: %w", err)
	}
	for id := range int32(max(tok.Len(), m.tok.Len())) {
		a, _ := m.tok.Token(id)
		if b, _ := tok.Token(id); a != b {
			return usagef("tune: -teacher %s has another tokenizer than -model: token %d is %.40q there, and %.40q here", t.dir, id, b, a)
		}
	}
	return nil
}

// forms returns the options for matrices that the teacher's folder has quantized.
func (t *teacherFlags) forms() (o transformer.Options) {
	if form, err := parseBase(t.base); err == nil {
		o.Base = form
	}
	o.Decode = t.base == "bf16"
	return o
}

// teacherForm returns the form of the teacher's matrices, or 0 for the compute type.
func (m *tuning) teacherForm() qlora.Type {
	if m.teacherConfig.Stored != 0 {
		return m.teacherConfig.Stored
	}
	form, err := parseBase(m.teacher.base)
	if err != nil {
		return 0
	}
	return form
}

// describeTeacher adds the teacher to a task of package plan.
func (t *tuning) describeTeacher(task *plan.Task) error {
	if t.teacherConfig == nil {
		return nil
	}
	m, err := t.teacherConfig.Plan(t.context)
	if err != nil {
		return err
	}
	quantizeAll(m, t.teacher.base)
	m.Name = folderName(t.teacher.dir, m.Name)
	task.Teacher = &plan.Teacher{Model: m, Base: t.teacherForm(), Both: t.teacher.share < 1}
	return nil
}

// writeTeacher prints what the teacher is.
func (t *tuning) writeTeacher(w io.Writer) {
	p := t.plan.Task.Teacher
	if p == nil {
		return
	}
	form := t.plan.Run.Compute.String()
	if p.Base != 0 {
		form = p.Base.String()
	}
	f := &t.teacher
	fmt.Fprintf(w, "\nteacher: %s, %d parameters, matrices in %s; the divergence has the weight %v and the temperature %v\n", p.Model.Name, p.Model.Parameters(), form, f.share, f.temperature)
}

// student is a model that learns from a teacher.
type student struct {
	*transformer.Model
	transformer.Distillation
	found fused.Loss // divergences since the last call of taken
}

// studying opens the teacher and returns the model that learns from it.
func (t *tuning) studying() (learner, error) {
	f, r, base := &t.teacher, t.plan.Run, t.teacherForm()
	if t.teacherConfig.Stored != 0 && f.base == "" { // matrices that the folder has in floats stay so
		base = 0
	}
	teacher, err := transformer.Open(f.dir, transformer.Options{DType: t.dtype, Device: t.dev, Base: base, Decode: f.forms().Decode, LossRows: 1, Tiles: r.Tiles})
	if err != nil {
		return nil, fmt.Errorf("-teacher: %w", err)
	}
	t.student = &student{Model: t.model, Distillation: transformer.Distillation{Teacher: teacher, Weight: float32(f.share), Temperature: float32(f.temperature)}}
	runtime.GC() // frees what reading a second model has left, before training
	debug.FreeOSMemory()
	return t.student, teacher.Reserve(r.Micro, t.context)
}

func (s *student) Weight(b dataset.Batch) float64 { return b.Weight() }

func (s *student) Backprop(ctx context.Context, b dataset.Batch, scale float32, w train.Window) (fused.Loss, error) {
	return s.BackpropDistill(ctx, b.Batch, scale, s.Distillation, w)
}

// Evaluate returns the cross-entropy, and keeps the divergence for taken.
func (s *student) Evaluate(ctx context.Context, b dataset.Batch) (fused.Loss, error) {
	loss, err := s.Model.Evaluate(ctx, b.Batch)
	if err != nil {
		return loss, err
	}
	divergence, err := s.Divergence(ctx, b.Batch, s.Distillation)
	s.found = s.found.Plus(divergence)
	return loss, err
}

// taken returns the mean divergence of the batches since the last call, or nil if there were none.
func (s *student) taken() *float64 {
	if s == nil || s.found.Weight == 0 {
		return nil
	}
	mean := s.found.Mean()
	s.found = fused.Loss{}
	return &mean
}

// memory returns what the teacher holds.
func (s *student) memory() transformer.Memory {
	if s == nil {
		return transformer.Memory{}
	}
	return s.Teacher.Memory()
}

func (s *student) close() error {
	if s == nil {
		return nil
	}
	return s.Teacher.Close()
}

// writeDivergence prints the divergence on held-out samples before and after training.
func (r *result) writeDivergence(w io.Writer) {
	if r.DivergenceLast == nil {
		return
	}
	before := ""
	if r.DivergenceFirst != nil {
		before = fmt.Sprintf("%.4f before, ", *r.DivergenceFirst)
	}
	fmt.Fprintf(w, "divergence from the teacher on held-out samples: %s%.4f after\n", before, *r.DivergenceLast)
}
