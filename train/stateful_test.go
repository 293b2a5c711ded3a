package train

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/plan"
	"github.com/stretchr/testify/require"
)

// counting is a toy with a state of its own: a number.
type counting struct {
	*toy
	n   int
	bad bool
}

func (c *counting) WriteState(w io.Writer) error {
	if c.bad {
		return errors.New("no state")
	}
	_, err := fmt.Fprintf(w, "%d", c.n)
	return err
}

func (c *counting) ReadState(r io.Reader) error {
	if c.bad {
		return fmt.Errorf("another model: %w", snug.ErrCorrupt)
	}
	_, err := fmt.Fscanf(r, "%d", &c.n)
	return err
}

// A checkpoint holds what a model has besides its parameters, and New restores it.
func TestStateful(t *testing.T) {
	dir := t.TempDir()
	open := func(m *counting) (*Trainer[[]int], error) {
		return New(Model[[]int](m), Options{Checkpoints: Checkpoints{Dir: dir}})
	}
	m := &counting{toy: newToy(t, snug.BF16, snug.F32), n: 1}
	tr, err := open(m)
	require.NoError(t, err)
	trainTo(t, tr, 1)
	m.bad = true
	require.ErrorContains(t, tr.Save(t.Context()), "no state")
	m.bad, m.n = false, 41
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())

	m = &counting{toy: newToy(t, snug.BF16, snug.F32)}
	tr, err = open(m)
	require.NoError(t, err)
	require.Equal(t, 41, m.n)
	require.Equal(t, 1, tr.Step())
	require.NoError(t, tr.Close())
	_, err = open(&counting{toy: newToy(t, snug.BF16, snug.F32), bad: true})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	_, err = New(Model[[]int](newToy(t, snug.BF16, snug.F32)), Options{Checkpoints: Checkpoints{Dir: dir}})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "parts")
}

// The state of rank 0 goes to all ranks, also where they divide the rest.
func TestStatefulRanks(t *testing.T) {
	for _, shard := range []plan.Sharding{plan.Replicate, plan.ShardGradients} {
		dir := t.TempDir()
		for resumed := range 2 {
			reducers, err := accum.Local(t.Context(), 2)
			require.NoError(t, err)
			errs := make(chan error)
			for rank, r := range reducers {
				go func() {
					errs <- func() error {
						m := &counting{toy: newToy(t, snug.F32, snug.F32), n: 5 + rank}
						tr, err := New(Model[[]int](m), Options{Checkpoints: Checkpoints{Dir: dir}, Ranks: Ranks{Reducer: r, Shard: shard}})
						if err != nil {
							return err
						}
						defer tr.Close()
						if want := 5 + rank*(1-resumed); m.n != want {
							return fmt.Errorf("rank %d has %d, want %d", rank, m.n, want)
						}
						if _, err := tr.Train(t.Context(), steps(tr.Step())); err != nil {
							return err
						}
						return tr.Save(t.Context())
					}()
				}()
			}
			for range reducers {
				require.NoError(t, <-errs)
			}
		}
	}
}

// Ranks whose models differ in being Stateful get an error of New, where otherwise one would wait for a part.
func TestStatefulRanksDiffer(t *testing.T) {
	for stateful := range 2 {
		reducers, err := accum.Local(t.Context(), 2)
		require.NoError(t, err)
		errs := make(chan error)
		for rank, r := range reducers {
			go func() {
				var m Model[[]int] = newToy(t, snug.F32, snug.F32)
				if rank == stateful {
					m = &counting{toy: newToy(t, snug.F32, snug.F32)}
				}
				_, err := New(m, Options{Checkpoints: Checkpoints{Dir: t.TempDir()}, Ranks: Ranks{Reducer: r}})
				errs <- err
			}()
		}
		for range reducers {
			err := <-errs
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "Stateful")
		}
	}
}
