package cpu

import (
	"sync/atomic"
	"time"
)

// A helper that is done waits for the next loop with its core busy, for linger at most: to wake a thread takes 50
// to 100 µs, which is as long as many loops take, and one loop often follows another at once.
const linger = 50 * time.Microsecond

// The states of a mailbox, in turn.
const (
	unused int32 = iota
	waiting
	addressed // somebody is about to put a job in
	filled
)

// mailbox is where a waiting helper gets its next job.
type mailbox struct {
	state atomic.Int32
	job   func() bool
	_     [48]byte // a cache line of its own
}

// mailboxes are enough for most machines. Helpers beyond end at once. lingering counts those that wait.
var (
	mailboxes [64]mailbox
	lingering atomic.Int32
)

// summon has a helper do job: one that waits, or the new goroutine that start is.
func summon(job func() bool, start func()) {
	for i := 0; i < len(mailboxes) && lingering.Load() > 0; i++ {
		if m := &mailboxes[i]; m.state.Load() == waiting && m.state.CompareAndSwap(waiting, addressed) {
			m.job = job
			m.state.Store(filled)
			return
		}
	}
	go start()
}

// serve is what a helper does: its job, then others that come soon. A job reports whether nobody wants the core,
// so that the helper may wait there.
func serve(job func() bool) {
	for job != nil && job() {
		job = await()
	}
}

// await returns the next job, or nil if none comes soon.
func await() func() bool {
	for i := range mailboxes {
		if m := &mailboxes[i]; m.state.CompareAndSwap(unused, waiting) {
			return m.wait()
		}
	}
	return nil
}

func (m *mailbox) wait() (job func() bool) {
	lingering.Add(1)
	defer lingering.Add(-1)
	for begin := time.Now(); ; {
		for range 256 {
			if m.state.Load() == filled {
				job, m.job = m.job, nil
				m.state.Store(unused)
				return job
			}
		}
		if time.Since(begin) > linger && m.state.CompareAndSwap(waiting, unused) {
			return nil
		}
	}
}
