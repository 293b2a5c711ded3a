// Package driver is the seam between snug's devices and the backends behind
// them. A backend implements [Backend] and [Driver] and registers itself; it
// knows nothing of element types, only bytes and [Job] values.
package driver

import (
	"errors"
	"fmt"
	"sort"
	"sync"
	"unsafe"
)

// The sentinels that backends return; package snug exports them.
var (
	ErrDevice   = errors.New("snug: wrong or closed device")
	ErrNoMemory = errors.New("snug: out of memory")
	ErrNotBuilt = errors.New("snug: backend not available")
)

// ErrNoCopier says that a device, which works, is no [Copier].
var ErrNoCopier = fmt.Errorf("no copies outside its queue: %w", ErrDevice)

// Mem is a range of bytes in some device's memory.
type Mem struct {
	Host unsafe.Pointer // where Go can read and write it; nil where it cannot
	Addr uintptr        // the device's own address; 0 for plain Go memory
	Size int            // bytes
}

// Slice returns the n bytes of m that start at byte off. The caller checks
// the range.
func (m Mem) Slice(off, n int) Mem {
	if m.Host != nil && n > 0 { // an empty range must not point past the end
		m.Host = unsafe.Add(m.Host, off)
	}
	if m.Addr != 0 {
		m.Addr += uintptr(off)
	}
	m.Size = n
	return m
}

// Overlaps reports whether m and o, of one device, share bytes.
func (m Mem) Overlaps(o Mem) bool {
	a, b := m.address(), o.address()
	return m.Size > 0 && o.Size > 0 && a < b+uintptr(o.Size) && b < a+uintptr(m.Size)
}

// Same reports whether m and o, of one device, start at one byte.
func (m Mem) Same(o Mem) bool { return m.address() == o.address() }

// address returns where m starts in its device's memory.
func (m Mem) address() uintptr {
	if m.Addr != 0 {
		return m.Addr
	}
	return uintptr(m.Host)
}

// Bytes returns the bytes of m, or nil if Go cannot address them.
func (m Mem) Bytes() []byte {
	if m.Host == nil {
		return nil
	}
	return unsafe.Slice((*byte)(m.Host), m.Size)
}

// Job is one kernel launch, written once for every device. It is a value on
// the heap that the device may keep until its queue reaches it.
type Job interface {
	// Kernel returns the kernel's name, "package.kernel".
	Kernel() string
	// Operands calls yield with every memory operand, in parameter order. A
	// device may change what it is handed, to bind the address at which the
	// kernel reaches the operand.
	Operands(yield func(*Mem))
	// Run executes the kernel in Go. Every operand has a Host address.
	Run()
}

// Driver is one open device: a memory and an ordered queue. Its methods may be
// called from many goroutines. All but Sync and CopyOut may return before the
// work is done; an error of queued work is returned by the next call.
type Driver interface {
	// Alloc returns size > 0 zeroed bytes, or an error that wraps ErrNoMemory.
	Alloc(size int) (Mem, error)
	// Free gives back what Alloc returned, after the work queued so far.
	Free(m Mem) error
	// CopyIn copies len(src) bytes to dst; src may be reused on return.
	CopyIn(dst Mem, src []byte) error
	// CopyOut waits for the queue and copies len(dst) bytes from src.
	CopyOut(dst []byte, src Mem) error
	// Copy copies src.Size bytes on the device.
	Copy(dst, src Mem) error
	// Launch queues a job.
	Launch(j Job) error
	// Sync waits until the queue is empty.
	Sync() error
	// Memory returns the free and total bytes of the device.
	Memory() (free, total int64, err error)
	// Close waits and frees everything.
	Close() error
}

// Backend opens the devices of one kind.
type Backend interface {
	// Count returns how many devices there are; an error says why none can
	// be used.
	Count() (int, error)
	// Open opens device number index.
	Open(index int) (Driver, error)
}

var (
	mu       sync.RWMutex
	backends = map[string]Backend{}
)

// Register makes a backend available under a kind such as "cuda". It panics
// when the kind is taken, which is an error of the program's build.
func Register(kind string, b Backend) {
	mu.Lock()
	defer mu.Unlock()
	if _, dup := backends[kind]; dup {
		panic("driver: kind " + kind + " registered twice")
	}
	backends[kind] = b
}

// Lookup returns the backend of a kind.
func Lookup(kind string) (Backend, error) {
	mu.RLock()
	defer mu.RUnlock()
	if b, ok := backends[kind]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("the %s backend is not in this program; the backends cuda, hip and metal are built with the tag of their name (go build -tags cuda), metal on macOS and hip on Linux only: %w", kind, ErrNotBuilt)
}

// Kinds returns the registered kinds in order.
func Kinds() []string {
	mu.RLock()
	defer mu.RUnlock()
	kinds := make([]string, 0, len(backends))
	for k := range backends {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	return kinds
}
