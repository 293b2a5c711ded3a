package offload

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSpace checks against a map of taken units that extents never overlap,
// that the free list is sorted and merged, and that the end is the last taken
// unit's.
func TestSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s space
		var taken []extent
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(taken) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				s.release(taken[i])
				taken = append(taken[:i], taken[i+1:]...)
			} else {
				e := s.alloc(rapid.Int64Range(1, 5).Draw(t, "n"))
				for _, other := range taken {
					require.True(t, e.off+e.n <= other.off || other.off+other.n <= e.off, "%v overlaps %v", e, other)
				}
				taken = append(taken, e)
			}
			again, err := newSpace(append([]extent(nil), taken...))
			require.NoError(t, err)
			require.Equal(t, again.end, s.end)
			require.Equal(t, len(again.free), len(s.free))
			for i := range s.free {
				require.Equal(t, again.free[i], s.free[i])
			}
		}
	})
}

func TestSpaceOverlap(t *testing.T) {
	_, err := newSpace([]extent{{4096, 8192}, {0, 4096}, {8192, 1}})
	require.ErrorIs(t, err, snug.ErrCorrupt)
}
