package gomlx

import (
	stdcontext "context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/train"
)

// Trainer trains a model of GoMLX. Besides Train, Evaluate and Run it has the methods of the Trainer of package train: Step
// is the number of steps done, Save writes a checkpoint, Close ends the use of the folder of checkpoints, and Bytes says what
// is held for gradients, master weights and state. The methods of a nil or zero Trainer return an error, or zeros.
//
// A Trainer is not safe for concurrent use. Two Trainers of one context train the same variables, and each expects its own
// steps in global_step: use one after the other.
type Trainer struct {
	inner   *train.Trainer[Batch]
	model   *model
	resumed int // the step at which New resumed, until Run knows how many batches to leave out
	skip    int // batches that Run still leaves out
}

var errZero = fmt.Errorf("gomlx: New did not make the Trainer: %w", snug.ErrConfig)

var _ train.Stateful = (*model)(nil)

func (t *Trainer) made() bool { return t != nil && t.inner != nil && t.model != nil }

// trains returns the Trainer of package train, a closed one if New did not make t.
func (t *Trainer) trains() *train.Trainer[Batch] {
	if !t.made() {
		return &train.Trainer[Batch]{}
	}
	return t.inner
}

// Step returns the number of steps done, with the steps before a resume.
func (t *Trainer) Step() int { return t.trains().Step() }

// Save writes a checkpoint of the steps done, see the method of package train.
func (t *Trainer) Save(ctx stdcontext.Context) error { return t.trains().Save(ctx) }

// Close closes the folder of checkpoints. The variables keep their values. Closing twice does nothing, as closing a nil or
// zero Trainer.
func (t *Trainer) Close() error { return t.trains().Close() }

// Bytes returns the bytes of gradients, master weights and optimizer state that the Trainer holds: nothing after Close.
func (t *Trainer) Bytes() meter.Bytes { return t.trains().Bytes() }

// Scale returns the loss scale of the next step, 1 without one.
func (t *Trainer) Scale() float32 {
	if !t.made() {
		return 0
	}
	return t.inner.Scale()
}

// Average puts into the variables what a model is evaluated and saved with, see the method of package train.
func (t *Trainer) Average() error { return t.trains().Average() }

// Notes returns the notes of the checkpoint that New resumed, as JSON, see the method of package train.
func (t *Trainer) Notes() json.RawMessage { return t.trains().Notes() }

// SetNotes sets the notes of the next checkpoints, see the method of package train.
func (t *Trainer) SetNotes(notes any) { t.trains().SetNotes(notes) }

// LostUpdates yields, for each variable, the updates that rounding has lost, see the method of package train.
func (t *Trainer) LostUpdates() iter.Seq2[string, amp.LostUpdates] { return t.trains().LostUpdates() }

// ForgetLostUpdates sets the counts of LostUpdates to zero.
func (t *Trainer) ForgetLostUpdates() { t.trains().ForgetLostUpdates() }
