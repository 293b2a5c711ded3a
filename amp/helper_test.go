package amp

import (
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var floats = []snug.DType{snug.F32, snug.F16, snug.BF16}

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

// special holds values at which conversions change their behaviour.
var special = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, nan, inf, -inf, 1e-40, -1e-45, 0x1p-24, 0x1p-25, 0x1.8p-25, 65504, 65519, 65520,
	-65520, 1e38, math.MaxFloat32, 0x1.01p0, 0x1.03p0, 0x1.002p0, 0x1.006p0, 1.0 / 3,
}

// randoms returns n values between -1 and 1.
func randoms(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = 2*rng.Float32() - 1
	}
	return x
}

// named is a gradient with its name.
type named struct {
	name string
	view snug.View
}

func walk(grads ...named) iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, g := range grads {
			if !yield(g.name, g.view) {
				return
			}
		}
	}
}

func slice(name string, x []float32) named { return named{name, snug.ViewOf(x)} }

// once is a walker that yields its gradients the first time only.
func once(grads ...named) iter.Seq2[string, snug.View] {
	left := grads
	return func(yield func(string, snug.View) bool) {
		for len(left) > 0 {
			g := left[0]
			left = left[1:]
			if !yield(g.name, g.view) {
				return
			}
		}
	}
}

// skips are how many elements of a buffer come before the vector under test:
// with the guard words of kerneltest, it starts at an odd element, at a multiple
// of 16 bytes, or three elements after one.
var skips = []int{0, 9, 12}

// after returns v without its first elements.
func after(t require.TestingT, v snug.View, skip int) snug.View {
	tail, err := v.Slice(skip, v.Len())
	require.NoError(t, err)
	return tail
}

// requireSame compares bits, except of NaNs.
func requireSame(t require.TestingT, want, got []float32, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for i := range want {
		if want[i] != want[i] && got[i] != got[i] {
			continue
		}
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "values differ", "element %d: want %v, got %v %v", i, want[i], got[i], msg)
		}
	}
}

// closed returns a View of an array whose device is closed.
func closed(t *testing.T, dt snug.DType, n int) snug.View {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	v := kerneltest.PutFloats(t, kerneltest.Backend{Name: "closed", Dev: dev}, dt, make([]float32, n)).View
	require.NoError(t, dev.Close())
	return v
}

// withProcs runs f under GOMAXPROCS 1 and 2.
func withProcs(f func(procs int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2} {
		runtime.GOMAXPROCS(procs)
		f(procs)
	}
}
