package quant8

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// fakeStorage hands out other memory at every Acquire and spoils the old.
type fakeStorage struct {
	mu    sync.Mutex
	blobs map[string][]byte
	lent  map[string][]byte
	fail  error // of the next calls
	wrong func([]byte) []byte
}

func newFakeStorage() *fakeStorage {
	return &fakeStorage{blobs: map[string][]byte{}, lent: map[string][]byte{}}
}

func (f *fakeStorage) Acquire(key string, size int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	if f.lent[key] != nil {
		return nil, errors.New("acquired twice: " + key)
	}
	b := alignedBytes(size)
	copy(b, f.blobs[key])
	f.lent[key] = b
	if f.wrong != nil {
		return f.wrong(b), nil
	}
	return b, nil
}

func (f *fakeStorage) Release(key string, dirty bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.lent[key]
	delete(f.lent, key)
	if dirty {
		f.blobs[key] = append([]byte(nil), b...)
	}
	for i := range b {
		b[i] = 0xaa
	}
	return f.fail
}

func TestStorage(t *testing.T) {
	params := map[string]int{"w": 5000, "b": 300, "none": 0}
	store := newFakeStorage()
	a := newAdamW(t, Options{Chunk: 1024}, params)
	b := newAdamW(t, Options{Chunk: 1024, Storage: store}, params)
	for i := range 3 {
		advance(a)
		advance(b)
		for name, n := range params {
			g, p, q := kerneltest.Normal(uint64(i), n), kerneltest.Normal(9, n), kerneltest.Normal(9, n)
			require.NoError(t, a.Step(name, snug.ViewOf(p), snug.ViewOf(g), 1))
			require.NoError(t, b.Step(name, snug.ViewOf(q), snug.ViewOf(g), 1))
			require.True(t, equal(p, q))
		}
	}
	require.Empty(t, store.lent)
	require.Equal(t, stateOf(t, a), stateOf(t, b))
	require.Len(t, store.blobs, 6)
	require.Len(t, store.blobs["adamw/w/4"], 2*904+8*4)
	require.Len(t, store.blobs["adamw/b/0"], 300*8)
	require.Equal(t, a.StateBytes(), b.StateBytes())
}

func TestStorageErrors(t *testing.T) {
	store, broken := newFakeStorage(), errors.New("disk on fire")
	a := newAdamW(t, Options{Storage: store}, map[string]int{"w": 5000})
	advance(a)
	p, g := snug.ViewOf(kerneltest.Normal(1, 5000)), snug.ViewOf(kerneltest.Normal(2, 5000))
	for _, wrong := range []func([]byte) []byte{
		func(b []byte) []byte { return b[1:] },
		func(b []byte) []byte { return b[1 : len(b)+1] },
	} {
		store.wrong = wrong
		require.ErrorIs(t, a.Step("w", p, g, 1), snug.ErrConfig)
	}
	store.wrong, store.fail = nil, broken
	err := a.Step("w", p, g, 1)
	require.ErrorIs(t, err, broken)
	require.True(t, strings.Contains(err.Error(), "adamw/w/0"), err)
	store.fail = nil
	store.wrong = func(b []byte) []byte { store.fail = broken; return b }
	require.ErrorIs(t, a.Step("w", p, g, 1), broken, "from Release")
}

// alignedBytes returns zeros that begin at a multiple of 4, which a small []byte need
// not.
func alignedBytes(n int) []byte { return bytesOfFloats(make([]float32, n/4+1))[:n] }
