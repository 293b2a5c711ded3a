package driver

import (
	"fmt"
	"sync/atomic"
)

// Queue is what a snug.Device holds: the driver of an open device, and whether it was
// closed since. The queue of the CPU has no driver; its jobs run when they are launched.
// A nil Queue, and the zero Queue, are no device.
type Queue struct {
	Name   string // "cpu", "cuda:0"
	Driver Driver // nil for the CPU
	CPU    bool
	Closed atomic.Bool

	Capturing atomic.Bool // what is launched now becomes a graph, which uses its memory again in every replay

	Foreign bool // the queue is a stream of the caller's, on which other work comes at any time

	kept   kept // memory for Lend
	held   held // a job for others to join
	counts counts
}

// Exists returns an error unless q belongs to a device that was opened.
func (q *Queue) Exists() error {
	if q == nil || q.Driver == nil && !q.CPU {
		return fmt.Errorf("snug: no device: it is nil or was not opened: %w", ErrDevice)
	}
	return nil
}

// Check returns an error unless q belongs to a device that is open.
func (q *Queue) Check() error {
	if err := q.Exists(); err != nil {
		return err
	}
	if q.Closed.Load() {
		return fmt.Errorf("snug: device %s is closed: %w", q.Name, ErrDevice)
	}
	return nil
}

// Launch queues a job; on the CPU it runs the job.
func (q *Queue) Launch(j Job) error {
	if err := q.Check(); err != nil {
		return err
	}
	if q.CPU {
		j.Run()
		return nil
	}
	if b, ok := j.(Borrower); ok && !q.Capturing.Load() {
		return q.launchBorrower(b)
	}
	return q.launch(j)
}

func (q *Queue) launch(j Job) error {
	if q.held.scopes.Load() > 0 {
		return q.launchHolding(j)
	}
	return q.Driver.Launch(j)
}

// Copy copies src.Size bytes on the device.
func (q *Queue) Copy(dst, src Mem) error {
	if err := q.Flush(); err != nil {
		return err
	}
	return q.Driver.Copy(dst, src)
}

// Free gives back what Alloc returned, after the work queued so far.
func (q *Queue) Free(m Mem) error {
	if err := q.Flush(); err != nil {
		return err
	}
	return q.Driver.Free(m)
}

// Copier returns the driver as one that copies concurrently with the queue of kernels. The
// error
// wraps [ErrNoCopier] when the device, such as the CPU, has no such copies, and
// [ErrDevice] when it is closed too.
func (q *Queue) Copier() (Copier, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	switch c, ok := q.Driver.(Copier); {
	case ok && q.Joins():
		return ordered{c, q}, nil
	case ok:
		return c, nil
	}
	return nil, fmt.Errorf("snug: %s: %w", q.Name, ErrNoCopier)
}

// Streamer returns the driver as one on whose queue other libraries can queue work. The error wraps [ErrDevice] when the
// device, such as the CPU, has no such queue, or is closed.
func (q *Queue) Streamer() (Streamer, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	if s, ok := q.Driver.(Streamer); ok {
		return orderedStream{s, q}, nil
	}
	return nil, fmt.Errorf("snug: %s: no queue for the work of other libraries: %w", q.Name, ErrDevice)
}
