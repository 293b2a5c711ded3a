package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// onRanks runs a Trainer for each rank, in goroutines. After the first error the ranks do not wait for one another.
func onRanks(t *testing.T, models []*toy, options func(rank int) Options, run func(rank int, tr *Trainer[[]int]) error) []error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reducers, err := accum.Local(ctx, len(models))
	require.NoError(t, err)
	errs := make([]error, len(models))
	var wait sync.WaitGroup
	for rank, r := range reducers {
		wait.Go(func() {
			o := options(rank)
			o.Reducer = r
			tr, err := New[[]int](models[rank], o)
			if err == nil {
				err = errors.Join(run(rank, tr), tr.Close())
			}
			if errs[rank] = err; err != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	return errs
}

func toys(t *testing.T, n int, dt snug.DType) (models []*toy) {
	for range n {
		models = append(models, newToy(t, dt, snug.F32))
	}
	return models
}

// ofRank returns the micro-batches of a step of a rank: some ranks have several, or none.
func ofRank(step, rank, size int) (list [][]int) {
	lo, hi := accum.Shard(4, rank, size)
	for i := lo; i < hi; i++ {
		list = append(list, []int{10*step + i, 10*step + i + 4}[:1+i%2])
	}
	return list
}

func train6(rank, size int, tr *Trainer[[]int]) error {
	for tr.Step() < 6 {
		if _, err := tr.Train(context.Background(), ofRank(tr.Step(), rank, size)); err != nil {
			return err
		}
	}
	return nil
}

// TestShards: ranks that divide state, master weights and gradients have the parameters of one Trainer with all
// micro-batches, up to rounding, and all ranks have the same bits.
func TestShards(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
		for _, o := range []Options{
			{StateBits: 8, Clip: 0.5, Optimizer: quant8.AdamW{WeightDecay: 0.1}}, {Masters: amp.SplitMaster, Clip: 1e-3}, {Masters: amp.NoMaster, StateBits: 4}, {Optimizer: quant8.Lion{}, StateBits: 16},
			{Optimizer: quant8.SGD{}}, {Masters: amp.Split24Master, Stochastic: true, Ranks: Ranks{Bucket: 5000}, Chunk: 1024},
		} {
			if dt == snug.F16 && o.Masters != amp.FullMaster && o.Masters != amp.NoMaster {
				continue
			}
			o.Schedule = Linear(1e-3, 0.1, 2, 6)
			alone := newToy(t, dt, snug.F32)
			tr := newTrainer(t, alone, o)
			for step := range 6 {
				_, err := tr.Train(context.Background(), ofRank(step, 0, 1))
				require.NoError(t, err)
			}
			for size := 1; size <= 5; size++ {
				var before []*toy
				for _, o.Shard = range []plan.Sharding{plan.ShardState, plan.ShardGradients} {
					name := fmt.Sprintf("%s, %T, %v masters, %d ranks, %v", dt, o.Optimizer, o.Masters, size, o.Shard)
					models := toys(t, size, dt)
					errs := onRanks(t, models, func(int) Options { return o }, func(rank int, tr *Trainer[[]int]) error { return train6(rank, size, tr) })
					require.NoError(t, errors.Join(errs...), name)
					for _, m := range models {
						require.Equal(t, models[0].bits(), m.bits(), name)
					}
					tolerance := map[snug.DType]float64{snug.F32: 2e-3, snug.F16: 4e-3, snug.BF16: 1.6e-2}[dt]
					require.InDeltaSlice(t, alone.floats("w"), models[0].floats("w"), tolerance, name)
					require.InDeltaSlice(t, alone.floats("b"), models[0].floats("b"), 2e-3, name)
					if before != nil && size >= 4 { // a micro-batch a rank at most
						require.Equal(t, before[0].bits(), models[0].bits(), name)
					}
					before = models
				}
			}
		}
	}
}

// TestShardsMemory: a rank holds its part of state, master weights and gradients.
func TestShardsMemory(t *testing.T) {
	const n = toyIn * toyOut
	for size := 1; size <= 4; size++ {
		for _, s := range []plan.Sharding{plan.Replicate, plan.ShardState, plan.ShardGradients} {
			errs := onRanks(t, toys(t, size, snug.BF16), func(int) Options { return Options{Ranks: Ranks{Shard: s, Bucket: 1}} }, func(rank int, tr *Trainer[[]int]) error {
				if _, err := tr.Train(context.Background(), ofRank(0, rank, size)); err != nil {
					return err
				}
				b, part := tr.Bytes(), size
				if s == plan.Replicate {
					part = 1
				}
				gradients := 4 * n
				switch s {
				case plan.ShardGradients: // and two buckets, of which each has a parameter
					gradients = 4*n/size + 2*4*n
				}
				for name, c := range map[string][2]int64{
					"masters": {b[meter.Masters], int64(4 * n / part)}, "state": {b[meter.State], int64(8 * n / part)}, "gradients": {b[meter.Gradients], int64(gradients)},
				} {
					if c[0] < c[1]*90/100 || c[0] > c[1]*112/100+5000 {
						return fmt.Errorf("%s, %v, rank %d of %d: %d bytes, want about %d", name, s, rank, size, c[0], c[1])
					}
				}
				return nil
			})
			require.NoError(t, errors.Join(errs...))
		}
	}
}

// TestShardsResume: a checkpoint holds whole parameters, so that a run goes on with any number of ranks and any
// Sharding: with the same bits if both are the same, else up to rounding.
//
//check:in race
func TestShardsResume(t *testing.T) {
	for _, o := range []Options{
		{StateBits: 8, Clip: 1}, {Masters: amp.SplitMaster, StateBits: 32, Chunk: 1024}, {Masters: amp.Split24Master, Stochastic: true, StateBits: 16, Seed: 5}, {Masters: amp.NoMaster},
	} {
		run := func(dir string, size, to int, s plan.Sharding) []*toy {
			models := toys(t, size, snug.BF16)
			errs := onRanks(t, models, func(int) Options {
				o := o
				o.Shard, o.Dir, o.SaveEvery = s, dir, 2
				return o
			}, func(rank int, tr *Trainer[[]int]) error {
				for tr.Step() < to {
					if _, err := tr.Train(context.Background(), ofRank(tr.Step(), rank, size)); err != nil {
						return err
					}
				}
				return nil
			})
			require.NoError(t, errors.Join(errs...))
			return models
		}
		for _, s := range []plan.Sharding{plan.ShardState, plan.ShardGradients} {
			whole := run(t.TempDir(), 2, 6, s)
			for _, other := range []struct {
				size int
				s    plan.Sharding
			}{{2, s}, {2, plan.Replicate}, {1, plan.Replicate}, {1, s}, {3, plan.ShardState}, {5, plan.ShardGradients}} {
				dir := t.TempDir()
				run(dir, 2, 4, s)
				models := run(dir, other.size, 6, other.s)
				name := fmt.Sprintf("%v masters, from %v to %+v", o.Masters, s, other)
				if other.size == 2 && other.s == s {
					require.Equal(t, whole[0].bits(), models[0].bits(), name)
				}
				require.InDeltaSlice(t, whole[0].floats("w"), models[0].floats("w"), 2e-2, name)
				require.InDeltaSlice(t, whole[0].floats("b"), models[0].floats("b"), 1e-3, name)
			}
		}
	}
}

// TestShardsCheckpoint: the parts of a checkpoint do not depend on the Sharding.
func TestShardsCheckpoint(t *testing.T) {
	for _, masters := range []amp.MasterForm{amp.FullMaster, amp.SplitMaster} {
		var want map[string][]byte
		for _, s := range []plan.Sharding{plan.ShardState, plan.ShardGradients} {
			for size := range 2 { // both have a micro-batch on rank 0 only
				dir, models := t.TempDir(), toys(t, 3+size, snug.BF16)
				errs := onRanks(t, models, func(int) Options {
					return Options{Masters: masters, StateBits: 8, Ranks: Ranks{Shard: s}, Checkpoints: Checkpoints{Dir: dir, SaveEvery: 1}}
				},
					func(rank int, tr *Trainer[[]int]) error {
						var batches [][]int
						if rank == 0 {
							batches = [][]int{{1, 2}}
						}
						_, err := tr.Train(context.Background(), batches)
						return err
					})
				require.NoError(t, errors.Join(errs...))
				parts := partsIn(t, dir)
				if want == nil {
					want = parts
				}
				require.Equal(t, want, parts)
			}
		}
		alone, dir := newToy(t, snug.BF16, snug.F32), t.TempDir()
		tr := newTrainer(t, alone, Options{Masters: masters, StateBits: 8, Checkpoints: Checkpoints{Dir: dir, SaveEvery: 1}})
		_, err := tr.Train(context.Background(), [][]int{{1, 2}})
		require.NoError(t, err)
		require.NoError(t, tr.Close())
		require.Len(t, want, len(filesIn(t, dir)))
		for _, path := range filesIn(t, dir) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.Contains(data, want[filepath.Base(path)]), path)
		}
	}
}

// partsIn returns what the parts of the newest checkpoint hold.
func partsIn(t *testing.T, dir string) map[string][]byte {
	parts := map[string][]byte{}
	f, err := checkpoint.OpenPath(dir, checkpoint.Options{})
	require.NoError(t, err)
	for _, p := range f.Newest().Parts {
		require.NoError(t, f.Newest().Read(p.Name, func(r io.Reader) (err error) {
			parts[p.Name], err = io.ReadAll(r)
			return err
		}))
	}
	require.NoError(t, f.Close())
	return parts
}

// filesIn returns the files of all checkpoints, without headers.
func filesIn(t *testing.T, dir string) (list []string) {
	all, err := filepath.Glob(filepath.Join(dir, "step-*", "*"))
	require.NoError(t, err)
	for _, path := range all {
		if filepath.Base(path) != checkpoint.HeaderName {
			list = append(list, path)
		}
	}
	return list
}

// TestShardsSkip: a gradient that is not finite on one rank skips the step on all, or is an error on all, which names it
// on the ranks that have it.
func TestShardsSkip(t *testing.T) {
	for _, s := range []plan.Sharding{plan.ShardState, plan.ShardGradients} {
		for _, skips := range []bool{false, true} {
			models, reports := toys(t, 2, snug.F32), make([]Report, 2)
			models[1].poison = map[int]string{7: "w"}
			errs := onRanks(t, models, func(int) Options { return Options{Ranks: Ranks{Shard: s}, SkipNonFinite: skips} }, func(rank int, tr *Trainer[[]int]) (err error) {
				reports[rank], err = tr.Train(context.Background(), [][]int{{7}})
				if !skips && errors.Is(err, snug.ErrNonFinite) {
					reports[rank].Skipped, err = err.Error(), nil
				}
				return err
			})
			require.NoError(t, errors.Join(errs...))
			for rank, m := range models {
				require.Equal(t, newToy(t, snug.F32, snug.F32).bits(), m.bits())
				require.Contains(t, reports[rank].Skipped, map[int]string{0: "w[3] = NaN", 1: "1 elements of gradients are not finite on rank 0"}[rank])
			}
		}
	}
}

// brokenStorage is memory that fails when it is told.
type brokenStorage struct {
	blobs map[string][]float32
	fails *bool
}

var errStorage = errors.New("of the storage")

func (b brokenStorage) Acquire(key string, size int) ([]byte, error) {
	if *b.fails {
		return nil, errStorage
	}
	if b.blobs[key] == nil {
		b.blobs[key] = make([]float32, (size+3)/4)
	}
	v := snug.ViewOf(b.blobs[key])
	return device.Mem(&v).Bytes()[:size], nil
}

func (brokenStorage) Release(string, bool) error { return nil }

// TestShardsSaveFails: if one rank cannot send its part, or rank 0 cannot write, no rank waits for ever, all have an
// error, and a later Save succeeds.
//
//check:in race
func TestShardsSaveFails(t *testing.T) {
	for failing := range 3 {
		dir, models := t.TempDir(), toys(t, 3, snug.BF16)
		fails := make([]bool, 3)
		errs := onRanks(t, models, func(rank int) Options {
			return Options{Ranks: Ranks{Shard: plan.ShardGradients}, Checkpoints: Checkpoints{Dir: dir}, Storage: brokenStorage{map[string][]float32{}, &fails[rank]}}
		}, func(rank int, tr *Trainer[[]int]) error {
			if _, err := tr.Train(context.Background(), ofRank(0, rank, 3)); err != nil {
				return err
			}
			if rank == failing {
				fails[rank] = true
			}
			err := tr.Save(context.Background())
			if rank == failing && !errors.Is(err, errStorage) || rank != failing && (err == nil || errors.Is(err, errStorage)) {
				return fmt.Errorf("rank %d: %w", rank, err)
			}
			fails[rank] = false
			return tr.Save(context.Background())
		})
		require.NoError(t, errors.Join(errs...), failing)
		require.NotEmpty(t, filesIn(t, dir))
	}
	// A context that has ended stops the writing on rank 0.
	dir := t.TempDir()
	errs := onRanks(t, toys(t, 2, snug.BF16), func(int) Options {
		return Options{Ranks: Ranks{Shard: plan.ShardState}, Checkpoints: Checkpoints{Dir: dir}}
	}, func(rank int, tr *Trainer[[]int]) error {
		if _, err := tr.Train(context.Background(), ofRank(0, rank, 2)); err != nil {
			return err
		}
		ended, end := context.WithCancel(context.Background())
		if end(); rank == 1 {
			ended = context.Background()
		}
		if err := tr.Save(ended); err == nil {
			return errors.New("no error")
		}
		return tr.Save(context.Background())
	})
	require.NoError(t, errors.Join(errs...))
}

// TestShardOptions: what cannot be divided is an error, the same on all ranks.
func TestShardOptions(t *testing.T) {
	reducers, err := accum.Local(t.Context(), 1)
	require.NoError(t, err)
	for want, o := range map[string]Options{
		"Shard wants a Reducer":                     {Ranks: Ranks{Shard: plan.ShardState}},
		"ShardWeights wants an accum.Pages":         {Ranks: Ranks{Shard: plan.ShardWeights, Reducer: reducers[0]}},
		"Shard is 4":                                {Ranks: Ranks{Shard: 4, Reducer: reducers[0]}},
		"Shard does not go with the optimizer muon": {Optimizer: quant8.Muon{}, Ranks: Ranks{Shard: plan.ShardState, Reducer: reducers[0]}},
		"Shard does not go with the optimizer soap": {Optimizer: quant8.SOAP{}, Ranks: Ranks{Shard: plan.ShardState, Reducer: reducers[0]}},
		"Shard does not go with the optimizer lamb": {Optimizer: quant8.LAMB{}, Ranks: Ranks{Shard: plan.ShardGradients, Reducer: reducers[0]}},
		"Shard does not go with Measure":            {Measure: true, Ranks: Ranks{Shard: plan.ShardGradients, Reducer: reducers[0]}},
		"the Reducer is no accum.SendReceiver":      {Ranks: Ranks{Shard: plan.ShardGradients, Reducer: struct{ accum.Reducer }{reducers[0]}}},
		"Shard is -1, want Replicate, ShardState":   {Ranks: Ranks{Shard: -1, Reducer: reducers[0]}},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := New[[]int](newToy(t, snug.F32, snug.F32), o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
}

// TestRanksOptions: options that differ between ranks are an error on all of them, which names the option. Rates that
// differ at a later step are an error of that step, before anything is updated.
//
//check:in race
func TestRanksOptions(t *testing.T) {
	same := Options{Masters: amp.FullMaster}
	for want, change := range map[string]func(o *Options){
		"another Params than rank 0": func(o *Options) { o.Params = func(string) quant8.ParamOptions { return quant8.ParamOptions{LR: 2} } },
		"another Scaler than rank 0": func(o *Options) { o.Scaler = &amp.ScalerOptions{Init: 8} },
		"another About (model, data": func(o *Options) { o.About = map[string]int{"data": 2} },
		"another Fill than rank 0": func(o *Options) {
			o.Fill = func(string) FirstValue { return func(_ int, w []float32) error { clear(w); return nil } }
		},
		"another Measure than rank 0":   func(o *Options) { o.Measure = true },
		"another CountLost than rank 0": func(o *Options) { o.CountLost = true },
		"another Shard than rank 0":     func(o *Options) { o.Shard = plan.ShardState },
		"another Bucket than rank 0":    func(o *Options) { o.Bucket = 7 },
	} {
		t.Run(want, func(t *testing.T) {
			errs := onRanks(t, toys(t, 3, snug.BF16), func(rank int) Options {
				o := same
				if rank == 1 {
					change(&o)
				}
				return o
			}, func(int, *Trainer[[]int]) error { return nil })
			for _, err := range errs {
				require.ErrorIs(t, err, snug.ErrConfig, want)
				require.ErrorContains(t, err, "rank 1 has "+want)
			}
		})
	}
	for _, s := range []plan.Sharding{plan.Replicate, plan.ShardGradients} {
		models := toys(t, 3, snug.F32)
		var before map[string][]float32
		errs := onRanks(t, models, func(rank int) Options {
			return Options{Ranks: Ranks{Shard: s}, Schedule: func(step int) float32 { return 1e-3 + float32(rank/2)*float32(step/2) }}
		}, func(rank int, tr *Trainer[[]int]) error {
			for step := range 3 {
				if rank == 0 && step == 2 {
					before = models[0].bits()
				}
				_, err := tr.Train(context.Background(), ofRank(step, rank, 3))
				if (err != nil) != (step == 2) || err != nil && !errors.Is(err, snug.ErrConfig) {
					return fmt.Errorf("step %d: %w", step, err)
				}
			}
			return nil
		})
		require.NoError(t, errors.Join(errs...), s)
		require.Equal(t, before, models[0].bits())
	}
}

// TestRanksNotes: all ranks have the notes of the checkpoint that they resume.
func TestRanksNotes(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		resumed := false
		errs := onRanks(t, toys(t, 3, snug.F32), func(int) Options { return Options{Checkpoints: Checkpoints{Dir: dir}} }, func(rank int, tr *Trainer[[]int]) error {
			if tr.Step() > 0 {
				if rank == 2 {
					resumed = true
				}
				if string(tr.Notes()) != `{"a":5}` {
					return fmt.Errorf("notes %s on rank %d", tr.Notes(), rank)
				}
				return nil
			}
			if tr.Notes() != nil {
				return errors.New("notes of nothing")
			}
			tr.SetNotes(map[string]int{"a": 5})
			_, err := tr.Train(context.Background(), ofRank(0, rank, 3))
			return errors.Join(err, tr.Save(context.Background()))
		})
		require.NoError(t, errors.Join(errs...))
		if resumed {
			return
		}
	}
	t.Fatal("no run was resumed")
}

// TestRanksBroadcaster: with checkpoints, a Reducer that cannot broadcast is an error on all ranks before a step is made.
func TestRanksBroadcaster(t *testing.T) {
	reducers, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	errs := make([]error, 2)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		model := newToy(t, snug.F32, snug.F32)
		wait.Go(func() {
			_, errs[rank] = New[[]int](model, Options{Ranks: Ranks{Reducer: struct{ accum.Reducer }{r}}, Checkpoints: Checkpoints{Dir: t.TempDir()}})
		})
	}
	wait.Wait()
	require.ErrorContains(t, errs[0], "accum.Broadcaster")
	require.ErrorContains(t, errs[1], "rank 0 has failed")
}
