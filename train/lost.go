package train

import (
	"iter"

	"github.com/snug-ml/snug/amp"
)

// LostUpdates returns, with Options.CountLost, what rounding has lost of the updates of each parameter since the Trainer
// was made or [Trainer.ForgetLostUpdates] was called: of parameters of 16 bits with Split24Master, with NoMaster, or, on
// the CPU, with InBackward. Other parameters have no counts: what is computed in float32 stays float32, as a
// whole. Do not train meanwhile.
func (t *Trainer[B]) LostUpdates() iter.Seq2[string, amp.LostUpdates] {
	return func(yield func(string, amp.LostUpdates) bool) {
		if t.master != nil {
			for name, l := range t.master.LostUpdates() {
				if !yield(name, l) {
					return
				}
			}
			return
		}
		if t.opt == nil {
			return
		}
		for name, l := range t.opt.LostUpdates() {
			if !yield(name, l) {
				return
			}
		}
	}
}

// ForgetLostUpdates sets the counts to 0, such as before a step that is to be measured.
func (t *Trainer[B]) ForgetLostUpdates() {
	if t.master != nil {
		t.master.ForgetLostUpdates()
	}
	if t.opt != nil {
		t.opt.ForgetLostUpdates()
	}
}
