//go:build metal

package metal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// fault makes one call of the system fail: object number n that is asked for is nil, or command
// buffer number n that is committed ends with code.
type fault struct {
	code, n          int // code 0 is for objects
	objects, commits int // so far
	happened         bool
}

// object returns 0 in place of the object that fails.
func (x *fault) object(make func() object) object {
	if x.objects++; x.code == 0 && x.objects == x.n {
		x.happened = true
		return 0
	}
	return make()
}

// inject puts x before the functions of a that may fail. The driver calls them under its lock.
func (x *fault) inject(f *fake, a *api) *api {
	b := *a
	b.newBuffer = func(dev object, n int, options uintptr) object {
		return x.object(func() object { return a.newBuffer(dev, n, options) })
	}
	b.newMatrix = func(buf object, off, rows, columns, rowBytes int, dataType uint32) object {
		return x.object(func() object { return a.newMatrix(buf, off, rows, columns, rowBytes, dataType) })
	}
	b.newProduct = func(dev object, p product) object {
		return x.object(func() object { return a.newProduct(dev, p) })
	}
	b.newFunction = func(lib object, name string) object {
		return x.object(func() object { return a.newFunction(lib, name) })
	}
	of := func(make func(object) object) func(object) object {
		return func(o object) object { return x.object(func() object { return make(o) }) }
	}
	b.newQueue, b.newEvent, b.commandBuffer = of(a.newQueue), of(a.newEvent), of(a.commandBuffer)
	b.computeEncoder, b.blitEncoder = of(a.computeEncoder), of(a.blitEncoder)
	with := func(message string, make func() (object, string)) (o object, said string) {
		said = message
		o = x.object(func() (o object) { o, said = make(); return o })
		return o, said
	}
	b.newLibrary = func(dev object, source string, o compileOptions) (object, string) {
		return with("injected", func() (object, string) { return a.newLibrary(dev, source, o) })
	}
	b.newPipeline = func(dev, function object) (object, string) {
		return with("injected", func() (object, string) { return a.newPipeline(dev, function) })
	}
	b.commit = func(cb object) {
		if x.commits++; x.code != 0 && x.commits == x.n {
			x.happened = true
			f.do(func() { f.get(cb, "command buffer").code = x.code })
		}
		a.commit(cb)
	}
	return &b
}

// session does random operations on a device and checks what they promise: bytes that a call says
// are copied are right. It goes on after errors. After one it knows no byte any more.
type session struct {
	t     *testing.T
	f     *fake
	d     *device
	rng   *rand.Rand
	blind bool // others get errors of this session's work
	mem   []driver.Mem
	want  map[uintptr]byte // what every byte of an allocation is; without an entry nobody knows
	errs  []error
}

func (s *session) note(err error) bool {
	if err == nil {
		return true
	}
	clear(s.want)
	s.errs = append(s.errs, err)
	return false
}

func (s *session) fill(m driver.Mem, value byte) *gpu.Launch {
	p := fillParams{uint32(value), uint32(m.Size)}
	return s.f.launch("flood", gpu.Params(&p), m)
}

func (s *session) same(m driver.Mem, got []byte) {
	if want, known := s.want[m.Addr]; known && !s.blind {
		require.Equal(s.t, bytes.Repeat([]byte{want}, len(got)), got)
	}
}

// pass lets queued work run, or not yet.
func (s *session) pass() {
	if s.rng.IntN(2) == 0 {
		for range 10 {
			runtime.Gosched()
		}
	}
}

func (s *session) step() {
	s.pass()
	d, value := s.d, byte(s.rng.IntN(256))
	op := 1 + s.rng.IntN(11)
	if len(s.mem) < 3 { // so few that operations meet
		op = 0
	}
	var m, other driver.Mem
	if op > 0 {
		m, other = s.mem[s.rng.IntN(len(s.mem))], s.mem[s.rng.IntN(len(s.mem))]
	}
	switch op {
	case 0:
		m, err := d.Alloc(16 + s.rng.IntN(200))
		if s.note(err) {
			s.mem, s.want[m.Addr] = append(s.mem, m), 0
		}
	case 1:
		delete(s.want, m.Addr)
		if s.note(d.CopyIn(m, bytes.Repeat([]byte{value}, m.Size))) {
			s.want[m.Addr] = value
		}
	case 2, 3:
		got := make([]byte, m.Size)
		if s.note(d.CopyOut(got, m)) {
			s.same(m, got)
		}
	case 4:
		if other.Size < m.Size || other.Addr == m.Addr {
			return
		}
		delete(s.want, other.Addr)
		if s.note(d.Copy(other, m)) && other.Size == m.Size {
			if want, known := s.want[m.Addr]; known {
				s.want[other.Addr] = want
			}
		}
	case 5, 6:
		s.beside(m, op == 5, value)
	case 7, 8:
		delete(s.want, m.Addr)
		if s.note(d.LaunchGrid(s.fill(m, value))) {
			s.want[m.Addr] = value
		}
	case 9:
		delete(s.want, other.Addr)
		x := gpu.Matrix{Mem: m, Type: gpu.F32, Stride: 2}
		_, err := d.MatMul(2, 2, 2, 1, x, x, 0, gpu.Matrix{Mem: other, Type: gpu.F32, Stride: 2})
		s.note(err)
	case 10:
		s.note(d.Sync())
	default:
		s.free(m)
	}
}

// free requires that memory is given back, whatever the error of earlier work, while the device
// can be used.
func (s *session) free(m driver.Mem) {
	err := s.d.Free(m)
	var lost *LostError
	if !s.note(err) && errors.As(err, &lost) {
		return
	}
	again := s.d.Free(m)
	require.Error(s.t, again, "freed twice")
	if strings.Contains(again.Error(), "injected") { // of work that failed meanwhile
		s.note(again)
	}
	delete(s.want, m.Addr)
	for i := range s.mem {
		if s.mem[i].Addr == m.Addr {
			s.mem = append(s.mem[:i], s.mem[i+1:]...)
			return
		}
	}
}

// beside copies on the queue of copies, in or out.
func (s *session) beside(m driver.Mem, in bool, value byte) {
	host, err := s.d.AllocPinned(m.Size)
	if !s.note(err) {
		return
	}
	defer s.free(host)
	var f driver.Fence
	if in {
		delete(s.want, m.Addr)
		copy(host.Bytes(), bytes.Repeat([]byte{value}, m.Size))
		f, err = s.d.StartCopyIn(m, host, nil)
	} else {
		f, err = s.d.StartCopyOut(host, m, nil)
	}
	if !s.note(err) {
		return
	}
	s.pass()
	awaited := value%2 == 0 // by the queue
	if awaited && !s.note(f.Await()) {
		return
	}
	waited := value%4 != 0
	if waited && !s.note(f.Wait()) {
		return
	}
	if in {
		s.want[m.Addr] = value
	} else if waited {
		s.same(m, host.Bytes())
	}
}

// play opens a device, lets several goroutines use it, and closes it.
func (x *fault) play(t *testing.T, seed uint64, discrete bool, workers, steps int) {
	what := fmt.Sprintf("code %d, call %d, seed %d, discrete %t, %d goroutines", x.code, x.n, seed, discrete, workers)
	f := newFake()
	f.discrete = discrete
	f.kernel("flood", func(operands [][]byte, params []byte, _ int) {
		for i := range binary.LittleEndian.Uint32(params[4:]) {
			operands[0][i] = params[0]
		}
	})
	var errs []error
	done := make(chan struct{})
	go func() {
		defer close(done)
		drv, err := backend{func() (*api, error) { return x.inject(f, f.api()), nil }}.Open(0)
		if err != nil {
			errs = append(errs, err)
			return
		}
		d := drv.(*device)
		var group sync.WaitGroup
		sessions := make([]*session, workers)
		for i := range sessions {
			s := &session{t: t, f: f, d: d, rng: rand.New(rand.NewPCG(seed, uint64(i))), blind: workers > 1, want: map[uintptr]byte{}}
			sessions[i] = s
			group.Go(func() {
				for range steps {
					s.step()
				}
			})
		}
		group.Wait()
		for _, s := range sessions {
			errs = append(errs, s.errs...)
		}
		if d.lost == nil {
			live := 0
			for _, s := range sessions {
				live += len(s.mem)
			}
			require.Len(t, d.buffers, live, what)
		}
		errs = append(errs, d.Close())
		require.NoError(t, d.Close(), "twice")
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "hangs", what)
	}
	err := errors.Join(errs...)
	switch {
	case !x.happened:
		require.NoError(t, err, what)
	case x.code != 0:
		require.ErrorContains(t, err, "injected", what)
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, driver.ErrDevice) && !errors.Is(err, driver.ErrNoMemory) {
			t.Fatalf("%v wraps no error of the package: %s", err, what)
		}
	}
	f.check(t)
	if t.Failed() {
		t.Fatal(what)
	}
}

// TestEveryCallFails: an object that the system does not give, or a command buffer that fails, at
// every place of a session, followed by operations in any order with no wait before. Whatever the
// error, no call says that it did what it did not, none hangs, memory is given back, and Close
// releases everything.
func TestEveryCallFails(t *testing.T) {
	seeds := uint64(3)
	if os.Getenv("SNUG_SLOW") == "" { // kerneltest imports this package
		seeds = 1
	}
	for _, code := range []int{0, killedWork, codeOutOfMemory, codePageFault} {
		for _, discrete := range []bool{false, true} {
			for seed := range seeds {
				for _, workers := range []int{1, 2} {
					const steps = 40
					x := &fault{code: code}
					x.play(t, seed, discrete, workers, steps)
					places := x.objects
					if code != 0 {
						places = x.commits
					}
					require.Greater(t, places, steps/8)
					for n := 1; n <= places; n++ {
						(&fault{code: code, n: n}).play(t, seed, discrete, workers, steps)
					}
				}
			}
		}
	}
}
