package attention_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
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

// mirror is a rank whose neighbours have what it has.
type mirror struct{ rank, size int }

func (m mirror) Rank() int { return m.rank }
func (m mirror) Size() int { return m.size }

func (m mirror) SendReceive(dst snug.View, _ int, src snug.View, _ int) error {
	return snug.Copy(dst, src)
}
func (m mirror) AllToAll(dst, src snug.View) error { return snug.Copy(dst, src) }

// mute is a rank that must not communicate.
type mute struct {
	mirror
	t *testing.T
}

func (m mute) SendReceive(snug.View, int, snug.View, int) error {
	m.t.Error("something was sent")
	return nil
}

func (m mute) AllToAll(_, _ snug.View) error {
	m.t.Error("something was sent")
	return nil
}

// operands are those of a rank.
type operands struct {
	ranks                          rank
	q, k, v, out, dq, dk, dv, dout snug.View
	lse, ws                        snug.View
	c                              attention.Options
}

// operandsOf returns right ones for a rank of 2, with gaps in what is written.
func operandsOf(c attention.Options, r rank, d divided) *operands {
	gaps := func(n int) snug.View {
		x := make([]float32, n)
		for i := range x {
			x[i] = attention.Gap
		}
		return snug.ViewOf(x)
	}
	own := 0
	for _, r := range d.rows(c.SeqQ, r.Rank(), r.Size()) {
		own += r.Len()
	}
	nq, nk := c.Batch*c.Heads*own*c.Dim, c.Batch*c.KVHeads*own*c.Dim
	forward, backward := d.workspaces(c, r.Size(), snug.F32)
	return &operands{
		ranks: r, q: gaps(nq), k: gaps(nk), v: gaps(nk), out: gaps(nq), dq: gaps(nq), dk: gaps(nk), dv: gaps(nk), dout: gaps(nq),
		lse: gaps(c.Batch * c.Heads * own), ws: gaps(max(forward, backward)), c: c,
	}
}

func (o *operands) forward(d divided) error {
	return d.forward(o.ranks, o.out, o.lse, o.q, o.k, o.v, o.c, o.ws)
}

func (o *operands) backward(d divided) error {
	return d.backward(o.ranks, o.dq, o.dk, o.dv, o.dout, o.q, o.k, o.v, o.out, o.lse, o.c, o.ws)
}

var divisions = []struct {
	name string
	divided
}{{"ring", ring}, {"ulysses", ulysses}}

// What is wrong is an error before anything is written or sent.
func TestRanksBadInput(t *testing.T) {
	short := func(v *snug.View) {
		x, _ := v.Slice(0, v.Len()-1)
		*v = x
	}
	mask, err := attention.NewMask(2, 1, 8, 8, func(b, h, i, j int) bool { return true })
	require.NoError(t, err)
	bias := make([]float32, 2*4*8*8)
	both := []struct {
		name string
		want error
		set  func(o *operands)
	}{
		{"no ranks", snug.ErrConfig, func(o *operands) { o.ranks = nil }},
		{"no size", snug.ErrConfig, func(o *operands) { o.ranks = mute{t: t} }},
		{"size below 0", snug.ErrConfig, func(o *operands) { o.ranks = mute{mirror{-3, -2}, t} }},
		{"rank beyond size", snug.ErrConfig, func(o *operands) { o.ranks = mute{mirror{2, 2}, t} }},
		{"size beyond all", snug.ErrConfig, func(o *operands) { o.ranks = mute{mirror{0, math.MaxInt}, t} }},
		{"workspace", snug.ErrShape, func(o *operands) { o.ws, _ = o.ws.Slice(0, 8) }},
		{"no workspace", snug.ErrShape, func(o *operands) { o.ws = snug.View{} }},
		{"type of the workspace", snug.ErrDType, func(o *operands) { o.ws = snug.ViewOf(make([]snug.Float16, 4*o.ws.Len())) }},
		{"q", snug.ErrShape, func(o *operands) { short(&o.q) }},
		{"k", snug.ErrShape, func(o *operands) { short(&o.k) }},
		{"v", snug.ErrShape, func(o *operands) { short(&o.v) }},
		{"out", snug.ErrShape, func(o *operands) { short(&o.out) }},
		{"lse", snug.ErrShape, func(o *operands) { short(&o.lse) }},
		{"types", snug.ErrDType, func(o *operands) { o.k = snug.ViewOf(make([]snug.BFloat16, o.k.Len())) }},
		{"all", snug.ErrDType, func(o *operands) { *o = operands{ranks: o.ranks, c: o.c} }},
		{"Options", snug.ErrShape, func(o *operands) { o.c = attention.Options{} }},
		{"Dim", snug.ErrShape, func(o *operands) { o.c.Dim = 0 }},
		{"Align", snug.ErrConfig, func(o *operands) { o.c.Align = 9 }},
		{"strides", snug.ErrShape, func(o *operands) { o.c.Q = attention.Strides{Batch: 1, Head: 1, Row: 1} }},
		{"GradLSE", snug.ErrShape, func(o *operands) { o.c.GradLSE = snug.ViewOf(make([]float32, 3)) }},
		{"type of GradLSE", snug.ErrDType, func(o *operands) { o.c.GradLSE = snug.ViewOf(make([]snug.Float16, o.lse.Len())) }},
		{"starts", snug.ErrShape, func(o *operands) { o.c.QStarts = []int{0, 9, 8} }},
		{"Mask", snug.ErrConfig, func(o *operands) { o.c.Mask = mask }},
		{"Bias", snug.ErrConfig, func(o *operands) { o.c.Bias.X = snug.ViewOf(bias) }},
	}
	only := map[string][]struct {
		name string
		want error
		set  func(o *operands)
	}{
		"ring": {
			{"KLens", snug.ErrConfig, func(o *operands) { o.c.KLens = []int{8, 8} }},
			{"Score", snug.ErrConfig, func(o *operands) {
				o.c.Score = func(s float32, b, h, i, j int) (float32, float32) { return s, 1 }
			}},
			{"KStarts", snug.ErrConfig, func(o *operands) { o.c.QStarts, o.c.KStarts = []int{0, 4, 8}, []int{0, 3, 8} }},
			{"SeqK of packed", snug.ErrConfig, func(o *operands) { o.c.QStarts, o.c.SeqK = []int{0, 4, 8}, 9 }},
		},
		"ulysses": {
			{"Heads", snug.ErrConfig, func(o *operands) { o.c.Heads, o.c.KVHeads = 3, 3 }},
			{"KVHeads", snug.ErrConfig, func(o *operands) { o.c.Heads, o.c.KVHeads = 6, 3 }},
			{"SeqQ", snug.ErrShape, func(o *operands) { o.c.SeqQ, o.c.SeqK = 7, 8 }},
			{"SeqK", snug.ErrShape, func(o *operands) { o.c.SeqK = 7 }},
		},
	}
	for _, d := range divisions {
		for _, tc := range append(slices.Clone(both), only[d.name]...) {
			t.Run(d.name+"/"+tc.name, func(t *testing.T) {
				c := attention.Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 8, Dim: 2}
				for name, call := range map[string]func(*operands, divided) error{"Forward": (*operands).forward, "Backward": (*operands).backward} {
					o := operandsOf(c, mute{mirror{1, 2}, t}, d.divided)
					written := []snug.View{o.out, o.dq, o.dk, o.dv, o.ws}
					tc.set(o)
					err := call(o, d.divided)
					require.ErrorIs(t, err, tc.want, name)
					kerneltest.Prefixed(t, "attention."+name, err)
					for _, v := range written {
						for _, x := range v.Float32s() {
							require.EqualValues(t, attention.Gap, x)
						}
					}
				}
			})
		}
	}
}

// Lengths of workspaces that no call takes are 0.
func TestRanksWorkspaceLen(t *testing.T) {
	c := attention.Options{Batch: 1, Heads: 4, SeqQ: 8, Dim: 2}
	huge := c
	huge.SeqQ, huge.Dim = math.MaxInt/8, 1
	wrong := c
	wrong.Dim = -1
	for _, d := range divisions {
		for name, x := range map[string]struct {
			c    attention.Options
			size int
			dt   snug.DType
		}{
			"size 0": {c, 0, snug.F32}, "size": {c, 1 << 60, snug.F32}, "type": {c, 2, snug.U8}, "no type": {c, 2, 0}, "options": {wrong, 2, snug.F32}, "overflow": {huge, 4, snug.F32},
		} {
			forward, backward := d.workspaces(x.c, x.size, x.dt)
			require.Zero(t, forward+backward, "%s: %s", d.name, name)
		}
		forward, backward := d.workspaces(c, 1, snug.BF16)
		require.Equal(t, []int{0, c.WorkspaceLen()}, []int{forward, backward})
	}
	// The sums of the docs, where nothing is rounded up.
	c = attention.Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 64, SeqK: 32, Dim: 8, DimV: 4}
	n, m := 64/2, 32/2
	for dt, bytes := range map[snug.DType]int{snug.F32: 4, snug.BF16: 2} {
		low := func(n int) int { return n * bytes / 4 }
		wide := 0
		if bytes == 2 {
			wide = 1
		}
		keys, q, o := 2*2*m*12, 2*4*n*8, 2*4*n*4
		forward, backward := c.RingWorkspaceLen(2, dt)
		require.Equal(t, low(2*keys)+o+low(o/2)+wide*o/2+2*4*n*3/2, forward)
		require.Equal(t, low(2*keys)+3*keys+low(keys/2)+low(q)+q+low(q/2)+2*4*n*3/2, backward)
		forward, backward = c.UlyssesWorkspaceLen(2, dt)
		staged := max(q, keys, o) / 2
		require.Equal(t, low(q+o+keys+staged)+2*2*4*n, forward)
		staged = max(q, keys, 2*o) / 2
		require.Equal(t, low(2*q+2*o+2*keys+staged)+3*2*4*n, backward)
	}
}

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
func TestRanksFaults(t *testing.T) {
	before := runtime.NumGoroutine()
	c := attention.Options{Batch: 1, Heads: 6, KVHeads: 6, SeqQ: 24, Dim: 2, Causal: true}
	for _, d := range divisions {
		for name, fail := range map[string]func() error{
			"error": func() error { return kerneltest.ErrFault },
			"panic": func() error { panic(kerneltest.ErrFault) },
			"exit":  func() error { runtime.Goexit(); return nil },
		} {
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
		}
	}
	kerneltest.AtMostGoroutines(t, before)
}

// A rank that does not come holds the others until the context ends.
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
			got, want := d.run(t, w, 1, kerneltest.Backend{}, false), w.One(t)
			got.DSinks, got.DBias = append([]float32(nil), got.DSinks...), append([]float32(nil), got.DBias...)
			require.Equal(t, want, got, "%s %s", d.name, strings.Join(names, " "))
		}
	}
}

// Keys that a mask hides have no effect, also across ranks.
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
func TestRanksAllocations(t *testing.T) {
	if kerneltest.Race {
		t.Skip("the race detector allocates")
	}
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

// closer is a rank that closes a device when it first communicates.
type closer struct {
	mirror
	dev            *snug.Device
	returned, late *atomic.Bool // whether the call has returned, and a communication has ended after it
}

func (c closer) SendReceive(snug.View, int, snug.View, int) error {
	err := c.dev.Close()
	time.Sleep(10 * time.Millisecond) // while the rank fails to compute
	if c.returned.Load() {
		c.late.Store(true)
	}
	return err
}

func (c closer) AllToAll(_, _ snug.View) error { return c.SendReceive(snug.View{}, 0, snug.View{}, 0) }

// A rank that cannot compute waits for what it has begun to send.
func TestRanksJoin(t *testing.T) {
	c := attention.Options{Batch: 1, Heads: 4, KVHeads: 4, SeqQ: 64, Dim: 2, Causal: true}
	for _, d := range divisions {
		for name, call := range map[string]func(*operands, divided) error{"Forward": (*operands).forward, "Backward": (*operands).backward} {
			dev, err := snug.Open("opaque:0")
			require.NoError(t, err)
			r := closer{mirror{1, 4}, dev, new(atomic.Bool), new(atomic.Bool)}
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
