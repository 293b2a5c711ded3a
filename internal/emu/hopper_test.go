//go:build emu

package emu_test

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
)

var hopper = gpu.Module{Name: "hopper", Source: gpu.Folder(os.DirFS("testdata"))}

// hopperJob launches a kernel of hopper.h.
type hopperJob struct {
	kernel   string
	threads  int
	tensor   snug.View // of tm
	tm       *gpu.TensorMap
	operands []snug.View
	params   struct{ n, unused uint32 }
}

func (j *hopperJob) Kernel() string { return "hopper." + j.kernel }
func (j *hopperJob) Run()           {}

func (j *hopperJob) Operands(yield func(*driver.Mem)) {
	if j.tm != nil {
		yield(device.Mem(&j.tensor))
	}
	for i := range j.operands {
		yield(device.Mem(&j.operands[i]))
	}
}

func (j *hopperJob) Grids(q gpu.Launcher) error {
	l := &gpu.Launch{
		Module: &hopper, Func: "hopper_" + j.kernel, Blocks: [3]int{1, 1, 1}, Threads: j.threads,
		Params: gpu.Params(&j.params), Shared: 24 << 10,
	}
	if j.tm != nil {
		j.tm.Mem = *device.Mem(&j.tensor)
		l.Maps = []gpu.TensorMap{*j.tm}
	}
	for i := range j.operands {
		l.Operands = append(l.Operands, *device.Mem(&j.operands[i]))
	}
	return q.LaunchGrid(l)
}

// hopperDevice opens the CUDA text in a mode.
func hopperDevice(t *testing.T, mode string) *snug.Device {
	t.Setenv("SNUG_EMU", mode)
	t.Setenv("SNUG_CUDA", "90")
	dev, err := snug.Open("emu:0")
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev
}

func run(dev *snug.Device, j *hopperJob, n uint32) error {
	j.params.n = n
	if err := device.Launch(dev, j); err != nil {
		return err
	}
	return dev.Sync()
}

var hopperModes = []string{"plain", "asan"}

// Descriptors have the fields of the PTX manual's table of matrix descriptors, and
// addresses are permuted as in its picture of 128-byte swizzling: in row r of 8 the
// 16-byte piece p lies where p^r was.
func TestOperands(t *testing.T) {
	dev := hopperDevice(t, "plain")
	out := put(t, dev, make([]int32, 2*19))
	require.NoError(t, run(dev, &hopperJob{kernel: "operands", threads: 32, operands: []snug.View{out.View()}}, 0))
	halves, got := make([]int32, 2*19), make([]uint64, 19)
	require.NoError(t, out.CopyOut(halves))
	for i := range got {
		got[i] = uint64(uint32(halves[2*i])) | uint64(uint32(halves[2*i+1]))<<32
	}
	require.Equal(t, uint64(1<<62|64<<32|1<<16|0x40), got[0], "by rows")
	require.Equal(t, uint64(1<<62|64<<32|0x400<<16|0x1200), got[1], "by columns")
	require.Equal(t, uint64(1<<62|2<<32|1<<16|0x38ff), got[2], "18 bits of an address")
	for i, at := range got[3:] {
		require.EqualValues(t, 0x800+128*i+16*((i%3)^(i%8)), at, "row %d", i)
	}
}

// A box of a tensor with strides, inside of it and over each of its ends.
func TestCopyBox(t *testing.T) {
	const columns, rows, heads, batch = 100, 20, 3, 2
	tm := gpu.TensorMap{Dims: [4]int{columns, rows, heads, batch}, Strides: [3]int{2 * heads * 112, 2 * 112, 2 * rows * heads * 112}, Rows: 16}
	x := make([]snug.Float16, batch*rows*heads*112)
	for i := range x {
		x[i] = snug.Float16(i + 1)
	}
	for _, mode := range hopperModes {
		dev := hopperDevice(t, mode)
		in := put(t, dev, x)
		out := put(t, dev, make([]snug.Float16, 1024))
		for _, at := range [][4]int32{{0, 0, 0, 0}, {64, 3, 2, 1}, {0, -5, 1, 0}, {64, 12, 0, 1}, {128, 0, 0, 0}, {0, 25, 0, 0}, {0, 0, 3, 0}, {0, 0, 0, -1}} {
			where := put(t, dev, at[:])
			job := &hopperJob{kernel: "copy", threads: 32, tensor: in.View(), tm: &tm, operands: []snug.View{out.View(), where.View()}}
			require.NoError(t, run(dev, job, 0))
			got := make([]snug.Float16, 1024)
			require.NoError(t, out.CopyOut(got))
			for r := range 16 {
				for c := range 64 {
					want := snug.Float16(0)
					column, row, head, b := int(at[0])+c, int(at[1])+r, int(at[2]), int(at[3])
					if column < columns && row >= 0 && row < rows && head < heads && b >= 0 {
						want = x[((b*rows+row)*heads+head)*112+column]
					}
					require.Equal(t, want, got[64*r+(c/8^r%8)*8+c%8], "%v, row %d, column %d", at, r, c)
				}
			}
		}
	}
}

// Products of both forms against the definition. The numbers are small integers, so
// sums are exact; what is accumulated starts at 1, or at anything where it is not added.
func TestGroupProducts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	a, b := make([]float32, 64*64), make([]float32, 64*128)
	for _, x := range [][]float32{a, b} {
		for i := range x {
			x[i] = float32(rng.IntN(17) - 8)
		}
	}
	for _, mode := range hopperModes {
		dev := hopperDevice(t, mode)
		for _, dt := range []snug.DType{snug.F16, snug.BF16} {
			for _, test := range []struct {
				kernel string
				n      int
				at     func(k, j int) float32
				start  float32
			}{
				{"fragments", 128, func(k, j int) float32 { return b[128*k+j] }, 1},
				{"descriptors", 64, func(k, j int) float32 { return b[64*j+k] }, 0},
			} {
				c := put(t, dev, make([]float32, 64*test.n))
				views := []snug.View{c.View(), narrow(t, dev, dt, a), narrow(t, dev, dt, b)}
				require.NoError(t, run(dev, &hopperJob{kernel: test.kernel + "_" + dt.String(), threads: 128, operands: views}, 0))
				got := make([]float32, 64*test.n)
				require.NoError(t, c.CopyOut(got))
				for i := range 64 {
					for j := range test.n {
						want := test.start
						for k := range 64 {
							want += a[64*i+k] * test.at(k, j)
						}
						require.Equal(t, want, got[test.n*i+j], "%s %v, element %d,%d", test.kernel, dt, i, j)
					}
				}
			}
		}
	}
}

// Results that are read before the wait for them are NaN.
func TestProductsAreLate(t *testing.T) {
	dev := hopperDevice(t, "plain")
	c := put(t, dev, make([]float32, 64*128))
	a, b := narrow(t, dev, snug.F16, make([]float32, 64*64)), narrow(t, dev, snug.F16, make([]float32, 64*128))
	require.NoError(t, run(dev, &hopperJob{kernel: "fragments_f16", threads: 128, operands: []snug.View{c.View(), a, b}}, 3))
	got := make([]float32, 64*128)
	require.NoError(t, c.CopyOut(got))
	for i, x := range got {
		require.True(t, x != x, "element %d is %g", i, x)
	}
}

func TestTurns(t *testing.T) {
	dev := hopperDevice(t, "plain")
	out := put(t, dev, make([]int32, 320))
	require.NoError(t, run(dev, &hopperJob{kernel: "turns", threads: 64, operands: []snug.View{out.View()}}, 0))
	got := make([]int32, 320)
	require.NoError(t, out.CopyOut(got))
	for _, sum := range got[256:] {
		require.EqualValues(t, 0+1+2+3, sum)
	}
}

func TestHopperFaults(t *testing.T) {
	tm := gpu.TensorMap{Dims: [4]int{64, 16, 1, 1}, Strides: [3]int{128, 2048, 2048}, Rows: 16}
	for _, test := range []struct {
		kernel string
		n      uint32
		change func(*gpu.TensorMap)
		text   string
	}{
		{"copy", 1, nil, "waits for what never comes"},
		{"copy", 2, nil, "the block ended before its copies"},
		{"copy", 0, func(m *gpu.TensorMap) { m.Strides[1] = 8 }, "the driver refuses"},
		{"copy", 0, func(m *gpu.TensorMap) { m.Dims[2] = 0 }, "the driver refuses"},
		{"copy", 0, func(m *gpu.TensorMap) { m.Dims[1] = 17 }, "are not one allocation"},
		{"copy", 0, func(m *gpu.TensorMap) { m.Rows = 257 }, "the driver refuses"},
		{"fragments_bf16", 1, nil, "without multiply_begin"},
		{"fragments_bf16", 2, nil, "changed before the wait"},
		{"fragments_bf16", 4, nil, "that multiply_begin was not given"},
		{"fragments_bf16", 5, nil, "that multiply_begin was not given"},
		{"descriptors_bf16", 128, nil, "does not start in the first row of the 8"},
		{"descriptors_bf16", 16 << 10, nil, "beyond the block memory"},
		{"turns", 1, nil, "waits for what never comes"},
		{"turns", 2, nil, "arrivals at a named barrier that nobody waited for"},
	} {
		t.Run(test.kernel, func(t *testing.T) {
			dev := hopperDevice(t, "plain")
			m := tm
			if test.change != nil {
				test.change(&m)
			}
			half := func(n int) snug.View { return narrow(t, dev, snug.BF16, make([]float32, n)) }
			job := &hopperJob{kernel: test.kernel, threads: 128}
			switch test.kernel {
			case "copy":
				job.threads, job.tm, job.tensor = 32, &m, half(1024)
				job.operands = []snug.View{half(1024), put(t, dev, make([]int32, 4)).View()}
			case "turns":
				job.threads, job.operands = 64, []snug.View{put(t, dev, make([]int32, 320)).View()}
			default:
				job.operands = []snug.View{put(t, dev, make([]float32, 64*128)).View(), half(64 * 64), half(64 * 128)}
			}
			err := run(dev, job, test.n)
			require.ErrorContains(t, err, test.text)
			require.ErrorIs(t, err, snug.ErrDevice)
		})
	}
}

func TestCapabilityRefused(t *testing.T) {
	t.Setenv("SNUG_CUDA", "75")
	_, err := snug.Open("emu:0")
	require.ErrorContains(t, err, `SNUG_CUDA is "75", want 80 or 90`)
}
