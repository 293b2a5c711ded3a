//go:build metal

package metal

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// module has a source; what its kernels do is up to the fake.
var module = &gpu.Module{Name: "test", Source: fstest.MapFS{"test.metal": {Data: []byte("#include \"metal.h\"\nkernels of the test\n")}}}

type fillParams struct{ value, n uint32 }

// fill sets the bytes of m.
func (f *fake) fill(m driver.Mem, value byte) *gpu.Launch {
	f.kernel("fill", func(operands [][]byte, params []byte, _ int) {
		for i := range params[4] {
			operands[0][i] = params[0]
		}
	})
	p := fillParams{uint32(value), uint32(m.Size)}
	return f.launch("fill", gpu.Params(&p), m)
}

// increment adds 1 to the bytes of m.
func (f *fake) increment(m driver.Mem) *gpu.Launch {
	f.kernel("increment", func(operands [][]byte, params []byte, _ int) {
		for i := range params[4] {
			operands[0][i]++
		}
	})
	p := fillParams{n: uint32(m.Size)}
	return f.launch("increment", gpu.Params(&p), m)
}

// bytewise gives the fake what kernels/copy.metal does.
func (f *fake) bytewise() {
	f.kernel("copy_bytes", func(operands [][]byte, params []byte, threads int) {
		n := int(params[0]) | int(params[1])<<8 | int(params[2])<<16
		if threads < n || threads >= n+bytewiseThreads {
			f.fault("%d threads for %d bytes", threads, n)
		}
		copy(operands[1][:n], operands[0])
	})
}

func (f *fake) kernel(name string, k fakeKernel) { f.do(func() { f.kernels[name] = k }) }

func (f *fake) launch(name string, params []byte, ms ...driver.Mem) *gpu.Launch {
	return &gpu.Launch{Module: module, Func: name, Blocks: [3]int{1, 1, 1}, Threads: 32, Operands: ms, Params: params}
}

// TestLaunchOrder queues more commands than a command buffer takes, of kinds
// that need different encoders.
func TestLaunchOrder(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	out, err := d.Alloc(64)
	require.NoError(t, err)
	f.pause(true)
	require.NoError(t, d.LaunchGrid(f.fill(m, 5)))
	require.NoError(t, d.Copy(out, m.Slice(0, 32)))
	for range 2 * maxCommands {
		require.NoError(t, d.LaunchGrid(f.increment(m)))
	}
	require.EqualValues(t, 2*maxCommands+1, d.Launches())
	require.Equal(t, 2*maxCommands/4, f.commits, "four commands each while nothing was measured")
	require.NoError(t, d.Copy(out.Slice(32, 32), m.Slice(0, 32)))
	f.pause(false)
	require.NoError(t, d.Sync())
	require.Equal(t, byte(5), out.Bytes()[31])
	require.Equal(t, byte(5+2*maxCommands), out.Bytes()[32])
	require.Len(t, f.sources, 1, "compiled once")
	require.Contains(t, f.sources[0], "kernels of the test")
	require.NotContains(t, f.sources[0], "#include \"")
}

func TestEmptyOperands(t *testing.T) {
	f := newFake()
	d := f.open(t)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	var seen int
	f.kernel("look", func(operands [][]byte, params []byte, _ int) {
		seen = len(operands)
		operands[1][0] = 9
	})
	require.NoError(t, d.LaunchGrid(f.launch("look", nil, driver.Mem{}, m, m.Slice(64, 0))))
	require.NoError(t, d.Sync())
	require.Equal(t, 3, seen)
	require.Equal(t, byte(9), m.Bytes()[0])
}

func TestLaunchErrors(t *testing.T) {
	broken := &gpu.Module{Name: "broken", Source: fstest.MapFS{"broken.metal": {Data: []byte("?")}}}
	loop := &gpu.Module{Name: "loop", Source: fstest.MapFS{"loop.metal": {Data: []byte("#include \"loop.metal\"")}}}
	for _, c := range []struct {
		name   string
		change func(f *fake, l *gpu.Launch)
		want   error
		say    string
	}{
		{"no source", func(_ *fake, l *gpu.Launch) { l.Module = &gpu.Module{} }, driver.ErrNotBuilt, "no Metal source"},
		{"no module", func(_ *fake, l *gpu.Launch) { l.Module = nil }, driver.ErrNotBuilt, "no Metal source"},
		{"no blocks", func(_ *fake, l *gpu.Launch) { l.Blocks[1] = 0 }, driver.ErrDevice, "want at least 1"},
		{"threads", func(_ *fake, l *gpu.Launch) { l.Threads = 33 }, driver.ErrDevice, "multiple of 32"},
		{"too many threads", func(_ *fake, l *gpu.Launch) { l.Threads = 1024 }, driver.ErrDevice, "takes 512"},
		{"operands", func(_ *fake, l *gpu.Launch) { l.Operands = make([]driver.Mem, 30) }, driver.ErrDevice, "at most 29"},
		{"params", func(_ *fake, l *gpu.Launch) { l.Params = make([]byte, 4097) }, driver.ErrDevice, "at most 4096"},
		{"operand", func(_ *fake, l *gpu.Launch) { l.Operands[0].Addr++; l.Operands[0].Size = 64 }, driver.ErrDevice, "operand 0"},
		{"syntax", func(_ *fake, l *gpu.Launch) { l.Module = broken }, driver.ErrDevice, "expected expression"},
		{"include", func(_ *fake, l *gpu.Launch) { l.Module = loop }, driver.ErrNotBuilt, "includes itself"},
		{"function", func(_ *fake, l *gpu.Launch) { l.Func = "absent" }, driver.ErrDevice, "no such function"},
		{"pipeline", func(f *fake, l *gpu.Launch) { f.kernels["huge"], l.Func = f.kernels["fill"], "huge" }, driver.ErrDevice, "exceeds 32768"},
		{"lanes", func(f *fake, l *gpu.Launch) { f.width = 64 }, driver.ErrDevice, "64 lanes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			d := f.open(t)
			m, err := d.Alloc(64)
			require.NoError(t, err)
			l := f.fill(m, 1)
			c.change(f, l)
			for range 2 {
				err = d.LaunchGrid(l)
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, c.say)
			}
			require.LessOrEqual(t, len(f.sources), 1, "compiled once")
			require.NoError(t, d.Sync())
		})
	}
}

// TestLaunchOfJob runs a job without a form for GPUs.
func TestLaunchOfJob(t *testing.T) {
	f := newFake()
	require.ErrorIs(t, f.open(t).Launch(cpuJob{}), driver.ErrNotBuilt)
}

type cpuJob struct{}

func (cpuJob) Kernel() string             { return "test.cpu" }
func (cpuJob) Operands(func(*driver.Mem)) {}
func (cpuJob) Run()                       {}

// TestBytewiseSource checks that the driver's own kernel resolves.
func TestBytewiseSource(t *testing.T) {
	text, err := bytewise.Text("copy.metal")
	require.NoError(t, err)
	require.Contains(t, text, "KERNEL(copy_bytes, 256,")
	require.Equal(t, 1, strings.Count(text, "#define KERNEL("))
}

// idle makes the functions of a that a launch calls do nothing, so that what
// remains is the driver's own work.
func idle(a *api) {
	a.pushPool, a.popPool = func() uintptr { return 0 }, func(uintptr) {}
	a.retain, a.release = func(object) {}, func(object) {}
	a.commandBuffer = func(object) object { return 1 }
	a.computeEncoder = func(object) object { return 1 }
	a.endEncoding, a.commit = func(object) {}, func(object) {}
	a.signal = func(object, object, uint64) {}
	a.status = func(object) int { return statusCompleted }
	a.setPipeline = func(object, object) {}
	a.setBuffer = func(object, object, int, int) {}
	a.setBytes = func(object, []byte, int) {}
	a.dispatch = func(object, size, size) {}
	a.gpuTime = func(object) float64 { return 0 }
}

// launches returns a device with many buffers and a launch of four operands.
func launches(t testing.TB) (*device, *gpu.Launch) {
	f := newFake()
	a := f.api()
	d, err := newDevice(a, f.dev)
	require.NoError(t, err)
	var ms []driver.Mem
	for range 1000 {
		m, err := d.Alloc(64)
		require.NoError(t, err)
		ms = append(ms, m)
	}
	l := f.fill(ms[500], 1)
	l.Operands = []driver.Mem{ms[0], ms[333].Slice(4, 8), ms[500], ms[999]}
	require.NoError(t, d.LaunchGrid(l))
	require.NoError(t, d.Sync())
	idle(a)
	return d, l
}

func TestLaunchAllocatesNothing(t *testing.T) {
	d, l := launches(t)
	var err error
	allocs := testing.AllocsPerRun(10, func() {
		for range 2 * maxCommands {
			err = errors.Join(err, d.LaunchGrid(l))
		}
	})
	require.NoError(t, err)
	require.Zero(t, allocs)
}

// BenchmarkLaunch measures the driver's own time for a launch, without what
// Objective-C and Metal add.
func BenchmarkLaunch(b *testing.B) {
	d, l := launches(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := d.LaunchGrid(l); err != nil {
			b.Fatal(err)
		}
	}
}
