//go:build metal

package metal

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

// maxCommands is how many commands a command buffer takes before it is
// committed: so many that its own cost is small for each, so few that the GPU
// does not wait for the host to fill it.
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
	commands  int    // in buffer
	committed uint64
	done      uint64   // all command buffers up to this one have finished
	flight    []object // those after it, the oldest first
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
	s.flight = append(s.flight, s.buffer)
	s.buffer, s.commands = 0, 0
	d.reap(s)
}

// counted commits the open command buffer of s when it has enough commands.
func (d *device) counted(s *stream) {
	if s.commands++; s.commands >= maxCommands {
		d.commit(s)
	}
}

// reap releases the command buffers of s that have finished and keeps their
// errors.
func (d *device) reap(s *stream) {
	n := 0
	for ; n < len(s.flight); n++ {
		cb := s.flight[n]
		status := s.api.status(cb)
		if status < statusCompleted {
			break
		}
		if status == statusError {
			d.fail(s.api.failure(cb))
		}
		s.api.release(cb)
		s.done++
	}
	s.flight = append(s.flight[:0], s.flight[n:]...)
}

// fail keeps the error of a command buffer.
func (d *device) fail(code int, reason string) {
	if code == codeOutOfMemory {
		free, total := d.memory()
		err := fmt.Errorf("metal: queued work was dropped: %s; %d of %d bytes free: %w", reason, free, total, driver.ErrNoMemory)
		d.failed = errors.Join(d.failed, err)
		return
	}
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
		d.reap(s)
		if s.done >= number {
			err := d.takeError()
			d.leave(pool)
			return err
		}
		cb := s.flight[0]
		d.api.retain(cb)
		d.leave(pool)

		end := d.api.scope()
		d.api.wait(cb)
		d.api.release(cb)
		end()
	}
}
