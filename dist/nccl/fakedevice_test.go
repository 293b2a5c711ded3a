//go:build linux

package nccl

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// The devices of the tests, "card:0" and on. Each queue runs in a goroutine of its own; a device that is opened twice has
// two queues on one memory, whose addresses Go cannot follow.

type cards []*card

func init() { driver.Register("card", newCards(8)) }

// newCards returns the devices of a kind.
func newCards(n int) cards {
	list := make(cards, n)
	for i := range list {
		list[i] = &card{blocks: map[uintptr][]byte{}, threads: map[int]int{}, next: uintptr(i+1) << (bits.UintSize - 8)}
	}
	return list
}

// cardOf returns the card of a device.
func cardOf(dev *snug.Device) *card {
	s, err := device.Streamer(dev)
	if err != nil {
		panic(err)
	}
	return innerQueue(s).card
}

// innerQueue returns the queue behind what device.Streamer returns.
func innerQueue(s driver.Streamer) *queue {
	return s.(interface{ Inner() driver.Streamer }).Inner().(*queue)
}

func (c cards) Count() (int, error) { return len(c), nil }

func (c cards) Open(index int) (driver.Driver, error) {
	q := &queue{card: c[index], own: map[uintptr]bool{}}
	q.idle.L = &q.mu
	streams.Lock()
	defer streams.Unlock()
	streams.of = append(streams.of, q)
	q.stream = uintptr(len(streams.of))
	return q, nil
}

// streams are all queues, by the numbers that other libraries know them by.
var streams struct {
	sync.Mutex
	of []*queue
}

func queueOf(stream uintptr) *queue {
	streams.Lock()
	defer streams.Unlock()
	return streams.of[stream-1]
}

// card is the memory of a device, in Go or of another driver, which runs the kernels then.
type card struct {
	real    driver.Driver
	mu      sync.Mutex
	blocks  map[uintptr][]byte
	next    uintptr
	threads map[int]int // where it is current, and how often
	moments []chan struct{}
}

// bytes returns n bytes at an address.
func (c *card) bytes(addr uintptr, n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, b := range c.blocks {
		if off := int(addr - at); addr >= at && off+n <= len(b) {
			return b[off : off+n]
		}
	}
	panic(fmt.Sprintf("%d bytes at %#x are not one allocation", n, addr))
}

// read returns n bytes at an address.
func (c *card) read(addr uintptr, n int) []byte {
	if c.real == nil {
		return c.bytes(addr, n)
	}
	b := make([]byte, n)
	if err := c.real.CopyOut(b, driver.Mem{Addr: addr, Size: n}); err != nil {
		panic(err.Error())
	}
	return b
}

// write changes the bytes at an address.
func (c *card) write(addr uintptr, b []byte) {
	if c.real == nil {
		copy(c.bytes(addr, len(b)), b)
	} else if err := c.real.CopyIn(driver.Mem{Addr: addr, Size: len(b)}, b); err != nil {
		panic(err.Error())
	}
}

func (c *card) current() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.threads[syscall.Gettid()] > 0
}

type queue struct {
	*card
	stream uintptr

	mu     sync.Mutex
	idle   sync.Cond
	work   []func()
	busy   bool
	closed bool
	err    error // that every call returns
	own    map[uintptr]bool
}

var _ driver.Streamer = (*queue)(nil)

func (q *queue) enqueue(work func()) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if q.closed {
		return fmt.Errorf("the card is closed: %w", driver.ErrDevice)
	}
	q.work = append(q.work, work)
	if !q.busy {
		q.busy = true
		go q.drain()
	}
	return nil
}

func (q *queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.work) > 0 {
		work := q.work[0]
		q.work = q.work[1:]
		q.mu.Unlock()
		work()
		q.mu.Lock()
	}
	q.busy = false
	q.idle.Broadcast()
}

func (q *queue) Alloc(size int) (driver.Mem, error) {
	if q.real != nil {
		return q.real.Alloc(size)
	}
	q.card.mu.Lock()
	defer q.card.mu.Unlock()
	m := driver.Mem{Addr: q.next, Size: size}
	q.blocks[m.Addr], q.own[m.Addr] = make([]byte, size), true
	q.next += uintptr(size+0xffff) &^ 0xfff
	return m, nil
}

func (q *queue) Free(m driver.Mem) error {
	return q.enqueue(func() {
		if q.real != nil {
			_ = q.real.Free(m)
		}
		q.card.mu.Lock()
		defer q.card.mu.Unlock()
		delete(q.blocks, m.Addr)
		delete(q.own, m.Addr)
	})
}

func (q *queue) CopyIn(dst driver.Mem, src []byte) error {
	staged := slices.Clone(src)
	return q.enqueue(func() { q.write(dst.Addr, staged) })
}

func (q *queue) CopyOut(dst []byte, src driver.Mem) error {
	if err := q.Sync(); err != nil {
		return err
	}
	copy(dst, q.read(src.Addr, len(dst)))
	return nil
}

func (q *queue) Copy(dst, src driver.Mem) error {
	return q.enqueue(func() { q.write(dst.Addr, q.read(src.Addr, src.Size)) })
}

func (q *queue) Launch(j driver.Job) error {
	return q.enqueue(func() {
		if q.real != nil {
			if err := q.real.Launch(j); err != nil {
				panic(err.Error())
			}
			return
		}
		j.Operands(func(m *driver.Mem) {
			if m.Size > 0 {
				m.Host = unsafe.Pointer(unsafe.SliceData(q.bytes(m.Addr, m.Size)))
			}
		})
		j.Run()
	})
}

func (q *queue) Sync() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.busy {
		q.idle.Wait()
	}
	return q.err
}

func (q *queue) Memory() (free, total int64, err error) { return 1 << 30, 1 << 30, nil }

func (q *queue) Close() error {
	err := q.Sync()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.card.mu.Lock()
	defer q.card.mu.Unlock()
	for addr := range q.own {
		delete(q.blocks, addr)
	}
	return err
}

func (q *queue) Enter() (uintptr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || q.closed {
		return 0, fmt.Errorf("the card is closed or lost: %w", driver.ErrDevice)
	}
	runtime.LockOSThread()
	q.card.mu.Lock()
	defer q.card.mu.Unlock()
	q.threads[syscall.Gettid()]++
	return q.stream, nil
}

func (q *queue) Leave() {
	q.card.mu.Lock()
	defer q.card.mu.Unlock()
	q.threads[syscall.Gettid()]--
	runtime.UnlockOSThread()
}

func (q *queue) Mark() (driver.Moment, error) {
	reached := make(chan struct{})
	if err := q.enqueue(func() { close(reached) }); err != nil {
		return driver.Moment{}, err
	}
	q.card.mu.Lock()
	defer q.card.mu.Unlock()
	q.moments = append(q.moments, reached)
	return driver.Moment{Of: q, Event: uintptr(len(q.moments))}, nil
}

func (q *queue) Await(m driver.Moment) error {
	o, ok := m.Of.(*queue)
	if !ok || o.card != q.card {
		return fmt.Errorf("another card: %w", driver.ErrDevice)
	}
	q.card.mu.Lock()
	reached := q.moments[m.Event-1]
	q.moments[m.Event-1] = nil
	q.card.mu.Unlock()
	if reached == nil {
		return fmt.Errorf("a moment is awaited twice: %w", driver.ErrDevice)
	}
	return q.enqueue(func() { <-reached })
}

func (q *queue) Idle() (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.busy, q.err
}

// lose makes every call fail, as a device does that is lost.
func (q *queue) lose(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
}

// slow is work that takes a while.
func (q *queue) slow(d time.Duration, then func()) error {
	return q.enqueue(func() {
		time.Sleep(d)
		then()
	})
}
