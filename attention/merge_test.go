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
	for _, dt := range dtypes {
		for cut := range 4 {
			c := Config{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 70, SeqK: 90, Dim: 8, DimV: 5, Causal: true}
			p := newProblem(t, c, dt, 3)
			want, bound := p.reference(t, kerneltest.Place{}, dt)
			at := []int{1, 45, 85, 89}[cut]
			a, b := p.keysOf(0, at), p.keysOf(at, c.SeqK)
			one, two := a.run(t, kerneltest.Place{}, dt), b.run(t, kerneltest.Place{}, dt)
			views := func(x []float32) snug.View { return kerneltest.PutFloats(t, kerneltest.Place{}, dt, x).View }
			out := kerneltest.PutFloats(t, kerneltest.Place{}, dt, one.out)
			lse := one.lse
			require.NoError(t, Merge(out.View, snug.SliceView(lse), out.View, snug.SliceView(lse), views(two.out), snug.SliceView(two.lse), p.c))
			slack := func(bound, want []float64) []float64 { // the parts are rounded too
				wider := make([]float64, len(bound))
				for i := range bound {
					wider[i] = 3*bound[i] + 4*eps[dt]*2 + 1e-6
				}
				return wider
			}
			within(t, "out", want.out, slack(bound.out, want.out), out.Get())
			within(t, "lse", want.lse, bound.lse, lse)

			// With the merged results the gradients of the parts are those of the whole.
			grad := func(part *problem) (dq, dk, dv []float32) {
				r := resolved(t, part.c)
				o := r.operands()
				q, k, v, dout := put(t, kerneltest.Place{}, dt, o[0], 0, part.q), put(t, kerneltest.Place{}, dt, o[1], 0, part.k), put(t, kerneltest.Place{}, dt, o[2], 0, part.v), put(t, kerneltest.Place{}, dt, o[3], 0, p.dout)
				gq, gk, gv := put(t, kerneltest.Place{}, dt, o[0], 0, nil), put(t, kerneltest.Place{}, dt, o[1], 0, nil), put(t, kerneltest.Place{}, dt, o[2], 0, nil)
				ws := snug.SliceView(make([]float32, r.WorkspaceLen()))
				require.NoError(t, Backward(gq.View, gk.View, gv.View, dout.View, q.View, k.View, v.View, out.View, snug.SliceView(lse), part.c, ws))
				return gq.contiguous(), gk.contiguous(), gv.contiguous()
			}
			dq1, dk1, _ := grad(a)
			dq2, dk2, _ := grad(b)
			for i := range dq1 {
				dq1[i] += dq2[i]
			}
			within(t, "dq", want.dq, slack(bound.dq, want.dq), dq1)
			for head := range c.Batch * c.KVHeads {
				for i, x := range append(append([]float32{}, dk1[head*at*c.Dim:(head+1)*at*c.Dim]...), dk2[head*(c.SeqK-at)*c.Dim:(head+1)*(c.SeqK-at)*c.Dim]...) {
					n := head*c.SeqK*c.Dim + i
					require.InDelta(t, want.dk[n], x, 3*bound.dk[n]+8*eps[dt]+1e-6)
				}
			}
		}
	}
}

// The gradients in the parts agree with central differences.
func TestMergeBackward(t *testing.T) {
	c := Config{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 1, Dim: 1, DimV: 4}
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
func TestMergeNothing(t *testing.T) {
	c := Config{Batch: 1, Heads: 1, SeqQ: 4, SeqK: 1, Dim: 1, DimV: 2}
	none, nan := float32(math.Inf(-1)), float32(math.NaN())
	out1, lse1 := []float32{1, 2, nan, nan, 3, 4, nan, nan}, []float32{5, none, 0, none}
	out2, lse2 := []float32{nan, nan, 5, 6, 7, 8, nan, nan}, []float32{none, 7, 0, none}
	require.NoError(t, Merge(out1, lse1, out1, lse1, out2, lse2, c))
	require.Equal(t, []float32{1, 2, 5, 6, 5, 6, 0, 0}, out1)
	require.Equal(t, []float32{5, 7, float32(math.Ln2), none}, lse1)
}

func TestMergeErrors(t *testing.T) {
	c := Config{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 1, Dim: 1}
	x, y := func() []float32 { return make([]float32, 2) }, make([]float32, 1)
	require.ErrorIs(t, Merge(x(), x(), x(), x(), x(), y, c), snug.ErrShape)
	require.ErrorIs(t, Merge(y, x(), x(), x(), x(), x(), c), snug.ErrShape)
	require.ErrorIs(t, MergeBackward(x(), y, x(), x(), x(), x(), x(), c), snug.ErrShape)
	require.ErrorIs(t, Merge(snug.ViewOf(x()), snug.ViewOf(x()), snug.ViewOf(make([]snug.Float16, 2)), snug.ViewOf(x()), snug.ViewOf(x()), snug.ViewOf(x()), c), snug.ErrDType)
	c.Dim = 0
	require.ErrorIs(t, Merge(x(), x(), x(), x(), x(), x(), c), snug.ErrShape)
}
