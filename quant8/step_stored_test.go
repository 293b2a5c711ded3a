package quant8

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// readyStorage hears what comes next, and gives blobs together.
type readyStorage struct {
	*fakeStorage
	together, most int
	heard          []string
	refuse         string // a key
}

func (r *readyStorage) Together(int) int        { return r.together }
func (r *readyStorage) Prefetch(keys ...string) { r.heard = append(r.heard, keys...) }

func (r *readyStorage) Acquire(key string, size int) ([]byte, error) {
	if key == r.refuse {
		return nil, errRefused
	}
	b, err := r.fakeStorage.Acquire(key, size)
	r.most = max(r.most, len(r.lent))
	return b, err
}

var errRefused = errors.New("refused")

// TestStorageTogether: chunks that are updated together have the bits of one after another,
// in every width, and a blob that is refused stops the step at its chunk, which may be
// repeated.
func TestStorageTogether(t *testing.T) {
	const n, chunk = 9000, 1024
	for _, bits := range []int{4, 8, 16, 32} {
		for _, together := range []int{-1, 1, 3, 100} {
			store := &readyStorage{fakeStorage: newFakeStorage(), together: together}
			a := newAdamW(t, Options{Chunk: chunk, Bits: bits}, map[string]int{"w": n})
			b := newAdamW(t, Options{Chunk: chunk, Bits: bits, Storage: store}, map[string]int{"w": n})
			p, q := kerneltest.Normal(9, n), kerneltest.Normal(9, n)
			for i := range 3 {
				advance(a)
				advance(b)
				g := kerneltest.Normal(uint64(i), n)
				require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1))
				if i == 1 {
					store.refuse = "adamw/w/4"
					before := append([]float32(nil), q...)
					require.ErrorIs(t, b.Step("w", snug.ViewOf(q), snug.ViewOf(g), 1), errRefused)
					require.True(t, equal(p[:4*chunk], q[:4*chunk]))
					require.True(t, equal(before[4*chunk:], q[4*chunk:]))
					require.Empty(t, store.lent)
					store.refuse = ""
					lo := 4 * chunk
					require.NoError(t, b.StepRange("w", lo, snug.ViewOf(q[lo:]), snug.ViewOf(g[lo:]), 1))
				} else {
					store.heard = nil
					require.NoError(t, b.Step("w", snug.ViewOf(q), snug.ViewOf(g), 1))
				}
				require.True(t, equal(p, q))
			}
			require.Empty(t, store.lent)
			require.Equal(t, max(1, min(together, maxTogether)), store.most)
			next := map[int]string{1: "adamw/w/1", 3: "adamw/w/3", maxTogether: "adamw/w/8"}[store.most]
			require.Equal(t, next, store.heard[0])
			require.Equal(t, stateOf(t, a), stateOf(t, b))
		}
	}
}
