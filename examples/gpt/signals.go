package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// stopper tells a run when to end.
type stopper struct {
	after context.Context // done when it is to end after its current step
	now   context.Context // done when it is to end at once
}

// signalled is the cause for which a context of a stopper is done.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

// grace is how long a run has to end by itself after a second signal.
const grace = 2 * time.Second

// onSignals returns what the first SIGINT or SIGTERM ends softly and the second at once: a
// run that has not ended after the grace, such as one that waits for a disk, is ended by
// exit. The third kills the process. release ends that.
func onSignals(stderr io.Writer, grace time.Duration, exit func(status int)) (stop stopper, release func()) {
	now, cancelNow := context.WithCancelCause(context.Background())
	after, cancelAfter := context.WithCancelCause(now)
	stop = stopper{after, now}
	came, released := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-came:
			cancelAfter(signalled{s})
			fmt.Fprintf(stderr, "gpt: %v: ending after this step; once more ends at once\n", s)
		case <-released:
			return
		}
		select {
		case s := <-came:
			signal.Stop(came)
			cancelNow(signalled{s})
		case <-released:
			return
		}
		select {
		case <-time.After(grace):
			fmt.Fprintf(stderr, "gpt: ended in the middle of what it did; a run with -checkpoint goes on from its last checkpoint\n")
			exit(stop.status())
		case <-released:
		}
	}()
	return stop, sync.OnceFunc(func() {
		signal.Stop(came)
		close(released)
		cancelNow(nil)
	})
}

// asked reports whether the run is to end.
func (s stopper) asked() bool { return s.after.Err() != nil }

// status returns the exit status that shells give a process that a signal ended.
func (s stopper) status() int {
	var cause signalled
	if errors.As(context.Cause(s.after), &cause) {
		if number, ok := cause.Signal.(syscall.Signal); ok {
			return 128 + int(number)
		}
	}
	return 1
}

// interruption is the error of a run that was told to end.
type interruption struct{ text string }

func (i interruption) Error() string { return i.text }

// interrupted says what a run that ends after a step has left.
func interrupted(step, steps int, saved *checkpoints) error {
	if !saved.on() {
		return interruption{fmt.Sprintf("interrupted after step %d of %d, and nothing is saved without -checkpoint", step, steps)}
	}
	if step == 0 {
		return interruption{"interrupted before the first step"}
	}
	return interruption{fmt.Sprintf("interrupted after step %d of %d, which is saved: the same command goes on from there", step, steps)}
}
