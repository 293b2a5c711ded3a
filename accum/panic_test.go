package accum

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// refuses has every call fail until Reset.
func refuses(t *testing.T, w *Window) {
	t.Helper()
	says := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "half-way")
	}
	says(w.Begin(1))
	says(w.Add("a", snug.ViewOf([]float32{1})))
	says(w.Done("a"))
	says(w.Rescale(2))
	_, _, err := w.Into("a")
	says(err)
	_, err = w.AddAll(kerneltest.Walk())
	says(err)
	_, err = w.End()
	says(err)
	_, err = w.Flush()
	says(err)
	_, err = w.WriteTo(io.Discard)
	says(err)
	_, err = w.Gradient("a")
	require.ErrorIs(t, err, snug.ErrConfig)
	for range w.Gradients() {
		require.Fail(t, "a gradient of half a window")
	}
	w.Reset()
	require.NoError(t, w.Begin(1))
	w.Reset()
}

// loudWalk panics, or stops, at its call number at, before gradient number before.
func loudWalk(at, before int, panics bool, grads ...kerneltest.Named) iter.Seq2[string, snug.View] {
	calls := 0
	return func(yield func(string, snug.View) bool) {
		calls++
		for i, g := range grads {
			if calls == at && i == before {
				if panics {
					panic(kerneltest.ErrFault)
				}
				return
			}
			if !yield(g.Name, g.View) {
				return
			}
		}
	}
}

// TestLoudWalkers: a walker panics or stops early in each of its walks. After the first,
// which checks, the call may be repeated, and after others the window is reset.
//
//check:in race
func TestLoudWalkers(t *testing.T) {
	a, b := kerneltest.Slice("a", []float32{1}), kerneltest.Slice("b", []float32{2})
	for _, overflow := range []NonFinitePolicy{SkipWindow, DropMicro} {
		for _, bad := range []kerneltest.Named{b, kerneltest.Slice("b", []float32{float32(math.NaN())})} {
			for at := 1; at <= 4; at++ {
				for before := range 2 {
					w := newWindow(t, []Param{{"a", 1}, {"b", 1}}, Options{NonFinite: overflow})
					require.NoError(t, w.Begin(1))
					err := kerneltest.Recovered(func() error {
						_, err := w.AddAll(loudWalk(at, before, true, a, bad))
						return err
					})
					if err == nil {
						continue // Gradients is walked fewer times
					}
					require.ErrorIs(t, err, kerneltest.ErrFault)
					if at > 1 && w.half != "" {
						refuses(t, w)
						require.NoError(t, w.Begin(1))
					}
					added, err := w.AddAll(kerneltest.Walk(a, b))
					if err != nil { // of a micro-batch that is dropped
						require.Equal(t, DropMicro, overflow)
						continue
					}
					require.True(t, added)
					_, err = w.End()
					require.NoError(t, err)
					require.Equal(t, []float32{1}, mean(t, w, "a"), "walk %d", at)
					require.Equal(t, []float32{2}, mean(t, w, "b"), "walk %d", at)
				}
			}
		}
	}
}

// TestEarlyStop: a walker that yields less in its second walk leaves a window that is reset.
func TestEarlyStop(t *testing.T) {
	w := newWindow(t, []Param{{"a", 1}, {"b", 1}}, Options{})
	require.NoError(t, w.Begin(1))
	_, err := w.AddAll(loudWalk(2, 1, false, kerneltest.Slice("a", []float32{1}), kerneltest.Slice("b", []float32{2})))
	require.ErrorIs(t, err, snug.ErrConfig)
	refuses(t, w)
}

// TestDeafWalker goes on after it was told to stop: the error stays.
func TestDeafWalker(t *testing.T) {
	w := newWindow(t, []Param{{"a", 1}, {"b", 1}}, Options{})
	require.NoError(t, w.Begin(1))
	_, err := w.AddAll(func(yield func(string, snug.View) bool) {
		yield("a", snug.ViewOf([]float32{1, 2}))
		yield("b", snug.ViewOf([]float32{1}))
	})
	require.ErrorIs(t, err, snug.ErrShape)
	added, err := w.AddAll(kerneltest.Walk(kerneltest.Slice("a", []float32{1})))
	require.NoError(t, err)
	require.True(t, added)
}

// TestLoudOnBucket panics in the goroutine of Add, End and Done.
//
//check:in race
func TestLoudOnBucket(t *testing.T) {
	for at := 1; at <= 2; at++ {
		calls := 0
		w := newWindow(t, []Param{{"a", 1}, {"b", 1}}, Options{Bucket: 1, OnBucket: func(Bucket) error {
			if calls++; calls == at {
				panic(kerneltest.ErrFault)
			}
			return nil
		}})
		require.NoError(t, w.Begin(1))
		err := kerneltest.Recovered(func() error { return w.Add("b", snug.ViewOf([]float32{1})) })
		if at == 2 {
			require.NoError(t, err)
			err = kerneltest.Recovered(func() error {
				_, err := w.End()
				return err
			})
		}
		require.ErrorIs(t, err, kerneltest.ErrFault)
		refuses(t, w)
	}
	w := newWindow(t, []Param{{"a", 1}}, Options{OnBucket: func(Bucket) error { panic(kerneltest.ErrFault) }})
	require.NoError(t, w.Begin(1))
	_, _, err := w.Into("a")
	require.NoError(t, err)
	require.ErrorIs(t, kerneltest.Recovered(func() error { return w.Done("a") }), kerneltest.ErrFault)
	refuses(t, w)
}

// loudReducer panics in one of its methods.
type loudReducer struct {
	Reducer
	in   string
	exit bool // ends the goroutine instead
}

func (r *loudReducer) loud(in string) {
	if in != r.in {
		return
	}
	if r.exit {
		runtime.Goexit()
	}
	panic(kerneltest.ErrFault)
}

func (r *loudReducer) Sum(x []float64) error { r.loud("Sum"); return r.Reducer.Sum(x) }
func (r *loudReducer) AllReduce(v snug.View) error {
	r.loud("AllReduce")
	return r.Reducer.AllReduce(v)
}
func (r *loudReducer) ReduceScatter(v snug.View) error {
	r.loud("ReduceScatter")
	return r.Reducer.ReduceScatter(v)
}

// TestLoudReducer: what panics on the goroutine that reduces comes out of End.
//
//check:in race
func TestLoudReducer(t *testing.T) {
	for _, in := range []string{"Sum", "AllReduce", "ReduceScatter", "OnBucket"} {
		for _, exit := range []bool{false, true} {
			ranks, err := Local(context.Background(), 1)
			require.NoError(t, err)
			r := &loudReducer{ranks[0], in, exit}
			w := newWindow(t, []Param{{"a", 1}, {"b", 1}}, Options{
				Reducer: r, Bucket: 1, Shard: in == "ReduceScatter",
				OnBucket: func(Bucket) error { r.loud("OnBucket"); return nil },
			})
			require.NoError(t, w.Begin(1))
			require.NoError(t, w.Add("b", snug.ViewOf([]float32{1})))
			err = kerneltest.Recovered(func() error {
				_, err := w.End()
				return err
			})
			if exit {
				require.ErrorIs(t, err, snug.ErrConfig)
			} else {
				require.ErrorIs(t, err, kerneltest.ErrFault)
			}
			refuses(t, w)
			r.in = ""
			require.NoError(t, w.Begin(1))
			require.NoError(t, w.Add("a", snug.ViewOf([]float32{3})))
			full, err := w.End()
			require.NoError(t, err)
			require.True(t, full)
			require.Equal(t, []float32{3}, mean(t, w, "a"))
		}
	}
}

// loudSchedule and loudScaler panic while they are loud.
type loudSchedule struct{ loud bool }

func (s *loudSchedule) Target(Progress) Target {
	if s.loud {
		panic(kerneltest.ErrFault)
	}
	return Target{Micros: 1}
}

type loudScaler struct{ loud bool }

func (s *loudScaler) check() {
	if s.loud {
		panic(kerneltest.ErrFault)
	}
}
func (s *loudScaler) Scale() float32                        { s.check(); return 2 }
func (s *loudScaler) AppendBinary(b []byte) ([]byte, error) { s.check(); return append(b, 1), nil }
func (s *loudScaler) UnmarshalBinary([]byte) error          { s.check(); return nil }

// TestLoudPolicies: a schedule and a scaler that panic leave a window as it was.
//
//check:in race
func TestLoudPolicies(t *testing.T) {
	schedule, scaler := &loudSchedule{}, &loudScaler{}
	w := newWindow(t, []Param{{"a", 1}}, Options{Schedule: schedule, Scaler: scaler})
	loud := func(l *bool, call func() error) {
		t.Helper()
		*l = true
		require.ErrorIs(t, kerneltest.Recovered(call), kerneltest.ErrFault)
		*l = false
	}
	loud(&scaler.loud, func() error { return w.Begin(1) })
	require.NoError(t, w.Begin(1))
	require.NoError(t, w.Add("a", snug.ViewOf([]float32{3})))
	_, err := w.End()
	require.NoError(t, err)
	require.Equal(t, []float32{3}, mean(t, w, "a"))
	require.Equal(t, Stats{Micros: 1}, w.Stats())
	loud(&scaler.loud, func() error { _, err := w.AppendBinary(nil); return err })
	data, err := w.AppendBinary(nil)
	require.NoError(t, err)
	loud(&scaler.loud, func() error { return w.UnmarshalBinary(data) })
	require.Equal(t, []float32{3}, mean(t, w, "a"))
	schedule.loud = true // which only a window that begins asks
	w.Reset()
	require.Equal(t, Progress{Step: 1, Weight: 1}, w.Progress())
	for _, ask := range []func() error{
		func() error { return w.Begin(1) },
		func() error { w.Target(); return nil },
		func() error { _, err := w.AppendBinary(nil); return err },
	} {
		loud(&schedule.loud, ask)
		require.Zero(t, w.Micros())
	}
	require.NoError(t, w.Begin(1))
	require.ErrorIs(t, kerneltest.Recovered(func() error {
		_, err := FindMicroBatch(8, 1, 4, func(Batch) error { panic(kerneltest.ErrFault) })
		return err
	}), kerneltest.ErrFault)
	_, err = New(nil, Options{Schedule: &loudSchedule{}})
	require.NoError(t, err)
	require.ErrorIs(t, kerneltest.Recovered(func() error { _, err := New(nil, Options{Schedule: &loudSchedule{loud: true}}); return err }), kerneltest.ErrFault)
}

// TestLoudStreams: a window that was restored in part is empty.
//
//check:in race
func TestLoudStreams(t *testing.T) {
	w := newWindow(t, []Param{{"a", 100}}, Options{Schedule: Constant(2)})
	begin := func() {
		require.NoError(t, w.Begin(1))
		require.NoError(t, w.Add("a", snug.ViewOf(kerneltest.Uniform(1, 100))))
		_, err := w.End()
		require.NoError(t, err)
	}
	begin()
	data, err := w.AppendBinary(nil)
	require.NoError(t, err)
	for n := 0; n < len(data); n += 50 {
		require.ErrorIs(t, kerneltest.Recovered(func() error { _, err := w.WriteTo(&kerneltest.FaultStream{Left: n}); return err }), kerneltest.ErrFault)
		again, err := w.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, data, again)
	}
	emptied := 0
	for n := 0; ; n += 50 {
		err := kerneltest.Recovered(func() error {
			_, err := w.ReadFrom(&kerneltest.FaultStream{Reader: bytes.NewReader(data), Left: n})
			return err
		})
		if err == nil {
			break
		}
		require.ErrorIs(t, err, kerneltest.ErrFault)
		if w.Micros() == 0 {
			emptied++
			begin()
		}
		again, err := w.AppendBinary(nil)
		require.NoError(t, err)
		require.Len(t, again, len(data), fmt.Sprint(n))
	}
	require.NotZero(t, emptied)
}

// TestShardsOfAnything: no numbers divide by zero or overflow, and ranks share n without gaps.
func TestShardsOfAnything(t *testing.T) {
	ends := []int{math.MinInt, -1, 0, 1, 2, 3, 10, math.MaxInt - 1, math.MaxInt}
	for _, n := range ends {
		for _, size := range ends {
			before := 0
			for _, rank := range []int{math.MinInt, -1, 0, 1, 2, size - 1, size, math.MaxInt} {
				lo, hi := Shard(n, rank, size)
				require.True(t, 0 <= lo && lo <= hi && hi <= max(n, 0), "Shard(%d, %d, %d) is %d to %d", n, rank, size, lo, hi)
				if n > 0 && rank >= 0 && rank < size {
					require.LessOrEqual(t, hi-lo, (n-1)/size+1)
					require.GreaterOrEqual(t, hi-lo, n/size)
					if rank == size-1 {
						require.Equal(t, n, hi)
					}
					if rank <= 2 && rank < size-1 {
						require.Equal(t, before, lo)
						before = hi
					}
				}
				b := Batch{Global: n, Micro: size, Window: rank, Ranks: size}
				lo, hi = b.Samples(rank, n)
				require.True(t, 0 <= lo && lo <= hi && hi <= max(n, 0))
			}
			for _, ranks := range ends {
				if b, err := NewBatch(n, size, ranks); err == nil {
					require.True(t, b.Micro > 0 && b.Micro <= size && b.Window > 0, "%+v", b)
				} else {
					require.ErrorIs(t, err, snug.ErrConfig)
				}
			}
		}
	}
	lo, hi := Batch{}.Samples(0, 0)
	require.Equal(t, [2]int{0, 0}, [2]int{lo, hi})
	tries := 0
	_, err := FindMicroBatch(math.MaxInt, 1, math.MaxInt, func(b Batch) error {
		tries++
		require.True(t, b.Window > 0 && b.Micro > 0)
		return snug.ErrNoMemory
	})
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.Less(t, tries, 70)
}

// TestZeroAccum calls all methods of zero values, and functions without what they need.
func TestZeroAccum(t *testing.T) {
	kerneltest.Zero(t,
		new(Window), new(NoiseScale), new(Pages), (*Pages)(nil), PagesOptions{}, NewPages, Ramp{}, Constant(0), Weight(0), Batch{}, Target{}, Bucket{}, Len, LinearLR, SquareRootLR, Shard,
		New, NewNoiseScale, Local, FindMicroBatch,
	)
	for _, x := range []any{new(Window), new(NoiseScale), new(Ramp), new(Constant), new(Weight), new(Batch), new(Target)} {
		v := reflect.ValueOf(x)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			for _, number := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
				args := []reflect.Value{v}
				for j := 1; j < m.Type.NumIn(); j++ {
					arg := reflect.New(m.Type.In(j)).Elem()
					if arg.CanInt() {
						arg.SetInt(number)
					}
					args = append(args, arg)
				}
				var results []reflect.Value
				require.NotPanics(t, func() { results = m.Func.Call(args) }, "%T.%s", x, m.Name)
				n := m.Type.NumOut()
				if _, window := x.(*Window); window && n > 0 && m.Type.Out(n-1) == reflect.TypeFor[error]() {
					err, _ := results[n-1].Interface().(error)
					require.Error(t, err, m.Name)
				}
			}
		}
	}
	for range new(Window).Gradients() {
		require.Fail(t, "a gradient")
	}
	var none context.Context
	_, err := Local(none, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = FindMicroBatch(8, 1, 4, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = New([]Param{{"a", 1}}, Options{Schedule: new(NoiseScale)})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = New([]Param{{"a", math.MaxInt}}, Options{})
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = New([]Param{{"a", 1}}, Options{Bucket: math.MaxInt})
	require.NoError(t, err)
	_, err = New([]Param{{"a", 1}}, Options{Shard: true})
	require.ErrorIs(t, err, snug.ErrConfig)
}
