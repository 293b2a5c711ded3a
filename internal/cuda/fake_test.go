//go:build (cuda || hip) && linux

package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// fake is a CUDA driver with one device. Work on a stream runs as late as the
// driver allows: when somebody waits for it. So what is not ordered by a stream
// or an event is seen to be missing.
type fake struct {
	mu           sync.Mutex
	unlock       func()
	log          []string // the calls, when logging
	logging      bool
	fail         map[string]Result // results of the calls to come, by name
	vendor       *vendor
	made, failAt int           // calls so far; the number of the call that fails
	failWith     Result        // and with what
	failed       string        // its name
	arch         string        // of HIP's device, with features
	current      map[int]int32 // devices of HIP's threads, where they are not elsewhere

	count, major, minor, version, pools int32
	total                               uint64

	retained int
	contexts map[int]int // pushed by each thread
	next     uintptr
	streams  map[uintptr]*stream
	events   map[uintptr]moment
	memory   map[uintptr][]byte // of the device, by address
	pinned   map[uintptr][]byte
	modules  map[uintptr]string // the image
	names    map[uintptr]string // of functions
	graphs   map[uintptr][]func()
	execs    map[uintptr][]func()
	poolMade map[uintptr]*fakePool
	poolOf   map[uintptr]*fakePool // of addresses
	kernels  map[string]func(args []byte)
	compile  func(code string) Result // what loading a code does first, without the fake's lock
	sizes    map[string][]int         // of the parameters of kernels that are launched by pointers to them
	lost     Result                   // sticky
	queued   Result                   // of work that has not run yet
}

// stream is a list of work; the first done parts have run.
type stream struct {
	work     []func()
	done     int
	captured *[]func() // where work goes during a capture
}

// moment is a position in a stream.
type moment struct {
	s *stream
	n int
}

const primary = 0xc0de // the primary context

var testVendor = &nvidia

func newFake() *fake {
	f := &fake{
		fail: map[string]Result{}, vendor: testVendor, arch: "gfx1100:xnack-", current: map[int]int32{}, count: 1, major: 8, version: 12000, pools: 1, total: 1 << 30,
		contexts: map[int]int{}, next: 1 << 40, streams: map[uintptr]*stream{}, events: map[uintptr]moment{},
		memory: map[uintptr][]byte{}, pinned: map[uintptr][]byte{}, modules: map[uintptr]string{},
		names: map[uintptr]string{}, graphs: map[uintptr][]func(){}, execs: map[uintptr][]func(){}, poolMade: map[uintptr]*fakePool{}, poolOf: map[uintptr]*fakePool{},
		kernels: map[string]func([]byte){}, sizes: map[string][]int{},
	}
	f.unlock = f.mu.Unlock
	return f
}

// leaks tells what is still held.
func (f *fake) leaks() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for what, n := range map[string]int{
		"contexts": f.retained, "streams": len(f.streams), "events": len(f.events), "allocations": len(f.memory),
		"pinned": len(f.pinned), "modules": len(f.modules), "graphs": len(f.graphs) + len(f.execs), "pools": len(f.poolMade),
	} {
		if n != 0 {
			out = append(out, fmt.Sprint(n, " ", what))
		}
	}
	for thread, depth := range f.contexts {
		if depth != 0 {
			out = append(out, fmt.Sprintf("thread %d has %d contexts", thread, depth))
		}
	}
	return out
}

// call does what every function does: it logs, fails when told to, and needs a
// context unless free. It locks the fake until the returned function is called.
func (f *fake) call(name string, free bool, args ...any) (Result, func()) {
	f.mu.Lock()
	if f.logging {
		f.log = append(f.log, strings.TrimSpace(fmt.Sprintln(append([]any{name}, args...)...)))
	}
	if f.made++; f.made == f.failAt {
		f.failed = name
		if slices.Contains(f.vendor.lost, f.failWith) {
			f.lost = f.failWith
		}
		return f.failWith, f.unlock
	}
	if r, ok := f.fail[name]; ok {
		if slices.Contains(f.vendor.lost, r) {
			f.lost = r
		}
		return r, f.unlock
	}
	if f.lost != success && !free {
		return f.lost, f.unlock
	}
	if !free && f.contexts[syscall.Gettid()] == 0 {
		return 201, f.unlock
	}
	return success, f.unlock
}

func (f *fake) handle() uintptr {
	f.next += 1 << 20
	return f.next
}

// enqueue adds work to a stream, or to its capture.
func (f *fake) enqueue(s uintptr, work func()) Result {
	st := f.streams[s]
	switch {
	case st == nil:
		return 400
	case st.captured != nil:
		*st.captured = append(*st.captured, work)
	default:
		st.work = append(st.work, work)
	}
	return success
}

// run runs a stream up to position n.
func (f *fake) run(s *stream, n int) Result {
	for s.done < n {
		work := s.work[s.done]
		s.done++
		work()
	}
	if f.queued != success {
		f.lost, f.queued = f.queued, success
	}
	return f.lost
}

// bytes returns n bytes of device or pinned memory.
func (f *fake) bytes(addr uintptr, n uint64) []byte {
	for _, space := range []map[uintptr][]byte{f.memory, f.pinned} {
		for base, b := range space {
			if off := addr - base; off < uintptr(len(b)) && uint64(len(b))-uint64(off) >= n {
				return b[off : uint64(off)+n]
			}
		}
	}
	f.queued = errIllegalAddress
	return make([]byte, n)
}

// fakePool is a memory pool: it keeps freed memory from the device until a wait, and then at most
// so much that it holds keep bytes.
type fakePool struct{ live, held, keep uint64 }

func (p *fakePool) release(keep uint64) { p.held = max(p.live, min(p.held, keep)) }

// waited is what the driver does when a stream or an event is waited for.
func (f *fake) waited() {
	for _, p := range f.poolMade {
		p.release(p.keep)
	}
}

// used returns the bytes that no process can get.
func (f *fake) used() (n uint64) {
	for addr, b := range f.memory {
		if f.poolOf[addr] == nil {
			n += uint64(len(b))
		}
	}
	for _, p := range f.poolMade {
		n += p.held
	}
	return n
}

// allocate takes memory from the device, or from a pool.
func (f *fake) allocate(addr *uintptr, size uint64, pool *fakePool) Result {
	more := size
	if pool != nil {
		more = size - min(size, pool.held-pool.live)
	}
	if f.used()+more > f.total {
		return errOutOfMemory
	}
	if pool != nil {
		pool.live, pool.held = pool.live+size, pool.held+more
	}
	*addr = f.handle()
	f.next += uintptr(size)
	f.memory[*addr] = make([]byte, size)
	f.poolOf[*addr] = pool
	for i := range min(size, 4096) { // as memory comes: with what was there
		f.memory[*addr][i] = 0xa5
	}
	return success
}

// noLt is a system without cuBLASLt.
func noLt(func(*ltAPI) bool) {}

// backend returns a backend on the fake.
func (f *fake) backend() *backend {
	return newBackend(f.vendor, func() (*api, error) { return f.driverAPI(), nil }, noLt)
}

// open opens the fake's device.
func (f *fake) open() (*Device, error) {
	d, err := f.backend().Open(0)
	if err != nil {
		return nil, err
	}
	return d.(*Device), nil
}

// word returns argument i of a launch, an address.
func word(args []byte, i int) uintptr { return uintptr(binary.LittleEndian.Uint64(args[8*i:])) }
