package accum

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestPagesDiffer: ranks that acquire other pages, other sizes, or write other bytes get the same error, which names the
// page and the rank.
func TestPagesDiffer(t *testing.T) {
	three := func(p *Pages, size int) error {
		for _, key := range []string{"a", "b", "c"} {
			if err := write(p, key, size, 0); err != nil {
				return err
			}
		}
		return nil
	}
	for name, c := range map[string]struct {
		do   func(rank int, p *Pages) error
		says string
		goes bool // rank 2 has no error
	}{
		"keys": {func(rank int, p *Pages) error {
			return errors.Join(three(p, 9), read(p, []string{"a", "a", "c"}[rank], 9, 0))
		}, `accum: Pages: rank 0 acquires page "a", rank 2 acquires page "c"`, false},
		"sizes": {func(rank int, p *Pages) error {
			return errors.Join(write(p, "a", 9+rank/2, 0), read(p, "a", 9+rank/2, 0))
		}, `page "a": rank 0 wants 9 bytes, rank 2 wants 10`, false},
		"numbers of chunks": {func(rank int, p *Pages) error {
			size := 3*partAlign + rank/2
			return errors.Join(write(p, "a", size, 0), read(p, "a", size, 0))
		}, `page "a" of `, false},
		"size asked for": {func(rank int, p *Pages) error { return errors.Join(three(p, 9), read(p, "b", 9-rank/2, 0)) },
			`page "b": rank 0 wants 9 bytes, rank 2 wants 8`, false},
		"size on all": {func(rank int, p *Pages) error { return errors.Join(three(p, 9), read(p, "b", 8, 0)) },
			`page "b" has 9 bytes, not 8`, false},
		"bytes": {func(rank int, p *Pages) error { return errors.Join(write(p, "a", 9, rank%2), read(p, "a", 9, rank%2)) },
			`page "a": rank 1 has written other bytes than rank 0`, false},
		"written again": {func(rank int, p *Pages) error {
			return errors.Join(three(p, 9), read(p, "a", 9, 0), write(p, "a", 9, 1+rank/2), read(p, "a", 9, 1+rank/2))
		}, `page "a": rank 2 has written other bytes than rank 0`, false},
		"order of kept pages": {func(rank int, p *Pages) error {
			return errors.Join(three(p, 9), read(p, "b", 9, 0), read(p, "a", 9, 0), read(p, []string{"b", "a", "b"}[rank], 9, 0), read(p, "c", 9, 0))
		}, `page "c": rank 1 has acquired or updated other pages before than rank 0`, false},
		"sum": {func(rank int, p *Pages) error {
			if err := three(p, 9); err != nil || rank > 0 {
				return errors.Join(err, read(p, "a", 9, 0))
			}
			return p.Sum(make([]float64, 2))
		}, "rank 0 calls Sum, rank 1 calls AllGather", false},
		"a gather of the program": {func(rank int, p *Pages) error {
			if err := three(p, 9); err != nil || rank < 2 {
				return errors.Join(err, read(p, "a", 9, 0))
			}
			return p.AllGather(snug.SliceView(make([]uint8, p.room(9)))) // only the others can tell
		}, "rank 2 makes another call than to gather page", true},
	} {
		t.Run(name, func(t *testing.T) {
			for rank, err := range onPages(t, 3, PagesOptions{Held: 1000}, nil, func(rank int, p *Pages) error {
				err := c.do(rank, p)
				if err == nil {
					return nil
				}
				for _, later := range []error{p.Sum([]float64{1}), read(p, "a", 9, 0), write(p, "new", 1, 0), p.Release("a", false)} {
					if later == nil {
						return errors.New("a later call has no error")
					}
				}
				return err
			}) {
				if rank == 2 && c.goes {
					require.NoError(t, err, name)
					continue
				}
				require.ErrorIs(t, err, snug.ErrConfig, "%s, rank %d", name, rank)
				require.ErrorContains(t, err, c.says, "%s, rank %d", name, rank)
			}
		})
	}
}

// damaging is a Reducer that changes the next byte of each vector that it has gathered.
type damaging struct {
	Reducer
	at int
}

func (d *damaging) AllGather(v snug.View) error {
	err := d.Reducer.AllGather(v)
	if v.Len() > d.at {
		snug.Host[uint8](v)[d.at] ^= 4
	}
	return err
}

// TestPagesDamage: a part that changes in memory is the same error on all ranks. A byte that changes on its way to a rank is
// an error there, and an error of the next call on the others.
func TestPagesDamage(t *testing.T) {
	const size, ranks = 2*partAlign + 52, 3
	owner := func(at int) int { return at / partAlign }
	step := 1
	if !kerneltest.Full() {
		step = 13
	}
	for at := 0; at < size; at += step {
		for _, err := range onPages(t, ranks, PagesOptions{}, nil, func(rank int, p *Pages) error {
			if err := write(p, "a", size, 0); err != nil {
				return err
			}
			if lo, _ := p.partOf(size, rank); rank == owner(at) {
				p.index["a"].part[at-lo] ^= 4
			}
			return read(p, "a", size, 0)
		}) {
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, fmt.Sprintf(`page "a": the part of rank %d does not have its checksum`, owner(at)))
		}
	}
	chunk := partAlign + headerBytes
	for at := 0; at < ranks*chunk; at += step {
		below := func(rank int, r Reducer) Reducer {
			if rank == 1 {
				return &damaging{r, at}
			}
			return r
		}
		errs := onPages(t, ranks, PagesOptions{}, below, func(rank int, p *Pages) error {
			if err := write(p, "a", size, 0); err != nil {
				return err
			}
			return read(p, "a", size, 0)
		})
		header := at%chunk - (chunk - headerBytes)
		padding := at >= 2*chunk+size-2*(chunk-headerBytes) && header < 0
		switch {
		case padding:
			require.NoError(t, errors.Join(errs[:2]...), at)
		case header >= 0 && header < 4: // no header at all
			require.ErrorIs(t, errs[1], snug.ErrConfig)
		default:
			require.ErrorIs(t, errs[1], snug.ErrCorrupt, at)
		}
	}
	for _, next := range []func(p *Pages) error{func(p *Pages) error { return p.Sum([]float64{1}) }, func(p *Pages) error { return read(p, "b", size, 0) }} {
		errs := onPages(t, ranks, PagesOptions{Held: 1}, func(rank int, r Reducer) Reducer {
			if rank == 1 {
				return &damaging{r, 0}
			}
			return r
		}, func(rank int, p *Pages) error {
			for _, key := range []string{"a", "b"} {
				if err := write(p, key, size, 0); err != nil {
					return err
				}
			}
			if err := read(p, "a", size, 0); err != nil {
				return err
			}
			return next(p)
		})
		require.ErrorIs(t, errs[1], snug.ErrCorrupt)
		for _, err := range []error{errs[0], errs[2]} {
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "rank 1")
		}
	}
}

// TestPagesErrors: bad arguments and zero values are errors, and nothing is sent.
func TestPagesErrors(t *testing.T) {
	alone, err := Local(t.Context(), 1)
	require.NoError(t, err)
	for want, c := range map[string]struct {
		r Reducer
		o PagesOptions
	}{
		"wants a Reducer": {}, "Held is -1": {alone[0], PagesOptions{Held: -1}}, "rank 1 of 1": {ranked{alone[0], 1}, PagesOptions{}},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := NewPages(c.r, c.o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
	for _, p := range []*Pages{nil, {}} {
		_, err := p.Acquire("a", 1)
		v := snug.ViewOf(make([]float32, 1))
		for _, err := range []error{err, p.Release("a", false), p.Sum(nil), p.AllReduce(v), p.ReduceScatter(v), p.AllGather(v), p.Broadcast(0, v), p.AllToAll(v, v), p.SendReceive(v, 0, v, 0)} {
			require.ErrorIs(t, err, snug.ErrConfig)
		}
		require.NoError(t, p.Close())
		require.Equal(t, [4]int64{0, 1, 0, 0}, [4]int64{int64(p.Rank()), int64(p.Size()), p.Bytes(), p.Peak()})
	}
	errs := onPages(t, 2, PagesOptions{}, func(_ int, r Reducer) Reducer { return struct{ Reducer }{r} }, func(_ int, p *Pages) error {
		for _, c := range []struct {
			err  error
			want string
		}{
			{p.Release("a", true), `page "a" is not in use`},
			{write(p, "", 1, 0), "want a key"}, {write(p, "a", -1, 0), "0 bytes or more"},
			{p.Broadcast(0, snug.View{}), "is no Broadcaster"}, {p.AllToAll(snug.View{}, snug.View{}), "is no AllToAller"},
			{p.SendReceive(snug.View{}, 0, snug.View{}, 0), "is no SendReceiver"},
		} {
			if !errors.Is(c.err, snug.ErrConfig) || !bytes.Contains([]byte(c.err.Error()), []byte(c.want)) {
				return fmt.Errorf("got %w, want %s", c.err, c.want)
			}
		}
		if _, err := p.Acquire("a", math.MaxInt); !errors.Is(err, snug.ErrNoMemory) {
			return fmt.Errorf("a page of all memory: %w", err)
		}
		if err := errors.Join(write(p, "a", 5, 0), p.Close(), p.Close()); err != nil {
			return err
		}
		for _, err := range []error{write(p, "a", 5, 0), p.Release("a", true), p.Sum(nil)} {
			if !errors.Is(err, snug.ErrConfig) || !bytes.Contains([]byte(err.Error()), []byte("closed")) {
				return fmt.Errorf("a closed Pages returns %w", err)
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}

// ranked is a Reducer with another rank.
type ranked struct {
	Reducer
	rank int
}

func (r ranked) Rank() int { return r.rank }

// TestPagesFails: whatever the Reducer of a rank does at any of its calls, no call hangs, and all later calls have its error.
func TestPagesFails(t *testing.T) {
	for _, how := range []string{"error", "panic", "exit"} {
		for at := 1; at <= 40; at++ {
			ctx, cancel := context.WithCancel(t.Context())
			reducers, err := Local(ctx, 2)
			require.NoError(t, err)
			calls := 0
			var wait sync.WaitGroup
			for rank, r := range reducers {
				if rank == 0 {
					r = &failing{SendReceiver: r.(SendReceiver), Reducer: r, calls: &calls, at: at, how: how}
				}
				p, err := NewPages(r, PagesOptions{})
				require.NoError(t, err)
				wait.Go(func() {
					defer cancel() // the other rank then does not wait
					err := kerneltest.Recovered(func() error { return failingPass(p) })
					if rank > 0 {
						return
					}
					closed := p.Close()
					if calls < at {
						return
					}
					require.Error(t, err, "%s at %d", how, at)
					later := []error{p.Sum([]float64{1}), write(p, "new", 1, 0), p.Release("a", false), closed}
					for _, err := range append(later, err) {
						require.Error(t, err)
						if how != "exit" {
							require.ErrorIs(t, err, errReducer)
						} else if err != kerneltest.ErrExit {
							require.ErrorContains(t, err, "has ended its goroutine")
						}
					}
				})
			}
			wait.Wait()
			if cancel(); at == 1 {
				require.Positive(t, calls)
			}
			if calls < at {
				require.Greater(t, at, 15)
				break
			}
			require.NotEqual(t, 40, at)
		}
	}
}

// failingPass makes calls of all kinds.
func failingPass(p *Pages) error {
	for _, key := range []string{"a", "b", "c"} {
		if err := write(p, key, 11, 0); err != nil {
			return err
		}
	}
	v := snug.ViewOf(make([]float32, 4))
	for range 2 {
		for _, key := range []string{"a", "b", "c", "c", "b", "a"} {
			if err := read(p, key, 11, 0); err != nil {
				return err
			}
		}
		if err := p.Sum([]float64{1}); err != nil {
			return err
		}
		for _, do := range []func(snug.View) error{p.AllReduce, p.ReduceScatter, p.AllGather} {
			if err := do(v); err != nil {
				return err
			}
		}
		if err := p.SendReceive(v, 1-p.Rank(), snug.ViewOf(make([]float32, 4)), 1-p.Rank()); err != nil {
			return err
		}
	}
	return nil
}

// failing is a Reducer that fails, panics or ends its goroutine at a call.
type failing struct {
	SendReceiver
	Reducer
	calls *int
	at    int
	how   string
}

func (f *failing) fails() error {
	if *f.calls++; *f.calls != f.at {
		return nil
	}
	return (&failingScatter{at: 1, how: f.how}).ReduceScatter(snug.View{})
}

func (f *failing) Rank() int { return f.Reducer.Rank() }
func (f *failing) Size() int { return f.Reducer.Size() }
func (f *failing) Sum(x []float64) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Reducer.Sum(x)
}
func (f *failing) AllReduce(v snug.View) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Reducer.AllReduce(v)
}
func (f *failing) ReduceScatter(v snug.View) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Reducer.ReduceScatter(v)
}
func (f *failing) AllGather(v snug.View) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.Reducer.AllGather(v)
}
func (f *failing) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	if err := f.fails(); err != nil {
		return err
	}
	return f.SendReceiver.SendReceive(dst, from, src, to)
}
