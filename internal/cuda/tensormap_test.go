//go:build (cuda || hip) && linux

package cuda

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

func openHopper(t *testing.T) (*fake, *Device) {
	return openFake(t, func(f *fake) { f.major = 9 })
}

func mapped(addrs ...uintptr) *gpu.Launch {
	l := grid("k", []byte{1, 2, 3, 4}, driver.Mem{Addr: 0x77, Size: 1})
	l.Shared = 100 << 10
	for i, addr := range addrs {
		l.Maps = append(l.Maps, gpu.TensorMap{
			Mem: driver.Mem{Addr: addr, Size: 1}, Dims: [4]int{128, 1000 + i, 4, 2}, Strides: [3]int{512, 256, 1 << 20}, Rows: 80,
		})
	}
	return l
}

// Tensor maps come before the operands, each 128 bytes; the driver is told the box, the
// permutation and the block memory.
func TestTensorMaps(t *testing.T) {
	f, d := openHopper(t)
	var got []byte
	f.kernels["k"] = func(args []byte) { got = args }
	f.sizes["k"] = []int{128, 128, 8, 4}
	f.logging = true
	require.NoError(t, d.LaunchGrid(mapped(0x1000, 0x2000)))
	require.NoError(t, d.Sync())
	require.Len(t, got, 2*128+8+4)
	for i, want := range map[int]uint64{0: 0x1000, 128: 0x2000, 256: 0x77} {
		require.Equal(t, want, binary.LittleEndian.Uint64(got[i:]), "byte %d", i)
	}
	require.Equal(t, []byte{1, 2, 3, 4}, got[264:])
	require.Contains(t, f.log, "cuTensorMapEncodeTiled 1 4 [128 1001 4 2] [512 256 1048576] [64 80 1 1] [1 1 1 1] 0 3 3 0")
	require.Contains(t, f.log, "cuFuncSetAttribute 8 102400")
	require.Contains(t, f.log, "cuLaunchKernel 1 1 1 32 1 1 102400 false", "by pointers to the arguments")

	f.log = nil
	require.NoError(t, d.LaunchGrid(mapped(0x1000)))
	require.NotContains(t, f.log, "cuFuncSetAttribute 8 102400", "once a function")
}

func TestTensorMapErrors(t *testing.T) {
	f, d := openHopper(t)
	f.kernels["k"] = nil
	f.fail["cuFuncSetAttribute"] = 1
	require.ErrorContains(t, d.LaunchGrid(mapped(0x1000)), "102400 bytes of block memory for k")
	delete(f.fail, "cuFuncSetAttribute")
	err := d.LaunchGrid(mapped(0x1008))
	require.ErrorContains(t, err, "cuTensorMapEncodeTiled")
	require.ErrorIs(t, err, gpu.ErrTensorMap)
	require.NoError(t, d.LaunchGrid(mapped(0x1000)))

	many := mapped(make([]uintptr, 30)...)
	many.Operands = append(many.Operands, many.Operands[0])
	require.ErrorContains(t, d.LaunchGrid(many), "33 arguments with tensor maps")

	f, old := openFake(t, nil)
	f.kernels["k"] = nil
	require.ErrorIs(t, old.LaunchGrid(mapped(0x1000)), driver.ErrDevice)
}

// Kernels that stand in for others are used if all of them load, else none.
func TestHopperModule(t *testing.T) {
	entries := []gpu.Entry{{Name: "k"}, {Name: "large", Shared: 200 << 10}}
	for _, test := range []struct {
		name   string
		change func(f *fake)
		want   bool
	}{
		{"whole", func(*fake) {}, true},
		{"no binary", func(f *fake) { f.fail["cuModuleLoadData"] = errNoBinary }, false},
		{"an invalid image", func(f *fake) { f.fail["cuModuleLoadData"] = 200 }, false},
		{"a kernel is missing", func(f *fake) { delete(f.kernels, "large") }, false},
		{"block memory is refused", func(f *fake) { f.fail["cuFuncSetAttribute"] = 1 }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, d := openHopper(t)
			f.kernels["k"], f.kernels["large"] = func([]byte) {}, func([]byte) {}
			test.change(f)
			m := &gpu.Module{Name: "test90", Image: testImage("90a"), Entries: entries}
			require.Equal(t, test.want, gpu.Hopper(d, m))
			require.Empty(t, f.calls(func() { require.Equal(t, test.want, gpu.Hopper(d, m)) }), "asked once")
			clear(f.fail)
			require.NoError(t, d.LaunchGrid(grid("k", nil)), "the others")
			require.NoError(t, d.Sync())
		})
	}
	f, d := openHopper(t)
	f.fail["cuModuleLoadData"] = errIllegalAddress
	m := &gpu.Module{Name: "test90", Image: testImage("90a"), Entries: entries}
	require.False(t, gpu.Hopper(d, m))
	require.ErrorIs(t, d.LaunchGrid(grid("k", nil)), driver.ErrDevice, "the device is lost")
}

func TestTensorMapsAllocateNothing(t *testing.T) {
	f, d := openHopper(t)
	f.kernels["k"] = nil
	a := *d.api
	a.encodeMap = func(unsafe.Pointer, int32, uint32, uintptr, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, int32, int32, int32, int32) Result {
		return success
	}
	d.api = &a
	l := mapped(0x1000, 0x2000)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if err := d.LaunchGrid(l); err != nil {
			t.Fatal(err)
		}
	}))
}

// Frames keep tensor maps at multiples of 64 bytes.
func TestFrameLayout(t *testing.T) {
	require.Zero(t, unsafe.Offsetof(frame{}.args))
	require.Zero(t, unsafe.Sizeof(frame{})%64)
}

func TestHopper(t *testing.T) {
	for _, test := range []struct {
		name         string
		major, minor int32
		env          string
		lacks        bool
		want         bool
	}{
		{"9.0", 9, 0, "", false, true},
		{"9.0 named", 9, 0, "90", false, true},
		{"9.0 limited", 9, 0, "80", false, false},
		{"9.0 with a driver that lacks it", 9, 0, "", true, false},
		{"8.0", 8, 0, "", false, false},
		{"8.0 stays", 8, 0, "90", false, false},
		{"10.0", 10, 0, "", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("SNUG_CUDA", test.env)
			f := newFake()
			f.major, f.minor = test.major, test.minor
			a := f.api()
			if test.lacks {
				a.encodeMap = nil
			}
			d, err := newBackend(&nvidia, func() (*api, error) { return a, nil }, noLt).Open(0)
			require.NoError(t, err)
			require.Equal(t, test.want, gpu.Hopper(d.(*Device), testModule))
			require.NoError(t, d.Close())
		})
	}
	t.Setenv("SNUG_CUDA", "70")
	_, err := newFake().open()
	require.ErrorContains(t, err, `SNUG_CUDA is "70", want 80 or 90`)
}
