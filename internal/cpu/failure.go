package cpu

import (
	"runtime"
	"runtime/debug"
)

// Failure is how a function ended its goroutine instead of returning: with a panic, or
// with [runtime.Goexit], as testing's FailNow does. A goroutine catches it, and who
// waits for the goroutine raises it in its own. The zero Failure is none.
type Failure struct {
	ended bool
	value any
	stack []byte // nil after runtime.Goexit
}

// Catch is deferred by a goroutine, and keeps in f how it ends unless done is set.
func (f *Failure) Catch(done *bool) {
	if !*done {
		*f = failureOf(recover())
	}
}

func failureOf(value any) Failure {
	f := Failure{ended: true, value: value}
	if value != nil {
		f.stack = debug.Stack()
	}
	return f
}

// Raise ends this goroutine as f ended another one. Without a failure it does nothing.
func (f *Failure) Raise() {
	if !f.ended {
		return
	}
	if f.stack == nil {
		runtime.Goexit()
	}
	// The panic of the deferred call replaces the first one, which recover then never
	// sees. The report of a program that ends prints both.
	defer panic(f.value)
	panic("in another goroutine:\n" + string(f.stack))
}
