package attention_test

import (
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
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
//
//check:in race
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
//
//check:in race
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
			"size 0": {c, 0, snug.F32}, "size": {c, math.MaxInt, snug.F32}, "type": {c, 2, snug.U8}, "no type": {c, 2, 0}, "options": {wrong, 2, snug.F32}, "overflow": {huge, 4, snug.F32},
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

// Calls without queries, heads, sequences or documents set the gradients of keys to 0, as one process does.
//
//check:in race
func TestRanksNothing(t *testing.T) {
	for name, c := range map[string]attention.Options{
		"heads":     {Batch: 2, KVHeads: 2, SeqQ: 4, Dim: 2},
		"all heads": {Batch: 2, SeqQ: 4, Dim: 2},
		"batch":     {Heads: 2, SeqQ: 4, Dim: 2},
		"queries":   {Batch: 2, Heads: 2, KVHeads: 2, SeqK: 4, Dim: 2},
		"rows":      {Batch: 2, Heads: 2, KVHeads: 2, Dim: 2},
		"documents": {Heads: 2, KVHeads: 2, SeqQ: 4, Dim: 2, QStarts: []int{0}},
		"empty":     {Batch: 3, Heads: 2, KVHeads: 2, SeqQ: 4, Dim: 2, QStarts: []int{0, 0, 0, 0}},
		"part":      {Batch: 2, Heads: 2, KVHeads: 2, SeqQ: 4, Dim: 2, QStarts: []int{0, 0, 1}},
	} {
		for _, d := range divisions {
			for _, dt := range dtypes {
				w := attention.NewWhole(t, c, dt, 1)
				got, want := d.run(t, w, 2, kerneltest.Backend{}, false), w.One(t, kerneltest.Backend{})
				for i, pair := range [][2][]float32{{want.Out, got.Out}, {want.LSE, got.LSE}, {want.DQ, got.DQ}, {want.DK, got.DK}, {want.DV, got.DV}} {
					require.Equal(t, append([]float32{}, pair[0]...), pair[1], "%s %s %s: %d", d.name, name, dt, i)
				}
			}
		}
	}
}

// Calls without rows take slopes for every batch element, as one process does, and set the gradients in sinks to 0.
//
//check:in race
func TestRanksWithoutRows(t *testing.T) {
	c := attention.Options{Batch: 3, Heads: 4, KVHeads: 2, Dim: 2, Slopes: snug.ViewOf(make([]float32, 3*4))}
	c.Dropout = attention.Dropout{P: 0.5}
	var none []float32
	require.NoError(t, attention.Backward(none, none, none, none, none, none, none, none, none, c, none))
	for _, d := range divisions {
		grad := []float32{1, 2, 3, 4}
		c.Sinks = attention.Sinks{X: snug.ViewOf(make([]float32, 4)), Grad: snug.ViewOf(grad)}
		o := operandsOf(c, mirror{1, 2}, d.divided)
		require.NoError(t, o.forward(d.divided), d.name)
		require.NoError(t, o.backward(d.divided), d.name)
		require.Equal(t, make([]float32, 4), grad, d.name)
	}
}

// Without lse a call computes the same out.
//
//check:in race
func TestRanksWithoutLSE(t *testing.T) {
	w := attention.NewWhole(t, attention.Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 24, Dim: 8}, snug.BF16, 1, "causal")
	for _, d := range divisions {
		want := d.run(t, w, 2, kerneltest.Backend{}, false)
		without := d.divided
		without.forward = func(r rank, out, lse, q, k, v snug.View, c attention.Options, ws snug.View) error {
			if err := d.forward(r, out, snug.View{}, q, k, v, c, ws); err != nil {
				return err
			}
			kept := append([]snug.BFloat16(nil), out.BFloat16s()...)
			if err := d.forward(r, out, lse, q, k, v, c, ws); err != nil {
				return err
			}
			require.Equal(t, out.BFloat16s(), kept)
			return nil
		}
		require.Equal(t, want, without.run(t, w, 2, kerneltest.Backend{}, false))
	}
}
