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
func prepare(t testing.TB, size int) *job { return prepareOn(t, "card", size) }

func prepareOn(t testing.TB, kind string, size int) *job {
	t.Helper()
	j := &job{wire: newWire(), worlds: make([]*World, size)}
	for rank := range size {
		dev, err := snug.Open(fmt.Sprintf("%s:%d", kind, rank))
		require.NoError(t, err)
		j.devs = append(j.devs, dev)
		j.faults = append(j.faults, &faulty{card: cardOf(dev), fail: map[string]result{}, hang: map[string]bool{}})
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
		if j.worlds[rank] = w; w != nil {
			w.engine.Staged = 4096
		}
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
