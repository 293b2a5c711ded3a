package offload

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// model is what a store must hold.
type model map[string][]byte

func (m model) clone() model {
	c := maps.Clone(m)
	for k, v := range c {
		c[k] = bytes.Clone(v)
	}
	return c
}

// holds reports whether s holds exactly m.
func holds(t require.TestingT, s *Store, m model) bool {
	if len(s.Keys()) != len(m) {
		return false
	}
	for key, want := range m {
		if !s.Has(key) {
			return false
		}
		got, err := s.Acquire(key, len(want))
		require.NoError(t, err, key)
		same := bytes.Equal(want, got)
		require.NoError(t, s.Release(key, false))
		if !same {
			return false
		}
	}
	return true
}

// requireHolds checks that s holds exactly m.
func requireHolds(t require.TestingT, s *Store, m model) {
	require.Len(t, s.Keys(), len(m))
	for key, want := range m {
		require.True(t, s.Has(key), key)
		got, err := s.Acquire(key, len(want))
		require.NoError(t, err, key)
		require.True(t, bytes.Equal(want, got), "%s differs", key)
		require.NoError(t, s.Release(key, false))
	}
}

func requireWithin(t require.TestingT, s *Store) {
	st := s.Stats()
	require.LessOrEqual(t, st.HostBytes, st.HostPeak)
	if s.opts.HostLimit > 0 {
		require.LessOrEqual(t, st.HostPeak, s.opts.HostLimit)
	}
}

// againstModel runs random operations on a store and on a model of it.
func againstModel(t *rapid.T) {
	const keys = 10
	sizes := [keys]int{64, 64, 64, 64, 128, 1, 4000, 4097, 0, 300}
	opts := Options{
		HostLimit:     rapid.SampledFrom([]int64{4224, 4416, 8192, 0}).Draw(t, "limit"),
		PrefetchDepth: rapid.SampledFrom([]int{1, 3}).Draw(t, "depth"),
		NoPrefetch:    rapid.Bool().Draw(t, "none"),
	}
	opts, err := opts.check()
	require.NoError(t, err)
	dir := filestest.New()
	s, err := open(dir, opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	now, committed := model{}, model{}
	fixed, pending := model{}, Commit{} // of the commit that began last
	pins := map[string]int{}
	fill := byte(0)
	drawKey := func(t *rapid.T) (string, int) {
		i := rapid.IntRange(0, keys-1).Draw(t, "key")
		return fmt.Sprint("key", i), sizes[i]
	}
	t.Repeat(map[string]func(*rapid.T){
		"write": func(t *rapid.T) {
			key, size := drawKey(t)
			b, err := s.Acquire(key, size)
			if errors.Is(err, snug.ErrNoMemory) {
				require.NotEmpty(t, pins)
				return
			}
			require.NoError(t, err)
			if now[key] == nil {
				now[key] = make([]byte, size)
			}
			require.True(t, bytes.Equal(now[key], b), "%s differs", key)
			fill++
			for i := range b {
				b[i] = fill
			}
			now[key] = bytes.Clone(b)
			require.NoError(t, s.Release(key, true))
		},
		"pin": func(t *rapid.T) {
			key, size := drawKey(t)
			if _, err := s.Acquire(key, size); err != nil {
				require.ErrorIs(t, err, snug.ErrNoMemory)
				return
			}
			if now[key] == nil {
				now[key] = make([]byte, size)
			}
			pins[key]++
		},
		"unpin": func(t *rapid.T) {
			for key := range pins {
				require.NoError(t, s.Release(key, false))
				if pins[key]--; pins[key] == 0 {
					delete(pins, key)
				}
				return
			}
		},
		"prefetch": func(t *rapid.T) {
			a, _ := drawKey(t)
			b, _ := drawKey(t)
			s.Prefetch(a, b, "missing")
		},
		"delete": func(t *rapid.T) {
			key, _ := drawKey(t)
			err := s.Delete(key)
			if now[key] == nil || pins[key] > 0 {
				require.ErrorIs(t, err, snug.ErrConfig)
				return
			}
			require.NoError(t, err)
			delete(now, key)
		},
		"commit": func(t *rapid.T) {
			err := s.Commit()
			if len(pins) > 0 {
				require.ErrorIs(t, err, snug.ErrConfig)
				return
			}
			require.NoError(t, err)
			committed = now.clone()
			fixed, pending = committed, Commit{}
		},
		"begin": func(t *rapid.T) {
			c, err := s.BeginCommit()
			if len(pins) > 0 {
				require.ErrorIs(t, err, snug.ErrConfig)
				return
			}
			require.NoError(t, err)
			committed, fixed, pending = fixed, now.clone(), c
		},
		"wait": func(t *rapid.T) {
			require.NoError(t, pending.Wait())
			committed = fixed
		},
		"crash": func(t *rapid.T) { // perhaps in the middle of a commit
			durable := pending.Done()
			after, err := open(dir.Crash(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))), opts)
			require.NoError(t, err)
			require.True(t, holds(t, after, fixed) || !durable && holds(t, after, committed))
			require.NoError(t, after.Close())
		},
		"reopen": func(t *rapid.T) {
			require.NoError(t, s.Close())
			committed = fixed
			if rapid.Bool().Draw(t, "crash") {
				dir = dir.Crash(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)))
			}
			s, err = open(dir, opts)
			require.NoError(t, err)
			now, pins, pending = committed.clone(), map[string]int{}, Commit{}
			requireHolds(t, s, committed)
		},
		"": func(t *rapid.T) { requireWithin(t, s) },
	})
}

func TestAgainstModel(t *testing.T) { rapid.Check(t, againstModel) }
func FuzzAgainstModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(againstModel)) }
