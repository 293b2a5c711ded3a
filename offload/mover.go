package offload

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// Mover copies vectors between host memory and a device in parallel with the device's
// queue of kernels, so that state moves while kernels run, as in ZeRO-Offload (Ren et al.
// 2021). It cuts vectors into pages, which pass through a ring of pinned buffers: while
// one page is copied by the device, the next is copied by the host.
//
// [Mover.Load] and [Mover.Save] start a move and return; [Move.Await] and [Move.Wait] end
// it, for the device's queue and for the host. Kernels queued in between run in parallel
// with the move:
//
//	next, err := m.Load(weights[1], host[1])
//	// queue the kernels that use weights[0]
//	err = next.Await()
//	// queue the kernels that use weights[1]
//
// A move begins when the work queued before it is done, so start a move before queuing
// the kernels that should run in parallel. The ring limits the pages that are copied at
// the same time: with more pages, Load and Save wait until the oldest ones have arrived.
// With a ring of the pages of two layers, the moves of a chain of layers do not wait.
//
// Devices that cannot copy in parallel with the queue, such as the CPU, copy in the
// queue, and nothing is pinned. All methods may be called from many goroutines, which
// then wait for one another. No method allocates memory.
type Mover struct {
	dev       *snug.Device
	copier    driver.Copier // nil if moves take their turn in the queue
	pageBytes int
	pinned    driver.Mem // the memory of the ring

	mu      sync.Mutex
	ring    []staged
	started uint64 // pages so far; page number k passes through ring[k%len(ring)]
	settled uint64 // the first pages have arrived, and their buffers are free
	err     error  // error of the first copy that failed; later pages never settle
	closed  bool
}

// staged is a page on its way.
type staged struct {
	buffer  driver.Mem // pinned
	host    []byte     // destination of a saved page after its copy; nil when loading
	fence   driver.Fence
	awaited bool // later work of the queue waits for the page
}

// NewMover returns a Mover for dev with a ring of pages buffers of pageBytes bytes,
// rounded up to a multiple of 64. Until [Mover.Close] it takes pages·pageBytes bytes of
// pinned host memory, or nothing if the device cannot copy in parallel with its queue. Each
// page is one copy of the device.
//
// Errors: [snug.ErrConfig] when dev is nil, pageBytes is not from 1 to 1 GiB, or pages
// not from 1 to 4 Mi; [snug.ErrNoMemory] when the memory cannot be pinned;
// [snug.ErrDevice] when dev is closed.
func NewMover(dev *snug.Device, pageBytes, pages int) (*Mover, error) {
	switch {
	case pageBytes < 1 || pageBytes > maxPage:
		return nil, fmt.Errorf("offload: mover with pages of %d bytes, want 1 to %d: %w", pageBytes, maxPage, snug.ErrConfig)
	case dev == nil:
		return nil, fmt.Errorf("offload: mover: the device is nil: %w", snug.ErrConfig)
	case pages < 1 || pages > maxPages:
		return nil, fmt.Errorf("offload: mover with %d pages, want 1 to %d: %w", pages, maxPages, snug.ErrConfig)
	}
	m := &Mover{dev: dev, pageBytes: roundUp(pageBytes, alignment)}
	copier, err := device.Copier(dev)
	switch {
	case errors.Is(err, driver.ErrNoCopier):
		return m, nil
	case err != nil:
		return nil, in(err, "mover")
	}
	m.copier = copier
	if err := m.pin(pages); err != nil {
		return nil, in(err, "mover with %d pages of %d bytes on %s", pages, m.pageBytes, dev)
	}
	return m, nil
}

// pin makes the ring.
func (m *Mover) pin(pages int) (err error) {
	if pages > math.MaxInt/m.pageBytes {
		return snug.ErrNoMemory
	}
	if m.pinned, err = m.copier.AllocPinned(pages * m.pageBytes); err != nil {
		return err
	}
	m.ring = make([]staged, pages)
	for i := range m.ring {
		m.ring[i].buffer = m.pinned.Slice(i*m.pageBytes, m.pageBytes)
	}
	return nil
}

// Load starts to copy src, in host memory, to dst, on the device. src and dst have the
// same element type and length. src may be reused when Load returns. Kernels queued
// before may use dst. Kernels that are queued after [Move.Await], or after [Move.Wait],
// see the new elements. Until then dst belongs to the move: nothing that uses it may be
// queued or started, and its memory may not be freed.
//
// Errors: [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice] when a vector lies elsewhere
// or the device is closed, [snug.ErrConfig] when m is closed. Other errors come from the
// device; dst then holds old and new elements. After a copy failed all later calls return
// its error: make a new Mover.
func (m *Mover) Load(dst, src snug.View) (Move, error) {
	return m.loadAfter(dst, src, after{})
}

// loadAfter is Load with copies that wait for after.
func (m *Mover) loadAfter(dst, src snug.View, after after) (Move, error) {
	v, err := m.move(dst, src, false, after)
	if err != nil {
		return Move{}, in(err, "load")
	}
	return v, nil
}

// Save starts to copy src, on the device, to dst, in host memory. src and dst have the
// same element type and length. It copies src after all kernels queued before. Nothing
// that writes src may be queued, and its memory may not be freed, before [Move.Await] or
// [Move.Wait]. dst belongs to m until Wait returns: any method of m may write to it until
// then.
//
// Errors are the same as for [Mover.Load].
func (m *Mover) Save(dst, src snug.View) (Move, error) {
	return m.saveAfter(dst, src, after{})
}

// saveAfter is Save with copies that wait for after.
func (m *Mover) saveAfter(dst, src snug.View, after after) (Move, error) {
	v, err := m.move(src, dst, true, after)
	if err != nil {
		return Move{}, in(err, "save")
	}
	return v, nil
}

// after is what a copy waits for: a move of the same Mover that copies the same memory the other way, and a point of
// the device's queue. The zero after is the work queued so far.
type after struct {
	move  Move
	point driver.Fence
}

// point returns the end of the work queued so far, which the caller releases; nil if moves take their turn in the queue.
func (m *Mover) point() (driver.Fence, error) {
	if m.copier == nil {
		return nil, nil
	}
	return m.copier.Point()
}

// fence returns what a copy waits for, nil for the work queued so far. A move began after its own point, so that its last
// page is all to wait for until that has arrived.
func (m *Mover) fence(a after) driver.Fence {
	if a.move.end > m.settled {
		return m.page(a.move.end - 1).fence
	}
	return a.point
}

// move starts a copy from host to device, or, to save, from device to host.
func (m *Mover) move(onDevice, host snug.View, save bool, after after) (Move, error) {
	if !m.made() {
		return Move{}, errNoMover
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.check(onDevice, host); err != nil {
		return Move{}, err
	}
	if m.copier == nil {
		if save {
			return Move{}, snug.Copy(host, onDevice)
		}
		return Move{}, snug.Copy(onDevice, host)
	}
	v := Move{m: m, first: m.started}
	bytes := device.Mem(&host).Bytes()
	for lo := 0; lo < len(bytes); lo += m.pageBytes {
		hi := min(lo+m.pageBytes, len(bytes))
		if err := m.start(device.Mem(&onDevice).Slice(lo, hi-lo), bytes[lo:hi], save, after); err != nil {
			// Nothing of the move may be under way when the caller has its vectors back.
			if m.err == nil {
				err = errors.Join(err, m.settle(m.started))
			}
			return Move{}, err
		}
	}
	v.end = m.started
	return v, nil
}

func (m *Mover) check(onDevice, host snug.View) error {
	switch {
	case onDevice.Len() == 0 && host.Len() == 0:
	case onDevice.DType() != host.DType():
		return fmt.Errorf("%s on the device, %s on the host: %w", onDevice.DType(), host.DType(), snug.ErrDType)
	case onDevice.Len() != host.Len():
		return fmt.Errorf("%d elements on the device, %d on the host: %w", onDevice.Len(), host.Len(), snug.ErrShape)
	case onDevice.Device() != m.dev:
		return fmt.Errorf("a vector on %s, want %s: %w", onDevice.Device(), m.dev, snug.ErrDevice)
	case !host.Device().IsCPU():
		return fmt.Errorf("a vector on %s, want host memory: %w", host.Device(), snug.ErrDevice)
	}
	return m.usable()
}

var errNoMover = fmt.Errorf("the mover is nil, or was not made by NewMover: %w", snug.ErrConfig)

// made reports whether m was made by NewMover.
func (m *Mover) made() bool { return m != nil && m.dev != nil }

var errMoverClosed = fmt.Errorf("the mover is closed: %w", snug.ErrConfig)

// usable returns why m cannot move anything. After the device has closed, the
// pinned memory is gone.
func (m *Mover) usable() error {
	switch {
	case m.err != nil:
		return m.err
	case m.closed:
		return errMoverClosed
	case m.copier == nil:
		return nil
	}
	_, err := device.Copier(m.dev)
	return err
}

// start starts the copy of one page, in the next free buffer of the ring.
func (m *Mover) start(mem driver.Mem, host []byte, save bool, after after) (err error) {
	if m.started-m.settled == uint64(len(m.ring)) {
		if err := m.settle(m.settled + 1); err != nil {
			return err
		}
	}
	p := m.page(m.started)
	buffer := p.buffer.Slice(0, len(host))
	if save {
		p.fence, err = m.copier.StartCopyOut(buffer, mem, m.fence(after))
	} else {
		copyTask.Run(cpu.Chunks(len(host), copyChunk), copyArgs{buffer.Bytes(), host})
		p.fence, err = m.copier.StartCopyIn(mem, buffer, m.fence(after))
		host = nil
	}
	if err != nil {
		return err
	}
	p.host, p.awaited = host, false
	m.started++
	return nil
}

func (m *Mover) page(number uint64) *staged { return &m.ring[number%uint64(len(m.ring))] }

// settle waits until all pages below end have arrived, in their order.
func (m *Mover) settle(end uint64) error {
	for m.err == nil && m.settled < end {
		p := m.page(m.settled)
		if err := p.wait(); err != nil {
			m.err = fmt.Errorf("a page did not arrive: %w", err)
			m.drain()
			break
		}
		if p.host != nil {
			copyTask.Run(cpu.Chunks(len(p.host), copyChunk), copyArgs{p.host, p.buffer.Bytes()})
			p.host = nil
		}
		m.settled++
	}
	return m.err
}

// drain waits for copies that are under way after one has failed, so that nothing uses the
// vectors of the callers. Their errors add nothing to the first.
func (m *Mover) drain() {
	for k := m.settled; k < m.started; k++ {
		_ = m.page(k).wait()
	}
}

// wait waits for the copy of p, once.
func (p *staged) wait() error {
	if p.fence == nil {
		return nil
	}
	fence := p.fence
	p.fence = nil
	return fence.Wait()
}

// await makes later work of the queue wait for p.
func (m *Mover) await(p *staged) error {
	if p.awaited {
		return nil
	}
	p.awaited = true
	return p.fence.Await()
}

// Close waits for all moves and frees the pinned memory. It returns the error of a move,
// unless another call has returned it, or of the device. Closing twice does nothing. If
// the device is closed, nothing is left to free.
func (m *Mover) Close() error {
	if !m.made() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	if m.copier == nil {
		return nil
	}
	if _, err := device.Copier(m.dev); err != nil {
		m.pinned = driver.Mem{}
		return nil
	}
	var errs []error
	if m.err == nil {
		errs = append(errs, m.settle(m.started))
	}
	if m.err != nil {
		m.drain() // copies that are still under way use the memory
		_ = m.dev.Sync()
	}
	errs = append(errs, m.copier.FreePinned(m.pinned))
	m.pinned = driver.Mem{}
	if err := errors.Join(errs...); err != nil {
		return in(err, "close mover")
	}
	return nil
}

// copyChunk is the number of bytes that a worker copies at a time.
const copyChunk = 64 << 10

// copyArgs is a copy of len(dst) bytes within the host.
type copyArgs struct{ dst, src []byte }

var copyTask = cpu.NewTask(func(a *copyArgs, item int) {
	lo, hi := cpu.Chunk(len(a.dst), copyChunk, item)
	copy(a.dst[lo:hi], a.src[lo:hi])
})
