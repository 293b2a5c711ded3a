package train

import (
	"iter"

	"github.com/snug-ml/snug/amp"
)

// counter counts updates that rounding loses: master weights, or an optimizer without them.
type counter interface {
	LostUpdates() iter.Seq2[string, amp.LostUpdates]
	ForgetLostUpdates()
}

func (t *Trainer[B]) counters() []counter {
	if t.closed() {
		return nil
	}
	return t.gradients.lost()
}

// LostUpdates yields the name of each parameter with the counts of its updates that rounding has lost, if
// Options.CountLost is set. The counts begin when the Trainer is made or [Trainer.ForgetLostUpdates] is called. There
// are counts for parameters of 16 bits with Split24Master, with NoMaster or, on the CPU, with plan.InBackward and plan.Folded.
// Other parameters have no counts, because all bits of their float32 values are kept. Do not train during the iteration.
func (t *Trainer[B]) LostUpdates() iter.Seq2[string, amp.LostUpdates] {
	return func(yield func(string, amp.LostUpdates) bool) {
		for _, c := range t.counters() {
			for name, l := range c.LostUpdates() {
				if !yield(name, l) {
					return
				}
			}
		}
	}
}

// ForgetLostUpdates sets the counts of all parameters to 0, for example before a step that is to be measured.
func (t *Trainer[B]) ForgetLostUpdates() {
	for _, c := range t.counters() {
		c.ForgetLostUpdates()
	}
}
