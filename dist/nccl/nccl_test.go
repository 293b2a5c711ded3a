//go:build linux

package nccl

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/device"
	"github.com/stretchr/testify/require"
)

// job is ranks of a test, which share a wire.
type job struct {
	wire   *wire
	worlds []*World
	faults []*faulty
	devs   []*snug.Device
}

// options changes what a rank opens.
type options func(rank int, o *Options, f *faulty, l *library)

// prepare opens the devices of a job.
func prepare(t testing.TB, size int) *job {
	t.Helper()
	j := &job{wire: newWire(), worlds: make([]*World, size)}
	for rank := range size {
		dev, err := snug.Open(fmt.Sprintf("card:%d", rank))
		require.NoError(t, err)
		j.devs = append(j.devs, dev)
		j.faults = append(j.faults, &faulty{card: allCards[rank], fail: map[string]result{}, hang: map[string]bool{}})
	}
	t.Cleanup(func() {
		j.wire.close()
		for rank, w := range j.worlds {
			if w != nil {
				_ = w.Close()
			}
			require.NoError(t, j.devs[rank].Close())
		}
		j.wire.mu.Lock()
		defer j.wire.mu.Unlock()
		require.Empty(t, j.wire.faults)
	})
	return j
}

// open opens all ranks, which find each other by Local, and returns their errors.
func (j *job) open(t testing.TB, change options) []error {
	t.Helper()
	hosts, err := accum.Local(t.Context(), len(j.devs))
	require.NoError(t, err)
	return j.each(func(rank int) error {
		o := Options{Device: j.devs[rank], Exchange: hosts[rank].(accum.Broadcaster), Timeout: time.Minute}
		l := j.wire.library(j.faults[rank])
		if change != nil {
			change(rank, &o, j.faults[rank], l)
		}
		w, err := open(o, func(string, string) (*library, error) { return l, l.usable() })
		j.worlds[rank] = w
		return err
	})
}

// each calls do for all ranks at a time.
func (j *job) each(do func(rank int) error) []error {
	errs := make([]error, len(j.devs))
	var wait sync.WaitGroup
	for rank := range j.devs {
		wait.Go(func() { errs[rank] = do(rank) })
	}
	wait.Wait()
	return errs
}

// start opens a job that has no errors.
func start(t testing.TB, size int, change options) *job {
	t.Helper()
	j := prepare(t, size)
	for _, err := range j.open(t, change) {
		require.NoError(t, err)
	}
	return j
}

// vectorOf returns the vector of a rank, the same in every process.
func vectorOf(rank, n int, dt snug.DType, seed uint64) snug.View {
	rng := rand.New(rand.NewPCG(uint64(rank), seed))
	v, _, err := snug.MakeView(snug.CPU(), dt, n)
	if err != nil {
		panic(err)
	}
	switch dt {
	case snug.F32:
		for i, x := 0, v.Float32s(); i < n; i++ {
			x[i] = float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(40)-20))
			switch rng.IntN(100) {
			case 0:
				x[i] = float32(math.Inf(1 - 2*(rank%2)))
			case 1:
				x[i] = float32(math.Copysign(0, -1))
			case 2:
				x[i] = math.Float32frombits(rng.Uint32N(1 << 23)) // denormal
			}
		}
	case snug.BF16:
		for i, x := 0, v.BFloat16s(); i < n; i++ {
			x[i] = snug.ToBFloat16(float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(40)-20)))
			if rng.IntN(100) == 0 {
				x[i] = 0x7f81 // a signalling NaN
			}
		}
	default:
		b := device.Mem(&v).Bytes()
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	}
	return v
}

// sameBits compares vectors bit by bit, and NaNs as NaNs.
func sameBits(got, want snug.View) bool {
	if got.Len() != want.Len() || got.DType() != want.DType() {
		return false
	}
	nan := func(x float32) bool { return x != x }
	switch want.DType() {
	case snug.F32:
		for i, x := range want.Float32s() {
			y := got.Float32s()[i]
			if math.Float32bits(x) != math.Float32bits(y) && !(nan(x) && nan(y)) {
				return false
			}
		}
		return true
	case snug.BF16:
		for i, x := range want.BFloat16s() {
			y := got.BFloat16s()[i]
			if x != y && !(nan(x.Float32()) && nan(y.Float32())) {
				return false
			}
		}
		return true
	}
	return string(device.Mem(&got).Bytes()) == string(device.Mem(&want).Bytes())
}

// operation is a call on the vectors of a rank; result is the first, or a part of it.
type operation struct {
	name    string
	vectors func(rank, size int) []snug.View
	do      func(r accum.Reducer, v []snug.View) error
	sums    bool
	own     bool // only the rank's own part is defined
}

// operations are all that a World can do with vectors of n elements.
func operations(n int, dt snug.DType) []operation {
	one := func(rank, _ int) []snug.View { return []snug.View{vectorOf(rank, n, dt, 1)} }
	list := []operation{
		{"Broadcast", one, func(r accum.Reducer, v []snug.View) error {
			return r.(accum.Broadcaster).Broadcast(r.Size()-1, v[0])
		}, false, false},
		{"AllToAll", func(rank, size int) []snug.View {
			return []snug.View{vectorOf(rank, n*size, dt, 2), vectorOf(rank, n*size, dt, 3)}
		}, func(r accum.Reducer, v []snug.View) error { return r.(accum.AllToAller).AllToAll(v[0], v[1]) }, false, false},
		{"SendReceive", func(rank, size int) []snug.View {
			return []snug.View{vectorOf(rank, n+(rank+size-1)%size, dt, 4), vectorOf(rank, n+rank, dt, 5)}
		}, func(r accum.Reducer, v []snug.View) error {
			return r.(accum.SendReceiver).SendReceive(v[0], (r.Rank()+r.Size()-1)%r.Size(), v[1], (r.Rank()+1)%r.Size())
		}, false, false},
	}
	if dt == snug.F32 || dt == snug.BF16 {
		list = append(list,
			operation{"AllReduce", one, func(r accum.Reducer, v []snug.View) error { return r.AllReduce(v[0]) }, true, false},
			operation{"ReduceScatter", one, func(r accum.Reducer, v []snug.View) error { return r.ReduceScatter(v[0]) }, true, true},
			operation{"AllGather", one, func(r accum.Reducer, v []snug.View) error { return r.AllGather(v[0]) }, false, false})
	}
	return list
}

// onDevice runs an operation on copies of vectors on a device, with elements around them, and copies them back.
func onDevice(dev *snug.Device, v []snug.View, do func(v []snug.View) error) error {
	there := make([]snug.View, len(v))
	for i := range v {
		all, free, err := snug.MakeView(dev, v[i].DType(), v[i].Len()+3)
		if err != nil {
			return err
		}
		defer func() { _ = free() }()
		if there[i], err = all.Slice(1, v[i].Len()+1); err != nil {
			return err
		}
		if err := snug.Copy(there[i], v[i]); err != nil {
			return err
		}
	}
	if err := do(there); err != nil {
		return err
	}
	for i := range v {
		if err := snug.Copy(v[i], there[i]); err != nil {
			return err
		}
	}
	return nil
}

// TestBits: every operation has the bits of Local, for vectors on the devices, for slices, and for some of both; for all
// types; and for lengths below and above a stage.
func TestBits(t *testing.T) {
	for size := 1; size <= 5; size++ {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			j := start(t, size, nil)
			for _, w := range j.worlds {
				w.engine.staged = 4096
			}
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
	j := start(t, 2, nil)
	queued := make(chan struct{})
	for _, err := range j.each(func(rank int) error {
		a, err := snug.Make[float32](j.devs[rank], 4)
		if err != nil {
			return err
		}
		home := j.worlds[rank].engine.queue.(*queue)
		if err := home.slow(20*time.Millisecond, func() { copy(home.bytes(a.Addr(), 4), "\x00\x00\x80\x3f") }); err != nil {
			return err
		}
		if rank == 1 {
			<-queued // the other rank waits in the call
			time.Sleep(10 * time.Millisecond)
		} else {
			go func() {
				time.Sleep(30 * time.Millisecond)
				done := make(chan struct{})
				_ = home.enqueue(func() { close(done) })
				<-done // the queue goes on meanwhile
				close(queued)
			}()
		}
		if err := j.worlds[rank].AllReduce(a.View()); err != nil {
			return err
		}
		out := make([]float32, 4)
		if err := a.CopyOut(out); err != nil {
			return err
		}
		if out[0] != 2 || out[1] != 0 {
			return fmt.Errorf("rank %d has %v", rank, out)
		}
		return a.Close()
	}) {
		require.NoError(t, err)
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
		side := w.engine.stream.(*queue)
		require.True(t, side.closed)
		require.Len(t, side.own, 3, "the calls and two stages")
		for addr := range side.own {
			require.NotContains(t, allCards[rank].blocks, addr)
		}
		require.NoError(t, j.devs[rank].Sync())
	}
	for _, w := range []*World{nil, {}} {
		require.ErrorIs(t, w.AllReduce(snug.View{}), snug.ErrConfig)
		require.ErrorContains(t, w.AllReduce(snug.View{}), "the World is not from Open")
	}
	require.NoError(t, (*World)(nil).Close())
	require.ErrorIs(t, (&World{}).Close(), snug.ErrConfig)
}
