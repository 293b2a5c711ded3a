package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// silu64 is the definition of SiLU and its derivative.
func silu64(x float64) (y, slope float64) {
	s := 1 / (1 + math.Exp(-x))
	return x * s, s * (1 + x*(1-s))
}

// gateForm is a gate with its definition.
type gateForm struct {
	definition func(x float64) (y, slope float64)
	forward    func(out, gate, up snug.View) error
	backward   func(dgate, dup, dy, gate, up snug.View) error
	host       bool // it runs on the CPU alone
}

//check:in tiers arm64
func TestSwiGLUAgainstDefinition(t *testing.T) {
	gateForm{silu64, SwiGLU[snug.View], SwiGLUBackward[snug.View], false}.compare(t)
}

//check:in tiers arm64
func TestGeGLUAgainstDefinition(t *testing.T) {
	gelu := func(x float64) (y, slope float64) { return gelu64(x), geluGrad64(x) }
	gateForm{gelu, GeGLU[snug.View], GeGLUBackward[snug.View], false}.compare(t)
}

//check:in tiers arm64
func TestGLUAgainstDefinition(t *testing.T) {
	sigmoid := func(x float64) (y, slope float64) {
		s := 1 / (1 + math.Exp(-x))
		return s, s * (1 - s)
	}
	gateForm{sigmoid, GLU[snug.View], GLUBackward[snug.View], true}.compare(t)
}

func (f gateForm) compare(t *testing.T) {
	for x := -6.0; x < 6; x += 0.01 {
		at := []float64{x}
		_, s := f.definition(x)
		require.InDelta(t, slope(func() float64 { y, _ := f.definition(at[0]); return y }, at, 0), s, 1e-9)
	}
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		n := rows * cols
		rng := newRand(uint64(rows*1000 + cols))
		gate, up, dy := normals(rng, dt, n, 0, 3), normals(rng, dt, n, 0, 1), normals(rng, dt, n, 0, 1)
		put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, v) }
		pg, pu, pdy := put(gate), put(up), put(dy)
		out, dgate, dup := put(fill(n, 42)), put(fill(n, 42)), put(fill(n, 42))
		if f.host && n > 0 && !pg.View.Device().IsCPU() {
			require.ErrorIs(t, f.forward(out.View, pg.View, pu.View), snug.ErrDevice)
			require.ErrorIs(t, f.backward(dgate.View, dup.View, pdy.View, pg.View, pu.View), snug.ErrDevice)
			return
		}
		require.NoError(t, f.forward(out.View, pg.View, pu.View))
		require.NoError(t, f.backward(dgate.View, dup.View, pdy.View, pg.View, pu.View))

		var want, bound [3][]float64
		add := func(i int, w, d float64) {
			d += 3 * u * math.Abs(w)
			want[i], bound[i] = append(want[i], w), append(bound[i], d+roundoff(dt, math.Abs(w)+d))
		}
		for i := range gate {
			x, v, d := float64(gate[i]), float64(up[i]), float64(dy[i])
			y, s := f.definition(x)
			add(0, y*v, 1.2e-7*max(1, math.Abs(x))*math.Abs(v))
			add(1, d*v*s, 2e-7*math.Abs(d*v))
			add(2, d*y, 1.2e-7*max(1, math.Abs(x))*math.Abs(d))
		}
		requireClose(t, "out", want[0], bound[0], out.Get())
		requireClose(t, "dgate", want[1], bound[1], dgate.Get())
		requireClose(t, "dup", want[2], bound[2], dup.Get())

		y, a, b := out.Get(), dgate.Get(), dup.Get()
		require.NoError(t, f.backward(pu.View, pdy.View, pdy.View, pg.View, pu.View))
		requireBits(t, "dgate is up", a, pu.Get())
		requireBits(t, "dup is dy", b, pdy.Get())
		pu, pdy = put(up), put(dy)
		require.NoError(t, f.backward(pdy.View, pg.View, pdy.View, pg.View, pu.View))
		requireBits(t, "dgate is dy", a, pdy.Get())
		requireBits(t, "dup is gate", b, pg.Get())
		pg = put(gate)
		require.NoError(t, f.forward(pg.View, pg.View, pu.View))
		requireBits(t, "out is gate", y, pg.Get())
		pg = put(gate)
		require.NoError(t, f.forward(pu.View, pg.View, pu.View))
		requireBits(t, "out is up", y, pu.Get())
	})
}
