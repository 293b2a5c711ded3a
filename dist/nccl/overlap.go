package nccl

import (
	"fmt"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// marks say when vectors on the device are complete, by their addresses. Mark sets a mark, and the next call with the
// vector takes it.
type marks struct {
	mu sync.Mutex
	of map[uintptr]mark
}

type mark struct {
	moment  driver.Moment
	awaited bool // by the queue of communication
}

// follow makes what is queued for communication wait for the work that was queued on the device.
func (e *engine) follow() error {
	m, err := e.queue.Mark()
	if err != nil {
		return err
	}
	return e.stream.Await(m)
}

// ready makes what is queued for communication wait until v is complete: at its mark, or else with all that was queued.
func (e *engine) ready(v snug.View) error {
	e.marks.mu.Lock()
	defer e.marks.mu.Unlock()
	addr := device.Mem(&v).Addr
	m, marked := e.marks.of[addr]
	delete(e.marks.of, addr)
	switch {
	case !marked:
		return e.follow()
	case m.awaited:
		return nil
	}
	return e.stream.Await(m.moment)
}

// mark notes that v is complete after the work that was queued so far.
func (e *engine) mark(v snug.View) error {
	e.marks.mu.Lock()
	defer e.marks.mu.Unlock()
	addr := device.Mem(&v).Addr
	if old, marked := e.marks.of[addr]; marked && !old.awaited { // of a window that was thrown away
		delete(e.marks.of, addr)
		if err := e.stream.Await(old.moment); err != nil {
			return err
		}
	}
	m, err := e.queue.Mark()
	if err != nil {
		return err
	}
	if e.marks.of == nil {
		e.marks.of = map[uintptr]mark{}
	}
	e.marks.of[addr] = mark{moment: m}
	return nil
}

// turn makes what is queued for communication wait until v is complete.
func (e *engine) turn(v snug.View) error {
	if err := e.ready(v); err != nil {
		return err
	}
	e.marks.mu.Lock()
	defer e.marks.mu.Unlock()
	if e.marks.of == nil {
		e.marks.of = map[uintptr]mark{}
	}
	e.marks.of[device.Mem(&v).Addr] = mark{awaited: true}
	return nil
}

// Mark implements [accum.Overlapper]. It does nothing for a vector that does not lie on Options.Device.
func (w *World) Mark(v snug.View) error {
	if w == nil || w.engine == nil {
		return fmt.Errorf("nccl: Mark: the World is not from Open: %w", snug.ErrConfig)
	}
	if v.Len() == 0 || v.Device() != w.engine.home {
		return nil
	}
	if err := w.engine.mark(v); err != nil {
		return fmt.Errorf("nccl: rank %d: Mark: %w", w.rank, err)
	}
	return nil
}

// Turn implements [accum.Overlapper]. For a vector that was not marked, the queue of communication waits for all work
// that was queued on the device. For a vector that does not lie on Options.Device, Turn returns the vector's device.
func (w *World) Turn(v snug.View) (*snug.Device, error) {
	if w == nil || w.engine == nil {
		return nil, fmt.Errorf("nccl: Turn: the World is not from Open: %w", snug.ErrConfig)
	}
	if v.Len() == 0 || v.Device() != w.engine.home {
		return v.Device(), nil
	}
	if err := w.engine.turn(v); err != nil {
		return nil, fmt.Errorf("nccl: rank %d: Turn: %w", w.rank, err)
	}
	return w.engine.side, nil
}
