package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"syscall"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
	"github.com/stretchr/testify/require"
)

// line is a model of one parameter, whose loss is its distance from the data.
type line struct{ w []float32 }

func (l line) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield("w", snug.ViewOf(l.w)) }
}
func (l line) Weight(float32) float64 { return 1 }
func (l line) Backprop(ctx context.Context, b, scale float32, w train.Window) (fused.Loss, error) {
	if err := ctx.Err(); err != nil {
		return fused.Loss{}, err
	}
	acc, into, err := w.Into("w")
	if err != nil {
		return fused.Loss{}, err
	}
	acc.Float32s()[0] = into.Beta*acc.Float32s()[0] + into.Alpha*scale*(l.w[0]-b)
	return l.Evaluate(context.Background(), b)
}
func (l line) Evaluate(_ context.Context, b float32) (fused.Loss, error) {
	d := float64(l.w[0] - b)
	return fused.Loss{Sum: d * d / 2, Targets: 1}, nil
}

// stopAfter is a context that is done after some looks at it.
type stopAfter struct {
	context.Context
	looks int
}

func (s *stopAfter) Err() error {
	if s.looks--; s.looks < 0 {
		return context.Canceled
	}
	return nil
}

func TestTraining(t *testing.T) {
	dir := t.TempDir()
	every := 0
	var measured []int // the steps before each loss on held-out data
	run := func(saves bool, looks int) (r Trained, out string, err error) {
		o := train.Options{Schedule: train.Constant(0.1)}
		if saves {
			o.Dir = dir
		}
		tr, err := train.New[float32](line{[]float32{4}}, o)
		require.NoError(t, err)
		defer func() { require.NoError(t, tr.Close()) }()
		var b bytes.Buffer
		steps := 0
		measured = nil
		r, err = Training[float32]{
			Trainer: tr, Steps: 10, Saves: saves, Progress: NewProgress(&b, &b, 10),
			Stop:    Stop{&stopAfter{context.Background(), looks}, context.Background()},
			Batches: func(int) ([]float32, error) { return []float32{1, 2}, nil }, Tokens: func(float32) int { return 3 },
			HeldOut:   func(yield func(float32, error) bool) { yield(1.5, nil) },
			EvalEvery: every, Evaluated: func(step int, loss float64) {
				if measured = append(measured, step); step == 0 {
					require.Equal(t, 3.125, loss)
				}
			},
			After: func(r train.Report) (string, error) {
				steps++
				return "held", nil
			},
		}.Run()
		require.Equal(t, 6*steps, r.Tokens)
		return r, b.String(), err
	}
	r, out, err := run(false, 100)
	require.NoError(t, err)
	require.Equal(t, 60, r.Tokens)
	require.Equal(t, 3.125, r.First)
	require.Less(t, r.Last, 2.0)
	require.Positive(t, r.Rate())
	require.Regexp(t, `step 10/10  loss [0-9.]+  [0-9]+ tokens/s  held\n$`, out)
	require.Equal(t, []int{0, 10}, measured)

	_, _, err = run(false, 4)
	require.Equal(t, Interruption{"interrupted after step 4 of 10, and nothing is saved without -checkpoint", 1}, err)
	_, _, err = run(true, 0)
	require.Equal(t, Interruption{"interrupted before the first step", 1}, err)
	_, _, err = run(true, 4)
	require.Equal(t, Interruption{"interrupted after step 4 of 10, which is saved: the same command goes on from there", 1}, err)
	last := r.Last
	r, _, err = run(true, 100)
	require.NoError(t, err)
	require.Equal(t, 36, r.Tokens)
	require.Equal(t, last, r.Last, "the bits of a run that was not interrupted")
	require.Zero(t, r.First)
	require.Equal(t, []int{10}, measured)
	r, _, err = run(true, 100)
	require.NoError(t, err)
	require.Zero(t, r.Rate())

	every = 5
	r, out, err = run(false, 100)
	require.NoError(t, err)
	require.Equal(t, []int{0, 5, 10}, measured)
	require.Equal(t, last, r.Last)
	require.Contains(t, out, "\nloss on held-out samples after step 5: ")
}

// Data that cannot be read end a run with their error. The steps before are saved, and the run goes on from there.
func TestTrainingWithoutData(t *testing.T) {
	dir, broken := t.TempDir(), errors.New("the disk is broken")
	run := func(saves bool, good int, heldOut error) (Trained, error) {
		o := train.Options{Schedule: train.Constant(0.1)}
		if saves {
			o.Dir = dir
		}
		tr, err := train.New[float32](line{[]float32{4}}, o)
		require.NoError(t, err)
		defer func() { require.NoError(t, tr.Close()) }()
		var b bytes.Buffer
		return Training[float32]{
			Trainer: tr, Steps: 10, Saves: saves, Progress: NewProgress(&b, &b, 10), Stop: Stop{context.Background(), context.Background()},
			Batches: func(step int) ([]float32, error) {
				if step == good {
					return nil, broken
				}
				return []float32{1, 2}, nil
			},
			Tokens: func(float32) int { return 3 }, After: func(train.Report) (string, error) { return "", nil },
			HeldOut: func(yield func(float32, error) bool) {
				_ = yield(1.5, nil) && yield(0, heldOut)
			},
		}.Run()
	}
	whole, err := run(false, -1, nil)
	require.NoError(t, err)
	_, err = run(false, 4, nil)
	require.Equal(t, broken, err)
	r, err := run(false, -1, broken)
	require.Equal(t, broken, err)
	require.Zero(t, r.First)
	_, err = run(true, 0, nil)
	require.Equal(t, broken, err)
	_, err = run(true, 4, nil)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "the disk is broken; step 4 of 10 is saved: the same command goes on from there")
	r, err = run(true, -1, nil)
	require.NoError(t, err)
	require.Equal(t, 36, r.Tokens)
	require.Equal(t, whole.Last, r.Last)
}

// A second signal ends in the middle of a step, and is no error of the model.
func TestTrainingAtOnce(t *testing.T) {
	for want, saves := range map[string]bool{
		"interrupted at once after step 0 of 10: nothing is saved without -checkpoint":                               false,
		"interrupted at once after step 0 of 10: the same command goes on from its last checkpoint, if there is one": true,
	} {
		tr, err := train.New[float32](line{[]float32{4}}, train.Options{})
		require.NoError(t, err)
		now, cancel := context.WithCancelCause(context.Background())
		var b bytes.Buffer
		_, err = Training[float32]{
			Trainer: tr, Steps: 10, Saves: saves, Progress: NewProgress(&b, &b, 10), Stop: Stop{context.Background(), now},
			Batches: func(int) ([]float32, error) { cancel(signalled{syscall.SIGTERM}); return []float32{1}, nil },
			HeldOut: func(func(float32, error) bool) {},
		}.Run()
		require.Equal(t, Interruption{want, 1}, err)
		require.NoError(t, tr.Close())
	}
}

// TestEvaluating: an evaluation that takes long says now and then how far it is.
func TestEvaluating(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, io.Discard, 10)
	p.BeginEvaluation()
	p.Evaluating(100)
	require.Empty(t, out.String())
	p.measured = p.measured.Add(-slowEvaluation)
	p.Evaluating(50)
	p.Evaluating(50)
	require.Equal(t, "evaluating held-out samples: 100 tokens so far\n", out.String())
}

// TestSignalDuringEvaluation: a signal ends an evaluation between two micro-batches, and then the run, before its first step.
func TestSignalDuringEvaluation(t *testing.T) {
	tr, err := train.New[float32](line{[]float32{4}}, train.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close()) }()
	after, ask := context.WithCancel(context.Background())
	var b bytes.Buffer
	evaluated := 0
	r, err := Training[float32]{
		Trainer: tr, Steps: 10, Progress: NewProgress(&b, &b, 10), Stop: Stop{after, context.Background()},
		Batches: func(int) ([]float32, error) { return []float32{1}, nil },
		Tokens:  func(float32) int { return 3 }, After: func(train.Report) (string, error) { return "", nil },
		HeldOut: func(yield func(float32, error) bool) {
			for evaluated < 100 && yield(1.5, nil) {
				if evaluated++; evaluated == 3 {
					ask()
				}
			}
		},
	}.Run()
	require.ErrorAs(t, err, new(Interruption))
	require.Zero(t, r.First)
	require.Zero(t, tr.Step())
	require.Equal(t, 3, evaluated)
}
