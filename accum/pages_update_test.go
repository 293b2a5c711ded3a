package accum

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
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
			return errChange
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

// TestPagesUpdateAmongAcquires: a function given to Update acquires another page, after which the page that changes came next
// before. It is not gathered while it changes.
func TestPagesUpdateAmongAcquires(t *testing.T) {
	const size = 5000
	for ranks := 1; ranks <= 3; ranks++ {
		require.NoError(t, errors.Join(onPages(t, ranks, PagesOptions{}, nil, func(rank int, p *Pages) error {
			for _, key := range []string{"a", "b"} {
				if err := write(p, key, size, 0); err != nil {
					return err
				}
			}
			for range 3 {
				if err := errors.Join(read(p, "a", size, 0), read(p, "b", size, 0)); err != nil {
					return err
				}
			}
			err := p.Update("a", func(lo int, part []byte) error {
				if err := read(p, "b", size, 0); err != nil {
					return err
				}
				copy(part, content("a", size, 1)[lo:])
				return nil
			})
			return errors.Join(err, read(p, "a", size, 1))
		})...))
	}
}

// TestPagesUpdateErrors: a page that changes is not acquired and not updated, and no part of it handed out. After a panic of
// the function it is a page again.
func TestPagesUpdateErrors(t *testing.T) {
	const size = 5000
	require.NoError(t, errors.Join(onPages(t, 2, PagesOptions{}, nil, func(rank int, p *Pages) error {
		if err := write(p, "a", size, 0); err != nil {
			return err
		}
		wants := func(err error, says string) error {
			if err == nil || !errors.Is(err, snug.ErrConfig) || err.Error() != says+": snug: invalid configuration" {
				return fmt.Errorf("the error is %w, want %q", err, says)
			}
			return nil
		}
		inside := kerneltest.Recovered(func() error {
			return p.Update("a", func(lo int, part []byte) error {
				copy(part, content("a", size, 1)[lo:])
				_, err := p.Acquire("a", size)
				err = wants(err, `accum: Acquire: page "a" is being updated`)
				_, _, again := p.Part("a")
				err = errors.Join(err, wants(again, `accum: Part: page "a" is being updated`))
				again = p.Update("a", func(int, []byte) error { return nil })
				if err = errors.Join(err, wants(again, `accum: Update: page "a" is being updated`)); err != nil {
					return err
				}
				panic(kerneltest.ErrFault)
			})
		})
		if !errors.Is(inside, kerneltest.ErrFault) {
			return inside
		}
		return errors.Join(wants(p.Update("a", nil), `accum: Update: page "a": the function is nil`), read(p, "a", size, 1))
	})...))
}

// TestPagesChunk: no chunk is below 0.
func TestPagesChunk(t *testing.T) {
	for ranks := 1; ranks <= 3; ranks++ {
		for _, err := range onPages(t, ranks, PagesOptions{}, nil, func(rank int, p *Pages) error {
			for _, size := range []int{math.MinInt, -1, 0, math.MaxInt/2 + 1, math.MaxInt - 1, math.MaxInt} {
				if n := p.Chunk(size); n != 0 {
					return fmt.Errorf("the chunk of %d bytes has %d", size, n)
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
	}
}
