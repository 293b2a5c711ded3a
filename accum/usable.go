package accum

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// usable returns an error for a Window that was not made by New, and for one whose mean a
// call has left half-way, by an error or by a panic of a function of the caller.
func (w *Window) usable(op string) error {
	if err := w.made(op); err != nil {
		return err
	}
	if w.half != "" {
		return fmt.Errorf("accum: %s: call Reset first, %s has stopped half-way: %w", op, w.half, snug.ErrConfig)
	}
	return nil
}

// made returns an error for the zero value.
func (w *Window) made(op string) error {
	if w.index == nil {
		return fmt.Errorf("accum: %s: the Window was not made by New: %w", op, snug.ErrConfig)
	}
	return nil
}

// whole runs a part of op that changes the window and has the caller's functions called.
// Unless it ends well the window must be Reset.
func (w *Window) whole(op string, change func() error) error {
	before := w.half
	w.half = op // a panic leaves it
	err := change()
	if err == nil {
		w.half = before
	}
	return err
}
