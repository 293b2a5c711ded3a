package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/train"
)

// Training trains a model up to a step and shows its progress. It measures the loss on held-out data before, after and
// with EvalEvery between, and with Saves it saves the run at the end, also when a signal ends it early. A run whose losses
// or updates are not finite any more ends with a [Diverged], and is not saved.
type Training[B any] struct {
	Trainer  *train.Trainer[B]
	Steps    int  // steps at the end, those before a resume included
	Saves    bool // whether the Trainer has a folder of checkpoints
	Stop     Stop
	Ranks    accum.Reducer // the Trainer's, or nil: a signal to one rank ends all, after the same step
	Progress *Progress
	Batches  func(step int) ([]B, error) // micro-batches of a step, counted from 0
	Tokens   func(b B) int               // number of tokens of a micro-batch
	HeldOut  iter.Seq2[B, error]         // ends after an error
	// EvalEvery is the number of steps after which the loss on held-out data is measured again, 0 for the end only. Its
	// time does not count.
	EvalEvery int
	// Evaluated, unless nil, is called with each loss on held-out data, 0 without such data, and the number of steps
	// done before it: 0 for the first of a run, which a resumed run does not measure.
	Evaluated func(step int, loss float64)
	// After is called after each step. It returns the memory to show, such as "2.87 GiB".
	After func(r train.Report) (held string, err error)
	// Stepped, unless nil, is called after After, with what the run has done so far. Its time does not count.
	Stepped func(r train.Report, did Trained)
}

// Trained is the result of a Training. Losses are means over targets in nats, and 0 where nothing was measured.
type Trained struct {
	Tokens      int     // tokens of the steps of this process
	Seconds     float64 // time of these steps
	Skipped     int     // number of these steps that updated nothing
	Loss        float64 // loss of the last step
	First, Last float64 // losses on held-out data before the run, 0 if it was resumed, and after it
}

// Rate returns the tokens per second, 0 without a step.
func (t Trained) Rate() float64 {
	if t.Tokens == 0 {
		return 0
	}
	return float64(t.Tokens) / t.Seconds
}

// Interruption is the error of a run that a signal ended.
type Interruption struct {
	Text   string
	Status int // exit status of the process
}

func (i Interruption) Error() string { return i.Text }

// Run trains. A signal that ends it, after a step or at once, is an [Interruption].
func (t Training[B]) Run() (Trained, error) {
	r, err := t.run()
	if t.Stop.Now.Err() == nil || !errors.Is(err, context.Canceled) {
		return r, err
	}
	text := "the same command goes on from its last checkpoint, if there is one"
	if !t.Saves {
		text = "nothing is saved without -checkpoint"
	}
	return r, Interruption{fmt.Sprintf("interrupted at once after step %d of %d: %s", t.Trainer.Step(), t.Steps, text), t.Stop.Status()}
}

func (t Training[B]) run() (r Trained, err error) {
	ctx, w := t.Stop.Now, &watch{}
	if t.Trainer.Step() == 0 {
		if r.First, err = t.loss(ctx, w); err != nil {
			return r, err
		}
	}
	defer t.Progress.End()
	for began := time.Now(); t.Trainer.Step() < t.Steps; {
		asked, err := t.asked()
		if err != nil {
			return r, err
		}
		if asked {
			t.Progress.End()
			return r, t.interrupted(ctx, w)
		}
		batches, err := t.Batches(t.Trainer.Step())
		if err != nil {
			return r, t.without(ctx, w, err)
		}
		report, err := t.Trainer.Train(ctx, batches)
		if errors.Is(err, snug.ErrNonFinite) {
			return r, t.diverged(w, strings.TrimSuffix(err.Error(), ": "+snug.ErrNonFinite.Error()))
		}
		if err != nil {
			return r, err
		}
		tokens, err := t.tokens(batches)
		if err != nil {
			return r, err
		}
		r.Tokens += tokens
		if r.Loss = report.Loss; report.Skipped != "" {
			r.Skipped++
			t.Progress.Note(fmt.Sprintf("step %d is skipped: %s", report.Step, report.Skipped))
		}
		held, err := t.After(report)
		if err != nil {
			return r, err
		}
		r.Seconds = time.Since(began).Seconds()
		t.Progress.Step(Shown{report.Step, report.Loss, r.Rate(), held})
		paused := time.Now()
		if t.Stepped != nil {
			t.Stepped(report, r)
		}
		if what := w.add(report); what != "" {
			return r, t.diverged(w, what)
		}
		if t.EvalEvery > 0 && report.Step%t.EvalEvery == 0 && report.Step < t.Steps {
			loss, err := t.loss(ctx, w)
			if err != nil {
				return r, err
			}
			if loss != 0 {
				t.Progress.Note(fmt.Sprintf("loss on held-out samples after step %d: %.4f", report.Step, loss))
			}
		}
		began = began.Add(time.Since(paused))
	}
	t.Progress.End()
	if r.Last, err = t.loss(ctx, w); err == nil {
		if what := w.end(r.Last != 0); what != "" {
			err = t.diverged(w, what)
		}
	}
	var lost Diverged
	if t.Saves && !errors.As(err, &lost) && ctx.Err() == nil {
		err = errors.Join(err, t.Trainer.Save(ctx))
	}
	return r, err
}

// asked reports whether this rank or another was told to stop.
func (t Training[B]) asked() (bool, error) {
	asked := t.Stop.Asked()
	if t.Ranks == nil {
		return asked, nil
	}
	one := []float64{0}
	if asked {
		one[0] = 1
	}
	err := t.Ranks.Sum(one)
	return one[0] > 0, err
}

// tokens returns the number of tokens of a step, over all ranks.
func (t Training[B]) tokens(batches []B) (n int, err error) {
	for _, b := range batches {
		n += t.Tokens(b)
	}
	if t.Ranks == nil {
		return n, nil
	}
	sum := []float64{float64(n)}
	err = t.Ranks.Sum(sum)
	return int(sum[0]), err
}

// loss returns the mean loss on held-out data, 0 if there is none, or if a signal ends the run meanwhile; ranks evaluate to the end. One
// that is not finite comes with a Diverged.
func (t Training[B]) loss(ctx context.Context, w *watch) (float64, error) {
	var failed error
	begun, stopped := false, false
	t.Progress.BeginEvaluation()
	all, err := t.Trainer.Evaluate(ctx, func(yield func(B) bool) {
		for b, err := range t.HeldOut {
			stopped = begun && t.Ranks == nil && t.Stop.Asked()
			begun = true
			if failed = err; err != nil || stopped {
				return
			}
			t.Progress.Evaluating(t.Tokens(b))
			if !yield(b) {
				return
			}
		}
	})
	if err := cmp.Or(failed, err); err != nil || stopped {
		return 0, err
	}
	loss := 0.0
	if all.Targets > 0 {
		loss = all.Mean()
	}
	if step := t.Trainer.Step(); !finite(loss) {
		if step == 0 {
			return loss, t.diverged(w, "the loss on held-out samples is not finite before the first step")
		}
		return loss, t.diverged(w, fmt.Sprintf("the loss on held-out samples after step %d is not finite", step))
	}
	if t.Evaluated != nil {
		t.Evaluated(t.Trainer.Step(), loss)
	}
	return loss, nil
}

// without ends a run whose next batches cannot be had, with the error of these. It saves the steps before, unless other
// ranks would have to take part.
func (t Training[B]) without(ctx context.Context, w *watch, err error) error {
	step := t.Trainer.Step()
	if !t.Saves || t.Ranks != nil || step == 0 || w.doubtful() {
		return err
	}
	if failed := t.Trainer.Save(ctx); failed != nil {
		return errors.Join(err, failed)
	}
	return fmt.Errorf("%w; step %d of %d is saved: the same command goes on from there", err, step, t.Steps)
}

// interrupted saves the run if it has a folder of checkpoints, and returns how to resume it.
func (t Training[B]) interrupted(ctx context.Context, w *watch) error {
	step, text := t.Trainer.Step(), "which is saved: the same command goes on from there"
	switch {
	case !t.Saves:
		text = "and nothing is saved without -checkpoint"
	case step == 0:
		return Interruption{"interrupted before the first step", t.Stop.Status()}
	case w.doubtful():
		text = "which is not saved, because " + w.since(1, 1) + ": older checkpoints stay"
	default:
		if err := t.Trainer.Save(ctx); err != nil {
			return err
		}
	}
	return Interruption{fmt.Sprintf("interrupted after step %d of %d, %s", step, t.Steps, text), t.Stop.Status()}
}
