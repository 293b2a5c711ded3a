//go:build emu

package emu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/emu"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

var probe = gpu.Module{Name: "probe", Source: gpu.Folder(os.DirFS("testdata"))}

// probeParams is ProbeParams of probe.h.
type probeParams struct{ n, transA, transB uint32 }

// probeJob launches a kernel of probe.h.
type probeJob struct {
	kernel   string
	blocks   int
	threads  int
	operands []snug.View
	params   probeParams
}

func (j *probeJob) Kernel() string { return "probe." + j.kernel }
func (j *probeJob) Run()           {}

func (j *probeJob) Operands(yield func(*driver.Mem)) {
	for i := range j.operands {
		yield(device.Mem(&j.operands[i]))
	}
}

func (j *probeJob) Grids(q gpu.Launcher) error {
	var mems []driver.Mem
	j.Operands(func(m *driver.Mem) { mems = append(mems, *m) })
	return q.LaunchGrid(&gpu.Launch{
		Module: &probe, Func: "probe_" + j.kernel, Blocks: [3]int{j.blocks, 1, 1}, Threads: j.threads,
		Operands: mems, Params: gpu.Params(&j.params),
	})
}

// each runs test on the devices of both languages in a mode of the emulator.
func each(t *testing.T, mode string, test func(t *testing.T, dev *snug.Device)) {
	for i, language := range []string{"cuda", "metal"} {
		t.Run(mode+"/"+language, func(t *testing.T) {
			t.Setenv("SNUG_EMU", mode)
			dev, err := snug.Open(fmt.Sprintf("emu:%d", i))
			require.NoError(t, err)
			t.Cleanup(func() { dev.Close() })
			test(t, dev)
		})
	}
}

func put[T snug.Element](t *testing.T, dev *snug.Device, x []T) snug.Array[T] {
	a, err := snug.Make[T](dev, len(x))
	require.NoError(t, err)
	require.NoError(t, a.CopyIn(x))
	return a
}

var (
	allModes  = []string{"plain", "portable", "wave64", "asan", "check", "late"}
	unitModes = []string{"plain", "asan", "check", "late"} // HIP has no matrix units
)

// TestProduct checks loads of both orders, the product and asynchronous copies
// against the definition. The numbers are small integers, so sums are exact.
func TestProduct(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := make([]float32, 256), make([]float32, 256)
	for i := range a {
		a[i], b[i] = float32(rng.IntN(17)-8), float32(rng.IntN(17)-8)
	}
	at := func(m []float32, trans bool, i, j int) float64 {
		if trans {
			i, j = j, i
		}
		return float64(m[16*i+j])
	}
	for _, mode := range unitModes {
		each(t, mode, func(t *testing.T, dev *snug.Device) {
			for _, dt := range []snug.DType{snug.F16, snug.BF16} {
				for trans := range 4 {
					p := probeParams{transA: uint32(trans & 1), transB: uint32(trans >> 1)}
					c := put(t, dev, make([]float32, 256))
					require.NoError(t, device.Launch(dev, &probeJob{"product_" + dt.String(), 1, 32, []snug.View{c.View(), narrow(t, dev, dt, a), narrow(t, dev, dt, b)}, p}))
					got := make([]float32, 256)
					require.NoError(t, c.CopyOut(got))
					for i := range 16 {
						for j := range 16 {
							want := 0.0
							for k := range 16 {
								want += at(a, trans&1 != 0, i, k) * at(b, trans>>1 != 0, k, j)
							}
							require.EqualValues(t, want, got[16*i+j], "%v, transposed %02b, element %d,%d", dt, trans, i, j)
						}
					}
				}
			}
		})
	}
}

func narrow(t *testing.T, dev *snug.Device, dt snug.DType, x []float32) snug.View {
	if dt == snug.BF16 {
		y := make([]snug.BFloat16, len(x))
		for i := range x {
			y[i] = snug.ToBFloat16(x[i])
		}
		return put(t, dev, y).View()
	}
	y := make([]snug.Float16, len(x))
	for i := range x {
		y[i] = float16.Fromfloat32(x[i])
	}
	return put(t, dev, y).View()
}

// TestRows checks sums and maxima of rows, and accumulators as operands.
func TestRows(t *testing.T) {
	in := make([]float32, 256)
	for i := range in {
		in[i] = float32(i*37%101 - 50)
	}
	for _, mode := range []string{"plain", "asan"} { // lanes of a row write the same element, a race by the rules of check
		each(t, mode, func(t *testing.T, dev *snug.Device) {
			out := put(t, dev, make([]float32, 288))
			require.NoError(t, device.Launch(dev, &probeJob{"rows", 1, 32, []snug.View{out.View(), put(t, dev, in).View()}, probeParams{}}))
			got := make([]float32, 288)
			require.NoError(t, out.CopyOut(got))
			require.Equal(t, in, got[:256])
			for i := range 16 {
				sum, most := float32(0), float32(math.Inf(-1))
				for _, x := range in[16*i:][:8] {
					sum, most = sum+x, max(most, x)
				}
				require.Equal(t, []float32{sum, most}, []float32{got[256+i], got[272+i]}, "row %d", i)
			}
		})
	}
}

// TestShuffles checks the exchange between lanes of two warps, which are one wave of 64 lanes
// on some of AMD's cards, and are not at one place.
func TestShuffles(t *testing.T) {
	in := make([]float32, 64)
	for i := range in {
		in[i] = float32(i*i%23 + 1)
	}
	for _, mode := range allModes {
		each(t, mode, func(t *testing.T, dev *snug.Device) {
			out := put(t, dev, make([]float32, 320))
			for _, n := range []uint32{0, 1, 40} {
				require.NoError(t, device.Launch(dev, &probeJob{"shuffles", 1, 64, []snug.View{out.View(), put(t, dev, in).View()}, probeParams{n: n}}))
				got := make([]float32, 320)
				require.NoError(t, out.CopyOut(got))
				for i := range 64 {
					warp := in[i/32*32:][:32]
					sum := float32(0)
					for _, x := range warp {
						sum += x
					}
					if i >= 32 {
						sum *= 32 // a sum of sums
					}
					some := float32(0)
					if i/32*32 < int(n) {
						some = 1
					}
					want := []float32{warp[5], warp[(i+1)%32], warp[i%32^16], sum, some}
					require.Equal(t, want, []float32{got[i], got[64+i], got[128+i], got[192+i], got[256+i]}, "n %d, lane %d", n, i)
				}
			}
		})
	}
}

// TestPlantedFaults launches kernels with one fault each, and the same kernels
// without it.
func TestPlantedFaults(t *testing.T) {
	for _, c := range []struct {
		kernel      string
		blocks      int
		threads     int
		fine, fault uint32   // n of the two launches
		modes       []string // that find it
		text        string
	}{
		{"race", 1, 64, 0, 0, []string{"check"}, "another thread writes it, with no barrier between"},
		{"lanes", 1, 32, 1, 0, []string{"check"}, "another thread writes it, with no barrier between"},
		{"exchanged", 1, 32, 1, 0, []string{"check"}, "another thread writes it, with no barrier between"},
		{"reuse", 3, 64, 1, 0, []string{"check"}, "another thread reads it, with no barrier between"},
		{"uninitialized", 1, 32, 0, 1, []string{"check"}, "nobody has written it"},
		{"read", 1, 32, 0, 170, []string{"check"}, "outside of every allocation"},
		{"memory", 1, 32, 0, 1, allModes, "more than 32 KiB"},
		{"stack", 1, 32, 0, 300 << 10, []string{"plain", "portable"}, "stack of 262144 bytes overflowed"},
		{"write", 1, 32, 0, 170, []string{"check"}, "outside of every allocation"},
		{"read", 1, 32, 0, 170, []string{"asan"}, "heap-buffer-overflow"},
		{"write", 1, 32, 0, 170, []string{"asan"}, "heap-buffer-overflow"},
		{"blocks", 2, 32, 32, 16, []string{"check"}, "block 1,0,0, thread 0: write of 4 bytes"},
		{"barrier", 1, 64, 64, 32, allModes, "barrier that other threads of the block ended without"},
		{"exchange", 1, 32, 32, 16, allModes, "lanes of the warp wait for the others"},
	} {
		for _, mode := range c.modes {
			t.Run(c.kernel, func(t *testing.T) {
				each(t, mode, func(t *testing.T, dev *snug.Device) {
					in, out := put(t, dev, make([]float32, 192)), put(t, dev, make([]float32, 192))
					run := func(n uint32) error {
						if err := device.Launch(dev, &probeJob{c.kernel, c.blocks, c.threads, []snug.View{out.View(), in.View()}, probeParams{n: n}}); err != nil {
							return err
						}
						return dev.Sync()
					}
					if c.fine != c.fault {
						require.NoError(t, run(c.fine))
					}
					err := run(c.fault)
					require.ErrorContains(t, err, c.text)
					require.ErrorIs(t, err, snug.ErrDevice)
					if strings.Contains(err.Error(), " of 4 bytes at ") {
						require.Regexp(t, `\(probe\.(h|metal):\d+`, err, "the line of the access, by addr2line of binutils")
					}
				})
			})
		}
	}
}

// TestLate runs kernels with and without a barrier or a fence. Where it is missing, what a thread reads of others is
// undefined block memory, which is NaN, or the 0 that was there before; where it is not, results are right. With an order
// by a seed a part is seen early.
func TestLate(t *testing.T) {
	in := make([]float32, 64)
	for i := range in {
		in[i] = float32(i + 1)
	}
	each(t, "plain", func(t *testing.T, dev *snug.Device) { // which finds none of them
		require.Equal(t, []float32{2080, 528, 1552}, partial(t, dev, in, 0))
	})
	for _, seed := range []string{"", "1", "2"} {
		t.Setenv("SNUG_ORDER", seed)
		each(t, "late", func(t *testing.T, dev *snug.Device) {
			for _, kernel := range []string{"lanes", "exchanged"} {
				for _, n := range []uint32{0, 1} {
					out := put(t, dev, make([]float32, 32))
					require.NoError(t, device.Launch(dev, &probeJob{kernel, 1, 32, []snug.View{out.View(), put(t, dev, in).View()}, probeParams{n: n}}))
					got := make([]float32, 32)
					require.NoError(t, out.CopyOut(got))
					undefined := 0
					for _, x := range got {
						if math.IsNaN(float64(x)) {
							undefined++
						}
					}
					if n == 1 {
						require.Zero(t, undefined, kernel)
					} else {
						require.Greater(t, undefined, 8, kernel)
					}
				}
			}
			twice := put(t, dev, make([]float32, 32))
			require.NoError(t, device.Launch(dev, &probeJob{"twice", 1, 32, []snug.View{twice.View()}, probeParams{}}))
			last := make([]float32, 32)
			require.NoError(t, twice.CopyOut(last))
			require.EqualValues(t, 2, last[7])
			require.Equal(t, []float32{2080, 528, 1552}, partial(t, dev, in, 1), "the sums of blocks are there, and added")
			without := partial(t, dev, in, 0)
			require.Equal(t, []float32{528, 1552}, without[1:], "the sums are there when the launch has ended")
			if seed == "" {
				require.EqualValues(t, 1552, without[0], "the last block saw its own alone")
			}
		})
	}
}

// partial returns the sum of 64 numbers and the sums of two blocks, by a kernel with a fence or without.
func partial(t *testing.T, dev *snug.Device, in []float32, fence uint32) []float32 {
	out := put(t, dev, make([]float32, 4))
	require.NoError(t, device.Launch(dev, &probeJob{"partial", 2, 32, []snug.View{out.View(), put(t, dev, in).View()}, probeParams{n: fence}}))
	got := make([]float32, 4)
	require.NoError(t, out.CopyOut(got))
	require.EqualValues(t, 2, math.Float32bits(got[1]))
	return []float32{got[0], got[2], got[3]}
}

// TestNaN: with SNUG_NAN the NaNs of arithmetic are that one, and others and numbers stay what they are.
func TestNaN(t *testing.T) {
	const given, own = 0xffc00123, 0x7fffffff
	in := make([]float32, 32)
	in[0], in[1], in[2] = math.Float32frombits(given), float32(math.Inf(1)), 12
	bits := func() (rows [3][8]uint32) {
		each(t, "plain", func(t *testing.T, dev *snug.Device) {
			out := put(t, dev, make([]float32, 256))
			require.NoError(t, device.Launch(dev, &probeJob{"nan", 1, 32, []snug.View{out.View(), put(t, dev, in).View()}, probeParams{}}))
			got := make([]float32, 256)
			require.NoError(t, out.CopyOut(got))
			for i := range 24 {
				rows[i/8][i%8] = math.Float32bits(got[i])
			}
		})
		return rows
	}
	host := bits()
	require.EqualValues(t, given, host[0][3], "the host keeps an operand's")
	for _, pattern := range []string{"7fffffff", "FFE54321"} {
		nan := uint32(own)
		if pattern != "7fffffff" {
			nan = 0xffe54321
		}
		t.Setenv("SNUG_NAN", pattern)
		got := bits()
		require.Equal(t, [8]uint32{given, given ^ 1<<31, given &^ (1 << 31), nan, nan, nan, nan, nan}, got[0])
		require.Equal(t, nan, got[1][5], "∞·0")
		require.Equal(t, host[2], got[2])
	}
	for _, wrong := range []string{"7f800000", "7fffffff0", "x"} {
		t.Setenv("SNUG_NAN", wrong)
		_, err := snug.Open("emu:0")
		require.ErrorContains(t, err, "SNUG_NAN is")
	}
}

// TestRefusals checks launches that do not fit their kernel.
func TestRefusals(t *testing.T) {
	each(t, "plain", func(t *testing.T, dev *snug.Device) {
		x := put(t, dev, make([]float32, 64)).View()
		for _, c := range []struct {
			job  probeJob
			text string
		}{
			{probeJob{"none", 1, 32, nil, probeParams{}}, "no kernel probe_none"},
			{probeJob{"reverse", 1, 64, []snug.View{x}, probeParams{}}, "takes 2 operands and 12 bytes of parameters, not 1 and 12"},
			{probeJob{"reverse", 1, 32, []snug.View{x, x}, probeParams{}}, "has blocks of 64 threads, not 32"},
			{probeJob{"reverse", 0, 64, []snug.View{x, x}, probeParams{}}, "0×1×1 blocks"},
		} {
			t.Run(c.text, func(t *testing.T) {
				require.NoError(t, device.Launch(dev, &c.job))
				require.ErrorContains(t, dev.Sync(), c.text)
			})
		}
		require.NoError(t, dev.Sync(), "an error is told once")
	})
}

// TestMemory checks limits of memory and copies beyond an allocation.
func TestMemory(t *testing.T) {
	each(t, "plain", func(t *testing.T, dev *snug.Device) {
		_, err := snug.Make[uint8](dev, emu.Total+1)
		require.ErrorIs(t, err, snug.ErrNoMemory)
		a := put(t, dev, []float32{1, 2, 3})
		foreign, err := snug.Wrap[float32](dev, a.Addr(), 4)
		require.NoError(t, err)
		require.ErrorContains(t, foreign.CopyOut(make([]float32, 4)), "16 bytes")
		got := make([]float32, 3)
		require.NoError(t, a.CopyOut(got))
		require.Equal(t, []float32{1, 2, 3}, got)
		free, total, err := dev.Memory()
		require.NoError(t, err)
		require.EqualValues(t, 12, total-free)
		require.NoError(t, a.Close())
		free, total, err = dev.Memory()
		require.NoError(t, err)
		require.Equal(t, free, total)
		require.NoError(t, dev.Close())
		require.ErrorIs(t, dev.Sync(), snug.ErrDevice)
	})
}

// TestNoCompiler checks what a user without a C++ compiler is told.
func TestNoCompiler(t *testing.T) {
	t.Setenv("SNUG_EMU_CXX", "no-such-compiler")
	_, err := snug.Open("emu:0")
	require.ErrorIs(t, err, snug.ErrNotBuilt)
	require.ErrorContains(t, err, "no-such-compiler")
	t.Setenv("SNUG_EMU_CXX", "")
	t.Setenv("SNUG_EMU", "fast")
	_, err = snug.Open("emu:0")
	require.ErrorContains(t, err, `SNUG_EMU is "fast"`)
}

// TestMetalVersions checks that text which uses bfloat, as the fragments of the probe do, is not
// Metal 2.4 to the emulator either.
func TestMetalVersions(t *testing.T) {
	t.Setenv("SNUG_METAL", "2.4")
	dev, err := snug.Open("emu:1")
	require.NoError(t, err)
	defer dev.Close()
	x := put(t, dev, make([]float32, 256))
	err = device.Launch(dev, &probeJob{kernel: "product_f16", blocks: 1, threads: 32, operands: []snug.View{x.View(), x.View(), x.View()}})
	require.ErrorContains(t, err, "Native<bf16>")

	cuda, err := snug.Open("emu:0") // which has nothing to do with it
	require.NoError(t, err)
	defer cuda.Close()
	y := put(t, cuda, make([]float32, 256))
	require.NoError(t, device.Launch(cuda, &probeJob{kernel: "product_f16", blocks: 1, threads: 32, operands: []snug.View{y.View(), y.View(), y.View()}}))
	require.NoError(t, cuda.Sync())

	t.Setenv("SNUG_METAL", "2")
	_, err = snug.Open("emu:1")
	require.ErrorContains(t, err, `SNUG_METAL is "2", want 2.4 or 3.1`)
}

// TestFlush has subnormal numbers as operands and as results. With SNUG_FLUSH=1 the Metal device has
// none, as Apple's GPUs, but moves them; the CUDA device always has them.
func TestFlush(t *testing.T) {
	const small, least = float32(0x1p-126), float32(0x1p-149)
	for _, test := range []struct {
		dev, flush string
		n          uint32
		in, want   float32
	}{
		{"emu:0", "1", 0, small, small / 2}, {"emu:1", "", 0, small, small / 2}, {"emu:1", "1", 0, small, 0},
		{"emu:0", "1", 24, least, least * 0x1p23}, {"emu:1", "", 24, least, least * 0x1p23}, {"emu:1", "1", 24, least, 0},
		{"emu:1", "1", 1, small, small}, {"emu:1", "1", 0, 1, 0.5},
	} {
		t.Setenv("SNUG_FLUSH", test.flush)
		dev, err := snug.Open(test.dev)
		require.NoError(t, err)
		in, out := make([]float32, 32), make([]float32, 64)
		in[0] = test.in
		to := put(t, dev, out)
		require.NoError(t, device.Launch(dev, &probeJob{"subnormal", 1, 32, []snug.View{to.View(), put(t, dev, in).View()}, probeParams{n: test.n}}))
		require.NoError(t, to.CopyOut(out))
		require.Equal(t, [2]float32{test.want, test.in}, [2]float32{out[0], out[32]}, test)
		require.NoError(t, dev.Close())
	}
}

// A kernel whose result depends on who is first has another one with each order, and the same with
// the same seed.
func TestOrder(t *testing.T) {
	last := func(seed string) [2]float32 {
		var got [2]float32
		each(t, "plain", func(t *testing.T, dev *snug.Device) {
			out := put(t, dev, make([]float32, 2))
			require.NoError(t, device.Launch(dev, &probeJob{"last", 50, 64, []snug.View{out.View()}, probeParams{}}))
			require.NoError(t, out.CopyOut(got[:]))
		})
		return got
	}
	require.Equal(t, [2]float32{49, 63}, last(""))
	found := map[float32]bool{}
	for _, seed := range []string{"1", "2", "3", "4"} {
		t.Setenv("SNUG_ORDER", seed)
		got := last(seed)
		require.Equal(t, got, last(seed))
		found[got[0]], found[100+got[1]] = true, true
	}
	require.GreaterOrEqual(t, len(found), 6, "%v", found)
	t.Setenv("SNUG_ORDER", "0")
	_, err := snug.Open("emu:0")
	require.ErrorContains(t, err, `SNUG_ORDER is "0"`)
}
