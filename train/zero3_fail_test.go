package train

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/transformer"
)

// ranked are the methods of a rank of accum.Local.
type ranked interface {
	accum.Reducer
	accum.Broadcaster
	accum.SendReceiver
}

var errBroken = errors.New("the network is gone")

// breaking is a rank whose call number at fails or panics. It counts the calls of all goroutines.
type breaking struct {
	ranked
	mu        sync.Mutex
	calls, at int
	panics    bool
}

func (b *breaking) next() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	switch {
	case b.calls != b.at:
		return nil
	case b.panics:
		panic(errBroken)
	}
	return errBroken
}

func (b *breaking) Sum(x []float64) error {
	if err := b.next(); err != nil {
		return err
	}
	return b.ranked.Sum(x)
}

func (b *breaking) ReduceScatter(v snug.View) error {
	if err := b.next(); err != nil {
		return err
	}
	return b.ranked.ReduceScatter(v)
}

func (b *breaking) AllGather(v snug.View) error {
	if err := b.next(); err != nil {
		return err
	}
	return b.ranked.AllGather(v)
}

// TestZero3Breaks: a Reducer that fails or panics at any of its calls, in the step or while the next page is gathered, ends
// all ranks.
//
//check:in race
func TestZero3Breaks(t *testing.T) {
	const ranks = 2
	run := func(at int, panics bool) (calls int, errs [ranks]error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		reducers, err := accum.Local(ctx, ranks)
		require.NoError(t, err)
		first := &breaking{ranked: reducers[0].(ranked), at: at, panics: panics}
		var wait sync.WaitGroup
		for rank, r := range reducers {
			if rank == 0 {
				r = first
			}
			wait.Go(func() {
				defer func() {
					if p := recover(); p != nil {
						errs[rank] = fmt.Errorf("panic: %v", p)
					}
					if errs[rank] != nil {
						cancel() // as a launcher ends the other ranks
					}
				}()
				errs[rank] = func() error {
					pages, err := accum.NewPages(r, accum.PagesOptions{})
					if err != nil {
						return err
					}
					m, err := transformer.New(tinyConfig("llama", true), transformer.Options{Pages: pages, PageFloats: true})
					if err != nil {
						return err
					}
					tr, err := New(Model[transformer.Batch](m), Options{Ranks: Ranks{Reducer: pages, Shard: plan.ShardWeights, Bucket: 100}, Clip: 1})
					if err != nil {
						return err
					}
					for step := range 2 {
						batches := []transformer.Batch{tokens(step), tokens(step + 1)}
						if _, err := tr.Train(ctx, batches[rank:]); err != nil {
							return errors.Join(err, tr.Close())
						}
					}
					return errors.Join(tr.Close(), pages.Close())
				}()
			})
		}
		wait.Wait()
		require.NoError(t, context.Cause(t.Context()))
		return first.calls, errs
	}
	calls, errs := run(0, false)
	require.NoError(t, errors.Join(errs[:]...))
	require.Greater(t, calls, 50)
	for at := 1; at <= calls; at += 5 {
		for i, panics := range []bool{false, true} {
			if !kerneltest.Taken(at/5+i, 6) {
				continue
			}
			began := time.Now()
			_, errs := run(at, panics)
			require.Less(t, time.Since(began), 10*time.Second, "call %d", at)
			require.ErrorContains(t, errs[0], errBroken.Error(), "call %d of %d, panics %t", at, calls, panics)
			if at < calls { // after the last call the other rank may have ended
				require.Error(t, errs[1], "call %d of %d, panics %t", at, calls, panics)
			}
		}
	}
}
