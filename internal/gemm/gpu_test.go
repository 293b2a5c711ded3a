//go:build cuda || hip || metal || emu

package gemm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// gpuProduct is a job: a product by a form.
type gpuProduct struct {
	form        *Form // nil for the one that Grids chooses, as for forms on units that the device does not have
	m, n, k     int
	alpha, beta float32
	a, b, c     Matrix
}

func (*gpuProduct) Kernel() string { return "gemm.test" }

func (j *gpuProduct) Operands(yield func(*driver.Mem)) {
	for _, m := range []*Matrix{&j.a, &j.b, &j.c} {
		yield(device.Mem(&m.Data))
	}
}

func (j *gpuProduct) Run() { Mul(j.m, j.n, j.k, j.alpha, j.a, j.b, j.beta, j.c) }

func (j *gpuProduct) Grids(q gpu.Launcher) error {
	if j.form != nil && (*j.form < Units64 || gpu.HasUnits(q)) {
		return j.form.launch(q, j.m, j.n, j.k, j.alpha, j.a.GPU(), j.b.GPU(), j.beta, j.c.GPU())
	}
	return Grids(q, j.m, j.n, j.k, j.alpha, j.a.GPU(), j.b.GPU(), j.beta, j.c.GPU())
}

// onDevice copies m to p. It begins at a multiple of 16 bytes if aligned is set,
// and else does not.
func (m Matrix) onDevice(t *testing.T, p kerneltest.Backend, aligned bool) (Matrix, *kerneltest.Floats) {
	vals, skip := floats(m.Data), 0
	if aligned {
		skip = 1 // after 7 guard words
	}
	buf := kerneltest.PutFloats(t, p, m.Data.DType(), append(make([]float32, skip), vals...))
	var err error
	m.Data, err = buf.Slice(skip, skip+len(vals))
	require.NoError(t, err)
	return m, buf
}

// check runs the product on p, compares it with the definition, and returns
// all of c's memory.
func (j gpuProduct) check(t *testing.T, p kerneltest.Backend, aligned bool) []float32 {
	t.Helper()
	queued := j
	var buf *kerneltest.Floats
	for i, m := range []*Matrix{&queued.a, &queued.b, &queued.c} {
		*m, buf = []Matrix{j.a, j.b, j.c}[i].onDevice(t, p, aligned)
	}
	require.NoError(t, device.Launch(p.Dev, &queued))
	all, got := buf.Get(), j.c
	got.Data = view(j.c.Data.DType(), all[len(all)-j.c.Data.Len():])
	define(j.m, j.n, j.k, j.alpha, j.a, j.b, j.beta, j.c).check(t, got)
	for i := range j.m {
		for col := j.n; col < j.c.Stride; col++ {
			require.Equal(t, j.c.at(i, col), got.at(i, col), "a gap between rows")
		}
	}
	return all
}

// randomProduct makes a product whose strides are multiples of `step` elements.
func randomProduct(rng *rand.Rand, f *Form, shape [3]int, types [3]snug.DType, trans, step int) gpuProduct {
	operand := func(dt snug.DType, rows, cols int, trans bool) Matrix {
		inner := cols
		if trans {
			inner = rows
		}
		return random(rng, dt, rows, cols, -inner&(step-1)+step*rng.IntN(2), trans)
	}
	m, n, k := shape[0], shape[1], shape[2]
	return gpuProduct{
		form: f, m: m, n: n, k: k, alpha: float32(rng.NormFloat64()), beta: float32(rng.IntN(3) - 1),
		a: operand(types[0], m, k, trans&1 != 0), b: operand(types[1], k, n, trans&2 != 0), c: operand(types[2], m, n, false),
	}
}

// devices runs test on every backend that takes jobs.
func devices(t *testing.T, test func(t *testing.T, p kerneltest.Backend)) {
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) { test(t, p) })
	}
}

func TestPlainOnDevices(t *testing.T) {
	devices(t, func(t *testing.T, p kerneltest.Backend) {
		rng := rand.New(rand.NewPCG(1, 5))
		for _, f := range []Form{Plain, Thin} {
			for i := range 27 {
				types := [3]snug.DType{dtypes[i%3], dtypes[i/3%3], dtypes[i/9]}
				trans := rng.IntN(4)
				t.Run(fmt.Sprint(names[f][0], types, trans), func(t *testing.T) {
					step := 1 + i%2*3
					randomProduct(rng, &f, [3]int{5, 9, 19}, types, trans, step).check(t, p, step == 4)
				})
			}
			for i, shape := range [][3]int{{1, 1, 1}, {1, 40, 130}, {66, 3, 35}, {65, 68, 2}, {17, 33, 300}, {4, 5, 0}} {
				types := [3]snug.DType{dtypes[rng.IntN(3)], dtypes[rng.IntN(3)], dtypes[rng.IntN(3)]}
				step, trans := 1<<(i%3), rng.IntN(4)
				t.Run(fmt.Sprint(names[f][0], shape, types, trans), func(t *testing.T) {
					randomProduct(rng, &f, shape, types, trans, step).check(t, p, step == 4)
				})
			}
		}
	})
}

//check:in metal24
func TestUnitsOnDevices(t *testing.T) {
	devices(t, func(t *testing.T, p kerneltest.Backend) {
		rng := rand.New(rand.NewPCG(1, 6))
		for _, dt := range []snug.DType{snug.F16, snug.BF16} {
			for _, f := range []Form{Units64, Units128} {
				tile := tileOf[f]
				for i, shape := range [][3]int{{17, 20, 35}, {20, 17, 66}, {1, 9, 33}, {9, 1, 20}, {tile.rows + 1, 10, 8}, {10, tile.cols + 1, 16}, {2, 2, 0}} {
					t.Run(fmt.Sprint(names[f].Of(uint8(dt)), shape), func(t *testing.T) {
						types := [3]snug.DType{dt, dt, dtypes[rng.IntN(3)]}
						randomProduct(rng, &f, shape, types, i%4, 8).check(t, p, true)
					})
				}
			}
		}
	})
}

// Products in the form that Grids chooses, more than a band of tiles among them.
func TestGrids(t *testing.T) {
	devices(t, func(t *testing.T, p kerneltest.Backend) {
		rng := rand.New(rand.NewPCG(1, 7))
		f32, bf16 := [3]snug.DType{snug.F32, snug.F32, snug.F32}, [3]snug.DType{snug.BF16, snug.BF16, snug.BF16}
		for _, c := range []struct {
			shape [3]int
			types [3]snug.DType
			step  int
		}{
			{[3]int{1, 70, 33}, f32, 1},
			{[3]int{70, 1, 33}, f32, 1}, // by the transpose
			{[3]int{75, 9, 20}, bf16, 8},
			{[3]int{600, 20, 3}, f32, 1},
			{[3]int{600, 65, 3}, bf16, 8},
		} {
			t.Run(fmt.Sprint(c.shape, c.types), func(t *testing.T) {
				j := randomProduct(rng, nil, c.shape, c.types, rng.IntN(4), c.step)
				require.Equal(t, j.check(t, p, c.step == 8), j.check(t, p, c.step == 8), "another run")
			})
		}
	})
}

// NaN and infinity reach the elements they belong to and no others, what stands
// in gaps and in c is not read, and zeros that fill tiles stay zeros.
func TestSpecialValuesOnDevices(t *testing.T) {
	const n, stride = 37, 40
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, f := range []Form{Plain, Thin, Units64, Units128} {
		x, y, z := make([]float32, n*stride), make([]float32, n*stride), make([]float32, n*stride)
		for i := range n * stride {
			z[i] = nan
			switch row, col := i/stride, i%stride; {
			case col >= n:
				x[i], y[i] = nan, nan
			case row == col:
				x[i], y[i] = 1, 1
			}
		}
		y[n*stride-stride+n-1], y[2*stride+2] = inf, nan
		devices(t, func(t *testing.T, p kerneltest.Backend) {
			j := gpuProduct{form: &f, m: n, n: n, k: n, alpha: 1}
			var buf *kerneltest.Floats
			for i, m := range []*Matrix{&j.a, &j.b, &j.c} {
				*m, buf = Matrix{Data: view(snug.BF16, [][]float32{x, y, z}[i]), Stride: stride}.onDevice(t, p, true)
			}
			require.NoError(t, device.Launch(p.Dev, &j))
			for i, v := range buf.Get()[1:] {
				switch row, col := i/stride, i%stride; {
				case col >= n || col == 2 || col == n-1 && row != n-1: // a gap, NaN, and 0·Inf
					require.True(t, v != v, "%s: element %d,%d is %v", names[f][gpu.BF16], row, col, v)
				case row == n-1 && col == n-1:
					require.Equal(t, inf, v)
				case row == col:
					require.Equal(t, float32(1), v, "%s: element %d,%d", names[f][gpu.BF16], row, col)
				default:
					require.Zero(t, v, "%s: element %d,%d", names[f][gpu.BF16], row, col)
				}
			}
		})
	}
}

func TestChoose(t *testing.T) {
	at := func(addr uintptr, dt gpu.Type, stride int) gpu.Matrix {
		return gpu.Matrix{Mem: driver.Mem{Addr: addr}, Type: dt, Stride: stride}
	}
	low, lowF16, single := at(4096, gpu.BF16, 64), at(4096, gpu.F16, 64), at(4096, gpu.F32, 64)
	for _, c := range []struct {
		m, n int
		a, b gpu.Matrix
		want string
	}{
		{16, 1 << 20, low, low, "gemm_thin"},
		{17, 17, low, low, "gemm_units64_bf16"},
		{1 << 12, 1 << 12, low, low, "gemm_units128_bf16"},
		{1 << 12, 1 << 12, lowF16, lowF16, "gemm_units128_f16"},
		{1 << 12, 1 << 12, low, lowF16, "gemm_plain"},
		{1 << 12, 1 << 12, low, at(4104, gpu.BF16, 64), "gemm_plain"},
		{1 << 12, 1 << 12, at(4096, gpu.BF16, 68), low, "gemm_plain"},
		{1 << 12, 1 << 12, single, single, "gemm_plain"},
		{1 << 8, 1 << 8, single, single, "gemm_thin"},
	} {
		require.Equal(t, c.want, names[Choose(nil, c.m, c.n, c.a, c.b)][c.a.Type], "%d×%d", c.m, c.n)
	}
}

// vendor is a library that takes some products.
type vendor struct {
	takes    bool
	fails    error
	launches []string
}

func (v *vendor) Copy(dst, src driver.Mem) error { return nil }

func (v *vendor) LaunchGrid(l *gpu.Launch) error {
	v.launches = append(v.launches, l.Func)
	return nil
}

func (v *vendor) MatMul(m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) (bool, error) {
	v.launches = append(v.launches, fmt.Sprint("vendor ", m, n, k, alpha, a.Trans, b.Trans, beta, c.Trans))
	return v.takes, v.fails
}

func TestVendorComesFirst(t *testing.T) {
	failed := errors.New("failed")
	asked := "vendor 70 3 5 2 false true 3 false"
	for _, c := range []struct {
		vendor vendor
		want   []string
	}{
		{vendor{takes: true}, []string{asked}},
		{vendor{}, []string{asked, "gemm_thin"}},
		{vendor{fails: failed}, []string{asked}},
	} {
		q := c.vendor
		err := Grids(&q, 70, 3, 5, 2, gpu.Matrix{}, gpu.Matrix{Trans: true}, 3, gpu.Matrix{})
		require.ErrorIs(t, err, c.vendor.fails)
		require.Equal(t, c.want, q.launches)
		q.launches = nil
		require.NoError(t, Grids(&q, 0, 3, 5, 2, gpu.Matrix{}, gpu.Matrix{}, 3, gpu.Matrix{}))
		require.NoError(t, Grids(&q, 3, 0, 5, 2, gpu.Matrix{}, gpu.Matrix{}, 3, gpu.Matrix{}))
		require.Empty(t, q.launches, "no elements")
	}
}
