//go:build (cuda || hip) && linux

package cuda

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

var testModule = &gpu.Module{Name: "test", Image: testImage("80", "86", "90"), AMD: amdImage("gfx90a", "gfx1100")}

// testImage returns an image of cubins and, unless it is for sm_90a alone, of PTX for the first
// architecture. The codes are their names.
func testImage(archs ...string) []byte {
	var codes []gpu.Code
	add := func(name string, ptx bool) {
		arch, err := gpu.ParseArch(name)
		if err != nil {
			panic(err)
		}
		c := gpu.Code{Arch: arch, PTX: ptx}
		c.Data = []byte(c.String())
		codes = append(codes, c)
	}
	for _, name := range archs {
		add(name, false)
	}
	if archs[0] != "90a" {
		add(archs[0], true)
	}
	image, err := gpu.PackImage(codes, nil)
	if err != nil {
		panic(err)
	}
	return image
}

// amdImage returns an image of code objects, which a zero byte ends.
func amdImage(archs ...string) []byte {
	var codes []gpu.Code
	for _, arch := range archs {
		codes = append(codes, gpu.Code{AMD: arch, Data: []byte(arch + "\x00")})
	}
	image, err := gpu.PackImage(codes, nil)
	if err != nil {
		panic(err)
	}
	return image
}

func grid(name string, params []byte, operands ...driver.Mem) *gpu.Launch {
	return &gpu.Launch{Module: testModule, Func: name, Blocks: [3]int{1, 1, 1}, Threads: 32, Operands: operands, Params: params}
}

func TestArguments(t *testing.T) {
	words := struct{ a, b, c uint32 }{1, 2, 3}
	wide := struct {
		a uint64
		b float32
		_ uint32
	}{4, 5, 0}
	for _, test := range []struct {
		name     string
		operands []driver.Mem
		params   []byte
		want     []byte
	}{
		{"nothing", nil, nil, []byte{}},
		{"operands", []driver.Mem{{Addr: 0x0102030405060708, Size: 1}, {Addr: 0x11, Size: 2}}, nil,
			[]byte{8, 7, 6, 5, 4, 3, 2, 1, 0x11, 0, 0, 0, 0, 0, 0, 0}},
		{"an empty operand is null", []driver.Mem{{Addr: 0x0102030405060708}}, nil, make([]byte, 8)},
		{"an empty operand of the host is null", []driver.Mem{{}}, nil, make([]byte, 8)},
		{"parameters of 4 bytes", []driver.Mem{{Addr: 1, Size: 1}}, gpu.Params(&words),
			[]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}},
		{"parameters of 8 bytes", []driver.Mem{{Addr: 1, Size: 1}}, gpu.Params(&wide),
			[]byte{1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa0, 0x40, 0, 0, 0, 0}},
		{"parameters alone", nil, gpu.Params(&words), []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, d := openFake(t, nil)
			var got []byte
			f.kernels["k"] = func(args []byte) { got = args }
			require.NoError(t, d.LaunchGrid(grid("k", test.params, test.operands...)))
			require.Nil(t, got, "the launch is queued")
			require.EqualValues(t, 1, d.Launches())
			require.NoError(t, d.Sync())
			require.Equal(t, test.want, got)
		})
	}
}

func TestLaunchGridCalls(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"] = func([]byte) {}
	l := grid("k", nil)
	l.Blocks, l.Threads = [3]int{7, 5, 3}, 64
	launch := "cuLaunchKernel 7 5 3 64 1 1 0 true"
	require.Equal(t, []string{"cuModuleLoadData", "cuModuleGetFunction", launch, launch}, f.calls(func() {
		require.NoError(t, d.LaunchGrid(l))
		require.NoError(t, d.LaunchGrid(l))
	}), "a module and a function are loaded once")
	require.Equal(t, []string{"cuCtxPushCurrent", launch, "cuCtxPopCurrent"}, func() []string {
		f.calls(func() { require.NoError(t, d.LaunchGrid(l)) })
		return f.log
	}())
}

func TestLaunchGridErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(f *fake, l *gpu.Launch)
		want string
		is   error
	}{
		{"no blocks", func(_ *fake, l *gpu.Launch) { l.Blocks[1] = 0 }, "grid of [1 0 1] blocks", driver.ErrDevice},
		{"too many blocks", func(_ *fake, l *gpu.Launch) { l.Blocks[2] = 1 << 16 }, "want 1 to [2147483647 65535 65535]", driver.ErrDevice},
		{"odd threads", func(_ *fake, l *gpu.Launch) { l.Threads = 33 }, "33 threads", driver.ErrDevice},
		{"no threads", func(_ *fake, l *gpu.Launch) { l.Threads = 0 }, "0 threads", driver.ErrDevice},
		{"too many threads", func(_ *fake, l *gpu.Launch) { l.Threads = 1056 }, "multiple of 32 up to 1024", driver.ErrDevice},
		{"too many arguments", func(_ *fake, l *gpu.Launch) { l.Params = make([]byte, maxArgs+4) }, "4100 bytes of arguments: want at most 4096", driver.ErrDevice},
		{"host memory", func(_ *fake, l *gpu.Launch) { l.Operands = []driver.Mem{{}, {Size: 4}} }, "operand 1 of 4 bytes has no address", driver.ErrDevice},
		{"no image", func(_ *fake, l *gpu.Launch) { l.Module = &gpu.Module{Name: "amp"} }, "amp has no CUDA image", driver.ErrNotBuilt},
		{"no kernel", func(_ *fake, l *gpu.Launch) { l.Func = "other" }, "image of test has no kernel other: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)", driver.ErrNotBuilt},
		{"no code for the card", func(_ *fake, l *gpu.Launch) { l.Module = &gpu.Module{Name: "amp", Image: testImage("90a")} },
			"cuda:0: the image of amp: no code for compute capability 8.0, only sm_90a", driver.ErrNotBuilt},
		{"a damaged image", func(_ *fake, l *gpu.Launch) { l.Module = &gpu.Module{Name: "amp", Image: []byte("FATB")} },
			"cuda:0: the image of amp: 4 bytes that are no image", driver.ErrDevice},
		{"code that the driver refuses", func(f *fake, _ *gpu.Launch) { f.fail["cuModuleLoadData"] = errNoBinary },
			"does not take sm_80 in the image of test for compute capability 8.0: a newer driver is needed: cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU (209)", driver.ErrNotBuilt},
		{"newer PTX", func(f *fake, _ *gpu.Launch) { f.fail["cuModuleLoadData"] = errPTXVersion }, "a newer driver is needed: cuModuleLoadData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)", driver.ErrNotBuilt},
		{"a broken image", func(f *fake, _ *gpu.Launch) { f.fail["cuModuleLoadData"] = 200 }, "sm_80 in the image of test: cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE (200)", driver.ErrDevice},
		{"refused", func(f *fake, _ *gpu.Launch) { f.fail["cuLaunchKernel"] = 701 }, "k of [1 1 1] blocks of 32 threads: cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)", driver.ErrDevice},
		{"an unknown result", func(f *fake, _ *gpu.Launch) { f.fail["cuLaunchKernel"] = 12345 }, "cuLaunchKernel: CUDA result (12345)", driver.ErrDevice},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, d := openFake(t, nil)
			f.kernels["k"] = func([]byte) {}
			l := grid("k", nil)
			test.set(f, l)
			err := d.LaunchGrid(l)
			require.ErrorIs(t, err, test.is)
			require.ErrorContains(t, err, test.want)
			clear(f.fail)
			require.NoError(t, d.LaunchGrid(grid("k", nil)))
		})
	}
}

// first returns the code of a module that was loaded: machine code, or the first part of the PTX.
func (m *module) first() uintptr {
	if m.handle != 0 {
		return m.handle
	}
	return m.parts[0]
}

// add is a job of two launches.
type add struct{ x driver.Mem }

func (j *add) Kernel() string                   { return "test.add" }
func (j *add) Operands(yield func(*driver.Mem)) { yield(&j.x) }
func (j *add) Run()                             {}
func (j *add) Grids(q gpu.Launcher) error {
	if err := q.LaunchGrid(grid("one", nil, j.x)); err != nil {
		return err
	}
	return q.LaunchGrid(grid("double", nil, j.x))
}

// plain is a job without launches.
type plain struct{ driver.Job }

func (plain) Kernel() string { return "test.plain" }

func TestLaunch(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["one"] = func(args []byte) { f.bytes(word(args, 0), 1)[0]++ }
	f.kernels["double"] = func(args []byte) { f.bytes(word(args, 0), 1)[0] *= 2 }
	m, err := d.Alloc(1)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, d.Launch(&add{m}))
	}
	got := make([]byte, 1)
	require.NoError(t, d.CopyOut(got, m))
	require.EqualValues(t, ((0+1)*2+1)*2+1, int(got[0])/2)

	err = d.Launch(plain{})
	require.ErrorIs(t, err, driver.ErrNotBuilt)
	require.ErrorContains(t, err, "test.plain")
	delete(f.kernels, "one")
	_, d2 := openFake(t, nil)
	require.ErrorContains(t, d2.Launch(&add{m}), "kernel test.add")
}

// More launches at a time than there are frames get more frames.
func TestFrames(t *testing.T) {
	_, d := openFake(t, nil)
	require.NoError(t, d.enter())
	defer d.leave()
	taken := map[*frame]bool{}
	for range 2*frameBlock + 1 {
		f, err := d.frame()
		require.NoError(t, err)
		require.Equal(t, uintptr(unsafe.Pointer(&f.args)), f.extra[1])
		taken[f] = true
	}
	require.Len(t, taken, 2*frameBlock+1)
	require.Len(t, d.blocks, 3)
	for f := range taken {
		d.putFrame(f)
	}
}

func TestLaunchGridAllocatesNothing(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"] = nil
	l := grid("k", make([]byte, 40), driver.Mem{Addr: 1, Size: 1}, driver.Mem{Addr: 2, Size: 1})
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if err := d.LaunchGrid(l); err != nil {
			t.Fatal(err)
		}
	}))
}

// BenchmarkLaunch times LaunchGrid alone: the driver does nothing.
func BenchmarkLaunch(b *testing.B) {
	f := newFake()
	f.kernels["k"] = nil
	a := f.api()
	d, err := newBackend(&nvidia, func() (*api, error) { return a, nil }, nil).Open(0)
	require.NoError(b, err)
	l := grid("k", make([]byte, 40), driver.Mem{Addr: 1, Size: 1}, driver.Mem{Addr: 2, Size: 1}, driver.Mem{Addr: 3, Size: 1})
	require.NoError(b, d.(*Device).LaunchGrid(l))
	a.launchKernel = func(_ uintptr, _, _, _, _, _, _, _ uint32, _ uintptr, _, _ unsafe.Pointer) Result { return success }
	push, pop := a.ctxPush, a.ctxPop
	a.ctxPush, a.ctxPop = func(uintptr) Result { return success }, func() Result { return success }
	b.ReportAllocs()
	for b.Loop() {
		if err := d.(*Device).LaunchGrid(l); err != nil {
			b.Fatal(err)
		}
	}
	a.ctxPush, a.ctxPop = push, pop
	require.NoError(b, d.Close())
}

// The driver is given the code that the device's capability runs.
func TestCodeByCapability(t *testing.T) {
	hopper := &gpu.Module{Name: "hopper", Image: testImage("90a")}
	for _, test := range []struct {
		major, minor int32
		want         string
		alone        bool
	}{
		{8, 0, "sm_80", false},
		{8, 6, "sm_86", false},
		{8, 9, "sm_86", false},
		{9, 0, "sm_90", true},
		{10, 0, "PTX of compute_80", false},
		{12, 0, "PTX of compute_80", false},
	} {
		f, d := openFake(t, func(f *fake) { f.major, f.minor = test.major, test.minor })
		f.kernels["k"] = func([]byte) {}
		require.NoError(t, d.LaunchGrid(grid("k", nil)))
		require.Equal(t, test.want, f.modules[d.kernels.modules[testModule].first()], "%d.%d", test.major, test.minor)

		l := grid("k", nil)
		l.Module = hopper
		err := d.LaunchGrid(l)
		if test.alone {
			require.NoError(t, err)
			require.Equal(t, "sm_90a", f.modules[d.kernels.modules[hopper].handle])
			continue
		}
		require.ErrorIs(t, err, driver.ErrNotBuilt)
		require.ErrorContains(t, err, "the image of hopper: no code for compute capability")
		require.NoError(t, d.LaunchGrid(grid("k", nil)), "other modules still run")
	}
}

// No damage to an image reaches the driver.
func TestDamagedImage(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"] = func([]byte) {}
	whole := testModule.Image
	refused := 0
	for i := range whole {
		image := slices.Clone(whole)
		image[i] ^= 0xff
		l := grid("k", nil)
		l.Module = &gpu.Module{Name: "test", Image: image}
		if err := d.LaunchGrid(l); err != nil {
			require.ErrorIs(t, err, driver.ErrDevice, "byte %d", i)
			require.Zero(t, d.kernels.modules[l.Module].handle)
			refused++
			continue
		}
		require.Equal(t, "sm_80", f.modules[d.kernels.modules[l.Module].handle], "byte %d", i)
	}
	require.Greater(t, refused, 100, "the index and the device's own code")
	require.NoError(t, d.LaunchGrid(grid("k", nil)), "the whole image")
}

// A device unpacks a module once, whatever kernels of it are launched: when it has, the image is
// not read again.
func TestUnpackOnce(t *testing.T) {
	f, d := openFake(t, nil)
	f.kernels["k"], f.kernels["other"] = func([]byte) {}, func([]byte) {}
	m := &gpu.Module{Name: "test", Image: slices.Clone(testModule.Image)}
	l := grid("k", nil)
	l.Module = m
	require.NoError(t, d.LaunchGrid(l))
	clear(m.Image)
	require.NoError(t, d.LaunchGrid(l))
	l.Func = "other"
	require.NoError(t, d.LaunchGrid(l))
	_, d2 := openFake(t, nil)
	require.ErrorIs(t, d2.LaunchGrid(l), driver.ErrDevice, "another device reads it")
}
