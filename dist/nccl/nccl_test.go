//go:build linux

package nccl

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestBits: every operation has the bits of Local, for vectors on the devices, for slices, and for some of both; for all
// types; and for lengths below and above a stage.
func TestBits(t *testing.T) {
	for size := 1; size <= 5; size++ {
		if !kerneltest.Taken(size, 3) && size != 2 {
			continue
		}
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			j := start(t, size, nil)
			locals, err := accum.Local(t.Context(), size)
			require.NoError(t, err)
			for _, n := range []int{0, 1, 2, 7, 1000, 4097, 20_011} {
				for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.U8, snug.I32} {
					for _, o := range operations(n, dt) {
						want := make([][]snug.View, size)
						for _, err := range j.each(func(rank int) error {
							want[rank] = o.vectors(rank, size)
							return o.do(locals[rank], want[rank])
						}) {
							require.NoError(t, err)
						}
						for _, place := range []string{"device", "slices", "both"} {
							got := make([][]snug.View, size)
							for _, err := range j.each(func(rank int) error {
								got[rank] = o.vectors(rank, size)
								call := func(v []snug.View) error { return o.do(j.worlds[rank], v) }
								if place == "slices" || place == "both" && rank%2 == 1 {
									return call(got[rank])
								}
								return onDevice(j.devs[rank], got[rank], call)
							}) {
								require.NoError(t, err)
							}
							for rank := range size {
								a, b := got[rank][0], want[rank][0]
								if o.own {
									lo, hi := accum.Shard(n, rank, size)
									a, _ = a.Slice(lo, hi)
									b, _ = b.Slice(lo, hi)
								}
								require.True(t, sameBits(a, b), "%s of %d %s, %s: rank %d", o.name, n, dt, place, rank)
							}
						}
					}
				}
			}
			for _, n := range []int{0, 1, 3, 1500} {
				sums := make([][2][]float64, size)
				for _, err := range j.each(func(rank int) error {
					rng := rand.New(rand.NewPCG(uint64(rank), 9))
					x := make([]float64, n)
					for i := range x {
						x[i] = math.Ldexp(rng.Float64(), rng.IntN(80)-40)
					}
					if n > 1 {
						x[0], x[1] = 1e300, math.Copysign(0, -1)
					}
					sums[rank] = [2][]float64{append([]float64{}, x...), append([]float64{}, x...)}
					if err := j.worlds[rank].Sum(sums[rank][0]); err != nil {
						return err
					}
					return locals[rank].Sum(sums[rank][1])
				}) {
					require.NoError(t, err)
				}
				for rank := range size {
					for i, x := range sums[rank][1] {
						require.Equal(t, math.Float64bits(x), math.Float64bits(sums[rank][0][i]))
					}
				}
			}
			for _, err := range j.each(func(rank int) error { return j.worlds[rank].Close() }) {
				require.NoError(t, err)
			}
		})
	}
}

// TestStages: a stage of the usual size.
func TestStages(t *testing.T) {
	j := start(t, 2, nil)
	for _, w := range j.worlds {
		w.engine.Staged = staged
	}
	for _, err := range j.each(func(rank int) error {
		v := vectorOf(0, 100_003, snug.BF16, 1)
		for i, x := 0, v.BFloat16s(); i < len(x); i++ {
			x[i] = snug.ToBFloat16(float32(i % 64))
		}
		if err := onDevice(j.devs[rank], []snug.View{v}, func(v []snug.View) error { return j.worlds[rank].AllReduce(v[0]) }); err != nil {
			return err
		}
		for i, x := range v.BFloat16s() {
			if x.Float32() != float32(2*(i%64)) {
				return fmt.Errorf("element %d is %v", i, x.Float32())
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	require.Contains(t, j.worlds[0].Library(), "libnccl.so.2, NCCL 2.27.3")
}

// TestOrder: a call waits for what was queued on the device before it, and not for what comes after.
func TestOrder(t *testing.T) {
	for name, do := range map[string]func(w *World, dst, src snug.View) error{
		"AllReduce": func(w *World, dst, src snug.View) error {
			if err := w.AllReduce(src); err != nil {
				return err
			}
			return snug.Copy(dst, src)
		},
		"Broadcast": func(w *World, dst, src snug.View) error {
			if err := w.Broadcast(1, src); err != nil {
				return err
			}
			return snug.Copy(dst, src)
		},
		"AllToAll":    func(w *World, dst, src snug.View) error { return w.AllToAll(dst, src) },
		"SendReceive": func(w *World, dst, src snug.View) error { return w.SendReceive(dst, 1-w.rank, src, 1-w.rank) },
		"itself":      func(w *World, dst, src snug.View) error { return w.SendReceive(dst, w.rank, src, w.rank) },
	} {
		t.Run(name, func(t *testing.T) {
			j := start(t, 2, nil)
			for _, err := range j.each(func(rank int) error {
				src, err := snug.Make[float32](j.devs[rank], 4)
				if err != nil {
					return err
				}
				dst, err := snug.Make[float32](j.devs[rank], 4)
				if err != nil {
					return err
				}
				home := innerQueue(j.worlds[rank].engine.queue)
				one := []byte("\x00\x00\x80\x3f")
				if err := home.slow(50*time.Millisecond, func() { home.write(src.Addr(), slices.Repeat(one, 4)) }); err != nil {
					return err
				}
				done := make(chan struct{})
				time.AfterFunc(20*time.Millisecond, func() { _ = home.enqueue(func() { <-done }) }) // during the call
				err = do(j.worlds[rank], dst.View(), src.View())
				close(done)
				if err != nil {
					return err
				}
				want := float32(1)
				if name == "AllReduce" {
					want = 2
				}
				out := make([]float32, 4)
				if err := dst.CopyOut(out); err != nil {
					return err
				}
				if !slices.Equal(out, slices.Repeat([]float32{want}, 4)) {
					return fmt.Errorf("rank %d has %v", rank, out)
				}
				return nil
			}) {
				require.NoError(t, err)
			}
		})
	}
}

// TestWindow: the windows of two ranks on devices have the gradients of two on slices.
func TestWindow(t *testing.T) {
	j := start(t, 2, nil)
	locals, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	params := []accum.Param{{Name: "a", Len: 1001}, {Name: "b", Len: 7}, {Name: "c", Len: 4099}}
	results := make([][2][]float32, 2)
	for _, err := range j.each(func(rank int) error {
		for i, r := range []accum.Reducer{locals[rank], j.worlds[rank]} {
			dev := []*snug.Device{snug.CPU(), j.devs[rank]}[i]
			buffer, _, err := snug.MakeView(dev, snug.F32, 1001+7+4099)
			if err != nil {
				return err
			}
			w, err := accum.New(params, accum.Options{Buffer: buffer, Reducer: r, Bucket: 1000, Schedule: accum.Constant(2)})
			if err != nil {
				return err
			}
			for micro := range 2 {
				if err := w.Begin(float64(1 + rank + micro)); err != nil {
					return err
				}
				for n, p := range params {
					g := vectorOf(rank, p.Len, snug.BF16, uint64(10*micro+n))
					for i, x := range g.BFloat16s() {
						if f := x.Float32(); f != f {
							g.BFloat16s()[i] = 0
						}
					}
					there, _, err := snug.MakeView(dev, snug.BF16, p.Len)
					if err != nil {
						return err
					}
					if err := snug.Copy(there, g); err != nil {
						return err
					}
					if err := w.Add(p.Name, there); err != nil {
						return err
					}
				}
				if _, err := w.End(); err != nil {
					return err
				}
			}
			for _, g := range w.Gradients() {
				out := make([]float32, g.Len())
				if err := snug.Copy(snug.ViewOf(out), g); err != nil {
					return err
				}
				results[rank][i] = append(results[rank][i], out...)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	for rank := range results {
		require.Len(t, results[rank][0], 1001+7+4099)
		require.Equal(t, results[rank][0], results[rank][1])
	}
}

// TestOverlap: a bucket is reduced when it is complete, while the device's queue does not go on.
func TestOverlap(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		j := start(t, 2, nil)
		params := []accum.Param{{Name: "a", Len: 100}, {Name: "b", Len: 100}}
		sums := make([][]float32, 2)
		for _, err := range j.each(func(rank int) error {
			home := innerQueue(j.worlds[rank].engine.queue)
			reduced := make(chan struct{})
			buffer, _, err := snug.MakeView(j.devs[rank], dt, 200)
			if err != nil {
				return err
			}
			w, err := accum.New(params, accum.Options{Buffer: buffer, DType: dt, Reducer: j.worlds[rank], Bucket: 100, OnBucket: func(b accum.Bucket) error {
				if b.Index == 0 {
					close(reduced)
				}
				return nil
			}})
			if err != nil {
				return err
			}
			g, err := snug.Make[float32](j.devs[rank], 100)
			if err != nil {
				return err
			}
			if err := g.CopyIn(slices.Repeat([]float32{float32(1 + rank)}, 100)); err != nil {
				return err
			}
			if err := w.Begin(1); err != nil {
				return err
			}
			if err := w.Add("b", g.View()); err != nil {
				return err
			}
			if err := home.enqueue(func() { <-reduced }); err != nil {
				return err
			}
			if err := w.Add("a", g.View()); err != nil {
				return err
			}
			if _, err := w.End(); err != nil {
				return err
			}
			for _, g := range w.Gradients() {
				wide := make([]float64, g.Len())
				if err := snug.ToFloat64(wide, g); err != nil {
					return err
				}
				for _, x := range wide {
					sums[rank] = append(sums[rank], float32(x))
				}
			}
			return nil
		}) {
			require.NoError(t, err)
		}
		require.Equal(t, slices.Repeat([]float32{1.5}, 200), sums[0])
		require.Equal(t, sums[0], sums[1])
		require.Empty(t, j.worlds[0].engine.marks.of)
	}
}

// TestMarks: a mark holds until the next call with its vector, and a later one takes its place.
func TestMarks(t *testing.T) {
	j := start(t, 1, nil)
	w := j.worlds[0]
	v, _, err := snug.MakeView(j.devs[0], snug.BF16, 10)
	require.NoError(t, err)
	require.NoError(t, w.Mark(v))
	require.NoError(t, w.Mark(v))
	require.NoError(t, w.AllReduce(v))
	require.Empty(t, w.engine.marks.of)
	side, err := w.Turn(v)
	require.NoError(t, err)
	require.Equal(t, w.engine.side, side)
	require.NoError(t, w.Mark(v))
	require.NoError(t, w.AllReduce(v))
	slice := snug.ViewOf(make([]float32, 3))
	require.NoError(t, w.Mark(slice))
	dev, err := w.Turn(slice)
	require.NoError(t, err)
	require.True(t, dev.IsCPU())
	for _, w := range []*World{nil, {}} {
		require.ErrorIs(t, w.Mark(v), snug.ErrConfig)
		_, err = w.Turn(v)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestNeverBlocks: a communicator that does not block, which the environment can make, gives the same results.
func TestNeverBlocks(t *testing.T) {
	j := start(t, 3, func(_ int, _ *Options, f *faulty, l *library) { f.busy, l.initScalable = 3, nil })
	for _, err := range j.each(func(rank int) error {
		x := []float32{float32(rank), 1, 2, 3, 4}
		if err := j.worlds[rank].AllReduce(snug.ViewOf(x)); err != nil {
			return err
		}
		if x[0] != 3 || x[4] != 12 {
			return fmt.Errorf("rank %d has %v", rank, x)
		}
		return j.worlds[rank].Close()
	}) {
		require.NoError(t, err)
	}
}

// TestClose: Close frees the memory and leaves the device open; a second one does nothing; calls after it are errors.
func TestClose(t *testing.T) {
	j := start(t, 2, nil)
	for _, err := range j.each(func(rank int) error {
		w := j.worlds[rank]
		if err := w.AllReduce(snug.ViewOf(make([]float32, 5))); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		return w.Close()
	}) {
		require.NoError(t, err)
	}
	for rank, w := range j.worlds {
		require.ErrorIs(t, w.Sum([]float64{1}), snug.ErrConfig)
		require.ErrorContains(t, w.Sum(nil), "nccl: Sum: the World is closed")
		side := innerQueue(w.engine.stream)
		require.True(t, side.closed)
		require.Len(t, side.own, 3, "the calls and two stages")
		for addr := range side.own {
			require.NotContains(t, side.blocks, addr)
		}
		require.NoError(t, j.devs[rank].Sync())
	}
	for _, w := range []*World{nil, {}} {
		require.ErrorIs(t, w.AllReduce(snug.View{}), snug.ErrConfig)
		require.Zero(t, w.Rank())
		require.Zero(t, w.Size())
		require.Empty(t, w.Library())
		require.ErrorContains(t, w.AllReduce(snug.View{}), "the World is not from Open")
	}
	require.NoError(t, (*World)(nil).Close())
	require.ErrorIs(t, (&World{}).Close(), snug.ErrConfig)
}

// TestCloseConcurrently: goroutines that close a World make one call of Close, also when they wait so long that the lock
// goes from one to the next.
func TestCloseConcurrently(t *testing.T) {
	j := start(t, 2, func(_ int, o *Options, _ *faulty, _ *library) { o.Timeout = 2 * time.Second })
	w, errs := j.worlds[0], make(chan error)
	go func() { errs <- j.worlds[1].Close() }()
	w.calls.Lock()
	for range 4 {
		go func() { errs <- w.Close() }()
	}
	time.Sleep(10 * time.Millisecond)
	w.calls.Unlock()
	w.calls.Lock() // the first that wakes up finds it locked again, and from then on it is handed on
	time.Sleep(10 * time.Millisecond)
	w.calls.Unlock()
	for range 1 + 4 {
		require.NoError(t, <-errs)
	}
}

// TestAllocations: a call itself allocates nothing. What it queues is the device's and the library's.
func TestAllocations(t *testing.T) {
	j := start(t, 1, nil)
	w, v, x := j.worlds[0], snug.ViewOf(make([]float32, 5)), []float64{1, 2}
	allocs := testing.AllocsPerRun(1000, func() { _, _ = w.Broadcast(0, v), w.Sum(x) })
	if !kerneltest.Race { // which allocates
		require.Zero(t, allocs, "less than one on average: channels allocate now and then")
	}
}
