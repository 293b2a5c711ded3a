package console

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/snug-ml/snug/train"
)

// Training is a run of training that a program shows: it trains to a step, ends before that after a
// signal, saves itself, and measures the loss on held-out data before and after.
type Training[B any] struct {
	Trainer  *train.Trainer[B]
	Steps    int
	Saves    bool // the Trainer has checkpoints
	Stop     Stop
	Progress *Progress
	Batches  func(step int) []B
	Tokens   func(b B) int
	HeldOut  iter.Seq[B]
	// Begun is called with the loss before training, of a run that begins anew; nil: nothing.
	Begun func(loss float64)
	// After is called after each step. It returns what the progress says of memory.
	After func(r train.Report) (held string, err error)
}

// Trained is what a Training found. Losses are means over targets, and 0 where nothing was measured.
type Trained struct {
	Tokens      int     // of the steps of this process, and
	Seconds     float64 // their time
	Skipped     int     // steps
	Loss        float64 // of the last step
	First, Last float64 // losses on held-out data, First of a run that began anew
}

// Rate returns the tokens a second, 0 if no step was made.
func (t Trained) Rate() float64 {
	if t.Tokens == 0 {
		return 0
	}
	return float64(t.Tokens) / t.Seconds
}

// Interruption is the error of a run that a signal ended.
type Interruption struct {
	Text   string
	Status int // of the process
}

func (i Interruption) Error() string { return i.Text }

// Run trains.
func (t Training[B]) Run() (r Trained, err error) {
	ctx := t.Stop.Now
	if t.Trainer.Step() == 0 {
		if r.First, err = t.loss(ctx); err != nil {
			return r, err
		}
		if t.Begun != nil {
			t.Begun(r.First)
		}
	}
	defer t.Progress.End()
	for began := time.Now(); t.Trainer.Step() < t.Steps; {
		if t.Stop.Asked() {
			t.Progress.End()
			return r, t.interrupted(ctx)
		}
		batches := t.Batches(t.Trainer.Step())
		report, err := t.Trainer.Train(ctx, batches)
		if err != nil {
			return r, err
		}
		for _, b := range batches {
			r.Tokens += t.Tokens(b)
		}
		if r.Loss = report.Loss; report.Skipped != "" {
			r.Skipped++
			t.Progress.Note(fmt.Sprintf("step %d is skipped: %s", report.Step, report.Skipped))
		}
		held, err := t.After(report)
		if err != nil {
			return r, err
		}
		r.Seconds = time.Since(began).Seconds()
		t.Progress.Step(report.Step, fmt.Sprintf("loss %.4f  %.0f tokens/s  %s", report.Loss, r.Rate(), held))
	}
	if t.Saves {
		if err := t.Trainer.Save(ctx); err != nil {
			return r, err
		}
	}
	t.Progress.End()
	r.Last, err = t.loss(ctx)
	return r, err
}

// loss returns the mean loss on held-out data, 0 if there is none.
func (t Training[B]) loss(ctx context.Context) (float64, error) {
	all, err := t.Trainer.Evaluate(ctx, t.HeldOut)
	if err != nil || all.Targets == 0 {
		return 0, err
	}
	return all.Mean(), nil
}

// interrupted saves the run, if it has checkpoints, and says how to go on.
func (t Training[B]) interrupted(ctx context.Context) error {
	step, text := t.Trainer.Step(), "which is saved: the same command goes on from there"
	switch {
	case !t.Saves:
		text = "and nothing is saved without -checkpoint"
	case step == 0:
		return Interruption{"interrupted before the first step", t.Stop.Status()}
	default:
		if err := t.Trainer.Save(ctx); err != nil {
			return err
		}
	}
	return Interruption{fmt.Sprintf("interrupted after step %d of %d, %s", step, t.Steps, text), t.Stop.Status()}
}
