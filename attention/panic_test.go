package attention

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var errScore = errors.New("score")

// fuse is a Score that panics when it is called for the at-th time, from 1.
type fuse struct{ calls, at atomic.Int64 }

func (f *fuse) score(s float32, _, _, _, _ int) (value, slope float32) {
	if f.calls.Add(1) == f.at.Load() {
		panic(errScore)
	}
	return s, 1
}

// panicking is a call with a Score in all three functions that take one.
type panicking struct {
	*call
	cache Cache
	fuse  fuse
}

func newPanicking(kvHeads int) *panicking {
	c := Options{Batch: 2, Heads: 2, KVHeads: kvHeads, SeqQ: 130, SeqK: 150, Dim: 8}
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) snug.View {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return snug.SliceView(x)
	}
	nq, nk := 2*2*130*8, 2*kvHeads*150*8
	p := &panicking{}
	c.Score = p.fuse.score
	c.Bias = Bias{X: random(130 * 150), Grad: random(130 * 150), Dims: [4]int{1, 1, 130, 150}}
	p.call = &call{
		out: random(nq), dq: random(nq), dk: random(nk), dv: random(nk), dout: random(nq), q: random(nq), k: random(nk), v: random(nk),
		lse: random(2 * 2 * 130), ws: random(2 * 2 * 130), c: c,
	}
	p.cache = Cache{K: p.k, V: p.v}
	return p
}

// results returns a copy of what the functions write.
func (p *panicking) results() (all []float32) {
	for _, v := range []snug.View{p.out, p.lse, p.dq, p.dk, p.dv, p.c.Bias.Grad} {
		all = append(all, v.Float32s()...)
	}
	return all
}

// A Score that panics, wherever in a call, panics in the goroutine of the caller, and the
// next call has the bits that it had before.
//
//check:in race
func TestScorePanics(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, procs := range []int{1, 4} {
		for _, kvHeads := range []int{1, 2} { // backward in two passes and, with 4 key heads, in one
			t.Run(fmt.Sprintf("procs %d kv heads %d", procs, kvHeads), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				p := newPanicking(kvHeads)
				functions := []struct {
					name string
					f    func() error
				}{
					{"Forward", p.forward},
					{"ForwardCached", func() error { return ForwardCached(p.out, p.lse, p.q, &p.cache, p.c) }},
					{"Backward", p.backward},
				}
				for _, f := range functions {
					require.NoError(t, f.f())
				}
				want := p.results()
				for _, f := range functions {
					p.fuse.calls.Store(0)
					require.NoError(t, f.f())
					total := p.fuse.calls.Load()
					for _, at := range []int64{1, 2, total / 4, total / 2, 3 * total / 4, total} {
						p.fuse.calls.Store(0)
						p.fuse.at.Store(at)
						require.PanicsWithValue(t, errScore, func() { _ = f.f() }, "%s, call %d of %d", f.name, at, total)
						ended := p.fuse.calls.Load()
						time.Sleep(100 * time.Microsecond)
						require.Equal(t, ended, p.fuse.calls.Load(), "%s: a worker goes on after the panic", f.name)
						p.fuse.at.Store(0)
					}
				}
				for _, f := range functions {
					require.NoError(t, f.f())
				}
				require.Equal(t, want, p.results())
			})
		}
	}
	kerneltest.AtMostGoroutines(t, before)
}

// A panic of the function that makes a Mask is the caller's own.
//
//check:in race
func TestMaskPanics(t *testing.T) {
	for name, make := range map[string]func(int, int, int, int, func(b, h, i, j int) bool) (*Mask, error){"NewMask": NewMask, "NewTileMask": NewTileMask} {
		calls := 0
		require.PanicsWithValue(t, errScore, func() {
			_, _ = make(1, 2, 100, 100, func(_, _, _, _ int) bool {
				if calls++; calls == 5 {
					panic(errScore)
				}
				return true
			})
		}, name)
	}
}
