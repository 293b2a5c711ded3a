package kerneltest

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// Backend is a kind of memory that a Vector can lie in, and what computes on it.
type Backend struct {
	Name     string
	Dev      *snug.Device // nil for host slices
	Emulated bool         // by internal/emu: hundreds of times slower than a GPU
}

// Backends returns every backend that this build can test: a host slice,
// a CPU array, an array on a device that Go cannot address, and arrays on the
// devices of the backends in this build. Devices are closed when the test ends.
func Backends(t testing.TB) []Backend {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return append([]Backend{{Name: "slice"}, {Name: "cpu", Dev: snug.CPU()}, {Name: "opaque", Dev: dev}}, devices(t)...)
}

// Each runs test once for every backend, as a subtest.
func Each(t *testing.T, test func(t *testing.T, p Backend)) {
	for _, p := range Backends(t) {
		t.Run(p.Name, func(t *testing.T) { test(t, p) })
	}
}

// guard is the number of elements before and after a buffer that nobody may
// write. It is odd, so that buffers are not aligned.
const guard = 7

// Buf is a vector in some memory, with guard words around it.
type Buf[T snug.Element] struct {
	snug.View
	t     testing.TB
	host  []T // when the backend is a slice
	array snug.Array[T]
}

// Put copies vals to p.
func Put[T snug.Element](t testing.TB, p Backend, vals []T) *Buf[T] {
	t.Helper()
	whole := make([]T, len(vals)+2*guard)
	for i := range guard {
		whole[i], whole[len(whole)-1-i] = guardWord[T](), guardWord[T]()
	}
	copy(whole[guard:], vals)
	b := &Buf[T]{t: t}
	var view snug.View
	if p.Dev == nil {
		b.host, view = whole, snug.SliceView(whole)
	} else {
		a, err := snug.Make[T](p.Dev, len(whole))
		require.NoError(t, err)
		require.NoError(t, a.CopyIn(whole))
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		b.array, view = a, a.View()
	}
	var err error
	b.View, err = view.Slice(guard, guard+len(vals))
	require.NoError(t, err)
	return b
}

func guardWord[T snug.Element]() T {
	var zero T
	return zero + 77
}

// Get returns the vector's elements after all queued work, and fails the test
// when a guard word changed.
func (b *Buf[T]) Get() []T {
	b.t.Helper()
	whole := b.host
	if whole == nil {
		whole = make([]T, b.Len()+2*guard)
		require.NoError(b.t, b.array.CopyOut(whole))
	}
	for i := range guard {
		require.Equal(b.t, guardWord[T](), whole[i], "guard word %d before the vector", i)
		require.Equal(b.t, guardWord[T](), whole[len(whole)-1-i], "guard word %d after the vector", guard-1-i)
	}
	return append([]T(nil), whole[guard:guard+b.Len()]...)
}

// Floats is a Buf of any floating-point type, seen as float32.
type Floats struct {
	snug.View
	get func() []float32
}

// Get returns the elements as float32, after all queued work, and checks the
// guard words.
func (f *Floats) Get() []float32 { return f.get() }

// PutFloats rounds vals to dt and copies them to p.
func PutFloats(t testing.TB, p Backend, dt snug.DType, vals []float32) *Floats {
	t.Helper()
	switch dt {
	case snug.F16:
		return putAs(t, p, vals, float16.Fromfloat32, snug.Float16.Float32)
	case snug.BF16:
		return putAs(t, p, vals, snug.ToBFloat16, snug.BFloat16.Float32)
	default:
		same := func(x float32) float32 { return x }
		return putAs(t, p, vals, same, same)
	}
}

func putAs[T snug.Element](t testing.TB, p Backend, vals []float32, to func(float32) T, from func(T) float32) *Floats {
	t.Helper()
	conv := make([]T, len(vals))
	for i, x := range vals {
		conv[i] = to(x)
	}
	b := Put(t, p, conv)
	return &Floats{View: b.View, get: func() []float32 {
		got := b.Get()
		out := make([]float32, len(got))
		for i, x := range got {
			out[i] = from(x)
		}
		return out
	}}
}
