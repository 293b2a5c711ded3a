package accum

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// shardedParams are parameters of all kinds of lengths.
var shardedParams = []Param{{"a", 7}, {"b", 300}, {"none", 0}, {"c", 64}, {"d", 1000}, {"e", 1}}

// gradientOf returns a gradient of a micro-batch of a rank.
func gradientOf(rank, micro, param, n int) []float32 {
	return kerneltest.Uniform(uint64(1000*rank+10*micro+param), n)
}

// addSharded adds the gradients of a micro-batch to a Sharded, in the order of a backward pass or in the other, and twice a half
// of the first parameter, which the last micro-batch of a rank lacks.
func addSharded(s *Sharded, rank, micro int, forward, last bool) error {
	if err := s.Begin(); err != nil {
		return err
	}
	order := make([]int, len(shardedParams))
	for i := range order {
		if order[i] = i; !forward {
			order[i] = len(order) - 1 - i
		}
	}
	for _, i := range order {
		q := shardedParams[i]
		if last && i == 0 {
			continue
		}
		g := gradientOf(rank, micro, i, q.Len)
		for again := range 2 {
			acc, into, err := s.Into(q.Name)
			if err != nil {
				return err
			}
			here := snug.ViewOf(make([]float32, q.Len))
			if err := snug.Copy(here, acc); err != nil {
				return err
			}
			for j, x := range here.Float32s() {
				if into.Beta == 0 {
					x = 0
				}
				if i == 0 || again == 0 {
					x = into.Beta*x + into.Alpha*g[j]
				}
				here.Float32s()[j] = x
			}
			if err := snug.Copy(acc, here); err != nil {
				return err
			}
			if i != 0 {
				break
			}
		}
		if i%2 == 0 || forward {
			if err := s.Done(q.Name); err != nil {
				return err
			}
		}
	}
	return s.End()
}

// TestSharded: the parts of the ranks are the weighted mean over all micro-batches, of which ranks have different
// numbers, and Gather brings values together, bit for bit.
//
//check:in ordered
//check:not checked
func TestSharded(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for size := 1; size <= 5; size++ {
			for _, o := range []ShardedOptions{
				{}, {Whole: true}, {Bucket: 1, Align: 8}, {Bucket: 1, Align: 8, Whole: true}, {Bucket: 400, Align: 64}, {Bucket: 400, Align: 3, Whole: true},
			} {
				t.Run(fmt.Sprintf("%d/%+v", size, o), func(t *testing.T) { sharded(t, p, size, o) })
				o.Chunk = func(name string) int { // every second parameter is alone
					i := slices.IndexFunc(shardedParams, func(p Param) bool { return p.Name == name })
					align := max(o.Align, 1)
					return i % 2 * ((shardedParams[i].Len+size-1)/size + align - 1) / align * align
				}
				t.Run(fmt.Sprintf("%d/chunks/%d/%d/%t", size, o.Bucket, o.Align, o.Whole), func(t *testing.T) { sharded(t, p, size, o) })
			}
		}
	})
}

func sharded(t *testing.T, p kerneltest.Backend, size int, o ShardedOptions) {
	micros := func(rank int) int { return (rank + 2) % 3 } // rank 1 has none
	weight := func(rank, micro int) float64 { return float64(3*rank + micro + 1) }
	total := 0.0
	for rank := range size {
		for micro := range micros(rank) {
			total += weight(rank, micro)
		}
	}
	want := make([][]float64, len(shardedParams))
	for i, q := range shardedParams {
		want[i] = make([]float64, q.Len)
		for rank := range size {
			for micro := range micros(rank) {
				if i == 0 && micro == micros(rank)-1 {
					continue
				}
				for j, g := range gradientOf(rank, micro, i, q.Len) {
					if i == 0 {
						g *= 2
					}
					want[i][j] += weight(rank, micro) / total * float64(g)
				}
			}
		}
	}
	types := []snug.DType{snug.F32, snug.BF16, snug.F16}
	covered := make([]int, len(shardedParams))
	values := make([]map[string]snug.View, size) // of each rank, of its parts at first
	for rank := range values {
		values[rank] = map[string]snug.View{}
		for i, q := range shardedParams {
			values[rank][q.Name] = kerneltest.PutFloats(t, p, types[i%3], make([]float32, q.Len)).View
		}
	}
	sums := make([][][]float32, size)
	requireRanks(t, size, func(r Reducer) error {
		o := o
		o.Reducer, o.Device = r, p.Dev
		s, err := NewSharded(shardedParams, o)
		if err != nil {
			return err
		}
		for window := range 2 { // the second has the same bits
			var weights []float64
			for micro := range micros(r.Rank()) {
				weights = append(weights, weight(r.Rank(), micro))
			}
			if err := s.Start(weights); err != nil {
				return err
			}
			for micro := range weights {
				if err := addSharded(s, r.Rank(), micro, window == 1, micro == len(weights)-1); err != nil {
					return err
				}
			}
			if err := s.Finish(); err != nil {
				return err
			}
			got := make([][]float32, len(shardedParams))
			for i, q := range shardedParams {
				got[i] = make([]float32, q.Len)
				lo, grad, err := s.Part(q.Name)
				if err != nil {
					return err
				}
				if grad.Len() == 0 {
					continue
				}
				if err := snug.Copy(snug.ViewOf(got[i][lo:lo+grad.Len()]), grad); err != nil {
					return err
				}
			}
			if window == 1 && fmt.Sprint(got) != fmt.Sprint(sums[r.Rank()]) {
				return errors.New("the second window has other gradients")
			}
			sums[r.Rank()] = got
		}
		if s.Total() != total {
			return fmt.Errorf("a total of %v, want %v", s.Total(), total)
		}
		for i, q := range shardedParams {
			lo, hi := s.Range(q.Name, r.Rank())
			if align := max(o.Align, 1); lo%align > 0 && lo < q.Len || hi%align > 0 && hi < q.Len {
				return fmt.Errorf("elements %d to %d of %q are not aligned to %d", lo, hi, q.Name, align)
			}
			part, err := values[r.Rank()][q.Name].Slice(lo, hi)
			if err != nil {
				return err
			}
			if err := snug.Copy(part, narrowed(sums[r.Rank()][i][lo:hi], types[i%3])); err != nil {
				return err
			}
		}
		return errors.Join(s.Gather(func(name string) snug.View { return values[r.Rank()][name] }), s.Close())
	})
	for i, q := range shardedParams {
		all := make([]float32, q.Len)
		for rank := range size {
			for j, x := range sums[rank][i] {
				all[j] += x // only one rank has it
				if x != 0 {
					covered[i]++
				}
			}
		}
		require.Equal(t, len(all), covered[i], "%q", q.Name)
		for j, x := range all {
			require.InDelta(t, want[i][j], x, 0x1p-20, "%q, element %d", q.Name, j)
		}
		for rank := range size {
			if o.Chunk != nil && o.Chunk(q.Name) > 0 {
				continue // not for Gather
			}
			here, _, err := snug.MakeView(snug.CPU(), types[i%3], q.Len)
			require.NoError(t, err)
			require.NoError(t, snug.Copy(here, values[rank][q.Name]))
			expected := narrowed(all, types[i%3])
			require.Equal(t, string(device.Mem(&expected).Bytes()), string(device.Mem(&here).Bytes()), "%q on rank %d", q.Name, rank)
		}
	}
}

// narrowed returns numbers in another type.
func narrowed(x []float32, dt snug.DType) snug.View {
	switch dt {
	case snug.BF16:
		out := make([]snug.BFloat16, len(x))
		for i, v := range x {
			out[i] = snug.ToBFloat16(v)
		}
		return snug.ViewOf(out)
	case snug.F16:
		out := make([]snug.Float16, len(x))
		for i, v := range x {
			out[i] = float16.Fromfloat32(v)
		}
		return snug.ViewOf(out)
	}
	return snug.ViewOf(x)
}

// TestShardedMemory: a rank holds its parts of the gradients and two buckets, however many micro-batches there are. With
// Whole it holds all gradients.
func TestShardedMemory(t *testing.T) {
	const n, each = 64, 1000
	var params []Param
	for i := range n {
		params = append(params, Param{fmt.Sprint(i), each})
	}
	for _, whole := range []bool{false, true} {
		for size := 1; size <= 4; size++ {
			requireRanks(t, size, func(r Reducer) error {
				s, err := NewSharded(params, ShardedOptions{Reducer: r, Bucket: 4 * each, Align: 8, Whole: whole})
				if err != nil {
					return err
				}
				if err := s.Start([]float64{1, 2, 3}); err != nil {
					return err
				}
				for range 3 {
					if err := s.Begin(); err != nil {
						return err
					}
					for i := n - 1; i >= 0; i-- {
						acc, into, err := s.Into(params[i].Name)
						if err != nil {
							return err
						}
						for j, x := range acc.Float32s() {
							acc.Float32s()[j] = into.Beta*x + into.Alpha
						}
						if err := s.Done(params[i].Name); err != nil {
							return err
						}
					}
					if err := s.End(); err != nil {
						return err
					}
				}
				if err := s.Finish(); err != nil {
					return err
				}
				want := int64(4*n*each/size + 2*4*4*each)
				if whole {
					want = 4 * n * each
				}
				if got := s.Bytes(); math.Abs(float64(got-want)) > 0.02*float64(want) {
					return fmt.Errorf("%d ranks hold %d bytes each, want %d", size, got, want)
				}
				return nil
			})
		}
	}
}

// failingScatter is a Reducer whose ReduceScatter fails, panics or ends its goroutine at a call.
type failingScatter struct {
	Reducer
	calls, at int
	how       string
}

func (f *failingScatter) ReduceScatter(v snug.View) error {
	if f.calls++; f.calls < f.at {
		return f.Reducer.ReduceScatter(v)
	}
	switch f.how {
	case "panic":
		panic(errReducer)
	case "exit":
		runtime.Goexit()
	}
	return errReducer
}

var errReducer = errors.New("of the reducer")

// TestShardedFails: whatever a Reducer does, no call hangs, and Reset begins anew.
func TestShardedFails(t *testing.T) {
	for _, how := range []string{"error", "panic", "exit"} {
		for _, whole := range []bool{false, true} {
			for at := 1; at <= 9; at++ {
				alone, err := Local(t.Context(), 1)
				require.NoError(t, err)
				r := &failingScatter{Reducer: alone[0], at: at, how: how}
				s, err := NewSharded(shardedParams, ShardedOptions{Reducer: r, Bucket: 1, Whole: whole})
				require.NoError(t, err)
				window := func() error {
					if err := s.Start([]float64{1, 1}); err != nil {
						return err
					}
					for micro := range 2 {
						if err := addSharded(s, 0, micro, false, false); err != nil {
							return err
						}
					}
					return s.Finish()
				}
				err = kerneltest.Recovered(window)
				if whole && at > len(s.buckets) {
					require.NoError(t, err)
					continue
				}
				require.Error(t, err, "%s at %d", how, at)
				if how != "exit" {
					require.ErrorIs(t, err, errReducer)
				}
				require.ErrorContains(t, s.Start([]float64{1}), "call Reset first")
				require.Error(t, s.Finish())
				r.at = math.MaxInt
				s.Reset()
				require.NoError(t, window())
				require.NoError(t, s.Close())
			}
		}
	}
}

// TestShardedErrors: calls out of order and bad arguments are errors, and change nothing.
func TestShardedErrors(t *testing.T) {
	ranks, err := Local(context.Background(), 1)
	require.NoError(t, err)
	for want, o := range map[string]ShardedOptions{
		"wants a Reducer":   {},
		"Bucket is -1":      {Reducer: ranks[0], Bucket: -1},
		"Align -1 elements": {Reducer: ranks[0], Align: -1},
		"aligned to":        {Reducer: ranks[0], Align: math.MaxInt / 2},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := NewSharded(shardedParams, o)
			require.ErrorContains(t, err, want)
		})
	}
	_, err = NewSharded([]Param{{"a", 1}, {"a", 1}}, ShardedOptions{Reducer: ranks[0]})
	require.ErrorIs(t, err, snug.ErrConfig)
	var zero Sharded
	for _, s := range []*Sharded{new(Sharded), &zero} {
		require.ErrorIs(t, s.Start(nil), snug.ErrConfig)
		require.ErrorIs(t, s.Begin(), snug.ErrConfig)
		require.ErrorIs(t, s.Gather(nil), snug.ErrConfig)
		s.Reset()
		require.NoError(t, s.Close())
	}
	s, err := NewSharded([]Param{{"a", 3}, {"b", 2}}, ShardedOptions{Reducer: ranks[0]})
	require.NoError(t, err)
	must := func(err error, want string) {
		t.Helper()
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, want)
	}
	must(s.Begin(), "call Start first")
	must(s.Start(nil), "no rank has a micro-batch")
	for _, w := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		must(s.Start([]float64{1, w}), "want a finite number above 0")
	}
	must(s.Start([]float64{math.MaxFloat64, math.MaxFloat64}), "not finite")
	require.NoError(t, s.Start([]float64{1, 1e-300}))
	must(s.Start([]float64{1}), "no micro-batch is open")
	must(s.Finish(), "0 micro-batches of 2")
	must(s.Gather(func(string) snug.View { return snug.View{} }), "no micro-batch is open")
	for range 2 {
		require.NoError(t, s.Begin())
		must(s.Begin(), "a micro-batch is open")
		_, _, err = s.Into("c")
		must(err, `no parameter "c"`)
		must(s.Done("a"), "call Into first")
		acc, into, err := s.Into("a")
		require.NoError(t, err)
		require.Positive(t, into.Alpha)
		require.Equal(t, 3, acc.Len())
		clear(acc.Float32s())
		require.NoError(t, s.Done("a"))
		must(s.Done("a"), "Done once")
		_, _, err = s.Into("a")
		must(err, "is done")
		_, _, err = s.Part("a")
		must(err, "a micro-batch is open")
		require.NoError(t, s.End())
	}
	must(s.Begin(), "one more")
	require.NoError(t, s.Finish())
	_, _, err = s.Part("c")
	must(err, `no parameter "c"`)
	must(s.Gather(nil), "the function is nil")
	x := map[string]snug.View{"a": snug.ViewOf(make([]float32, 3)), "b": snug.ViewOf(make([]float32, 1))}
	value := func(name string) snug.View { return x[name] }
	require.ErrorIs(t, s.Gather(value), snug.ErrShape)
	x["b"] = snug.SliceView(make([]uint8, 2))
	require.ErrorIs(t, s.Gather(value), snug.ErrDType)
	x["b"] = snug.ViewOf(make([]float32, 2))
	require.NoError(t, s.Gather(value))
	for range s.Gradients() {
		t.Fatal("there are gradients after Gather")
	}
	require.NoError(t, s.Close())
	must(s.Start([]float64{1}), "is closed")
	lo, hi := s.Range("a", 0)
	require.Zero(t, lo+hi)
}

// TestShardedDiffers: ranks whose parameters lie in other places get an error, not sums of other elements.
func TestShardedDiffers(t *testing.T) {
	for rank, other := range []ShardedOptions{{Align: 2}, {Bucket: 1}, {Whole: true}} {
		errs := onRanks(t, 2, func(r Reducer) error {
			o, params := ShardedOptions{}, []Param{{"b", 2}, {"a", 1}}
			if r.Rank() == 1 {
				o = other
			}
			o.Reducer = r
			s, err := NewSharded(params, o)
			if err != nil {
				return err
			}
			return s.Start([]float64{1})
		})
		for _, err := range errs {
			require.ErrorContains(t, err, "rank 1 has other parameters, or another Bucket, Align or Whole", rank)
		}
	}
}
