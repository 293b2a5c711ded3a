// Package kerneltest is what backends are tested with: a device whose memory
// Go cannot address, and buffers with guard words for any device.
package kerneltest

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// firstAddress lies where no system maps memory, on 64 bits.
const firstAddress = uintptr(1) << (bits.UintSize - 4)

// Total is the memory of an opaque device in bytes.
const Total = 1 << 30

func init() { driver.Register("opaque", backend{}) }

// backend opens opaque devices. "opaque:0" runs its queue in a goroutine of
// its own, as a GPU does; its addresses fault when Go follows them.
type backend struct{}

func (backend) Count() (int, error) { return 1, nil }

func (backend) Open(int) (driver.Driver, error) {
	o := &opaque{next: firstAddress, free: Total}
	o.idle.L = &o.mu
	return o, nil
}

type opaque struct {
	mu     sync.Mutex
	idle   sync.Cond
	blocks []block // by address
	next   uintptr
	free   int64
	queue  []func() error
	busy   bool
	err    error // of queued work, until someone asks
}

type block struct {
	addr uintptr
	data []byte
}

func (o *opaque) Alloc(size int) (driver.Mem, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if int64(size) > o.free {
		return driver.Mem{}, fmt.Errorf("%d bytes wanted, %d free: %w", size, o.free, driver.ErrNoMemory)
	}
	m := driver.Mem{Addr: o.next, Size: size}
	o.blocks = append(o.blocks, block{o.next, make([]byte, size)})
	o.next += uintptr(size+0xffff) &^ 0xfff // a gap of at least a page
	o.free -= int64(size)
	return m, nil
}

func (o *opaque) Free(m driver.Mem) error {
	return o.enqueue(func() error {
		i, found := o.find(m.Addr)
		if !found || o.blocks[i].addr != m.Addr {
			return fmt.Errorf("free of %#x, which was not allocated: %w", m.Addr, driver.ErrDevice)
		}
		o.free += int64(len(o.blocks[i].data))
		o.blocks = slices.Delete(o.blocks, i, i+1)
		return nil
	})
}

// find returns the block that starts at or below addr.
func (o *opaque) find(addr uintptr) (int, bool) {
	i, found := slices.BinarySearchFunc(o.blocks, addr, func(b block, a uintptr) int {
		return cmp.Compare(b.addr, a)
	})
	if !found {
		i--
	}
	return i, i >= 0
}

// resolve returns the bytes behind m.
func (o *opaque) resolve(m driver.Mem) ([]byte, error) {
	i, found := o.find(m.Addr)
	if found {
		b := o.blocks[i]
		if off := int(m.Addr - b.addr); off+m.Size <= len(b.data) {
			return b.data[off : off+m.Size], nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x are not one allocation: %w", m.Size, m.Addr, driver.ErrDevice)
}

func (o *opaque) CopyIn(dst driver.Mem, src []byte) error {
	staged := slices.Clone(src)
	dst.Size = len(src)
	return o.enqueue(func() error {
		to, err := o.resolve(dst)
		copy(to, staged)
		return err
	})
}

func (o *opaque) CopyOut(dst []byte, src driver.Mem) error {
	if err := o.Sync(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	src.Size = len(dst)
	from, err := o.resolve(src)
	copy(dst, from)
	return err
}

func (o *opaque) Copy(dst, src driver.Mem) error {
	dst.Size = src.Size
	return o.enqueue(func() error {
		from, err := o.resolve(src)
		if err != nil {
			return err
		}
		to, err := o.resolve(dst)
		copy(to, from)
		return err
	})
}

func (o *opaque) Launch(j driver.Job) error {
	return o.enqueue(func() error {
		var err error
		j.Operands(func(m *driver.Mem) {
			if m.Size == 0 {
				return
			}
			b, e := o.resolve(*m)
			if e != nil {
				err = fmt.Errorf("kernel %s: %w", j.Kernel(), e)
				return
			}
			m.Host = unsafe.Pointer(unsafe.SliceData(b))
		})
		if err == nil {
			j.Run()
		}
		return err
	})
}

// HasDoubles implements [driver.Doubler].
func (o *opaque) HasDoubles() bool { return true }

// TakesAddresses implements [driver.Addresser]: jobs join, and run in Go.
func (o *opaque) TakesAddresses() bool { return true }

// enqueue adds work and starts the queue's goroutine if it rests.
func (o *opaque) enqueue(work func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.takeErr(); err != nil {
		return err
	}
	o.queue = append(o.queue, work)
	if !o.busy {
		o.busy = true
		go o.drain()
	}
	return nil
}

func (o *opaque) drain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) > 0 {
		work := o.queue[0]
		o.queue = o.queue[1:]
		if err := work(); err != nil && o.err == nil {
			o.err = err
		}
	}
	o.busy = false
	o.idle.Broadcast()
}

func (o *opaque) takeErr() error {
	err := o.err
	o.err = nil
	return err
}

func (o *opaque) Sync() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.busy {
		o.idle.Wait()
	}
	return o.takeErr()
}

func (o *opaque) Memory() (free, total int64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.free, Total, nil
}

func (o *opaque) Close() error {
	err := o.Sync()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blocks = nil
	return err
}
