//go:build (cuda || hip) && linux

package cuda

import (
	"strings"
	"sync"
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// openFake opens a device on a fake driver, and checks when the test ends that
// Close leaves nothing behind.
func openFake(t testing.TB, set func(f *fake)) (*fake, *Device) {
	t.Helper()
	f := newFake()
	if set != nil {
		set(f)
	}
	d, err := f.open()
	require.NoError(t, err)
	t.Cleanup(func() {
		clear(f.fail)
		d.Close()
		require.Empty(t, f.leaks(), "left after Close")
	})
	return f, d
}

func noPools(f *fake) { f.pools = 0 }

// calls returns what do called, by name and logged arguments, without the
// context that surrounds everything.
func (f *fake) calls(do func()) []string {
	f.log, f.logging = nil, true
	do()
	f.logging = false
	var out []string
	for _, c := range f.log {
		if !strings.HasPrefix(c, "cuCtx") {
			out = append(out, c)
		}
	}
	return out
}

func TestOpen(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(f *fake)
		want []string
		is   error
	}{
		{"old driver", func(f *fake) { f.version = 11080 }, []string{"CUDA 11.8", "CUDA 12.0", "driver 525 or later"}, driver.ErrNotBuilt},
		{"no device at start", func(f *fake) { f.fail["cuInit"] = errNoDevice }, []string{"no NVIDIA GPU", "CUDA_ERROR_NO_DEVICE (100)"}, driver.ErrNotBuilt},
		{"broken driver", func(f *fake) { f.fail["cuInit"] = 803 }, []string{"does not start", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"}, driver.ErrNotBuilt},
		{"no device", func(f *fake) { f.count = 0 }, []string{"no NVIDIA GPU"}, driver.ErrNotBuilt},
		{"no count", func(f *fake) { f.fail["cuDeviceGetCount"] = 999 }, []string{"cuDeviceGetCount: CUDA_ERROR_UNKNOWN (999)"}, driver.ErrDevice},
		{"old card", func(f *fake) { f.major = 7; f.minor = 5 }, []string{"cuda:0, Fake V100,", "capability 7.5", "need 8.0 or later"}, driver.ErrNotBuilt},
		{"no attributes", func(f *fake) { f.fail["cuDeviceGetAttribute"] = 999 }, []string{"cuDeviceGetAttribute: CUDA_ERROR_UNKNOWN (999)"}, driver.ErrDevice},
		{"no context", func(f *fake) { f.fail["cuDevicePrimaryCtxRetain"] = 2 }, []string{"cuDevicePrimaryCtxRetain", "OUT_OF_MEMORY (2)"}, driver.ErrNoMemory},
		{"context unusable", func(f *fake) { f.fail["cuCtxPushCurrent"] = 201 }, []string{"cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT (201)"}, driver.ErrDevice},
		{"no stream", func(f *fake) { f.fail["cuStreamCreate"] = 999 }, []string{"cuStreamCreate"}, driver.ErrDevice},
		{"no pinned memory", func(f *fake) { f.fail["cuMemHostAlloc"] = 2 }, []string{"bytes of pinned host memory wanted"}, driver.ErrNoMemory},
		{"no pool", func(f *fake) { f.fail["cuMemPoolCreate"] = 801 }, []string{"cuMemPoolCreate: CUDA_ERROR_NOT_SUPPORTED (801)"}, driver.ErrDevice},
		{"device in use elsewhere", func(f *fake) { f.fail["cuDevicePrimaryCtxRetain"] = 46 }, []string{"cuda:0 cannot be used now", "CUDA_ERROR_DEVICE_UNAVAILABLE (46)"}, driver.ErrDevice},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake()
			test.set(f)
			_, err := f.open()
			require.ErrorIs(t, err, test.is)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "\n", "one line")
			require.Empty(t, f.leaks())
		})
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	b := newBackend(&nvidia, func() (*api, error) { return &api{missing: []string{"cuInit"}}, nil }, nil)
	_, err := b.Count()
	require.ErrorIs(t, err, driver.ErrNotBuilt)
	require.ErrorContains(t, err, "lacks cuInit")

	f := newFake()
	a := f.api()
	a.missing = []string{"cuMemPoolCreate", "cuGraphLaunch"}
	b = newBackend(&nvidia, func() (*api, error) { return a, nil }, nil)
	_, err = b.Open(0)
	require.ErrorIs(t, err, driver.ErrNotBuilt)
	require.ErrorContains(t, err, "lacks cuMemPoolCreate, cuGraphLaunch")

	_, err = newFake().backend().Open(1)
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "there are 1 CUDA devices")
}

func TestRegistered(t *testing.T) {
	require.NotEmpty(t, driver.Kinds())
	for _, kind := range driver.Kinds() {
		require.Contains(t, []string{"cuda", "hip"}, kind)
		b, err := driver.Lookup(kind)
		require.NoError(t, err)
		if _, err := b.Count(); err != nil { // what this machine has
			require.ErrorIs(t, err, driver.ErrNotBuilt)
		}
	}
}

func TestClose(t *testing.T) {
	for name, set := range map[string]func(*fake){"pools": nil, "no pools": noPools} {
		t.Run(name, func(t *testing.T) {
			f, d := openFake(t, set)
			m, err := d.Alloc(100)
			require.NoError(t, err)
			freed, err := d.Alloc(100)
			require.NoError(t, err)
			host, err := d.AllocPinned(100)
			require.NoError(t, err)
			require.NoError(t, d.CopyIn(m, make([]byte, 100)))
			fence, err := d.StartCopyIn(m, host, nil)
			require.NoError(t, err)
			g, err := d.Capture(func() error { return d.Free(freed) })
			require.NoError(t, err)

			require.NoError(t, d.Close())
			require.Empty(t, f.leaks())
			require.NoError(t, d.Close(), "a second Close")

			_, alloc := d.Alloc(1)
			_, pinned := d.AllocPinned(1)
			_, _, memory := d.Memory()
			_, start := d.StartCopyIn(m, host, nil)
			_, out := d.StartCopyOut(host, m, nil)
			_, capture := d.Capture(func() error { return nil })
			for what, err := range map[string]error{
				"Alloc": alloc, "AllocPinned": pinned, "Memory": memory, "StartCopyIn": start, "StartCopyOut": out,
				"Capture": capture, "Free": d.Free(m), "FreePinned": d.FreePinned(host), "Sync": d.Sync(),
				"CopyIn": d.CopyIn(m, []byte{1}), "CopyOut": d.CopyOut(make([]byte, 1), m), "Copy": d.Copy(m, m),
				"Wait": fence.Wait(), "Await": fence.Await(), "Launch": g.Launch(), "LaunchGrid": d.LaunchGrid(grid("k", nil)),
			} {
				require.ErrorIs(t, err, driver.ErrDevice, what)
			}
			require.NoError(t, g.Close())
		})
	}
}

// A device that fails stays failed, says so in every call, and still frees.
func TestLostDevice(t *testing.T) {
	for _, result := range []Result{errIllegalAddress, 719, 214, 46} {
		t.Run(nvidia.result(result), func(t *testing.T) {
			f, d := openFake(t, nil)
			f.kernels["k"] = func([]byte) { f.queued = result }
			m, err := d.Alloc(8)
			require.NoError(t, err)
			require.NoError(t, d.LaunchGrid(grid("k", nil)), "the kernel has not run yet")

			err = d.Sync()
			var lost *LostError
			require.ErrorAs(t, err, &lost)
			require.ErrorIs(t, err, driver.ErrDevice)
			require.ErrorContains(t, err, "cuda:0 is lost: cuStreamSynchronize: "+nvidia.result(result))
			require.Equal(t, result, lost.Err.Result)

			_, alloc := d.Alloc(8)
			_, _, memory := d.Memory()
			for what, err := range map[string]error{
				"Alloc": alloc, "Memory": memory, "Free": d.Free(m), "Sync": d.Sync(),
				"LaunchGrid": d.LaunchGrid(grid("k", nil)), "Close": d.Close(),
			} {
				require.Same(t, lost, err, what)
			}
			require.Empty(t, f.leaks())
		})
	}
}

// An error that is not fatal is returned once; contexts stay balanced.
func TestFailedCalls(t *testing.T) {
	const result = Result(999)
	for call, do := range map[string]func(d *Device, m, host driver.Mem) error{
		"cuCtxPushCurrent":        func(d *Device, _, _ driver.Mem) error { return d.Sync() },
		"cuStreamSynchronize":     func(d *Device, _, _ driver.Mem) error { return d.Sync() },
		"cuMemsetD8Async":         func(d *Device, _, _ driver.Mem) error { _, err := d.Alloc(8); return err },
		"cuMemAllocFromPoolAsync": func(d *Device, _, _ driver.Mem) error { _, err := d.Alloc(8); return err },
		"cuMemcpyHtoDAsync":       func(d *Device, m, _ driver.Mem) error { return d.CopyIn(m, []byte{1}) },
		"cuEventRecord":           func(d *Device, m, host driver.Mem) error { _, err := d.StartCopyIn(m, host, nil); return err },
		"cuEventCreate":           func(d *Device, m, host driver.Mem) error { _, err := d.StartCopyIn(m, host, nil); return err },
		"cuStreamWaitEvent":       func(d *Device, m, host driver.Mem) error { _, err := d.StartCopyOut(host, m, nil); return err },
		"cuMemcpyDtoHAsync":       func(d *Device, m, _ driver.Mem) error { return d.CopyOut([]byte{1}, m) },
		"cuMemcpyDtoDAsync":       func(d *Device, m, _ driver.Mem) error { return d.Copy(m, m) },
		"cuMemGetInfo":            func(d *Device, _, _ driver.Mem) error { _, _, err := d.Memory(); return err },
		"cuMemPoolGetAttribute":   func(d *Device, _, _ driver.Mem) error { _, _, err := d.Memory(); return err },
		"cuMemFreeAsync":          func(d *Device, m, _ driver.Mem) error { return d.Free(m) },
		"cuMemFreeHost":           func(d *Device, _, host driver.Mem) error { return d.FreePinned(host) },
		"cuMemHostAlloc":          func(d *Device, _, _ driver.Mem) error { _, err := d.AllocPinned(8); return err },
		"cuModuleLoadData":        func(d *Device, _, _ driver.Mem) error { return d.LaunchGrid(grid("k", nil)) },
		"cuModuleGetFunction":     func(d *Device, _, _ driver.Mem) error { return d.LaunchGrid(grid("k", nil)) },
		"cuLaunchKernel":          func(d *Device, _, _ driver.Mem) error { return d.LaunchGrid(grid("k", nil)) },
		"cuStreamBeginCapture": func(d *Device, _, _ driver.Mem) error {
			_, err := d.Capture(func() error { return nil })
			return err
		},
		"cuStreamEndCapture": func(d *Device, _, _ driver.Mem) error {
			_, err := d.Capture(func() error { return nil })
			return err
		},
		"cuGraphInstantiate": func(d *Device, _, _ driver.Mem) error {
			_, err := d.Capture(func() error { return nil })
			return err
		},
	} {
		t.Run(call, func(t *testing.T) {
			f, d := openFake(t, nil)
			f.kernels["k"] = func([]byte) {}
			m, err := d.Alloc(8)
			require.NoError(t, err)
			host, err := d.AllocPinned(8)
			require.NoError(t, err)

			f.fail[call] = result
			err = do(d, m, host)
			require.ErrorIs(t, err, driver.ErrDevice)
			require.ErrorContains(t, err, call+": CUDA_ERROR_UNKNOWN (999)")
			for thread, depth := range f.contexts {
				require.Zero(t, depth, "contexts of thread %d", thread)
			}
			delete(f.fail, call)
			require.NoError(t, d.Sync(), "the queue is usable again")
		})
	}
}

func TestForeignStream(t *testing.T) {
	f := newFake()
	f.streams[99] = &stream{}
	dev, err := f.backend().OpenOn(0, 99)
	require.NoError(t, err)
	m, err := dev.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, dev.CopyIn(m, []byte{1, 2, 3, 4}))
	require.Len(t, f.streams[99].work, 2, "memset and copy are on the caller's stream")
	require.NoError(t, dev.Close())
	require.Equal(t, []string{"1 streams"}, f.leaks(), "only the caller's stream is left")

	_, err = f.backend().OpenOn(0, 13)
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "belongs to another context")
	_, err = f.backend().OpenOn(0, streamPerThread)
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "goroutines change threads")
	require.Equal(t, []string{"1 streams"}, f.leaks())
}

func TestManyGoroutines(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"] = func(args []byte) { f.bytes(word(args, 0), 1)[0]++ }
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				check := func(err error) {
					if err != nil {
						t.Error(err)
					}
				}
				m, err := d.Alloc(1)
				check(err)
				check(d.CopyIn(m, []byte{41}))
				check(d.LaunchGrid(grid("k", nil, m)))
				got := make([]byte, 1)
				check(d.CopyOut(got, m))
				if got[0] != 42 {
					t.Errorf("got %d", got[0])
				}
				check(d.Free(m))
			}
		})
	}
	wg.Wait()
	require.NoError(t, d.Sync())
}

// Close waits for calls under way; those that come later fail.
func TestCloseAmongCalls(t *testing.T) {
	_, d := openFake(t, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for d.Sync() == nil {
			}
		})
	}
	require.NoError(t, d.Close())
	wg.Wait()
}
