package accum

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var floats = []snug.DType{snug.F32, snug.F16, snug.BF16}

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

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
	_, err := w.AddAll(kerneltest.Walk(kerneltest.Slice("w", g)))
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
