package driver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a Driver that notes what it is asked for.
type recorder struct {
	memory
	takes bool
	calls []string
	err   error
}

func (r *recorder) note(format string, args ...any) error {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	return r.err
}

func (r *recorder) TakesAddresses() bool                        { return r.takes }
func (r *recorder) Launch(j Job) error                          { return r.note("%v", j) }
func (r *recorder) CopyIn(Mem, []byte) error                    { return r.note("in") }
func (r *recorder) CopyOut([]byte, Mem) error                   { return r.note("out") }
func (r *recorder) Copy(Mem, Mem) error                         { return r.note("copy") }
func (r *recorder) Free(Mem) error                              { return r.note("free") }
func (r *recorder) Sync() error                                 { return r.note("sync") }
func (r *recorder) AllocPinned(int) (Mem, error)                { return Mem{}, nil }
func (r *recorder) FreePinned(Mem) error                        { return nil }
func (r *recorder) Point() (Fence, error)                       { return nil, r.note("point") }
func (r *recorder) StartCopyIn(Mem, Mem, Fence) (Fence, error)  { return nil, r.note("start in") }
func (r *recorder) StartCopyOut(Mem, Mem, Fence) (Fence, error) { return nil, r.note("start out") }
func (r *recorder) Enter() (uintptr, error)                     { return 0, r.note("enter") }
func (r *recorder) Leave()                                      {}
func (r *recorder) Mark() (Moment, error)                       { return Moment{}, r.note("mark") }
func (r *recorder) Await(Moment) error                          { return nil }
func (r *recorder) Idle() (bool, error)                         { return false, r.note("idle") }

// sum is a job that joins others with memory of their own.
type sum struct {
	m      Mem
	joined *Joined[sum]
}

func (*sum) Kernel() string { return "sum" }
func (s *sum) Operands(yield func(*Mem)) {
	yield(&s.m)
	for _, o := range s.joined.Rest() {
		o.Operands(yield)
	}
}
func (*sum) Run()             {}
func (s *sum) String() string { return fmt.Sprint("sum of ", 1+len(s.joined.Rest())) }
func (s *sum) memory() [3]Mem { return [3]Mem{s.m} }
func (s *sum) Join(next Job) bool {
	n, ok := next.(*sum)
	return ok && Join(&s.joined, s, n, 3, (*sum).memory)
}

// other is a job that nothing joins.
type other struct{ *sum }

func (other) String() string { return "other" }
func (other) Join(Job) bool  { return false }

// final is a job that cannot join.
type final struct{ Job }

func (final) String() string { return "final" }

func at(addr uintptr) *sum { return &sum{m: Mem{Addr: addr, Size: 4}} }

// TestHold: jobs join between Hold and Release, and everything else comes behind them.
func TestHold(t *testing.T) {
	r := &recorder{takes: true}
	q := &Queue{Name: "recorder:0", Driver: r}
	did := func(want ...string) {
		t.Helper()
		require.Equal(t, want, r.calls)
		r.calls = nil
	}
	require.NoError(t, q.Launch(at(4)))
	did("sum of 1")
	q.Hold()
	for i := range uintptr(4) {
		require.NoError(t, q.Launch(at(8*i)))
	}
	did()
	require.NoError(t, q.Launch(final{}))
	did("sum of 3", "sum of 1", "final")
	require.NoError(t, q.Launch(at(8)))
	require.NoError(t, q.Launch(at(10)))
	did("sum of 1")
	require.NoError(t, q.Launch(other{at(20)}))
	require.NoError(t, q.Launch(at(30)))
	require.NoError(t, q.Launch(other{at(30)}))
	did("sum of 2", "other")
	for i := range uintptr(maxHeld) {
		require.NoError(t, q.Launch(other{at(100 + 4*i)}))
	}
	did("other", "other", "other", "other")
	require.NoError(t, q.Launch(at(200)))
	require.NoError(t, q.Launch(at(210)))
	q.Hold()
	require.NoError(t, q.Launch(at(220)))
	did()
	require.NoError(t, q.Release())
	did("other", "sum of 3")
	c, err := q.Copier()
	require.NoError(t, err)
	s, err := q.Streamer()
	require.NoError(t, err)
	for want, call := range map[string]func() error{
		"in":        func() error { return q.CopyIn(Mem{}, nil) },
		"out":       func() error { return q.CopyOut(nil, Mem{}) },
		"copy":      func() error { return q.Copy(Mem{}, Mem{}) },
		"free":      func() error { return q.Free(Mem{}) },
		"sync":      q.Sync,
		"point":     func() error { _, err := c.Point(); return err },
		"start in":  func() error { _, err := c.StartCopyIn(Mem{}, Mem{}, nil); return err },
		"start out": func() error { _, err := c.StartCopyOut(Mem{}, Mem{}, nil); return err },
		"enter":     func() error { _, err := s.Enter(); return err },
		"mark":      func() error { _, err := s.Mark(); return err },
		"idle":      func() error { _, err := s.Idle(); return err },
	} {
		t.Run(want, func(t *testing.T) {
			require.NoError(t, q.Launch(at(4)))
			require.NoError(t, call())
			did("sum of 1", want)
			require.NoError(t, q.Launch(at(4)))
			r.err = errors.New("lost")
			require.ErrorIs(t, call(), r.err, "of the job, and nothing follows")
			r.err = nil
			did("sum of 1")
		})
	}
	require.NoError(t, q.Launch(at(4)))
	_, err = c.StartCopyIn(Mem{}, Mem{}, fence{})
	require.NoError(t, err)
	_, err = c.StartCopyOut(Mem{}, Mem{}, fence{})
	require.NoError(t, err)
	did("start in", "start out")
	require.NoError(t, q.Flush())
	did("sum of 1")
	require.NoError(t, q.Launch(at(4)))
	r.err = errors.New("lost")
	require.ErrorIs(t, q.Release(), r.err)
	did("sum of 1")
	r.err = nil
	require.NoError(t, q.Launch(at(4)))
	did("sum of 1")
	require.Equal(t, s.(interface{ Inner() Streamer }).Inner(), Streamer(r))
}

// fence is a Fence of no job that is held back.
type fence struct{ Fence }

// TestHoldNot: where kernels take no addresses, and where the queue is the caller's stream, nothing is held back. A job
// that is held back on a closed device is gone.
func TestHoldNot(t *testing.T) {
	for _, q := range []*Queue{
		{Driver: &recorder{}}, {Driver: &recorder{takes: true}, Foreign: true}, {Driver: &recorder{takes: true}}, {CPU: true},
	} {
		q.Hold()
		require.NoError(t, q.Launch(at(4)))
		if r, ok := q.Driver.(*recorder); ok && !q.Joins() {
			require.Equal(t, []string{"sum of 1"}, r.calls)
		} else if ok {
			q.Closed.Store(true)
		}
		require.NoError(t, q.Release())
		if r, ok := q.Driver.(*recorder); ok && q.Joins() {
			require.Empty(t, r.calls)
		}
	}
}
