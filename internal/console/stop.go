// Package console has what the programs of this repository share: runs that signals end, the progress of a run, tables,
// and texts of errors.
//
//	stderr := console.OnScreen(os.Stderr)
//	stop, release := console.OnSignals(console.Options{Name: "tune", Stderr: stderr, Advice: "the same command goes on"})
//	defer release()
//	p := console.NewProgress(os.Stdout, stderr, steps)
//	for step := 1; step <= steps && !stop.Asked(); step++ {
//		...                          // with stop.Now as its context
//		p.Step(console.Shown{Done: step, Loss: 2.31})
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
	After context.Context // done when the run is to end after its current step
	Now   context.Context // done when the run is to end at once
}

// Options say how OnSignals ends a program.
type Options struct {
	Name   string           // name of the program, with which messages begin
	Advice string           // what the user can do after a run that ended in the middle of a step
	Stderr io.Writer        // nil is os.Stderr
	Grace  time.Duration    // time to end by itself after the second signal; 0 is 2 s
	Exit   func(status int) // nil is os.Exit
}

// signalled is the cause of the end of a Stop's contexts.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

// OnSignals catches SIGINT, SIGTERM and on Unix SIGHUP, which comes when a terminal closes, until release is called. A
// SIGHUP that the process ignores, as under nohup, stays ignored. The first signal ends stop.After, the second also
// stop.Now. If the run has not ended a Grace later, for example because it waits for a disk, Exit ends the process. The
// third signal kills it.
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
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(came, syscall.SIGHUP)
	}
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

// Asked reports whether a signal has come.
func (s Stop) Asked() bool { return s.After.Err() != nil }

// Status returns 128 and the number of the signal, which is a shell's exit status for a process that the signal ended.
func (s Stop) Status() int {
	var cause signalled
	if errors.As(context.Cause(s.After), &cause) {
		if number, ok := cause.Signal.(syscall.Signal); ok {
			return 128 + int(number)
		}
	}
	return 1
}
