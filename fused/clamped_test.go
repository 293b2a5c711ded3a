package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// clamped64 is the definition of ClampedSwiGLU with its derivatives.
func clamped64(gate, up, alpha, limit float64) (y, dgate, dup float64) {
	g, v := min(gate, limit), min(max(up, -limit), limit)
	s := 1 / (1 + math.Exp(-alpha*g))
	y = (v + 1) * g * s
	if gate < limit {
		dgate = (v + 1) * (s + alpha*g*s*(1-s))
	}
	if math.Abs(up) < limit {
		dup = g * s
	}
	return y, dgate, dup
}

//check:in tiers arm64
func TestClampedSwiGLUAgainstDefinition(t *testing.T) {
	for x := -4.0; x < 4; x += 0.37 { // not at the limits
		at := []float64{x, 0.7 * x}
		f := func() float64 { y, _, _ := clamped64(at[0], at[1], 1.7, 2); return y }
		_, dg, du := clamped64(at[0], at[1], 1.7, 2)
		require.InDelta(t, slope(f, at, 0), dg, 1e-8)
		require.InDelta(t, slope(f, at, 1), du, 1e-8)
	}
	for _, c := range []struct{ alpha, limit float32 }{{1.702, 7}, {0.5, 1.25}, {20, 3}} {
		eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
			n := rows * cols
			rng := newRand(uint64(rows*1000 + cols))
			gate, up, dy := normals(rng, dt, n, 0, 4), normals(rng, dt, n, 0, 4), normals(rng, dt, n, 0, 1)
			for i := range min(n, 3) { // limits
				gate[n-1-i], up[i] = c.limit, float32(i-1)*c.limit
			}
			put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, v) }
			pg, pu, pdy := put(gate), put(up), put(dy)
			out, dgate, dup := put(fill(n, untouched)), put(fill(n, untouched)), put(fill(n, untouched))
			require.NoError(t, ClampedSwiGLU(out.View, pg.View, pu.View, c.alpha, c.limit))
			require.NoError(t, ClampedSwiGLUBackward(dgate.View, dup.View, pdy.View, pg.View, pu.View, c.alpha, c.limit))

			var want, bound [3][]float64
			add := func(i int, w, d float64) {
				d += 4 * u * math.Abs(w)
				want[i], bound[i] = append(want[i], w), append(bound[i], d+roundoff(dt, math.Abs(w)+d))
			}
			alpha := float64(c.alpha)
			for i := range gate {
				x, v, d := float64(gate[i]), float64(up[i]), float64(dy[i])
				y, dg, du := clamped64(x, v, alpha, float64(c.limit))
				factor, size := math.Abs(min(max(v, -float64(c.limit)), float64(c.limit))+1), max(1, math.Abs(alpha*x))/alpha
				add(0, y, 1.4e-7*size*factor)
				add(1, d*dg, 2.6e-7*math.Abs(d)*factor)
				add(2, d*du, 1.4e-7*size*math.Abs(d))
				if x >= float64(c.limit) {
					bound[1][i] = 0
				}
			}
			requireClose(t, "out", want[0], bound[0], out.Get())
			requireClose(t, "dgate", want[1], bound[1], dgate.Get())
			requireClose(t, "dup", want[2], bound[2], dup.Get())

			y, a, b := out.Get(), dgate.Get(), dup.Get()
			require.NoError(t, ClampedSwiGLUBackward(pu.View, pdy.View, pdy.View, pg.View, pu.View, c.alpha, c.limit))
			requireBits(t, "dgate is up", a, pu.Get())
			requireBits(t, "dup is dy", b, pdy.Get())
			pu = put(up)
			require.NoError(t, ClampedSwiGLU(pg.View, pg.View, pu.View, c.alpha, c.limit))
			requireBits(t, "out is gate", y, pg.Get())
		})
	}
}

func TestClampedSwiGLUOfNonFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(v ...float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, v) }
		gate, up, dy := put(inf, -inf, 1, 1, nan, 1), put(1, 1, inf, -inf, 1, nan), put(fill(6, 1)...)
		out, dgate, dup := put(fill(6, 0)...), put(fill(6, 0)...), put(fill(6, 0)...)
		require.NoError(t, ClampedSwiGLU(out.View, gate.View, up.View, 1, 2))
		require.NoError(t, ClampedSwiGLUBackward(dgate.View, dup.View, dy.View, gate.View, up.View, 1, 2))
		y := out.Get()
		s := func(g float64) float64 { return g / (1 + math.Exp(-g)) }
		require.InDeltaSlice(t, []float64{2 * s(2), 0, 3 * s(1), -s(1)}, y[:4], 1e-6)
		require.True(t, y[4] != y[4] && y[5] != y[5])
		require.Zero(t, dgate.Get()[0])
		require.Zero(t, dgate.Get()[1])
		require.Zero(t, dup.Get()[2])
		require.Zero(t, dup.Get()[3])
		require.True(t, math.IsNaN(float64(dgate.Get()[4])) && math.IsNaN(float64(dup.Get()[4])) && math.IsNaN(float64(dgate.Get()[5])))
	})
}
