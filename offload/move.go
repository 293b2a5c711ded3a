package offload

// Move is a copy that [Mover.Load] or [Mover.Save] has started. The zero Move is
// done.
type Move struct {
	m          *Mover
	first, end uint64 // its pages, and perhaps some of other moves
}

// Await makes work that is queued on the device from now on wait for the move, and
// returns at once: kernels see the loaded elements, and may overwrite elements that are
// being saved.
//
// The error wraps [snug.ErrDevice] when the device is closed. Other errors come from the
// device, as in [Mover.Load].
func (v Move) Await() error {
	return v.finish("await", func(m *Mover) error {
		for k := max(v.first, m.settled); k < v.end; k++ {
			if err := m.await(m.page(k)); err != nil {
				m.err = err
				return err
			}
		}
		return nil
	})
}

// Wait waits until the move and all moves that the Mover has started before are done:
// kernels queued from now on see the loaded elements, and the host has the saved elements.
// It does not wait for kernels that were queued after their start. Errors are the same as
// for Await.
func (v Move) Wait() error {
	return v.finish("wait", func(m *Mover) error { return m.settle(v.end) })
}

// join adds the pages of w, which was started later.
func (v *Move) join(w Move) {
	switch {
	case w.m == nil:
	case v.m == nil:
		*v = w
	default:
		v.end = w.end
	}
}

// finish calls do if pages of the move have not arrived.
func (v Move) finish(op string, do func(m *Mover) error) error {
	if v.m == nil {
		return nil
	}
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	if v.end <= v.m.settled {
		return nil
	}
	err := v.m.usable()
	if err == nil {
		err = do(v.m)
	}
	if err != nil {
		return in(err, "%s for a move", op)
	}
	return nil
}
