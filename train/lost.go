package train

import (
	"iter"

	"github.com/snug-ml/snug/amp"
)

// LostUpdates yields the name of each parameter with the counts of its updates that rounding has lost, if
// Options.CountLost is set. The counts begin when the Trainer is made or [Trainer.ForgetLostUpdates] is called. There
// are counts for parameters of 16 bits with Split24Master, with NoMaster or, on the CPU, with InBackward. Other
// parameters have no counts, because all bits of their float32 values are kept. Do not train during the iteration.
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

// ForgetLostUpdates sets the counts of all parameters to 0, for example before a step that is to be measured.
func (t *Trainer[B]) ForgetLostUpdates() {
	if t.master != nil {
		t.master.ForgetLostUpdates()
	}
	if t.opt != nil {
		t.opt.ForgetLostUpdates()
	}
}
