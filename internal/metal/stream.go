//go:build metal

package metal

import (
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

// maxCommands is how many commands a command buffer takes at most before it is
// committed: so many that its own cost is small for each, so few that the GPU
// does not wait for the host to fill it. It takes fewer if they are worth budget.
const maxCommands = 64

// stream is one queue with its open command buffer. Command buffers are
// numbered from 1 in the order of their commits.
type stream struct {
	api       *api
	queue     object
	event     object // signaled with the number of each finished command buffer
	buffer    object // the open command buffer, or 0
	encoder   object // the open encoder of buffer, or 0
	blits     bool   // encoder takes copies, not kernels
	pipeline  object // that encoder has bound
	piece     piece  // of the command that is encoded
	commands  int    // in buffer
	charges   []charge
	expected  float64 // seconds of buffer
	spare     [][]charge
	after     uint64 // the command buffer of the other stream that buffer waits for, or 0
	committed uint64
	done      uint64  // all command buffers up to this one have finished
	flight    []flown // those after it, the oldest first
	failed    bool    // one of them did not signal
}

// flown is a command buffer that was committed.
type flown struct {
	object  object
	after   uint64 // the command buffer of the other stream that it waits for, or 0
	charges []charge
}

func newStream(a *api, dev object) stream {
	return stream{api: a, queue: a.newQueue(dev), event: a.newEvent(dev)}
}

func (s *stream) opened() bool { return s.queue != 0 && s.event != 0 }

// current is the number that the open command buffer will have.
func (s *stream) current() uint64 { return s.committed + 1 }

// begin opens a command buffer unless one is open.
func (s *stream) begin() error {
	if s.buffer != 0 {
		return nil
	}
	cb := s.api.commandBuffer(s.queue)
	if cb == 0 {
		return fmt.Errorf("metal: the queue gives no command buffer: %w", driver.ErrDevice)
	}
	s.api.retain(cb)
	s.buffer = cb
	return nil
}

// encode opens an encoder for copies or for kernels unless one is open. Either
// runs its commands in order.
func (s *stream) encode(blits bool) error {
	if s.encoder != 0 && s.blits == blits {
		return nil
	}
	s.endEncoding()
	if err := s.begin(); err != nil {
		return err
	}
	open := s.api.computeEncoder
	if blits {
		open = s.api.blitEncoder
	}
	enc := open(s.buffer)
	if enc == 0 {
		return fmt.Errorf("metal: the command buffer gives no encoder: %w", driver.ErrDevice)
	}
	s.api.retain(enc)
	s.encoder, s.blits, s.pipeline = enc, blits, 0
	return nil
}

func (s *stream) endEncoding() {
	if s.encoder == 0 {
		return
	}
	s.api.endEncoding(s.encoder)
	s.api.release(s.encoder)
	s.encoder = 0
}

// await makes the commands that follow wait for a command buffer of another
// stream, which is committed.
func (s *stream) await(other *stream, number uint64) error {
	if other.done >= number {
		return nil
	}
	s.endEncoding()
	if err := s.begin(); err != nil {
		return err
	}
	s.api.await(s.buffer, other.event, number)
	s.after = max(s.after, number)
	s.commands++
	return nil
}

// commit hands the open command buffer of s to the GPU, if there is one.
func (d *device) commit(s *stream) {
	if s.buffer == 0 {
		return
	}
	s.endEncoding()
	s.committed++
	s.api.signal(s.buffer, s.event, s.committed)
	s.api.commit(s.buffer)
	s.flight = append(s.flight, flown{s.buffer, s.after, s.charges})
	s.buffer, s.commands, s.after, s.expected, s.charges = 0, 0, 0, 0, nil
	if n := len(s.spare); n > 0 {
		s.charges, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	d.reapAll()
}

// counted adds a command of so many units to the open command buffer of s, and commits it when it
// has enough.
func (d *device) counted(s *stream, c *cost, units int) {
	charged := charge{c, float64(units)}
	s.charges = append(s.charges, charged)
	s.expected += charged.expected()
	if s.commands++; s.commands >= maxCommands || s.expected >= budget {
		d.commit(s)
	}
}

// reapAll reaps both streams until neither has anything new: then what a reaped command buffer
// waited for is reaped too, and an error of it is kept.
func (d *device) reapAll() {
	for d.reap(&d.work)+d.reap(&d.copies) > 0 {
	}
}

// reap releases the command buffers of s that have finished, keeps their errors, and returns how
// many there were.
func (d *device) reap(s *stream) int {
	n := 0
	for ; n < len(s.flight); n++ {
		flown := s.flight[n]
		cb := flown.object
		status := s.api.status(cb)
		if status < statusCompleted {
			break
		}
		if status == statusError {
			s.failed = true
			d.fail(s.api.failure(cb))
		}
		if flown.after == 0 && status == statusCompleted { // otherwise the time may include a wait
			learn(flown.charges, s.api.gpuTime(cb))
		}
		s.spare = append(s.spare, flown.charges[:0])
		s.api.release(cb)
		s.done++
	}
	s.flight = append(s.flight[:0], s.flight[n:]...)
	// A command buffer that failed does not signal; what waits for it must not wait for ever.
	// The GPU may signal a higher number in between, which a later reap then restores.
	if s.failed && s.api.eventValue(s.event) < s.done {
		s.api.setEvent(s.event, s.done)
	}
	return n
}

// blocker returns the command buffer that the host waits for until the oldest one of s has
// finished: that one, or the oldest of the other stream while that one waits for it. If it is
// killed, only the host can let the waiting one go on, which it does when it reaps.
func (d *device) blocker(s *stream) object {
	oldest, other := s.flight[0], &d.work
	if s == other {
		other = &d.copies
	}
	if oldest.after > other.done {
		return other.flight[0].object
	}
	return oldest.object
}

// drain waits, under the lock, until all that was committed to s has finished.
func (d *device) drain(s *stream) {
	for d.reapAll(); len(s.flight) > 0; d.reapAll() {
		d.api.wait(d.blocker(s))
	}
}

// fail keeps the error of a command buffer. Metal goes on with others after most of them.
func (d *device) fail(code int, reason string) {
	var err error
	switch code {
	case codePageFault, codeAccessRevoked, codeNotPermitted, codeDeviceRemoved:
		d.lose(code, reason)
		return
	case codeOutOfMemory:
		free, total := d.memory()
		err = fmt.Errorf("metal: queued work was dropped: %s; %d of %d bytes free: %w", reason, free, total, driver.ErrNoMemory)
	default:
		err = &KilledError{Code: code, Reason: reason}
	}
	if d.failed == nil { // later ones follow from the first
		d.failed = err
	}
}

// lose keeps an error after which the device cannot be used.
func (d *device) lose(code int, reason string) {
	if d.lost == nil {
		d.lost = &LostError{Code: code, Reason: reason}
	}
	// What waits for the lost work must not wait for ever.
	for _, s := range []*stream{&d.work, &d.copies} {
		d.api.setEvent(s.event, s.current())
	}
}

// await waits until a command buffer of s has finished. The caller does not
// hold the lock.
func (d *device) await(s *stream, number uint64) error {
	for {
		pool, err := d.enter()
		if err != nil {
			return err
		}
		d.reapAll()
		if s.done >= number {
			err := d.takeError()
			d.leave(pool)
			return err
		}
		cb := d.blocker(s)
		d.api.retain(cb)
		d.leave(pool)

		end := d.api.scope()
		d.api.wait(cb)
		d.api.release(cb)
		end()
	}
}
