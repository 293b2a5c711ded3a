package qlora

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/offload"
)

// lender is a Storage that gives other memory at every Acquire and spoils it at Release.
type lender struct {
	mu    sync.Mutex
	blobs map[string][]byte
	lent  map[string][]byte
	calls int
	fail  error // of the next calls
	at    int   // offset of the memory from a multiple of 4
	less  int   // bytes that are missing
}

func newLender() *lender { return &lender{blobs: map[string][]byte{}, lent: map[string][]byte{}} }

func (l *lender) Acquire(key string, size int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return nil, l.fail
	}
	if l.lent[key] != nil {
		return nil, errors.New("acquired twice: " + key)
	}
	words := make([]byte, size+8)
	b := words[l.at : l.at+size-l.less]
	copy(b, l.blobs[key])
	l.lent[key] = b
	l.calls++
	return b, nil
}

func (l *lender) Release(key string, dirty bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.lent[key]
	if b == nil {
		return errors.New("released what is not lent: " + key)
	}
	delete(l.lent, key)
	if dirty {
		l.blobs[key] = append([]byte(nil), b...)
	}
	for i := range b {
		b[i] = 0xaa
	}
	return l.fail
}

// products are the results of everything that reads a weight.
func products(t require.TestingT, w *Weight, rows int) (all []float32) {
	out, in := w.Shape()[0], w.Shape()[1]
	l, err := NewLinear(w, snug.F32, 3*in)
	require.NoError(t, err)
	y, dx, norms, whole := make([]float32, rows*out), make([]float32, rows*in), make([]float32, out), make([]float32, w.Len())
	require.NoError(t, l.Forward(snug.ViewOf(y), snug.ViewOf(kerneltest.Normal(3, rows*in)), 0))
	require.NoError(t, l.Backward(snug.ViewOf(dx), snug.ViewOf(kerneltest.Normal(4, rows*out)), 0))
	require.NoError(t, l.Norms(snug.ViewOf(norms), nil))
	require.NoError(t, w.Dequantize(snug.ViewOf(whole)))
	absmax, err := w.Absmax()
	require.NoError(t, err)
	d, err := w.Deviation(snug.ViewOf(whole))
	require.NoError(t, err)
	require.Zero(t, d.Max)
	for _, x := range [][]float32{y, dx, norms, whole, absmax} {
		all = append(all, x...)
	}
	return all
}

// A weight in a Storage gives the bits that it gave before, and holds its blob only within
// calls.
func TestPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out, in := rapid.IntRange(1, 40).Draw(t, "out"), rapid.IntRange(1, 200).Draw(t, "in")
		o := Options{Type: rapid.SampledFrom([]Type{NF4, FP4}).Draw(t, "type"), Block: 64, Single: rapid.Bool().Draw(t, "single")}
		rows := rapid.SampledFrom([]int{1, 8, 9, 20}).Draw(t, "rows")
		w, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, o)
		require.NoError(t, err)
		want, bytes := products(t, w, rows), w.Bytes()
		s := newLender()
		require.NoError(t, w.Page(s, "w"))
		require.Equal(t, bytes, w.Bytes())
		require.LessOrEqual(t, int64(len(s.blobs["w"])), bytes+6)
		require.Equal(t, want, products(t, w, rows))
		require.Empty(t, s.lent)
		require.Zero(t, w.Packed().Len())
	})
}

// A Store of package offload pages weights that it cannot hold at once.
func TestPagesOfAStore(t *testing.T) {
	const out, in, layers = 64, 128, 6
	var all []*Weight
	var want [][]float32
	s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 4 * out * in / 2})
	require.NoError(t, err)
	defer s.Close()
	for i := range layers {
		w, err := NewWeight(kerneltest.Normal(uint64(i), out*in), []int{out, in}, Options{})
		require.NoError(t, err)
		want = append(want, products(t, w, 20))
		require.NoError(t, w.Page(s, fmt.Sprint("layer ", i)))
		all = append(all, w)
	}
	for round := 0; round < 3 || s.Stats().Prefetched == 0 && round < 300; round++ { // on a busy machine a product may be faster than what reads ahead
		for i, w := range all {
			require.Equal(t, want[i], products(t, w, 20))
		}
	}
	require.LessOrEqual(t, s.Stats().HostPeak, int64(4*out*in/2))
	require.Positive(t, s.Stats().Prefetched)
}

// Several goroutines use one blob.
func TestPagesTogether(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*64), []int{64, 64}, Options{})
	require.NoError(t, err)
	want := products(t, w, 20)
	s := newLender()
	require.NoError(t, w.Page(s, "w"))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				require.Equal(t, want, products(t, w, 20))
			}
		})
	}
	group.Wait()
	require.Empty(t, s.lent)
}

func TestPagesRefused(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*64), []int{64, 64}, Options{})
	require.NoError(t, err)
	want := products(t, w, 2)
	s := newLender()
	require.ErrorIs(t, (*Weight)(nil).Page(s, "w"), snug.ErrConfig)
	require.ErrorIs(t, new(Weight).Page(s, "w"), snug.ErrConfig)
	require.ErrorIs(t, w.Page(nil, "w"), snug.ErrConfig)
	require.ErrorIs(t, w.Page(s, ""), snug.ErrConfig)
	broken := errors.New("broken")
	s.fail = broken
	require.ErrorIs(t, w.Page(s, "w"), broken)
	s.fail = nil
	for _, s := range []*lender{{blobs: s.blobs, lent: s.lent, at: 1}, {blobs: s.blobs, lent: s.lent, less: 4}} {
		require.ErrorIs(t, w.Page(s, "w"), snug.ErrCorrupt)
	}
	require.Equal(t, want, products(t, w, 2)) // as it was
	require.NoError(t, w.Page(s, "w"))
	require.ErrorIs(t, w.Page(s, "v"), snug.ErrConfig)
	require.Equal(t, want, products(t, w, 2))

	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	for _, rows := range []int{1, 20} {
		y := kerneltest.Normal(5, rows*64)
		before := append([]float32(nil), y...)
		s.fail = broken
		require.ErrorIs(t, l.Forward(snug.ViewOf(y), snug.ViewOf(make([]float32, rows*64)), 0), broken)
		require.ErrorIs(t, l.Backward(snug.ViewOf(y), snug.ViewOf(make([]float32, rows*64)), 0), broken)
		s.fail = nil
		require.Equal(t, before, y)
	}
	_, err = WriteWeights(io.Discard, func(yield func(string, *Weight) bool) { yield("w", w) }, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, w.Close())
	require.ErrorIs(t, l.Forward(snug.ViewOf(make([]float32, 64)), snug.ViewOf(make([]float32, 64)), 0), snug.ErrDevice)
	require.Empty(t, s.lent)
}

func TestPagesDoNotAllocate(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*64), []int{64, 64}, Options{})
	require.NoError(t, err)
	s, err := offload.Open(t.TempDir(), offload.Options{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, w.Page(s, "w"))
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	for _, rows := range []int{1, 20} {
		y, x := snug.ViewOf(make([]float32, rows*64)), snug.ViewOf(make([]float32, rows*64))
		kerneltest.NoAllocs(t, func() { require.NoError(t, l.Forward(y, x, 0)) })
	}
}
