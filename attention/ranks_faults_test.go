package attention_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// faulty is a rank whose call number at fails.
type faulty struct {
	rank
	calls, at int
	fail      func() error
	running   *atomic.Int32
	most      *atomic.Int32
}

func (f *faulty) call(do func() error) error {
	f.most.Store(max(f.most.Load(), f.running.Add(1)))
	defer f.running.Add(-1)
	if f.calls++; f.calls == f.at {
		return f.fail()
	}
	return do()
}

func (f *faulty) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	return f.call(func() error { return f.rank.SendReceive(dst, from, src, to) })
}

func (f *faulty) AllToAll(dst, src snug.View) error {
	return f.call(func() error { return f.rank.AllToAll(dst, src) })
}

// An error, a panic or an end of the goroutine in a communication is the caller's, when the communication has ended, and the other ranks
// end with their context.
//
//check:in race
func TestRanksFaults(t *testing.T) {
	before := runtime.NumGoroutine()
	c := attention.Options{Batch: 1, Heads: 6, KVHeads: 6, SeqQ: 24, Dim: 2, Causal: true}
	for _, d := range divisions {
		for name, fail := range map[string]func() error{
			"error": func() error { return kerneltest.ErrFault },
			"panic": func() error { panic(kerneltest.ErrFault) },
			"exit":  func() error { runtime.Goexit(); return nil },
		} {
			t.Run(name, func(t *testing.T) {
				failures := 0
				for at := 1; ; at++ {
					errs := onRanks(t, 3, func(r rank) error {
						f := &faulty{rank: r, fail: fail, running: new(atomic.Int32), most: new(atomic.Int32)}
						if r.Rank() == 1 {
							f.at = at
						}
						o := operandsOf(c, f, d.divided)
						err := kerneltest.Recovered(func() error {
							if err := o.forward(d.divided); err != nil {
								return err
							}
							return o.backward(d.divided)
						})
						require.Zero(t, f.running.Load(), "a communication goes on")
						require.LessOrEqual(t, f.most.Load(), int32(1), "two communications at a time")
						return err
					})
					if errs[1] == nil {
						require.NoError(t, errors.Join(errs...))
						break // there were fewer calls
					}
					failures++
					require.ErrorIs(t, errs[1], kerneltest.ErrFault, "%s, call %d", name, at)
					require.ErrorIs(t, errs[0], context.Canceled, "%s, call %d", name, at)
					require.ErrorIs(t, errs[2], context.Canceled, "%s, call %d", name, at)
				}
				require.Greater(t, failures, 5, d.name)
			})
		}
	}
	kerneltest.AtMostGoroutines(t, before)
}

// A rank that does not come holds the others until the context ends.
//
//check:in race
func TestRanksContext(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, d := range divisions {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		ranks, err := accum.Local(ctx, 2)
		require.NoError(t, err)
		o := operandsOf(attention.Options{Batch: 1, Heads: 2, KVHeads: 2, SeqQ: 8, Dim: 2}, ranks[0].(rank), d.divided)
		require.ErrorIs(t, o.forward(d.divided), context.DeadlineExceeded)
		require.ErrorIs(t, o.backward(d.divided), context.DeadlineExceeded)
		cancel()
	}
	kerneltest.AtMostGoroutines(t, before)
}

// slow is a rank that is late by different times.
type slow struct {
	rank
	calls int
}

func (s *slow) wait() {
	s.calls++
	time.Sleep(time.Duration((s.calls*7+s.Rank()*5)%4) * 100 * time.Microsecond)
}

func (s *slow) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	s.wait()
	return s.rank.SendReceive(dst, from, src, to)
}

func (s *slow) AllToAll(dst, src snug.View) error {
	s.wait()
	return s.rank.AllToAll(dst, src)
}

// Results do not depend on times and on GOMAXPROCS.
//
//check:in race
func TestRanksDeterministic(t *testing.T) {
	c := attention.Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 300, Dim: 8}
	for _, d := range divisions {
		for i, names := range [][]string{{"causal", "dropout", "sinks"}, {"packed", "causal"}} {
			w := attention.NewWhole(t, c, dtypes[i+1], uint64(i), names...)
			size := 2 + 2*i
			want := d.run(t, w, size, kerneltest.Backend{}, false)
			late := d.divided
			late.forward = func(r rank, out, lse, q, k, v snug.View, c attention.Options, ws snug.View) error {
				return d.forward(&slow{rank: r}, out, lse, q, k, v, c, ws)
			}
			late.backward = func(r rank, dq, dk, dv, dout, q, k, v, out, lse snug.View, c attention.Options, ws snug.View) error {
				return d.backward(&slow{rank: r}, dq, dk, dv, dout, q, k, v, out, lse, c, ws)
			}
			kerneltest.WithProcs(func(procs int) {
				require.Equal(t, want, late.run(t, w, size, kerneltest.Backend{}, procs%2 == 0), "%d", procs)
			})
		}
	}
}

// One rank has the bits of Forward and Backward, with no workspace but that of Backward.
func TestOneRank(t *testing.T) {
	for _, d := range divisions {
		for i, names := range ringFeatures {
			w := attention.NewWhole(t, attention.Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 33, Dim: 8}, dtypes[i%3], uint64(i), names...)
			got, want := d.run(t, w, 1, kerneltest.Backend{}, false), w.One(t, kerneltest.Backend{})
			got.DSinks, got.DBias = append([]float32(nil), got.DSinks...), append([]float32(nil), got.DBias...)
			require.Equal(t, want, got, "%s %s", d.name, strings.Join(names, " "))
		}
	}
}

// Keys that a mask hides have no effect, also across ranks.
//
//check:in race
func TestRanksHiddenNonFinite(t *testing.T) {
	c := attention.Options{Batch: 1, Heads: 2, KVHeads: 2, SeqQ: 40, Dim: 3}
	for _, d := range divisions {
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			w := attention.NewWhole(t, c, snug.F32, 1, "causal")
			w.C.Align = attention.TopLeft
			want := d.run(t, w, 2, kerneltest.Backend{}, false)
			const from = 27
			for h := range c.Heads {
				for i := (h*c.SeqQ + from) * c.Dim; i < (h+1)*c.SeqQ*c.Dim; i++ {
					w.K[i], w.V[i] = float32(bad), float32(bad)
				}
			}
			got := d.run(t, w, 2, kerneltest.Backend{}, false)
			for h := range c.Heads {
				first, end := h*c.SeqQ*c.Dim, (h*c.SeqQ+from)*c.Dim
				require.InDeltaSlice(t, want.Out[first:end], got.Out[first:end], 1e-5, d.name)
				require.InDeltaSlice(t, want.DQ[first:end], got.DQ[first:end], 1e-5, d.name)
				require.NotEqual(t, want.Out[end], got.Out[end])
			}
		}
	}
}

// A call allocates little, whatever the length.
//
//check:in race
func TestRanksAllocations(t *testing.T) {
	if kerneltest.Race {
		t.Skip("the race detector allocates")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))  // each processor of Go has a part of the pools, which fills
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collections empty the pools
	runtime.GC()
	for _, d := range divisions {
		for _, seq := range []int{64, 512} {
			c := attention.Options{Batch: 1, Heads: 4, KVHeads: 4, SeqQ: seq, Dim: 8, Causal: true}
			o := operandsOf(c, mirror{1, 4}, d.divided)
			both := func() {
				require.NoError(t, o.forward(d.divided))
				require.NoError(t, o.backward(d.divided))
			}
			least := uint64(math.MaxUint64)
			for range 5 { // the pools of loops fill
				var first, last runtime.MemStats
				runtime.ReadMemStats(&first)
				both()
				runtime.ReadMemStats(&last)
				least = min(least, last.TotalAlloc-first.TotalAlloc)
			}
			t.Logf("%s of %d: %d bytes", d.name, seq, least)
			limit := uint64(16 << 10)
			if d.name == "ulysses" {
				limit = 1 << 10
			}
			require.Less(t, least, limit, fmt.Sprint(d.name, seq))
		}
	}
}

// closer is a rank that closes a device when it first sends anything but its Options.
type closer struct {
	mirror
	dev            *snug.Device
	calls          *int
	returned, late *atomic.Bool // whether the call has returned, and a communication has ended after it
}

func (c closer) SendReceive(dst snug.View, _ int, src snug.View, _ int) error {
	if *c.calls++; *c.calls == 1 {
		return snug.Copy(dst, src)
	}
	err := c.dev.Close()
	time.Sleep(10 * time.Millisecond) // while the rank fails to compute
	if c.returned.Load() {
		c.late.Store(true)
	}
	return err
}

func (c closer) AllToAll(dst, src snug.View) error { return c.SendReceive(dst, 0, src, 0) }

// A rank that cannot compute waits for what it has begun to send.
//
//check:in race
func TestRanksJoin(t *testing.T) {
	c := attention.Options{Batch: 1, Heads: 4, KVHeads: 4, SeqQ: 64, Dim: 2, Causal: true}
	for _, d := range divisions {
		for name, call := range map[string]func(*operands, divided) error{"Forward": (*operands).forward, "Backward": (*operands).backward} {
			dev, err := snug.Open("opaque:0")
			require.NoError(t, err)
			r := closer{mirror{1, 4}, dev, new(int), new(atomic.Bool), new(atomic.Bool)}
			o := operandsOf(c, mirror{1, 4}, d.divided)
			o.ranks = r
			for _, v := range []*snug.View{&o.q, &o.k, &o.v, &o.out, &o.dq, &o.dk, &o.dv, &o.dout, &o.lse, &o.ws} {
				there, _, err := snug.MakeView(dev, snug.F32, v.Len())
				require.NoError(t, err)
				require.NoError(t, snug.Copy(there, *v))
				*v = there
			}
			require.ErrorIs(t, call(o, d.divided), snug.ErrDevice, "%s %s", d.name, name)
			r.returned.Store(true)
			time.Sleep(30 * time.Millisecond)
			require.False(t, r.late.Load(), "%s %s: a communication went on", d.name, name)
		}
	}
}
