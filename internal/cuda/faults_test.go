//go:build (cuda || hip) && linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
)

// session does n random operations on a device and checks what they promise: bytes that a call
// says are copied are right, and memory that failed to come is not given. It goes on after errors.
type session struct {
	t    *testing.T
	d    *Device
	rng  *rand.Rand
	mem  []driver.Mem
	want map[uintptr]byte // what every byte of an allocation is; without an entry nobody knows
	pins []driver.Mem
	errs []error
}

func (s *session) note(err error) bool {
	if err != nil {
		s.errs = append(s.errs, err)
	}
	return err == nil
}

func (s *session) pick() (driver.Mem, bool) {
	if len(s.mem) == 0 {
		return driver.Mem{}, false
	}
	return s.mem[s.rng.IntN(len(s.mem))], true
}

func (s *session) step() {
	d := s.d
	m, ok := s.pick()
	value := byte(s.rng.IntN(256))
	switch op := s.rng.IntN(11); {
	case op == 0 || !ok:
		m, err := d.Alloc(1 + s.rng.IntN(2000))
		if s.note(err) {
			s.mem = append(s.mem, m)
			s.want[m.Addr] = 0
		}
	case op == 1:
		delete(s.want, m.Addr)
		if s.note(d.CopyIn(m, bytes.Repeat([]byte{value}, m.Size))) {
			s.want[m.Addr] = value
		}
	case op == 2:
		got := make([]byte, m.Size)
		want, known := s.want[m.Addr]
		if s.note(d.CopyOut(got, m)) && known {
			require.Equal(s.t, bytes.Repeat([]byte{want}, m.Size), got)
		}
	case op == 3:
		other, _ := s.pick()
		if other.Size < m.Size || other.Addr == m.Addr {
			return
		}
		delete(s.want, other.Addr)
		if want, known := s.want[m.Addr]; s.note(d.Copy(other, m)) && known && other.Size == m.Size {
			s.want[other.Addr] = want
		}
	case op == 4 || op == 5:
		s.beside(m, op == 4, value)
	case op == 6:
		delete(s.want, m.Addr)
		if s.note(d.LaunchGrid(grid("fill", []byte{value, 0, 0, 0}, m))) {
			s.want[m.Addr] = value
		}
	case op == 7:
		s.note(d.Sync())
	case op == 8:
		_, _, err := d.Memory()
		s.note(err)
	case op == 9:
		delete(s.want, m.Addr)
		g, err := d.Capture(func() error {
			return d.LaunchGrid(grid("fill", []byte{value, 0, 0, 0}, m))
		})
		if !s.note(err) {
			return
		}
		if s.note(g.Launch()) {
			s.want[m.Addr] = value
		}
		s.note(g.Close())
	default:
		if s.note(d.Free(m)) {
			for i := range s.mem {
				if s.mem[i].Addr == m.Addr {
					s.mem = append(s.mem[:i], s.mem[i+1:]...)
					break
				}
			}
			delete(s.want, m.Addr)
		}
	}
}

// beside copies on the stream of copies, in or out.
func (s *session) beside(m driver.Mem, in bool, value byte) {
	d := s.d
	host, err := d.AllocPinned(m.Size)
	if !s.note(err) {
		return
	}
	s.pins = append(s.pins, host)
	var f driver.Fence
	want, known := s.want[m.Addr]
	if in {
		delete(s.want, m.Addr)
		copy(host.Bytes(), bytes.Repeat([]byte{value}, m.Size))
		f, err = d.StartCopyIn(m, host, nil)
	} else {
		f, err = d.StartCopyOut(host, m, nil)
	}
	if !s.note(err) || !s.note(f.Wait()) {
		return
	}
	if in {
		s.want[m.Addr] = value
	} else if known {
		require.Equal(s.t, bytes.Repeat([]byte{want}, m.Size), host.Bytes())
	}
	if s.note(d.FreePinned(host)) {
		s.pins = s.pins[:len(s.pins)-1]
	}
}

// TestEveryCallFails: the n-th call of the driver fails, for every n of a session, with each kind of
// result, once or from then on, and operations in any order follow it with no wait before.
// Whatever the error, no call says that it did what it did not, none hangs, contexts stay balanced,
// and Close frees everything.
func TestEveryCallFails(t *testing.T) {
	steps, seeds := 25, 3
	if os.Getenv("SNUG_SLOW") == "" { // kerneltest imports this package
		seeds = 1
	}
	for _, pools := range []bool{true, false} {
		for _, result := range []Result{errOutOfMemory, 999, errIllegalAddress} {
			for seed := range seeds {
				calls := failAt(t, pools, result, uint64(seed), steps, 0)
				require.Greater(t, calls, steps)
				for n := 1; n <= calls; n++ {
					failAt(t, pools, result, uint64(seed), steps, n)
				}
			}
		}
	}
}

// failAt runs a session in which call n fails, and returns the number of calls.
func failAt(t *testing.T, pools bool, result Result, seed uint64, steps, n int) (calls int) {
	f := newFake()
	if !pools {
		noPools(f)
	}
	f.failAt, f.failWith = n, result
	f.kernels["fill"] = func(args []byte) {
		b := f.memory[word(args, 0)]
		for i := range b {
			b[i] = args[8]
		}
	}
	what := fmt.Sprintf("call %d gives %d, pools %t, seed %d", n, result, pools, seed)
	done := make(chan struct{})
	var errs []error
	failed := ""
	go func() {
		defer close(done)
		d, err := f.open()
		if err != nil {
			errs = append(errs, err)
			return
		}
		s := &session{t: t, d: d, rng: rand.New(rand.NewPCG(seed, 1)), want: map[uintptr]byte{}}
		for range steps {
			s.step()
		}
		errs = append(s.errs, d.Close())
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("hangs: " + what)
	}
	failed = f.failed
	if n > 0 && failed != "" {
		err := errors.Join(errs...)
		again := result == errOutOfMemory && (failed == "cuMemAlloc" || failed == "cuMemAllocFromPoolAsync") // after memory was given back
		if err == nil && failed != "cuCtxPopCurrent" && !again {
			t.Fatalf("no error of %s: %s", failed, what)
		}
	} else if n == 0 {
		require.NoError(t, errors.Join(errs...))
	}
	if failed != "cuCtxPopCurrent" {
		for thread, depth := range f.contexts {
			require.Zero(t, depth, "contexts of thread %d: %s", thread, what)
		}
	}
	if leaks := f.leaks(); len(leaks) > 0 && !destroys(failed) {
		t.Fatalf("%v are left, %s: %s", leaks, failed, what)
	}
	return f.made
}

// destroys reports whether a call would have freed what is left, or have waited for that.
func destroys(call string) bool {
	switch call {
	case "cuMemFree", "cuMemFreeAsync", "cuMemFreeHost", "cuMemPoolDestroy", "cuEventDestroy", "cuStreamDestroy", "cuGraphDestroy",
		"cuGraphExecDestroy", "cuModuleUnload", "cuDevicePrimaryCtxRelease", "cuCtxPushCurrent", "cuStreamSynchronize":
		return true
	}
	return false
}
