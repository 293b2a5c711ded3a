package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// half of a problem's keys, from lo to hi-1.
func (p *problem) keysOf(lo, hi int) *problem {
	part := *p
	r := p.c
	part.c.SeqK, part.c.Align, part.c.Shift = hi-lo, Shifted, r.SeqK-r.SeqQ-lo
	rows := func(x []float32, dim int) (some []float32) {
		for i := 0; i < len(x); i += r.SeqK * dim {
			some = append(some, x[i+lo*dim:i+hi*dim]...)
		}
		return some
	}
	part.k, part.v = rows(p.k, r.Dim), rows(p.v, r.DimV)
	return &part
}

// Parts of the keys, merged, give the attention to all, and its gradients.
func TestMergeIsWhole(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for n, dt := range dtypes {
			for cut, at := range []int{1, 45, 85, 89} {
				if backend.Emulated && cut%3 != n {
					continue // slow
				}
				checkMerge(t, backend, dt, at)
			}
		}
	})
}

func checkMerge(t *testing.T, backend kerneltest.Backend, dt snug.DType, at int) {
	c := Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 70, SeqK: 90, Dim: 8, DimV: 5, Causal: true}
	p := newProblem(t, c, dt, 3)
	want, bound := p.reference(t, backend, dt)
	a, b := p.keysOf(0, at), p.keysOf(at, c.SeqK)
	one, two := a.run(t, backend, dt), b.run(t, backend, dt)
	floats := func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, backend, dt, x) }
	rows := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, backend, x) }
	out, lse := floats(one.out), rows(one.lse)
	require.NoError(t, Merge(out.View, lse.View, out.View, lse.View, floats(two.out).View, rows(two.lse).View, p.c))
	slack := func(bound []float64) []float64 { // the parts are rounded too
		wider := make([]float64, len(bound))
		for i := range bound {
			wider[i] = 3*bound[i] + 4*eps[dt]*2 + 1e-6
		}
		return wider
	}
	within(t, "out", want.out, slack(bound.out), out.Get())
	within(t, "lse", want.lse, bound.lse, lse.Get())

	// With the merged results the gradients of the parts are those of the whole.
	grad := func(part *problem) (dq, dk, dv []float32) {
		r := resolved(t, part.c)
		o := r.operands()
		put := func(o operand, x []float32) strided { return put(t, backend, dt, o, 0, x) }
		gq, gk, gv := put(o[0], nil), put(o[1], nil), put(o[2], nil)
		ws := rows(make([]float32, r.WorkspaceLen()))
		require.NoError(t, Backward(gq.View, gk.View, gv.View, put(o[3], p.dout).View, put(o[0], part.q).View, put(o[1], part.k).View,
			put(o[2], part.v).View, out.View, lse.View, part.c, ws.View))
		return gq.contiguous(), gk.contiguous(), gv.contiguous()
	}
	dq1, dk1, _ := grad(a)
	dq2, dk2, _ := grad(b)
	for i := range dq1 {
		dq1[i] += dq2[i]
	}
	within(t, "dq", want.dq, slack(bound.dq), dq1)
	for head := range c.Batch * c.KVHeads {
		for i, x := range append(append([]float32{}, dk1[head*at*c.Dim:(head+1)*at*c.Dim]...), dk2[head*(c.SeqK-at)*c.Dim:(head+1)*(c.SeqK-at)*c.Dim]...) {
			n := head*c.SeqK*c.Dim + i
			require.InDelta(t, want.dk[n], x, 3*bound.dk[n]+8*eps[dt]+1e-6)
		}
	}
}

// Devices merge as the CPU does, of packed rows only those of sequences.
//
//check:in tiers arm64 race
func TestMergeOnBackends(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	c := Options{Batch: 2, Heads: 3, SeqQ: 9, SeqK: 1, Dim: 1, DimV: 40, QStarts: []int{0, 3, 8}, KStarts: []int{0, 0, 1}}
	c = SequenceMajor(c)
	n := c.queries()
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	lse1, lse2 := uniform(rng, n, 3), uniform(rng, n, 30)
	copy(lse1, []float32{-inf, 0, -inf, inf, nan, 1, 50, -50})
	copy(lse2, []float32{0, -inf, -inf, 1, 1, nan, -50, 50})
	out1, out2, dout, dlse := uniform(rng, n*40, 1), uniform(rng, n*40, 1), uniform(rng, n*40, 1), uniform(rng, n, 1)
	for _, dt := range dtypes {
		run := func(t *testing.T, backend kerneltest.Backend) (results [4][]float32) {
			c, floats := c, func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, backend, dt, x) }
			rows := func(x []float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, backend, x) }
			out, lse, one, first := floats(filled(n*40)), rows(filled(n)), floats(out1), rows(lse1)
			require.NoError(t, Merge(out.View, lse.View, one.View, first.View, floats(out2).View, rows(lse2).View, c))
			dout1, dlse1 := floats(dout), rows(filled(n))
			c.GradLSE = rows(dlse).View
			require.NoError(t, MergeBackward(dout1.View, dlse1.View, dout1.View, out.View, lse.View, one.View, first.View, c))
			return [...][]float32{out.Get(), lse.Get(), dout1.Get(), dlse1.Get()}
		}
		want := run(t, kerneltest.Backend{})
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			got := run(t, backend)
			for i, x := range want {
				for k, w := range x {
					if w-w != 0 {
						require.True(t, got[i][k] == w || w != w && got[i][k] != got[i][k], "%d[%d] is %g, want %g", i, k, got[i][k], w)
						continue
					}
					require.InDelta(t, w, got[i][k], (2*eps[dt]+0x1p-20)*max(1, math.Abs(float64(w))), "%d[%d]", i, k)
				}
			}
		})
	}
}

// The gradients in the parts agree with central differences.
//
//check:in race
func TestMergeBackward(t *testing.T) {
	c := Options{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 1, Dim: 1, DimV: 4}
	rng := rand.New(rand.NewPCG(1, 2))
	n := c.queries()
	out1, out2, dout := uniform(rng, 4*n, 1), uniform(rng, 4*n, 1), uniform(rng, 4*n, 1)
	lse1, lse2, dlse := uniform(rng, n, 2), uniform(rng, n, 2), uniform(rng, n, 1)
	lse1[2] = float32(math.Inf(-1))
	c.GradLSE = snug.SliceView(dlse)
	out, lse := make([]float32, 4*n), make([]float32, n)
	loss := func() float64 {
		require.NoError(t, Merge(out, lse, out1, lse1, out2, lse2, c))
		sum := 0.0
		for i, x := range out {
			sum += float64(x) * float64(dout[i])
		}
		for i, x := range lse {
			sum += float64(x) * float64(dlse[i])
		}
		return sum
	}
	loss()
	dout1, dlse1 := make([]float32, 4*n), make([]float32, n)
	require.NoError(t, MergeBackward(dout1, dlse1, dout, out, lse, out1, lse1, c))
	for name, pair := range map[string][2][]float32{"dout1": {out1, dout1}, "dlse1": {lse1, dlse1}} {
		for i, x := range pair[0] {
			if math.IsInf(float64(x), -1) {
				require.Zero(t, pair[1][i])
				continue
			}
			pair[0][i] = x + 1.0/64
			up := loss()
			pair[0][i] = x - 1.0/64
			down := loss()
			pair[0][i] = x
			require.InDelta(t, (up-down)*32, pair[1][i], 1e-3, fmt.Sprint(name, i))
		}
	}
}

// What a query does not see of one part, or of both.
//
//check:in race
func TestMergeNothing(t *testing.T) {
	c := Options{Batch: 1, Heads: 1, SeqQ: 4, SeqK: 1, Dim: 1, DimV: 2}
	none, nan := float32(math.Inf(-1)), float32(math.NaN())
	out1, lse1 := []float32{1, 2, nan, nan, 3, 4, nan, nan}, []float32{5, none, 0, none}
	out2, lse2 := []float32{nan, nan, 5, 6, 7, 8, nan, nan}, []float32{none, 7, 0, none}
	require.NoError(t, Merge(out1, lse1, out1, lse1, out2, lse2, c))
	require.Equal(t, []float32{1, 2, 5, 6, 5, 6, 0, 0}, out1)
	require.Equal(t, []float32{5, 7, float32(math.Ln2), none}, lse1)
}

//check:in race
func TestMergeErrors(t *testing.T) {
	c := Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 1, Dim: 1}
	x, y := func() []float32 { return make([]float32, 2) }, make([]float32, 1)
	require.ErrorIs(t, Merge(x(), x(), x(), x(), x(), y, c), snug.ErrShape)
	require.ErrorIs(t, Merge(y, x(), x(), x(), x(), x(), c), snug.ErrShape)
	require.ErrorIs(t, MergeBackward(x(), y, x(), x(), x(), x(), x(), c), snug.ErrShape)
	require.ErrorIs(t, Merge(snug.ViewOf(x()), snug.ViewOf(x()), snug.ViewOf(make([]snug.Float16, 2)), snug.ViewOf(x()), snug.ViewOf(x()), snug.ViewOf(x()), c), snug.ErrDType)
	c.Dim = 0
	require.ErrorIs(t, Merge(x(), x(), x(), x(), x(), x(), c), snug.ErrShape)
}
