package kerneltest

import (
	"iter"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// Named is a gradient with its name.
type Named struct {
	Name string
	View snug.View
}

// Slice returns a gradient in host memory.
func Slice(name string, x []float32) Named { return Named{name, snug.ViewOf(x)} }

// Walk returns a walker of gradients.
func Walk(grads ...Named) iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, g := range grads {
			if !yield(g.Name, g.View) {
				return
			}
		}
	}
}

// Once returns a walker that yields its gradients the first time only.
func Once(grads ...Named) iter.Seq2[string, snug.View] {
	left := grads
	return func(yield func(string, snug.View) bool) {
		for len(left) > 0 {
			g := left[0]
			left = left[1:]
			if !yield(g.Name, g.View) {
				return
			}
		}
	}
}

// After returns v without its first elements.
func After(t require.TestingT, v snug.View, skip int) snug.View {
	tail, err := v.Slice(skip, v.Len())
	require.NoError(t, err)
	return tail
}

// Closed returns a View of n elements of an array whose device is closed.
func Closed(t *testing.T, dt snug.DType, n int) snug.View {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	v := PutFloats(t, Backend{Name: "closed", Dev: dev}, dt, make([]float32, n)).View
	require.NoError(t, dev.Close())
	return v
}

// WithProcs runs f under GOMAXPROCS 1 and 2.
func WithProcs(f func(procs int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2} {
		runtime.GOMAXPROCS(procs)
		f(procs)
	}
}
