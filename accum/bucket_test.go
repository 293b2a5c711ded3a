package accum

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// onRanks runs work on a goroutine for each rank and returns their errors. After the first error the ranks do not wait
// for one another.
func onRanks(t *testing.T, size int, work func(r Reducer) error) []error {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ranks, err := Local(ctx, size)
	require.NoError(t, err)
	errs := make([]error, size)
	var wg sync.WaitGroup
	for i, r := range ranks {
		require.Equal(t, []int{i, size}, []int{r.Rank(), r.Size()})
		wg.Go(func() {
			if errs[i] = work(r); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errs
}

func requireRanks(t *testing.T, size int, work func(r Reducer) error) {
	for rank, err := range onRanks(t, size, work) {
		require.NoError(t, err, "rank %d of %d", rank, size)
	}
}

// TestBuckets has the order and the moment of the calls of OnBucket.
func TestBuckets(t *testing.T) {
	var got []string
	params := []Param{{"a", 3}, {"b", 4}, {"c", 0}, {"d", 5}, {"e", 2}}
	w := newWindow(t, params, Options{Schedule: Constant(2), Bucket: 6, OnBucket: func(b Bucket) error {
		got = append(got, fmt.Sprint(b.Index, b.Params, b.Grads.Float32s()))
		return nil
	}})
	grads := map[string][]float32{"a": {1, 1, 1}, "b": {2, 2, 2, 2}, "c": {}, "d": {3, 3, 3, 3, 3}, "e": {4, 4}}
	micro := func(names ...string) {
		require.NoError(t, w.Begin(1))
		for _, name := range names {
			if name == "e" { // a kernel adds it
				acc, into, err := w.Into("e")
				require.NoError(t, err)
				for i := range acc.Float32s() {
					acc.Float32s()[i] = into.Alpha*4 + into.Beta*acc.Float32s()[i]
				}
				require.NoError(t, w.Done("e"))
				continue
			}
			require.NoError(t, w.Add(name, snug.ViewOf(grads[name])))
		}
	}
	micro("e", "d", "c", "b", "a")
	_, err := w.End()
	require.NoError(t, err)
	require.Empty(t, got, "not the last micro-batch")

	micro("b", "e")
	require.Empty(t, got)
	require.NoError(t, w.Add("d", snug.ViewOf(grads["d"])))
	require.Equal(t, []string{"0 [{d 5} {e 2}] [3 3 3 3 3 4 4]"}, got)
	require.NoError(t, w.Add("c", snug.ViewOf(grads["c"])))
	_, _, err = w.Into("e")
	require.ErrorIs(t, err, snug.ErrConfig, "it is done")
	_, err = w.AppendBinary(nil)
	require.ErrorIs(t, err, snug.ErrConfig, "buckets are on their way")
	full, err := w.End()
	require.NoError(t, err)
	require.True(t, full)
	require.Equal(t, []string{"0 [{d 5} {e 2}] [3 3 3 3 3 4 4]", "1 [{a 3} {b 4} {c 0}] [0.5 0.5 0.5 2 2 2 2]"}, got)

	w.Reset()
	got = nil
	micro("a")
	_, err = w.End()
	require.NoError(t, err)
	full, err = w.Flush()
	require.NoError(t, err)
	require.True(t, full)
	require.Len(t, got, 2, "the end of the data")
	full, err = w.Flush()
	require.NoError(t, err)
	require.True(t, full)
	require.Len(t, got, 2, "it is full already")

	broken := errors.New("broken")
	w = one(t, 1, Options{OnBucket: func(Bucket) error { return broken }})
	require.NoError(t, w.Begin(1))
	require.ErrorIs(t, w.Done("w"), snug.ErrConfig, "before Into")
	err = w.Add("w", snug.ViewOf([]float32{1}))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "bucket 0")
	_, err = New([]Param{{"w", 1}}, Options{Bucket: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = New([]Param{{"w", 1}}, Options{Shard: true})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestReduce has every number of ranks, with and without shards, in both types:
// ranks with micro-batches of unequal weight give the mean over all samples, and
// nothing is readable before it is reduced.
//
//check:in race
func TestReduce(t *testing.T) {
	params := []Param{{"a", 5}, {"b", 64}, {"none", 0}, {"c", 7}}
	const total, micros = 76, 3
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for size := 1; size <= 8; size++ {
			for _, shard := range []bool{false, true} {
				for _, dt := range []snug.DType{snug.F32, snug.BF16} {
					if p.Emulated && (size%3 != 2 || shard != (dt == snug.F32)) {
						continue // slow, and the kernels are the same
					}
					reduceRanks(t, p, params, size, micros, total, shard, dt)
				}
			}
		}
	})
}

func reduceRanks(t *testing.T, p kerneltest.Backend, params []Param, size, micros, total int, shard bool, dt snug.DType) {
	want, bound, weights := make([]float64, total), make([]float64, total), 0.0
	for rank := range size {
		for m := range micros {
			weight := float64(rank*m + 1)
			weights += weight
			for i, x := range kerneltest.Uniform(uint64(10*rank+m), total) {
				want[i] += weight * float64(x)
				bound[i] += weight * math.Abs(float64(x))
			}
		}
	}
	unit := 0x1p-24
	if dt == snug.BF16 {
		unit = 0x1p-7
	}
	got, covered := make([][]float32, size), make([]int, total)
	buffers := make([]snug.View, size)
	for rank := range size {
		buffers[rank] = kerneltest.PutFloats(t, p, dt, make([]float32, total)).View
	}
	grads := make([][]*kerneltest.Buf[float32], size)
	for rank := range size {
		for m := range micros {
			grads[rank] = append(grads[rank], kerneltest.Put(t, p, kerneltest.Uniform(uint64(10*rank+m), total)))
		}
	}
	requireRanks(t, size, func(r Reducer) error {
		w, err := New(params, Options{Schedule: Constant(micros), DType: dt, Buffer: buffers[r.Rank()], Bucket: 20, Reducer: r, Shard: shard})
		if err != nil {
			return err
		}
		for m := range micros {
			if err := w.Begin(float64(r.Rank()*m + 1)); err != nil {
				return err
			}
			lo := 0
			for _, q := range params {
				g, err := grads[r.Rank()][m].View.Slice(lo, lo+q.Len)
				if err != nil {
					return err
				}
				if err := w.Add(q.Name, g); err != nil {
					return err
				}
				lo += q.Len
			}
			full, err := w.End()
			if err != nil {
				return err
			}
			if _, err := w.Gradient("a"); (err == nil) != full {
				return fmt.Errorf("readable %v, full %v", err, full)
			}
		}
		if w.Total() != weights {
			return fmt.Errorf("a total of %v, want %v", w.Total(), weights)
		}
		all := make([]float32, total)
		for i := range all {
			all[i] = nan
		}
		lo := 0
		for _, q := range params {
			at, v, err := w.Part(q.Name)
			if err != nil {
				return err
			}
			x, _, err := snug.MakeView(snug.CPU(), dt, v.Len())
			if err != nil {
				return err
			}
			if v.Len() > 0 {
				if err := snug.Copy(x, v); err != nil {
					return err
				}
			}
			for i := range v.Len() {
				if dt == snug.F32 {
					all[lo+at+i] = x.Float32s()[i]
				} else {
					all[lo+at+i] = x.BFloat16s()[i].Float32()
				}
			}
			lo += q.Len
		}
		got[r.Rank()] = all
		return nil
	})
	for rank, all := range got {
		for i, x := range all {
			if x != x {
				require.True(t, shard)
				continue
			}
			covered[i]++
			require.InDelta(t, want[i]/weights, x, float64(3*micros+2*size+4)*unit*bound[i]/weights, "rank %d of %d, element %d", rank, size, i)
			if !shard {
				require.Equal(t, got[0][i], x, "all ranks have the same bits")
			}
		}
	}
	for i, n := range covered {
		require.Equal(t, map[bool]int{true: 1, false: size}[shard], n, "element %d", i)
	}
}

// TestReduceFlush has ranks whose data ends at different places: one has no
// micro-batch left.
//
//check:in race
func TestReduceFlush(t *testing.T) {
	for _, micros := range [][]int{{2, 0, 1}, {0, 0, 0}} {
		requireRanks(t, 3, func(r Reducer) error {
			w, err := New([]Param{{"w", 2}}, Options{Schedule: Constant(5), Reducer: r})
			if err != nil {
				return err
			}
			for range micros[r.Rank()] {
				if err := w.Begin(2); err != nil {
					return err
				}
				if err := w.Add("w", snug.ViewOf([]float32{float32(r.Rank()), 3})); err != nil {
					return err
				}
				if _, err := w.End(); err != nil {
					return err
				}
			}
			full, err := w.Flush()
			if err != nil {
				return err
			}
			if micros[0] == 0 {
				if full {
					return errors.New("full without data")
				}
				return nil
			}
			v, err := w.Gradient("w")
			if err != nil {
				return err
			}
			if x := v.Float32s(); !full || math.Abs(float64(x[0])-2.0/3) > 1e-6 || math.Abs(float64(x[1])-3) > 1e-6 || w.Total() != 6 {
				return fmt.Errorf("full %v, %v of %v", full, x, w.Total())
			}
			return nil
		})
	}
}

// TestReduceNonFinite has an infinity on one rank: all of them see it.
//
//check:in race
func TestReduceNonFinite(t *testing.T) {
	requireRanks(t, 4, func(r Reducer) error {
		w, err := New([]Param{{"w", 5}}, Options{Reducer: r, Measure: true})
		if err != nil {
			return err
		}
		g := []float32{1, 1, 1, 1, 1}
		if r.Rank() == 2 {
			g[3] = inf
		}
		if err := w.Begin(1); err != nil {
			return err
		}
		if err := w.Add("w", snug.ViewOf(g)); err != nil {
			return err
		}
		if _, err := w.End(); err != nil {
			return err
		}
		v, err := w.Gradient("w")
		if err != nil {
			return err
		}
		if v.Float32s()[3] != inf || (len(w.NonFinite()) == 1) != (r.Rank() == 2) {
			return fmt.Errorf("%v, %v", v.Float32s(), w.NonFinite())
		}
		return nil
	})
}

//check:in race
func TestLocalErrors(t *testing.T) {
	for _, size := range []int{maxLocal + 1, math.MaxInt} {
		_, err := Local(t.Context(), size)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "want 1 to 65536")
	}
	_, err := Local(t.Context(), 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	three := snug.ViewOf(make([]float32, 3))
	for _, test := range []struct {
		name string
		call func(r Reducer) error
		want error
	}{
		{"calls", func(r Reducer) error {
			if r.Rank() == 1 {
				return r.AllReduce(three)
			}
			return r.Sum(make([]float64, 3))
		}, snug.ErrConfig},
		{"lengths", func(r Reducer) error { return r.AllReduce(snug.ViewOf(make([]float32, 3+r.Rank()/2))) }, snug.ErrShape},
		{"numbers", func(r Reducer) error { return r.Sum(make([]float64, 3+r.Rank()/2)) }, snug.ErrShape},
		{"types", func(r Reducer) error {
			if r.Rank() == 1 {
				return r.AllGather(three)
			}
			return r.AllGather(snug.ViewOf(make([]snug.BFloat16, 3)))
		}, snug.ErrDType},
		{"a type", func(r Reducer) error { return r.ReduceScatter(snug.ViewOf(make([]snug.Float16, 3))) }, snug.ErrDType},
		{"a device", func(r Reducer) error { return r.AllReduce(kerneltest.Closed(t, snug.F32, 3)) }, snug.ErrDevice},
	} {
		for _, err := range onRanks(t, 3, func(r Reducer) error {
			first := test.call(r)
			if again := r.Sum([]float64{1}); again == nil {
				return errors.New("a call after an error")
			}
			return first
		}) {
			require.ErrorIs(t, err, test.want, test.name)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	ranks, err := Local(ctx, 2)
	require.NoError(t, err)
	go cancel()
	require.ErrorIs(t, ranks[0].Sum([]float64{1}), context.Canceled, "nobody else comes")
	require.ErrorIs(t, ranks[1].AllReduce(three), context.Canceled)
}

// TestLocalGather gathers what a scatter has left.
//
//check:in race
func TestLocalGather(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		const n = 2*stagingLen + 7
		for size := 1; size <= 8; size += 3 {
			bufs := make([]*kerneltest.Buf[float32], size)
			for i := range bufs {
				x := make([]float32, n)
				for j := range x {
					x[j] = float32(j + i)
				}
				bufs[i] = kerneltest.Put(t, p, x)
			}
			requireRanks(t, size, func(r Reducer) error {
				if err := r.ReduceScatter(bufs[r.Rank()].View); err != nil {
					return err
				}
				sums := []float64{float64(r.Rank()), 1}
				if err := r.Sum(sums); err != nil || sums[0] != float64(size*(size-1)/2) || sums[1] != float64(size) {
					return fmt.Errorf("%v: %w", sums, err)
				}
				return r.AllGather(bufs[r.Rank()].View)
			})
			for _, b := range bufs {
				for j, x := range b.Get() {
					require.Equal(t, float32(size*j+size*(size-1)/2), x)
				}
			}
		}
	})
}
