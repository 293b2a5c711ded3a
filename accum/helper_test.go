package accum

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

func randoms(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = 2*rng.Float32() - 1
	}
	return x
}

type named struct {
	name string
	view snug.View
}

func slice(name string, x []float32) named { return named{name, snug.ViewOf(x)} }

func walk(grads ...named) iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, g := range grads {
			if !yield(g.name, g.view) {
				return
			}
		}
	}
}

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

func newWindow(t require.TestingT, params []Param, o Options) *Window {
	w, err := New(params, o)
	require.NoError(t, err)
	return w
}

// one is a window over a parameter w of n elements.
func one(t require.TestingT, n int, o Options) *Window {
	return newWindow(t, []Param{{"w", n}}, o)
}

// micro runs a whole micro-batch of a window over w.
func micro(t require.TestingT, w *Window, weight float64, g ...float32) (full bool) {
	require.NoError(t, w.Begin(weight))
	_, err := w.AddAll(walk(slice("w", g)))
	require.NoError(t, err)
	full, err = w.End()
	require.NoError(t, err)
	return full
}

// mean returns a gradient of a window on the CPU.
func mean(t require.TestingT, w *Window, name string) []float32 {
	v, err := w.Gradient(name)
	require.NoError(t, err)
	return v.Float32s()
}

// skips are how many elements of a buffer come before the vector under test:
// with the guard words of kerneltest, it starts at an odd element, or at a
// multiple of 16 bytes.
var skips = []int{0, 9}

// after returns v without its first elements.
func after(t require.TestingT, v snug.View, skip int) snug.View {
	tail, err := v.Slice(skip, v.Len())
	require.NoError(t, err)
	return tail
}

// closed returns a View of an array whose device is closed.
func closed(t *testing.T, n int) snug.View {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	v := kerneltest.Put(t, kerneltest.Backend{Name: "closed", Dev: dev}, make([]float32, n)).View
	require.NoError(t, dev.Close())
	return v
}

func withProcs(f func(procs int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2} {
		runtime.GOMAXPROCS(procs)
		f(procs)
	}
}
