package train

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// together trains a toy for each rank, to six steps, with the micro-batches that share gives each.
func together(t *testing.T, size int, dt snug.DType, o Options, share func(rank, step int) [][]int) (models []*toy, reports [][]Report) {
	t.Helper()
	reducers, err := accum.Local(t.Context(), size)
	require.NoError(t, err)
	models, reports = make([]*toy, size), make([][]Report, size)
	for rank := range size {
		models[rank] = newToy(t, dt, dt)
	}
	errs := make([]error, size)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		wait.Go(func() {
			errs[rank] = func() error {
				o := o
				o.Reducer = r
				tr, err := New[[]int](models[rank], o)
				if err != nil {
					return err
				}
				for step := range 6 {
					report, err := tr.Train(context.Background(), share(rank, step))
					if err != nil {
						return err
					}
					reports[rank] = append(reports[rank], report)
				}
				return tr.Close()
			}()
		})
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	return models, reports
}

// TestRanks: any number of ranks has the losses and parameters of one Trainer with all micro-batches, up to rounding,
// and all ranks have the same bits; also ranks without micro-batches.
func TestRanks(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
		o := Options{Optimizer: quant8.AdamW{WeightDecay: 0.1}, StateBits: 8, Clip: 0.5, Schedule: Linear(1e-2, 0.1, 2, 6)}
		all := func(step int) (list [][]int) {
			for i := range 4 {
				list = append(list, []int{10*step + i, 10*step + i + 4}[:1+i%2])
			}
			return list
		}
		alone := newToy(t, dt, dt)
		tr := newTrainer(t, alone, o)
		var want []Report
		for step := range 6 {
			r, err := tr.Train(context.Background(), all(step))
			require.NoError(t, err)
			want = append(want, r)
		}
		for _, size := range []int{1, 2, 3, 4, 6} {
			models, reports := together(t, size, dt, o, func(rank, step int) [][]int {
				lo, hi := accum.Shard(4, rank, size)
				return all(step)[lo:hi]
			})
			for rank, m := range models {
				require.Equal(t, models[0].floats("w"), m.floats("w"), "%s, rank %d of %d", dt, rank, size)
				require.Equal(t, reports[0], reports[rank])
				require.InDeltaSlice(t, alone.floats("w"), m.floats("w"), 2e-3, "%s, %d ranks", dt, size)
			}
			for i, r := range reports[0] {
				require.InDelta(t, want[i].Loss, r.Loss, 1e-3*want[i].Loss, "%s, %d ranks, step %d", dt, size, i)
				require.Equal(t, want[i].Targets, r.Targets)
			}
		}
	}
}

// TestRanksSkip: a gradient that is not finite on one rank skips the step on all.
func TestRanksSkip(t *testing.T) {
	models, reports := make([]*toy, 2), make([]Report, 2)
	reducers, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	var wait sync.WaitGroup
	errs := make([]error, 2)
	for rank := range models {
		models[rank] = newToy(t, snug.F32, snug.F32)
		if rank == 1 {
			models[rank].poison = map[int]string{7: "w"}
		}
		wait.Go(func() {
			tr, err := New[[]int](models[rank], Options{Ranks: Ranks{Reducer: reducers[rank]}, SkipNonFinite: true})
			if err == nil {
				reports[rank], err = tr.Train(context.Background(), [][]int{{7}})
			}
			errs[rank] = err
		})
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	for rank, r := range reports {
		require.NotEmpty(t, r.Skipped)
		require.Equal(t, newToy(t, snug.F32, snug.F32).floats("w"), models[rank].floats("w"))
	}
}

// TestRanksResume: rank 0 writes checkpoints, from which any number of ranks goes on: as many with the same bits as
// without the interruption, others with rounding.
//
//check:in race
func TestRanksResume(t *testing.T) {
	o := Options{Optimizer: quant8.AdamW{}, StateBits: 8, Checkpoints: Checkpoints{SaveEvery: 2}, Clip: 1, Schedule: Constant(1e-3)}
	run := func(dir string, size, from, to int) (models []*toy, errs []error) {
		reducers, err := accum.Local(t.Context(), size)
		require.NoError(t, err)
		models, errs = make([]*toy, size), make([]error, size)
		var wait sync.WaitGroup
		for rank, r := range reducers {
			models[rank] = newToy(t, snug.BF16, snug.F32)
			wait.Go(func() {
				o := o
				o.Reducer, o.Dir = r, dir
				tr, err := New[[]int](models[rank], o)
				for err == nil && tr.Step() < to {
					if tr.Step() < from {
						err = errors.New("the run does not go on")
						break
					}
					lo, hi := accum.Shard(4, rank, size)
					var batches [][]int
					for i := lo; i < hi; i++ {
						batches = append(batches, []int{10*tr.Step() + i})
					}
					_, err = tr.Train(context.Background(), batches)
				}
				if tr != nil {
					err = errors.Join(err, tr.Close())
				}
				errs[rank] = err
			})
		}
		wait.Wait()
		return models, errs
	}
	whole, errs := run(t.TempDir(), 2, 0, 6)
	require.NoError(t, errors.Join(errs...))
	for _, size := range []int{2, 1, 3} {
		dir := t.TempDir()
		_, errs := run(dir, 2, 0, 4)
		require.NoError(t, errors.Join(errs...))
		models, errs := run(dir, size, 4, 6)
		require.NoError(t, errors.Join(errs...))
		for _, m := range models {
			require.Equal(t, models[0].bits(), m.bits())
		}
		if size == 2 {
			require.Equal(t, whole[0].bits(), models[0].bits())
		} else {
			require.InDeltaSlice(t, whole[0].floats("w"), models[0].floats("w"), 1e-2)
			require.InDeltaSlice(t, whole[0].floats("b"), models[0].floats("b"), 1e-4)
		}
		// Damage is an error on all ranks.
		parts, err := filepath.Glob(filepath.Join(dir, "*", "optimizer"))
		require.NoError(t, err)
		require.NotEmpty(t, parts)
		for _, part := range parts {
			data, err := os.ReadFile(part)
			require.NoError(t, err)
			data[len(data)/2] ^= 1
			require.NoError(t, os.WriteFile(part, data, 0o666))
		}
		_, errs = run(dir, 1, 6, 6)
		require.ErrorIs(t, errs[0], snug.ErrCorrupt)
	}
	dir := t.TempDir()
	_, errs = run(dir, 2, 0, 4)
	require.NoError(t, errors.Join(errs...))
	o.StateBits = 32
	_, errs = run(dir, 3, 4, 6)
	for rank, err := range errs {
		require.Error(t, err)
		require.Equal(t, rank == 0, errors.Is(err, snug.ErrConfig), err)
		require.Equal(t, rank > 0, errors.Is(err, errRank0), err)
	}
}

// TestStream: what rank 0 reads arrives whole on the other ranks, of any length, and so does an error.
func TestStream(t *testing.T) {
	for _, n := range []int{0, 1, streamBytes - 1, streamBytes, streamBytes + 1, 3*streamBytes + 7} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7)
		}
		for _, fail := range []error{nil, errors.New("disk")} {
			reducers, err := accum.Local(t.Context(), 3)
			require.NoError(t, err)
			var wait sync.WaitGroup
			got, errs := make([][]byte, 3), make([]error, 3)
			for rank, r := range reducers {
				s := &stream{all: r.(accum.Broadcaster), buffer: make([]byte, streamBytes)}
				if rank == 0 {
					s.from = io.MultiReader(bytes.NewReader(data), iotest.ErrReader(cmp.Or(fail, io.EOF)))
				}
				wait.Go(func() { got[rank], errs[rank] = io.ReadAll(s) })
			}
			wait.Wait()
			for rank := range got {
				if fail == nil {
					require.NoError(t, errs[rank])
					require.Equal(t, data, got[rank])
				} else {
					require.ErrorIs(t, errs[rank], map[bool]error{true: fail, false: errRank0}[rank == 0])
				}
			}
		}
	}
}

// TestRanksDiffer: New refuses ranks with other options or other values, and options that do not go with a Reducer.
func TestRanksDiffer(t *testing.T) {
	for want, second := range map[string]struct {
		model *toy
		o     Options
	}{
		"rank 1 has another StateBits than rank 0":          {newToy(t, snug.F32, snug.F32), Options{StateBits: 8}},
		"rank 1 has other values of parameters than rank 0": {newToy(t, snug.F32, snug.F32), Options{}},
	} {
		if second.o.StateBits == 0 {
			second.model.values["b"].Float32s()[3]++
		}
		reducers, err := accum.Local(t.Context(), 2)
		require.NoError(t, err)
		errs := make([]error, 2)
		var wait sync.WaitGroup
		for rank, m := range []*toy{newToy(t, snug.F32, snug.F32), second.model} {
			o := Options{}
			if rank == 1 {
				o = second.o
			}
			o.Reducer = reducers[rank]
			wait.Go(func() { _, errs[rank] = New[[]int](m, o) })
		}
		wait.Wait()
		for _, err := range errs {
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		}
	}
	reducers, err := accum.Local(t.Context(), 1)
	require.NoError(t, err)
	for want, o := range map[string]Options{
		"InBackward": {Gradients: plan.InBackward},
		"mezo":       {Optimizer: quant8.MeZO{}},
		"Bucket":     {Ranks: Ranks{Bucket: -1}},
	} {
		t.Run(want, func(t *testing.T) {
			o.Reducer = reducers[0]
			_, err := New[[]int](newToy(t, snug.F32, snug.F32), o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
	tr, err := New[[]int](newToy(t, snug.F32, snug.F32), Options{Ranks: Ranks{Reducer: reducers[0]}, Masters: amp.NoMaster})
	require.NoError(t, err)
	_, err = tr.Train(context.Background(), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "no micro-batch of any rank")
}
