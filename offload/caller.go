package offload

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// A function of the caller may panic, or end its goroutine with [runtime.Goexit]. Then
// pages are unpinned and memory is given back as after an error. If the function runs in
// a goroutine of this package, the goroutine of the caller who waits for it ends in the
// same way.

// errCutOff is the error of an Updater after a function of the caller did not return.
var errCutOff = fmt.Errorf("a function of the caller did not return: %w", snug.ErrConfig)

// task is a function that runs in a goroutine of its own.
type task struct {
	done    chan struct{}
	err     error
	failure cpu.Failure
}

// inBackground calls do in a goroutine of its own.
func inBackground(do func() error) *task {
	t := &task{done: make(chan struct{})}
	go func() {
		returned := false
		defer close(t.done)
		defer t.failure.Catch(&returned)
		t.err = do()
		returned = true
	}()
	return t
}

// wait waits for the function and returns its error, or ends as the function did.
func (t *task) wait() error {
	<-t.done
	t.failure.Raise()
	return t.err
}
