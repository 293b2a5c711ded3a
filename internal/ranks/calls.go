package ranks

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/snug-ml/snug"
)

// Job is a call and what it works on.
type Job struct {
	Call
	X   []float64 // of Sum
	V   snug.View // what is reduced or sent
	Dst snug.View // what is received, for AllToAll and SendReceive
}

// SumOf returns the call Sum.
func SumOf(x []float64) Job {
	return Job{Call: Call{Op: Sum, Len: int64(len(x))}, X: x}
}

// ReduceOf returns the call AllReduce, ReduceScatter or AllGather.
func ReduceOf(op Op, v snug.View) Job { return Job{Call: vector(op, v), V: v} }

// BroadcastOf returns the call Broadcast.
func BroadcastOf(root int, v snug.View) Job {
	j := ReduceOf(Broadcast, v)
	j.Peer = int64(root)
	return j
}

// AllToAllOf returns the call AllToAll.
func AllToAllOf(dst, src snug.View) Job {
	return Job{Call: pair(AllToAll, dst, src), V: src, Dst: dst}
}

// SendReceiveOf returns the call SendReceive.
func SendReceiveOf(dst snug.View, from int, src snug.View, to int) Job {
	j := Job{Call: pair(SendReceive, dst, src), V: src, Dst: dst}
	j.From, j.Peer = int64(from), int64(to)
	return j
}

// Calls are the calls of a World, one at a time. After an error every call is that error.
type Calls struct {
	Name   string            // of the package, with which errors begin
	Rank   int               // of the World
	Submit func(j Job) error // makes a call; nil in a World that is not from Open

	sync.Mutex       // of a call
	Err        error // the first one, which stays
	Closed     bool
}

// Run makes a call.
func (c *Calls) Run(j Job) error {
	c.Lock()
	defer c.Unlock()
	return c.Locked(j)
}

// Locked is Run for a caller that has the lock.
func (c *Calls) Locked(j Job) error {
	if c.Closed {
		return fmt.Errorf("%s: %s: the World is closed: %w", c.Name, j.Op, snug.ErrConfig)
	}
	if c.Err != nil {
		return c.Err
	}
	if err := c.Submit(j); err != nil {
		c.Err = fmt.Errorf("%s: rank %d: %w", c.Name, c.Rank, err)
	}
	return c.Err
}

// NotOpen returns the error of a call of a World that is not from Open.
func NotOpen(name string, op Op) error {
	return fmt.Errorf("%s: %s: the World is not from Open: %w", name, op, snug.ErrConfig)
}

// PrintAbort writes a rank and its error to the standard error output, in one line.
func PrintAbort(rank, size int, err error) {
	if err == nil {
		err = errors.New("aborted")
	}
	line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(os.Stderr, "rank %d of %d: %s\n", rank, size, line)
}

// Await calls done, with the number of calls before, until it is true or fails: a number of times in a row, so that what
// moves in these calls goes on, and then with pauses of up to 100 µs, so that others have the processor. pause, which may
// be nil, is called before a pause, with the time since the first.
func Await(inARow int, done func(calls int) (bool, error), pause func(waited time.Duration)) error {
	var began time.Time
	for calls := 0; ; calls++ {
		if ended, err := done(calls); ended || err != nil {
			return err
		}
		if calls < inARow {
			if calls%16 == 15 {
				runtime.Gosched()
			}
			continue
		}
		now := time.Now()
		if began.IsZero() {
			began = now
		}
		waited := now.Sub(began)
		if pause != nil {
			pause(waited)
		}
		time.Sleep(min(100*time.Microsecond, 5*time.Microsecond+waited/50))
	}
}
