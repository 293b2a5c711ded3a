package meter

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// shelf is a storage in memory.
type shelf struct {
	blobs map[string][]byte
	pins  int
}

func (s *shelf) Acquire(key string, size int) ([]byte, error) {
	if size < 0 {
		return nil, errors.New("refused")
	}
	if s.blobs[key] == nil {
		s.blobs[key] = make([]byte, size)
	}
	s.pins++
	return s.blobs[key], nil
}

func (s *shelf) Release(string, bool) error { s.pins--; return nil }

func (s *shelf) bytes() (sum int64) {
	for _, b := range s.blobs {
		sum += int64(len(b))
	}
	return sum
}

// TestPages: what is in use counts by component and layer, and the rest of the memory beside it.
func TestPages(t *testing.T) {
	m, s := monitorOf(t, Options{History: minHistory}), &shelf{blobs: map[string][]byte{}}
	p := m.Pages(s, OnHost, State, s.bytes)
	acquire := func(key string, size int) {
		b, err := p.Acquire(key, size)
		require.NoError(t, err)
		require.Len(t, b, size)
	}
	acquire("weights/model.layers.3.mlp.up_proj.weight", 100)
	require.NoError(t, p.Release("weights/model.layers.3.mlp.up_proj.weight", false))
	acquire("master/lm_head.weight/0", 30)
	acquire("adamw/lm_head.weight/12", 7)
	acquire("adamw/lm_head.weight/12", 7) // once more, the same memory
	acquire("checkpoints/1/2", 5)
	now, _ := m.Held()
	require.Equal(t, Bytes{State: 107, Masters: 30, Activations: 5}, now[OnHost])
	require.EqualValues(t, s.bytes(), m.Peak(OnHost), "no sum is above what was held")
	got, err := m.PeakHolders(OnHost)
	require.NoError(t, err)
	require.Equal(t, []Holding{{State, restOfPages, 100}, {Masters, "lm_head, pages", 30}, {State, "lm_head, pages", 7}, {Activations, "checkpoints on their way", 5}}, got.Holders)
	require.NoError(t, p.Release("adamw/lm_head.weight/12", true))
	require.NoError(t, p.Release("adamw/lm_head.weight/12", true))
	now, _ = m.Held()
	require.Equal(t, Bytes{State: 107, Masters: 30, Activations: 5}, now[OnHost], "the page waits")
	_, err = p.Acquire("k", -1)
	require.ErrorContains(t, err, "refused")

	require.ErrorIs(t, p.Delete("k"), snug.ErrConfig, "the shelf has no Delete")
	p.Prefetch("k")
	require.Equal(t, 1, p.Together(10))
	require.True(t, p.StoredIn(s))
	require.False(t, p.StoredIn(&shelf{}))
	require.False(t, p.StoredIn(nil))
	require.True(t, m.Pages(p, OnHost, State, nil).StoredIn(s), "over another one")
	require.Nil(t, m.Pages(nil, OnHost, State, nil))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := p.Acquire("adamw/lm_head.weight/12", 7); err != nil || p.Release("adamw/lm_head.weight/12", true) != nil {
			t.Error("a page")
		}
	}))
	var none *Monitor
	_, err = none.Pages(s, OnHost, State, s.bytes).Acquire("k", 1)
	require.NoError(t, err, "without a monitor it counts nothing")
}

// TestPagesPanic: a caller's function that panics leaves nothing pinned.
func TestPagesPanic(t *testing.T) {
	m, s := monitorOf(t, Options{}), &shelf{blobs: map[string][]byte{}}
	p := m.Pages(s, OnHost, State, func() int64 { panic("of the caller") })
	require.PanicsWithValue(t, "of the caller", func() { _, _ = p.Acquire("k", 1) })
	require.Zero(t, s.pins)
}
