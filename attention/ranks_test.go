package attention_test

import (
	"context"
	"math"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// rank is one of some goroutines.
type rank interface {
	attention.SendReceiver
	AllToAll(dst, src snug.View) error
}

// onRanks calls f for every rank of accum.Local, at the same time.
func onRanks(t testing.TB, size int, f func(r rank) error) []error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reducers, err := accum.Local(ctx, size)
	require.NoError(t, err)
	errs := make([]error, size)
	var wait sync.WaitGroup
	for i, r := range reducers {
		wait.Go(func() {
			ended := false
			defer func() {
				if !ended || errs[i] != nil {
					cancel() // ends the others
				}
			}()
			errs[i] = f(r.(rank))
			ended = true
		})
	}
	wait.Wait()
	return errs
}

// divided is a way to divide a sequence among ranks.
type divided struct {
	rows       func(n, rank, size int) []attention.Rows
	workspaces func(c attention.Options, size int, dt snug.DType) (forward, backward int)
	forward    func(r rank, out, lse, q, k, v snug.View, c attention.Options, ws snug.View) error
	backward   func(r rank, dq, dk, dv, dout, q, k, v, out, lse snug.View, c attention.Options, ws snug.View) error
}

var ring = divided{
	rows: func(n, rank, size int) []attention.Rows {
		rows := attention.RingRows(n, rank, size)
		return rows[:]
	},
	workspaces: attention.Options.RingWorkspaceLen,
	forward: func(r rank, out, lse, q, k, v snug.View, c attention.Options, ws snug.View) error {
		return attention.RingForward(r, out, lse, q, k, v, c, ws)
	},
	backward: func(r rank, dq, dk, dv, dout, q, k, v, out, lse snug.View, c attention.Options, ws snug.View) error {
		return attention.RingBackward(r, dq, dk, dv, dout, q, k, v, out, lse, c, ws)
	},
}

// part is the rows of a rank of a tensor [batch, heads, n, dim], in some layout.
type part struct {
	batch, heads, n, dim int
	rows                 []attention.Rows
	st                   attention.Strides
}

func (d divided) part(batch, heads, n, dim int, r rank, sequenceMajor bool) part {
	p := part{batch: batch, heads: heads, n: n, dim: dim, rows: d.rows(n, r.Rank(), r.Size())}
	own := p.own()
	if sequenceMajor {
		p.st = attention.Strides{Batch: own * heads * (dim + 1), Head: dim + 1, Row: heads * (dim + 1)}
	}
	return p
}

func (p part) own() (n int) {
	for _, r := range p.rows {
		n += r.Len()
	}
	return n
}

func (p part) strides() attention.Strides {
	if p.st == (attention.Strides{}) {
		return attention.Strides{Batch: p.heads * p.own() * p.dim, Head: p.own() * p.dim, Row: p.dim}
	}
	return p.st
}

// each calls f with the number of every element in the whole tensor and in the rank's.
func (p part) each(f func(whole, own int)) {
	st := p.strides()
	for b := range p.batch {
		for h := range p.heads {
			i := 0
			for _, r := range p.rows {
				for row := r.Lo; row < r.Hi; row++ {
					for d := range p.dim {
						f(((b*p.heads+h)*p.n+row)*p.dim+d, b*st.Batch+h*st.Head+i*st.Row+d)
					}
					i++
				}
			}
		}
	}
}

func (p part) cut(whole []float32) []float32 {
	n := 0
	p.each(func(_, own int) { n = max(n, own+1) })
	x := make([]float32, n)
	for i := range x {
		x[i] = attention.Gap
	}
	if whole != nil {
		p.each(func(w, own int) { x[own] = whole[w] })
	}
	return x
}

// join writes the rank's elements to the whole tensor, and requires that no others were written.
func (p part) join(t testing.TB, whole, own []float32) {
	t.Helper()
	p.each(func(w, o int) { whole[w], own[o] = own[o], attention.Gap })
	for i, x := range own {
		if x != attention.Gap {
			t.Errorf("element %d, which no row addresses, became %g", i, x)
			return
		}
	}
}

// vector is one with guard words around it, which begins at a multiple of 16 bytes, as matrix units want it: 7 guard
// words and an element are before it.
type vector struct {
	snug.View
	whole *kerneltest.Floats
}

func put(t testing.TB, backend kerneltest.Backend, dt snug.DType, x []float32) vector {
	v := vector{whole: kerneltest.PutFloats(t, backend, dt, append([]float32{attention.Gap}, x...))}
	var err error
	v.View, err = v.whole.Slice(1, v.whole.Len())
	require.NoError(t, err)
	return v
}

// Get returns the elements after all queued work, and requires that nothing around them has changed.
func (v vector) Get() []float32 {
	x := v.whole.Get()
	if x[0] != attention.Gap {
		panic("the element before a vector has changed")
	}
	return x[1:]
}

// run computes a problem on some ranks.
func (d divided) run(t testing.TB, w *attention.Whole, size int, backend kerneltest.Backend, sequenceMajor bool) attention.Results[float32] {
	t.Helper()
	c := w.C
	batch := c.Batch
	if c.QStarts != nil {
		batch = 1
	}
	nq, nk := batch*c.Heads*c.SeqQ, batch*c.KVHeads*c.SeqK
	got := attention.Results[float32]{
		Out: make([]float32, nq*c.DimV), LSE: make([]float32, nq), DQ: make([]float32, nq*c.Dim), DK: make([]float32, nk*c.Dim),
		DV: make([]float32, nk*c.DimV), DSinks: make([]float32, len(w.Want.DSinks)), DBias: make([]float32, len(w.Want.DBias)),
	}
	var sums sync.Mutex
	sinks := make([][]float32, size)
	biases := make([][]float32, size)
	errs := onRanks(t, size, func(r rank) error {
		c := c
		pq, pk := d.part(batch, c.Heads, c.SeqQ, c.Dim, r, sequenceMajor), d.part(batch, c.KVHeads, c.SeqK, c.Dim, r, sequenceMajor)
		pv, po := d.part(batch, c.KVHeads, c.SeqK, c.DimV, r, sequenceMajor), d.part(batch, c.Heads, c.SeqQ, c.DimV, r, sequenceMajor)
		pl := d.part(batch, c.Heads, c.SeqQ, 1, r, false)
		c.Q, c.K, c.V, c.Out = pq.st, pk.st, pv.st, po.st
		sums.Lock() // memory of a device is not made concurrently
		floats := func(x []float32) vector { return put(t, backend, w.DType, x) }
		numbers := func(x []float32) vector { return put(t, backend, snug.F32, x) }
		if c.Slopes.Len() > 0 {
			c.Slopes = numbers(c.Slopes.Float32s()).View
		}
		var dsinks, dbias vector
		if c.Sinks.X.Len() > 0 {
			c.Sinks.X = numbers(c.Sinks.X.Float32s()).View
			dsinks = numbers(make([]float32, c.Heads))
			c.Sinks.Grad = dsinks.View
		}
		if c.Bias.Grad.Len() > 0 {
			dbias = numbers(make([]float32, c.Bias.Grad.Len()))
			c.Bias.Grad = dbias.View
		}
		if w.DLSE != nil {
			c.GradLSE = numbers(pl.cut(w.DLSE)).View
		}
		q, k, v, dout := floats(pq.cut(w.Q)), floats(pk.cut(w.K)), floats(pv.cut(w.V)), floats(po.cut(w.DOut))
		out, dq, dk, dv, lse := floats(po.cut(nil)), floats(pq.cut(nil)), floats(pk.cut(nil)), floats(pv.cut(nil)), numbers(pl.cut(nil))
		forward, backward := d.workspaces(c, size, w.DType)
		nan := func(n int) []float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(math.NaN())
			}
			return x
		}
		ws, wsBack := numbers(nan(forward)), numbers(nan(backward))
		sums.Unlock()
		if err := d.forward(r, out.View, lse.View, q.View, k.View, v.View, c, ws.View); err != nil {
			return err
		}
		if err := d.backward(r, dq.View, dk.View, dv.View, dout.View, q.View, k.View, v.View, out.View, lse.View, c, wsBack.View); err != nil {
			return err
		}
		ws.Get() // its guard words
		wsBack.Get()
		sums.Lock()
		defer sums.Unlock()
		po.join(t, got.Out, out.Get())
		pl.join(t, got.LSE, lse.Get())
		pq.join(t, got.DQ, dq.Get())
		pk.join(t, got.DK, dk.Get())
		pv.join(t, got.DV, dv.Get())
		if dsinks.Len() > 0 {
			sinks[r.Rank()] = dsinks.Get()
		}
		if dbias.Len() > 0 {
			biases[r.Rank()] = dbias.Get()
		}
		return nil
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	for i := range size {
		for h, x := range sinks[i] {
			got.DSinks[h] += x
		}
		for h, x := range biases[i] {
			got.DBias[h] += x
		}
	}
	return got
}

// near requires results within the bounds of one process, widened by what the parts of so many ranks add. Each term of a
// sum is in one part, which is rounded to the type. The bound in float32 is at least 20 roundings of all terms, see
// unit in reference; all merges together are given a quarter of it.
func near(t testing.TB, w *attention.Whole, size int, got attention.Results[float32]) {
	t.Helper()
	eps := attention.Eps(w.DType) / attention.Eps(snug.F32)
	slack := func(bound, bound32 []float64) []float64 {
		wider := make([]float64, len(bound))
		for i := range bound {
			wider[i] = bound[i] + bound32[i]*(eps/20+0.25) + float64(size)*0x1p-24*(eps-1)/eps
		}
		return wider
	}
	share := 0.0
	for _, x := range []struct {
		name                 string
		want, bound, bound32 []float64
		got                  []float32
	}{
		{"out", w.Want.Out, w.Bound.Out, w.Bound32.Out, got.Out}, {"lse", w.Want.LSE, w.Bound.LSE, w.Bound32.LSE, got.LSE},
		{"dq", w.Want.DQ, w.Bound.DQ, w.Bound32.DQ, got.DQ}, {"dk", w.Want.DK, w.Bound.DK, w.Bound32.DK, got.DK},
		{"dv", w.Want.DV, w.Bound.DV, w.Bound32.DV, got.DV}, {"dsinks", w.Want.DSinks, w.Bound.DSinks, w.Bound32.DSinks, got.DSinks},
		{"dbias", w.Want.DBias, w.Bound.DBias, w.Bound32.DBias, got.DBias},
	} {
		share = max(share, attention.Within(t, x.name, x.want, slack(x.bound, x.bound32), x.got))
	}
	t.Logf("share of the bounds: %.2f", share)
}

// counting is a rank that counts the bytes that it sends to others.
type counting struct {
	rank
	bytes *int
}

func (c counting) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	*c.bytes += src.Bytes()
	return c.rank.SendReceive(dst, from, src, to)
}

func (c counting) AllToAll(dst, src snug.View) error {
	*c.bytes += src.Bytes() / c.Size() * (c.Size() - 1)
	return c.rank.AllToAll(dst, src)
}

// A rank sends as many bytes as docs/scaling.md says, with 64 bytes to compare its Options with those of a neighbour or of
// each other rank.
//
//check:in race
func TestRanksBytes(t *testing.T) {
	for _, kv := range []int{8, 2} {
		const heads, dim, dimV, size, header = 8, 8, 4, 4, 64
		c := attention.Options{Batch: 1, Heads: heads, KVHeads: kv, SeqQ: 64, Dim: dim, DimV: dimV, Causal: true}
		w := attention.NewWhole(t, c, snug.BF16, 1)
		n, keyHeads := c.SeqQ/size, max(kv, size)
		keys := n * kv * (dim + dimV)
		want := map[string][2]int{
			"ring": {2*(size-1)*keys + header, 2*(size-1)*keys + 4*size*keys + header},
			"ulysses": {
				(2*n*(heads+keyHeads)*(dim+dimV)+4*n*heads)*(size-1)/size + (size-1)*header,
				(4*n*(heads+keyHeads)*(dim+dimV)+4*n*heads)*(size-1)/size + (size-1)*header,
			},
		}
		for name, d := range map[string]divided{"ring": ring, "ulysses": ulysses} {
			var forward, backward [size]int
			counted := d
			counted.forward = func(r rank, out, lse, q, k, v snug.View, c attention.Options, ws snug.View) error {
				return d.forward(counting{r, &forward[r.Rank()]}, out, lse, q, k, v, c, ws)
			}
			counted.backward = func(r rank, dq, dk, dv, dout, q, k, v, out, lse snug.View, c attention.Options, ws snug.View) error {
				return d.backward(counting{r, &backward[r.Rank()]}, dq, dk, dv, dout, q, k, v, out, lse, c, ws)
			}
			near(t, w, size, counted.run(t, w, size, kerneltest.Backend{}, false))
			for i := range size {
				require.Equal(t, want[name], [2]int{forward[i], backward[i]}, name)
			}
		}
	}
}
