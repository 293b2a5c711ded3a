// Package console is what the programs of this repository share: how signals end a run, a
// progress bar, tables, and errors as sentences.
//
//	stop, release := console.OnSignals(console.Options{Name: "tune", Advice: "the same command goes on"})
//	defer release()
//	p := console.NewProgress(os.Stdout, os.Stderr, steps)
//	for step := 1; step <= steps && !stop.Asked(); step++ {
//		...                          // with stop.Now as its context
//		p.Step(step, "loss 2.31")
//	}
//	p.End()
package console

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

// Stop tells a run when to end.
type Stop struct {
	After context.Context // done when it is to end after its current step
	Now   context.Context // done when it is to end at once
}

// Options say how OnSignals ends a program.
type Options struct {
	Name   string           // of the program, before what it says
	Advice string           // what to do after a run that ended in the middle
	Stderr io.Writer        // nil is os.Stderr
	Grace  time.Duration    // how long a run has to end by itself after a second signal; 0 is 2 s
	Exit   func(status int) // nil is os.Exit
}

// signalled is the cause for which a context of a Stop is done.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

// OnSignals returns what the first SIGINT or SIGTERM ends softly and the second at once: a
// run that has not ended after the grace, such as one that waits for a disk, is ended by
// Exit. The third kills the process. release ends that.
func OnSignals(o Options) (stop Stop, release func()) {
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.Grace == 0 {
		o.Grace = 2 * time.Second
	}
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	now, cancelNow := context.WithCancelCause(context.Background())
	after, cancelAfter := context.WithCancelCause(now)
	stop = Stop{after, now}
	came, released := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-came:
			cancelAfter(signalled{s})
			fmt.Fprintf(o.Stderr, "%s: %v: ending after this step; once more ends at once\n", o.Name, s)
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
		case <-time.After(o.Grace):
			fmt.Fprintf(o.Stderr, "%s: ended in the middle of what it did; %s\n", o.Name, o.Advice)
			o.Exit(stop.Status())
		case <-released:
		}
	}()
	return stop, sync.OnceFunc(func() {
		signal.Stop(came)
		close(released)
		cancelNow(nil)
	})
}

// Asked reports whether the run is to end.
func (s Stop) Asked() bool { return s.After.Err() != nil }

// Status returns the exit status that shells give a process that a signal ended.
func (s Stop) Status() int {
	var cause signalled
	if errors.As(context.Cause(s.After), &cause) {
		if number, ok := cause.Signal.(syscall.Signal); ok {
			return 128 + int(number)
		}
	}
	return 1
}
