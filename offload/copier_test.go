package offload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

func init() { driver.Register("copier", copierBackend{}) }

// copierBackend opens devices that copy beside their queue: every copy runs in a
// goroutine of its own, after the fence or the work queued before it and the copies of its
// direction, and in no order with those of the other. Their memory has no address that Go can follow. Under the race detector
// an access that nothing orders is an error.
type copierBackend struct{}

func (copierBackend) Count() (int, error) { return 1, nil }

func (copierBackend) Open(int) (driver.Driver, error) {
	return &copier{blocks: map[uintptr][]byte{}, pinned: map[uintptr][]byte{}, limit: 1 << 20, tail: ended, last: [2]chan struct{}{ended, ended}}, nil
}

// ended is the end of work that is done.
var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

var errPlanted = fmt.Errorf("planted: %w", driver.ErrDevice)

type copier struct {
	mu       sync.Mutex
	blocks   map[uintptr][]byte // of the device, by address
	pinned   map[uintptr][]byte // by address
	limit    int                // of pinned bytes
	memory   int                // of the device, in bytes; 0 for no limit
	used     int
	tail     chan struct{}    // closed when all queued work is done
	last     [2]chan struct{} // closed when all copies in, or out, are done
	fences   int              // that nobody has released
	closed   bool
	copies   sync.WaitGroup
	active   int
	problems []string

	instant   bool              // copies are done when they have started
	gate      chan struct{}     // copies begin when it is closed, if it is not nil
	failStart func(n int) error // called with the number of each copy, if not nil
	failCopy  func(n int) error
	failAwait error
	onAlloc   func(size int)
	started   int
}

func (c *copier) Alloc(size int) (driver.Mem, error) {
	if c.onAlloc != nil {
		c.onAlloc(size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory > 0 && c.used+size > c.memory {
		return driver.Mem{}, driver.ErrNoMemory
	}
	c.used += size
	addr := uintptr(1+len(c.blocks)) << 24
	c.blocks[addr] = make([]byte, size)
	return driver.Mem{Addr: addr, Size: size}, c.open()
}

func (c *copier) open() error {
	if c.closed {
		return fmt.Errorf("the copier is closed: %w", driver.ErrDevice)
	}
	return nil
}

// Free only forgets what Alloc returned.
func (c *copier) Free(m driver.Mem) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocks[m.Addr] == nil {
		return errors.New("free of unknown memory")
	}
	c.used -= len(c.blocks[m.Addr])
	c.blocks[m.Addr] = nil
	return c.open()
}

func (c *copier) bytes(m driver.Mem) []byte {
	off := int(m.Addr & (1<<24 - 1))
	return c.blocks[m.Addr-uintptr(off)][off : off+m.Size]
}

// enqueue adds work to the queue. The caller holds mu.
func (c *copier) enqueue(work func()) {
	before, end := c.tail, make(chan struct{})
	c.tail = end
	go func() {
		<-before
		work()
		close(end)
	}()
}

func (c *copier) Launch(j driver.Job) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.Operands(func(m *driver.Mem) { m.Host = unsafe.Pointer(unsafe.SliceData(c.bytes(*m))) })
	c.enqueue(j.Run)
	return c.open()
}

func (c *copier) CopyIn(dst driver.Mem, src []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	dst.Size = len(src)
	to, from := c.bytes(dst), append([]byte(nil), src...)
	c.enqueue(func() { copy(to, from) })
	return c.open()
}

func (c *copier) CopyOut(dst []byte, src driver.Mem) error {
	if err := c.Sync(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	src.Size = len(dst)
	copy(dst, c.bytes(src))
	return nil
}

func (c *copier) Copy(driver.Mem, driver.Mem) error { return driver.ErrNotBuilt }

func (c *copier) Sync() error {
	c.mu.Lock()
	tail, err := c.tail, c.open()
	c.mu.Unlock()
	<-tail
	return err
}

func (c *copier) Memory() (free, total int64, err error) { return 0, 0, nil }

func (c *copier) Close() error {
	err := c.Sync()
	c.copies.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	clear(c.pinned)
	return err
}

func (c *copier) AllocPinned(size int) (driver.Mem, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit -= size; c.limit < 0 {
		return driver.Mem{}, fmt.Errorf("%d bytes of pinned memory: %w", size, driver.ErrNoMemory)
	}
	b := make([]byte, size)
	p := unsafe.Pointer(unsafe.SliceData(b))
	c.pinned[uintptr(p)] = b
	return driver.Mem{Host: p, Addr: uintptr(p), Size: size}, c.open()
}

func (c *copier) FreePinned(m driver.Mem) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active > 0 {
		c.problems = append(c.problems, "pinned memory freed during a copy")
	}
	if _, ok := c.pinned[uintptr(m.Host)]; !ok {
		return fmt.Errorf("free of unknown pinned memory: %w", driver.ErrDevice)
	}
	delete(c.pinned, uintptr(m.Host))
	return c.open()
}

func (c *copier) Point() (driver.Fence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instant {
		return instantFence{}, nil
	}
	c.fences++
	return &copierFence{c: c, end: c.tail}, c.open()
}

func (c *copier) StartCopyIn(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return c.start(dst, src, &c.last[0], after, func(device, host []byte) { copy(device, host) })
}

func (c *copier) StartCopyOut(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return c.start(src, dst, &c.last[1], after, func(device, host []byte) { copy(host, device) })
}

func (c *copier) start(device, host driver.Mem, last *chan struct{}, after driver.Fence, move func(device, host []byte)) (driver.Fence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.open(); err != nil {
		return nil, err
	}
	device.Size = host.Size
	if c.instant {
		<-c.tail
		move(c.bytes(device), host.Bytes())
		return instantFence{}, nil
	}
	number := c.started
	c.started++
	if c.failStart != nil {
		if err := c.failStart(number); err != nil {
			return nil, err
		}
	}
	f := &copierFence{c: c, end: make(chan struct{})}
	from, before, gate, previous := c.bytes(device), c.tail, c.gate, *last
	if f, is := after.(*copierFence); is {
		f.check()
		before = f.end
	}
	*last = f.end
	c.fences++
	if c.failCopy != nil {
		f.err = c.failCopy(number)
	}
	pause := time.Duration(rand.IntN(50)) * time.Microsecond
	c.active++
	c.copies.Add(1)
	go func() {
		defer c.copies.Done()
		<-before
		<-previous
		if gate != nil {
			<-gate
		}
		time.Sleep(pause)
		if f.err == nil {
			move(from, host.Bytes())
		}
		c.mu.Lock()
		c.active--
		c.mu.Unlock()
		close(f.end)
	}()
	return f, nil
}

// copierFence is the end of a copy or of queued work.
type copierFence struct {
	c        *copier
	end      chan struct{}
	err      error
	released bool
}

// check notes a use after the release. The caller holds mu.
func (f *copierFence) check() {
	if f.released {
		f.c.problems = append(f.c.problems, "a fence was used after its release")
	}
}

func (f *copierFence) Wait() error {
	f.c.mu.Lock()
	f.check()
	err := f.c.open()
	f.c.mu.Unlock()
	if err != nil {
		return err
	}
	<-f.end
	f.Release()
	return f.err
}

func (f *copierFence) Await() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.check()
	if err := f.c.failAwait; err != nil {
		return err
	}
	f.c.enqueue(func() { <-f.end })
	return f.c.open()
}

func (f *copierFence) Release() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.check()
	f.released = true
	f.c.fences--
}

type instantFence struct{}

func (instantFence) Wait() error  { return nil }
func (instantFence) Await() error { return nil }
func (instantFence) Release()     {}

// openCopier returns a device and what is behind it. When the test ends, all
// pinned memory must have been freed.
func openCopier(t testing.TB) (*snug.Device, *copier) {
	dev, err := snug.Open("copier:0")
	require.NoError(t, err)
	d, err := device.Copier(dev)
	require.NoError(t, err)
	c := d.(*copier)
	t.Cleanup(func() {
		c.mu.Lock()
		require.Empty(t, c.pinned, "pinned memory that was not freed")
		require.True(t, c.closed || c.fences == 0, "%d fences that were not released", c.fences)
		c.mu.Unlock()
		require.NoError(t, dev.Close())
		require.Empty(t, c.problems)
	})
	return dev, c
}

// kernel is any function of a vector.
type kernel struct {
	x  snug.View
	do func(x []float32)
}

func (*kernel) Kernel() string                       { return "offload.test" }
func (k *kernel) Operands(yield func(m *driver.Mem)) { yield(device.Mem(&k.x)) }
func (k *kernel) Run()                               { k.do(k.x.Float32s()) }

// launch queues a kernel.
func launch(t testing.TB, x snug.View, do func(x []float32)) {
	require.NoError(t, device.Launch(x.Device(), &kernel{x, do}))
}
