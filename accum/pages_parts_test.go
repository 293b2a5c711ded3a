package accum

import (
	"errors"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestPagesUpdate: only pages that were written and have no user change. An error or a panic of the function that changes a
// part reaches the caller, and what it has changed is the page's part.
func TestPagesUpdate(t *testing.T) {
	const size = 3000
	none := func(int, []byte) error { return nil }
	errChange := errors.New("no")
	require.NoError(t, errors.Join(onPages(t, 2, PagesOptions{}, nil, func(rank int, p *Pages) error {
		if err := write(p, "a", size, 0); err != nil {
			return err
		}
		refused := func(key, says string) {
			_, _, err := p.Part(key)
			for _, err := range []error{err, p.Update(key, none)} {
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, says)
			}
		}
		refused("", "was never written")
		refused("b", "was never written")
		if _, err := p.Acquire("b", 10); err != nil {
			return err
		}
		refused("b", "was never written")
		if _, err := p.Acquire("a", size); err != nil {
			return err
		}
		refused("a", `page "a" is in use`)
		if err := errors.Join(p.Release("a", false), p.Release("b", false)); err != nil {
			return err
		}
		require.Panics(t, func() {
			_ = p.Update("a", func(lo int, part []byte) error {
				copy(part, content("a", size, 1)[lo:])
				panic("loud")
			})
		})
		if err := read(p, "a", size, 1); err != nil {
			return err
		}
		require.ErrorIs(t, p.Update("a", func(lo int, part []byte) error {
			copy(part, content("a", size, 2)[lo:])
			return errors.Join(errChange, p.Update("a", none))
		}), errChange)
		return read(p, "a", size, 2)
	})...))

	// Ranks that do not all update a page find it when they gather the next one.
	for rank, err := range onPages(t, 2, PagesOptions{}, nil, func(rank int, p *Pages) error {
		err := errors.Join(write(p, "a", size, 0), write(p, "b", size, 0))
		if rank == 1 {
			err = errors.Join(err, p.Update("a", none))
		}
		return errors.Join(err, read(p, "b", size, 0))
	}) {
		require.ErrorIs(t, err, snug.ErrConfig, rank)
		require.ErrorContains(t, err, `page "b": rank 1 has acquired or updated other pages before than rank 0`)
	}

	var p *Pages
	require.Error(t, p.Update("a", none))
	_, _, err := p.Part("a")
	require.Error(t, err)
	require.Equal(t, 7, p.Chunk(7))
}

// TestPagesChunk: the ranks' parts cover a page, and begin at multiples of 1024 bytes.
func TestPagesChunk(t *testing.T) {
	for ranks := 1; ranks <= 5; ranks++ {
		for rank, err := range onPages(t, ranks, PagesOptions{}, nil, func(rank int, p *Pages) error {
			for _, n := range []int{-1, 0, 1, 1023, 1024, 1025, 5000, 1 << 20, 1 << 30} {
				chunk := p.Chunk(n)
				require.Zero(t, chunk%partAlign)
				require.GreaterOrEqual(t, chunk*ranks, n)
				require.Less(t, chunk, max(n, 0)/ranks+1+partAlign)
			}
			require.Positive(t, p.Chunk(math.MaxInt))
			return nil
		}) {
			require.NoError(t, err, rank)
		}
	}
}
