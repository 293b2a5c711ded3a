package driver

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Joiner is a Job that can take over the work of others of its kind, so that one launch serves many vectors.
type Joiner interface {
	Job
	// Join takes over the job that was to be launched next, and reports whether it did. The results are those of both, one
	// after the other: jobs that use the same memory do not join, unless it is memory that they know of.
	Join(next Job) bool
}

// held are the jobs that a queue holds back, for others to join them.
type held struct {
	scopes atomic.Int32 // calls of Hold without their Release
	mu     sync.Mutex
	jobs   []Joiner // the work that was queued last
}

// maxHeld is how many kinds of jobs a queue holds back, so that those of a kind join also where kinds take turns.
const maxHeld = 4

// Joins reports whether jobs of this queue can join: whether its kernels take addresses. Work of a caller's own stream
// must not come between a job and its launch.
func (q *Queue) Joins() bool {
	a, ok := q.Driver.(Addresser)
	return ok && !q.Foreign && a.TakesAddresses()
}

// Hold lets the queue hold jobs back, for jobs that follow to join them, until Release. All other work of the queue, a copy
// or a job that joins none, comes behind them as ever.
func (q *Queue) Hold() {
	if q.Joins() {
		q.held.scopes.Add(1)
	}
}

// Release ends a Hold, and launches the jobs that were held back.
func (q *Queue) Release() error {
	if !q.Joins() {
		return nil
	}
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	q.held.scopes.Add(-1)
	return q.flush()
}

// Flush launches the jobs that were held back.
func (q *Queue) Flush() error {
	if q.held.scopes.Load() == 0 {
		return nil
	}
	q.held.mu.Lock()
	defer q.held.mu.Unlock()
	return q.flush()
}

// flush is Flush while held is locked.
func (q *Queue) flush() error {
	jobs := q.held.jobs
	defer clear(jobs)
	q.held.jobs = jobs[:0]
	if q.Closed.Load() {
		return nil
	}
	for _, j := range jobs {
		if err := q.Driver.Launch(j); err != nil {
			return err
		}
	}
	return nil
}

// launchHolding is Launch between Hold and Release.
func (q *Queue) launchHolding(j Job) error {
	h := &q.held
	h.mu.Lock()
	defer h.mu.Unlock()
	next, joins := j.(Joiner)
	joins = joins && h.scopes.Load() > 0
	apart := true
	for _, held := range slices.Backward(h.jobs) {
		if joins && held.Join(j) {
			return nil
		}
		if apart = joins && disjoint(held, j); !apart {
			break
		}
	}
	if !apart || !joins || len(h.jobs) == maxHeld {
		if err := q.flush(); err != nil {
			return err
		}
	}
	if !joins {
		return q.Driver.Launch(j)
	}
	h.jobs = append(h.jobs, next)
	return nil
}

// disjoint reports whether two jobs use no memory in common.
func disjoint(a, b Job) bool {
	apart := true
	b.Operands(func(m *Mem) {
		a.Operands(func(o *Mem) { apart = apart && !m.Overlaps(*o) })
	})
	return apart
}

// Joined are the jobs of a type that are one launch. A job has a nil one until another joins it.
type Joined[J any] struct {
	Jobs  []*J // from the first on
	Units int  // for the caller, of all but the first

	used   []Mem   // by the jobs
	lo, hi uintptr // of used
}

// Join adds next to the jobs that are one launch with first, in *d, and reports whether there are fewer than most of them
// and none uses memory of next. memory returns what a job reads or writes, up to three vectors.
func Join[J any](d **Joined[J], first, next *J, most int, memory func(*J) [3]Mem) bool {
	if *d == nil {
		*d = new(Joined[J])
		(*d).add(first, memory(first))
	}
	m := memory(next)
	if len((*d).Jobs) == most || !(*d).apart(m) {
		return false
	}
	(*d).add(next, m)
	return true
}

// Rest returns all jobs but the first.
func (d *Joined[J]) Rest() []*J {
	if d == nil {
		return nil
	}
	return d.Jobs[1:]
}

// apart reports whether no memory of ms is used.
func (d *Joined[J]) apart(ms [3]Mem) bool {
	for _, m := range ms {
		if a := m.address(); m.Size == 0 || a >= d.hi || a+uintptr(m.Size) <= d.lo {
			continue
		}
		for _, u := range d.used {
			if m.Overlaps(u) {
				return false
			}
		}
	}
	return true
}

func (d *Joined[J]) add(job *J, ms [3]Mem) {
	d.Jobs = append(d.Jobs, job)
	for _, m := range ms {
		if m.Size == 0 {
			continue
		}
		a := m.address()
		if len(d.used) == 0 {
			d.lo, d.hi = a, a
		}
		d.used, d.lo, d.hi = append(d.used, m), min(d.lo, a), max(d.hi, a+uintptr(m.Size))
	}
}

// ordered is a Copier whose copies come behind jobs that are held back.
type ordered struct {
	Copier
	q *Queue
}

func (o ordered) Point() (Fence, error) {
	if err := o.q.Flush(); err != nil {
		return nil, err
	}
	return o.Copier.Point()
}

func (o ordered) StartCopyIn(dst, src Mem, after Fence) (Fence, error) {
	if err := o.before(after); err != nil {
		return nil, err
	}
	return o.Copier.StartCopyIn(dst, src, after)
}

func (o ordered) StartCopyOut(dst, src Mem, after Fence) (Fence, error) {
	if err := o.before(after); err != nil {
		return nil, err
	}
	return o.Copier.StartCopyOut(dst, src, after)
}

// before launches the jobs that a copy waits for. A fence has none that are held back.
func (o ordered) before(after Fence) error {
	if after != nil {
		return nil
	}
	return o.q.Flush()
}

// orderedStream is a Streamer on whose stream jobs that are held back come first.
type orderedStream struct {
	Streamer
	q *Queue
}

func (o orderedStream) Enter() (uintptr, error) {
	if err := o.q.Flush(); err != nil {
		return 0, err
	}
	return o.Streamer.Enter()
}

func (o orderedStream) Mark() (Moment, error) {
	if err := o.q.Flush(); err != nil {
		return Moment{}, err
	}
	return o.Streamer.Mark()
}

func (o orderedStream) Idle() (bool, error) {
	if err := o.q.Flush(); err != nil {
		return false, err
	}
	return o.Streamer.Idle()
}

// Inner returns the driver's own.
func (o orderedStream) Inner() Streamer { return o.Streamer }
