//go:build hip && linux && (amd64 || arm64)

package cuda

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

func init() {
	asHIP = func(f *fake, a *api) {
		h := &hipAPI{thread: syscall.Gettid}
		h.getDevice = func() (int32, Result) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.device(), success
		}
		h.setDevice = func(device int32) Result {
			r, end := f.call("cuCtxPushCurrent", true)
			defer end()
			if r == success {
				f.current[syscall.Gettid()] = device
				f.contexts[syscall.Gettid()] = 1 - int(device)
			}
			return r
		}
		h.streamDevice = func(stream uintptr, device *int32) Result {
			*device = 0
			if stream == 13 {
				*device = 1
			}
			return success
		}
		a.properties = func(p unsafe.Pointer, device int32) Result {
			copy(unsafe.Slice((*byte)(p), 1472)[1160:], f.arch+"\x00")
			return success
		}
		a.driverVersion = func(version *int32) Result {
			*version = f.version * 5000 // 6.0 for CUDA 12.0
			return success
		}
		a.deviceAttribute = func(v *int32, attribute, _ int32) Result {
			r, end := f.call("cuDeviceGetAttribute", true)
			defer end()
			*v = map[int32]int32{hipProcessors: 104}[attribute]
			return r
		}
		a.poolCreate, a.poolAlloc, a.freeAsync = nil, nil, nil
		h.complete(a)
	}
}

// device returns the current device of the thread; those of other code have device 1.
func (f *fake) device() int32 {
	if device, ok := f.current[syscall.Gettid()]; ok {
		return device
	}
	return 1
}

// TestMain runs what says nothing of CUDA's own a second time, with HIP.
func TestMain(m *testing.M) {
	code := m.Run()
	run := flag.Lookup("test.run")
	if code == 0 && run.Value.String() == "" && flag.Lookup("test.bench").Value.String() == "" && flag.Lookup("test.list").Value.String() == "" {
		testVendor = &amd
		if err := run.Value.Set("^Test(AllocIsZeroed|Arguments|CaptureRefuses|Close|CloseAmongCalls|CopierCalls|CopierOrder|CopiesAreChecked|CopiesOfBothWays|CopyInAndOut" +
			"|Enter|ForeignStream|Frames|FreeAfterQueuedWork|Graph|Launch|LaunchGridAllocatesNothing|ManyGoroutines|Memory" +
			"|ShortCopies|TwoProcesses)$"); err != nil {
			panic(err)
		}
		code = m.Run()
	}
	os.Exit(code)
}

func openHIP(t testing.TB, change func(f *fake)) (*fake, *Device) {
	t.Helper()
	f := newFake()
	f.vendor = &amd
	if change != nil {
		change(f)
	}
	d, err := f.open()
	require.NoError(t, err)
	t.Cleanup(func() {
		d.Close()
		require.Empty(t, f.leaks())
	})
	return f, d
}

// Every function of CUDA that an error names has its name in HIP, but for what HIP is not asked for.
func TestHIPCalls(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	names := regexp.MustCompile(`"(cu[A-Z][A-Za-z0-9]*)"`)
	unasked := regexp.MustCompile(`^cu(MemPool.*|MemAllocFromPoolAsync|MemFreeAsync)$`)
	found := 0
	for _, file := range files {
		if slices.Contains([]string{"symbols.go", "tensormap.go", "lt.go"}, file) || len(file) > 8 && file[len(file)-8:] == "_test.go" {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range names.FindAllStringSubmatch(string(text), -1) {
			if !unasked.MatchString(m[1]) {
				require.Contains(t, hipCalls, m[1], file)
				found++
			}
		}
	}
	require.Greater(t, found, 40)
}

func TestHIPOpen(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fake)
		text   string
	}{
		"old":          {func(f *fake) { f.version = 10_146 }, "the HIP driver is of ROCm 5.7, snug needs ROCm 6.0 or later"},
		"none":         {func(f *fake) { f.count = 0 }, "no AMD GPU found"},
		"not started":  {func(f *fake) { f.fail["cuInit"] = 100 }, "no AMD GPU found: hipInit: hipErrorNoDevice (100)"},
		"architecture": {func(f *fake) { f.arch = "gfx803" }, "hip:0, Fake V100, is gfx803; snug's kernels are for gfx90a, gfx942, gfx1100, gfx1201"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.vendor = &amd
			c.change(f)
			_, err := f.open()
			require.ErrorContains(t, err, c.text)
			require.ErrorIs(t, err, driver.ErrNotBuilt)
			require.Empty(t, f.leaks())
		})
	}
	f := newFake()
	f.vendor = &amd
	f.arch = "gfx90a:sramecc+:xnack-"
	d, err := f.open()
	require.NoError(t, err)
	require.Equal(t, "gfx90a", d.model)
	require.Equal(t, 104, d.Multiprocessors())
	require.NoError(t, d.Close())
	_, err = f.backend().Open(1)
	require.ErrorContains(t, err, "hip:1: there are 1 HIP devices")
	f.fail["cuDeviceGetAttribute"] = 801
	_, err = f.open()
	require.ErrorContains(t, err, "hipDeviceGetAttribute: hipErrorNotSupported (801)")
	require.ErrorIs(t, err, driver.ErrDevice)
	require.Empty(t, f.leaks())

	require.Empty(t, noKFD(nil))
	require.Empty(t, noKFD(&fs.PathError{Op: "open", Path: "/dev/kfd", Err: syscall.ENOENT}), "no driver in the kernel")
	require.Equal(t, "; open /dev/kfd: permission denied: members of the groups render and video may",
		noKFD(&fs.PathError{Op: "open", Path: "/dev/kfd", Err: syscall.EACCES}))
}

// A call makes the device current, and brings back the device of the caller.
func TestHIPCurrentDevice(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f, d := openHIP(t, nil)
	current := func() int32 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.device()
	}
	require.EqualValues(t, 1, current())
	_, err := d.Enter()
	require.NoError(t, err)
	require.EqualValues(t, 0, current())
	require.NoError(t, d.enter(), "a call in a call")
	require.EqualValues(t, 0, current())
	d.leave()
	require.EqualValues(t, 0, current())
	d.Leave()
	require.EqualValues(t, 1, current())
}

// AMD's images have no kernels on matrix units, so no job may ask for them.
func TestHIPUnits(t *testing.T) {
	_, d := openHIP(t, nil)
	require.False(t, gpu.HasUnits(d))
	_, d = openFake(t, nil)
	require.True(t, gpu.HasUnits(d), "NVIDIA's have them")
}

func TestHIPLaunchErrors(t *testing.T) {
	f, d := openHIP(t, nil)
	f.kernels["k"], f.kernels["large"] = func([]byte) {}, func([]byte) {}
	l := grid("k", nil)
	l.Blocks[0], l.Threads = 1<<23, 512
	require.ErrorContains(t, d.LaunchGrid(l), "hip:0: k: a grid of 4294967296 threads: want at most 4294967295")
	l.Blocks[0]--
	require.NoError(t, d.LaunchGrid(l))

	l = grid("large", nil)
	l.Shared = 64<<10 + 1
	require.ErrorContains(t, d.LaunchGrid(l), "hip:0: 65537 bytes of block memory for large: hipFuncSetAttribute: hipErrorInvalidValue (1)")
	l.Shared--
	require.NoError(t, d.LaunchGrid(l))

	l = grid("k", nil)
	l.Module = &gpu.Module{Name: "amp", Image: testModule.Image}
	require.ErrorContains(t, d.LaunchGrid(l), "hip:0: amp has no HIP image in this build")
	l.Module = &gpu.Module{Name: "amp", AMD: amdImage("gfx90a")}
	err := d.LaunchGrid(l)
	require.ErrorIs(t, err, driver.ErrNotBuilt)
	require.ErrorContains(t, err, "hip:0: the image of amp: no code for gfx1100, only gfx90a")
	f.fail["cuModuleLoadData"] = errNoBinary
	l.Module = &gpu.Module{Name: "amp", AMD: amdImage("gfx1100")}
	require.ErrorContains(t, d.LaunchGrid(l), "hip:0: the driver does not take gfx1100 in the image of amp for gfx1100: a newer driver is needed: "+
		"hipModuleLoadData: hipErrorNoBinaryForGpu (209)")
}

func TestHIPLostDevice(t *testing.T) {
	f := newFake()
	f.vendor = &amd
	d, err := f.open()
	require.NoError(t, err)
	f.kernels["k"] = func([]byte) { f.queued = errIllegalAddress }
	require.NoError(t, d.LaunchGrid(grid("k", nil)))
	require.EqualError(t, d.Sync(), "hip:0 is lost: hipStreamSynchronize: hipErrorIllegalAddress (700); HIP needs a new process to use it again")
	require.Error(t, d.Close())
	require.Contains(t, resultNames, Result(911), "which in HIP is no failure of the device")
	require.NotContains(t, amd.lost, Result(911))
}

// hipBLASLt cannot be told of alignments, and is asked where operands have its own only.
// amdModule has code for the stub's device.
var amdModule = &gpu.Module{Name: "test", AMD: amdImage("gfx942")}

func buildHIPStub(t testing.TB) *stub {
	home := t.TempDir()
	t.Setenv("ROCM_PATH", home)
	return compileStub(t, "hip.c", filepath.Join(home, "lib", "libhipblaslt.so.1"))
}

// openHIPStub opens the device of a stub.
func openHIPStub(t testing.TB, s *stub) (*Device, *hipAPI) {
	a, h := &api{}, &hipAPI{thread: syscall.Gettid}
	require.Empty(t, bind(s.library, append(a.hipSymbols(), h.symbols()...)))
	h.complete(a)
	opened, err := newBackend(&amd, func() (*api, error) { return a, nil }, noLt).Open(0)
	require.NoError(t, err)
	return opened.(*Device), h
}

func TestHIPCallingConvention(t *testing.T) {
	s := buildHIPStub(t)
	a, h, lt := &api{}, &hipAPI{}, &ltAPI{vendor: &hipBlasLt}
	symbols := slices.Concat(a.hipSymbols(), h.symbols(), lt.symbols())
	require.Empty(t, bind(s.library, symbols))
	testConvention(t, s, symbols)
}

// A whole session through the real calling convention, which leaves the thread's device as it was.
func TestHIPLibrary(t *testing.T) {
	s := buildHIPStub(t)
	lib := filepath.Join(os.Getenv("ROCM_PATH"), "lib")
	found := func(r *rocm) (names []string) {
		r.loadLt(func(lt *ltAPI) bool { names = append(names, lt.name); return true })
		return names
	}
	require.Contains(t, found(&rocm{path: "libamdhip64.so.7", major: 7}), filepath.Join(lib, "libhipblaslt.so.1"), "the stub")
	require.NotContains(t, found(&rocm{path: "libamdhip64.so.6", major: 6}), filepath.Join(lib, "libhipblaslt.so.1"), "of another version")
	require.Empty(t, found(&rocm{path: filepath.Join(lib, "libamdhip64.so"), major: 8}))
	t.Setenv("ROCM_PATH", "")
	require.Equal(t, filepath.Join(lib, "libhipblaslt.so.1"), found(&rocm{path: filepath.Join(lib, "libamdhip64.so.7"), major: 7})[0], "beside the runtime")
	d, h := openHIPStub(t, s)
	require.Equal(t, "gfx942", d.model)
	require.Equal(t, 304, d.Multiprocessors())
	m, err := d.Alloc(16)
	require.NoError(t, err)
	l := &gpu.Launch{Module: amdModule, Func: "k", Blocks: [3]int{1, 1, 1}, Threads: 32, Operands: []driver.Mem{m}}
	require.NoError(t, d.LaunchGrid(l))
	require.Equal(t, "hipSetDevice", s.name(), "back to the device of the thread")
	require.EqualValues(t, 3, s.arg(0))
	require.Equal(t, "gfx942\x00", string(d.kernels.modules[amdModule].code), "which HIP does not copy")
	require.NoError(t, d.Free(m))
	require.NoError(t, d.Close())
	require.Equal(t, fmt.Sprint(map[int][]int32{}), fmt.Sprint(h.under()), "calls under way")
}

// under returns the devices of calls under way.
func (h *hipAPI) under() map[int][]int32 {
	under := map[int][]int32{}
	for thread, devices := range h.before {
		if len(devices) > 0 {
			under[thread] = devices
		}
	}
	return under
}
