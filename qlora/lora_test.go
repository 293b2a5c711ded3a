package qlora

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// The sizes of the layer that adapters are tested on.
const rows, in, out, rank, scale = 6, 40, 7, 3, 1.5

// operands of a layer, in the order of its function: x, A, B, m.
type operands [4][]float64

// layerLoss returns Σ dy ⊙ y by the definition, with norms n that do not depend on the
// operands; a LoRA has none.
func layerLoss(o operands, w, mask, n, dy []float64) float64 {
	x, a, b, m := o[0], o[1], o[2], o[3]
	loss := 0.0
	for r := range rows {
		var u [rank]float64
		for k := range rank {
			for i := range in {
				u[k] += x[r*in+i] * mask[r*in+i] * a[k*in+i]
			}
		}
		for j := range out {
			whole, left, low := 0.0, 0.0, 0.0
			for i := range in {
				whole += x[r*in+i] * w[j*in+i]
				left += x[r*in+i] * mask[r*in+i] * w[j*in+i]
			}
			for k := range rank {
				low += scale * u[k] * b[j*rank+k]
			}
			y := whole + low
			if n != nil {
				y = m[j]/n[j]*(left+low) + whole - left
			}
			loss += dy[r*out+j] * y
		}
	}
	return loss
}

// difference returns the derivative in element i of operand p, in which the loss is
// linear: a step of any length gives it.
func difference(o operands, p, i int, loss func(operands) float64) float64 {
	at := func(step float64) float64 {
		moved := o
		moved[p] = slices.Clone(o[p])
		moved[p][i] += step
		return loss(moved)
	}
	return at(0.5) - at(-0.5)
}

func wide(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

func dot(a, b []float64) (sum float64) {
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

// maskOf returns what elements of x are multiplied by.
func maskOf(t *testing.T, a *LoRA, d Dropout) []float64 {
	mask := slices.Repeat([]float32{1}, rows*in)
	if a.drops(d) {
		require.NoError(t, fused.Dropout(mask, mask, fused.DropoutMask{P: a.Dropout, Seed: d.Seed, Tensor: d.Tensor}))
		require.Contains(t, mask, float32(0))
	}
	return wide(mask)
}

// eachLayer tests a layer on every device with and without dropout.
func eachLayer(t *testing.T, test func(t *testing.T, dev *snug.Device, l *Linear, a *LoRA, d Dropout)) {
	for _, backend := range backends(t) {
		w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, out*in)), []int{out, in}, Options{Block: 32, Single: true})
		require.NoError(t, err)
		l, err := NewLinear(w, snug.F32, 3*in) // tiles that begin within blocks
		require.NoError(t, err)
		for name, p := range map[string]float32{"": 0, "evaluated": 0.4, "dropped": 0.4} {
			t.Run(fmt.Sprintf("%s/%s", backend.Name, name), func(t *testing.T) {
				a := LoRA{In: in, Out: out, Rank: rank, Scale: scale, Dropout: p,
					A: on(t, backend.Dev, snug.F32, kerneltest.Normal(2, rank*in)), B: on(t, backend.Dev, snug.F32, kerneltest.Normal(3, out*rank))}
				d := Dropout{Draw: amp.Draw{Seed: 5, Tensor: 9}}
				if name == "dropped" {
					d.Work = on(t, backend.Dev, snug.F32, make([]float32, rows*in))
				}
				test(t, backend.Dev, l, &a, d)
			})
		}
		require.NoError(t, l.Close())
		require.NoError(t, w.Close())
	}
}

// TestFrozenA: without a gradient of A the others have the same bits, from dy and u alone, and dx may lie where x was.
func TestFrozenA(t *testing.T) {
	eachLayer(t, func(t *testing.T, dev *snug.Device, l *Linear, a *LoRA, d Dropout) {
		put := func(v []float32) snug.View { return on(t, dev, snug.F32, v) }
		zeros := func(n int) snug.View { return put(make([]float32, n)) }
		x, dy, y, u := put(kerneltest.Normal(4, rows*in)), put(kerneltest.Normal(5, rows*out)), zeros(rows*out), zeros(rows*rank)
		require.NoError(t, a.Forward(y, u, x, d))
		dx, db, into := zeros(rows*in), put(slices.Repeat([]float32{2}, out*rank)), snug.Into{Alpha: 0.5, Beta: 0.25}
		require.NoError(t, l.Backward(dx, dy, 0))
		require.NoError(t, a.Backward(dx, zeros(rows*rank), dy, u, x, Grads{A: zeros(rank * in), B: db, Into: into}, d))

		frozen := *a
		frozen.FrozenA = true
		again := zeros(rows * rank)
		require.NoError(t, frozen.Forward(zeros(rows*out), again, x, d))
		sameBits(t, values(t, u), values(t, again))
		fresh := func() Grads { return Grads{B: put(slices.Repeat([]float32{2}, out*rank)), Into: into} }
		g := fresh()
		require.NoError(t, l.Backward(x, dy, 0))
		require.NoError(t, frozen.Backward(x, zeros(rows*rank), dy, again, snug.View{}, g, d))
		sameBits(t, values(t, dx), values(t, x))
		sameBits(t, values(t, db), values(t, g.B))
		g = fresh()
		require.NoError(t, frozen.Backward(snug.View{}, zeros(rows*rank), dy, again, snug.View{}, g, d))
		sameBits(t, values(t, db), values(t, g.B))

		du := zeros(rows * rank)
		require.ErrorIs(t, frozen.Backward(dx, du, dy, u, x, fresh(), d), snug.ErrShape, "an x")
		require.ErrorIs(t, frozen.Backward(dx, du, dy, u, snug.View{}, Grads{A: zeros(rank * in), B: db}, d), snug.ErrShape, "a gradient of A")
		require.ErrorIs(t, frozen.Backward(part(dx, 0, in), du, dy, u, snug.View{}, fresh(), d), snug.ErrShape)
		require.ErrorIs(t, frozen.Backward(dx, du, part(dy, 0, out), u, snug.View{}, fresh(), d), snug.ErrShape)
		require.ErrorIs(t, frozen.Backward(snug.View{}, du, part(dy, 0, out), u, snug.View{}, fresh(), d), snug.ErrShape)
		require.ErrorIs(t, frozen.Backward(snug.View{}, du, dy, part(u, 0, rank+1), snug.View{}, fresh(), d), snug.ErrShape)
	})
}

// TestLoRA compares with the definition in float64 and with differences of it.
func TestLoRA(t *testing.T) {
	eachLayer(t, func(t *testing.T, dev *snug.Device, l *Linear, a *LoRA, d Dropout) {
		require.Equal(t, rank*(in+out), a.Params())
		put := func(v []float32) snug.View { return on(t, dev, snug.F32, v) }
		xs, dys := kerneltest.Normal(4, rows*in), kerneltest.Normal(5, rows*out)
		x, dy, y, u := put(xs), put(dys), put(make([]float32, rows*out)), put(make([]float32, rows*rank))
		require.NoError(t, l.Forward(y, x, 0))
		require.NoError(t, a.Forward(y, u, x, d))
		mask, w := maskOf(t, a, d), wide(values(t, dequantized(t, l.w)))
		o := operands{wide(xs), wide(values(t, a.A)), wide(values(t, a.B))}
		loss := func(o operands) float64 { return layerLoss(o, w, mask, nil, wide(dys)) }
		require.InDelta(t, loss(o), dot(wide(dys), wide(values(t, y))), 1e-3)

		start := kerneltest.Normal(6, rows*in)
		dx, da, db := put(start), put(make([]float32, rank*in)), put(slices.Repeat([]float32{2}, out*rank))
		require.NoError(t, l.Backward(dx, dy, 1))
		require.NoError(t, a.Backward(dx, put(make([]float32, rows*rank)), dy, u, x, Grads{A: da, B: db, Into: snug.Into{Alpha: 0.5, Beta: 0.25}}, d))
		for i, got := range [][]float32{values(t, dx), values(t, da), values(t, db)} {
			for k, g := range got {
				want := difference(o, i, k, loss)
				switch i {
				case 0:
					want += float64(start[k])
				case 1:
					want *= 0.5
				case 2:
					want = 0.5*want + 0.25*2
				}
				require.InDelta(t, want, float64(g), 1e-4, "operand %d, element %d", i, k)
			}
		}
		require.NoError(t, a.Backward(put(nil), put(make([]float32, rows*rank)), dy, u, x, Grads{A: da, B: db, Into: snug.Into{Alpha: 1, Beta: 1}}, d))
	})
	require.Equal(t, float32(4), LoRAScale(16, 16, true))
}

// TestDoRA does that with magnitudes, with the norms as constants.
func TestDoRA(t *testing.T) {
	eachLayer(t, func(t *testing.T, dev *snug.Device, l *Linear, a *LoRA, d Dropout) {
		put := func(v []float32) snug.View { return on(t, dev, snug.F32, v) }
		xs, dys, ms := kerneltest.Normal(4, rows*in), kerneltest.Normal(5, rows*out), kerneltest.Normal(6, out)
		a.Magnitude = put(ms)
		require.Equal(t, rank*(in+out)+out, a.Params())
		layer, err := NewDoRA(l, a)
		require.NoError(t, err)
		defer layer.Close()
		w, mask := wide(values(t, dequantized(t, l.w))), maskOf(t, a, d)
		o := operands{wide(xs), wide(values(t, a.A)), wide(values(t, a.B)), wide(ms)}
		n := normsOf(w, o[1], o[2])
		require.InDeltaSlice(t, n, wide(values(t, layer.n)), 1e-5)

		x, dy, y, h, u := put(xs), put(dys), put(make([]float32, rows*out)), put(make([]float32, rows*out)), put(make([]float32, rows*rank))
		require.NoError(t, layer.Forward(y, h, u, x, d))
		loss := func(o operands) float64 { return layerLoss(o, w, mask, n, wide(dys)) }
		require.InDelta(t, loss(o), dot(wide(dys), wide(values(t, y))), 1e-3)

		start := kerneltest.Normal(7, rows*in)
		dx, da, db, dm := put(start), put(make([]float32, rank*in)), put(make([]float32, out*rank)), put(slices.Repeat([]float32{2}, out))
		g := Grads{A: da, B: db, Magnitude: dm, Into: snug.Into{Alpha: 0.5, Beta: 0.25}}
		require.NoError(t, layer.Backward(dx, put(make([]float32, rows*rank)), dy, h, u, x, g, d))
		for i, got := range [][]float32{values(t, dx), values(t, da), values(t, db), values(t, dm)} {
			for k, g := range got {
				want := difference(o, i, k, loss)
				switch i {
				case 0:
					want += float64(start[k])
				case 3:
					want = 0.5*want + 0.25*2
				default:
					want *= 0.5
				}
				require.InDelta(t, want, float64(g), 1e-4, "operand %d, element %d", i, k)
			}
		}

		require.NoError(t, snug.Copy(a.B, put(kerneltest.Normal(8, out*rank))))
		require.NoError(t, layer.Update())
		require.InDeltaSlice(t, normsOf(w, o[1], wide(values(t, a.B))), wide(values(t, layer.n)), 1e-5)
	})
}

// normsOf returns the norms of the rows of w + s·b·a.
func normsOf(w, a, b []float64) []float64 {
	n := make([]float64, out)
	for j := range out {
		for i := range in {
			v := w[j*in+i]
			for k := range rank {
				v += scale * b[j*rank+k] * a[k*in+i]
			}
			n[j] += v * v
		}
		n[j] = math.Sqrt(n[j])
	}
	return n
}

// TestDoRABegins: with magnitudes from the norms and B of zeros, a layer does what its
// weight does, in all types.
func TestDoRABegins(t *testing.T) {
	const rows, in, out = 5, 600, 70
	for _, backend := range backends(t) {
		for _, dt := range floatTypes {
			layer := kerneltest.Normal(1, out*in)
			clear(layer[3*in : 4*in])
			w, err := NewWeight(on(t, backend.Dev, snug.F32, layer), []int{out, in}, Options{})
			require.NoError(t, err)
			l, err := NewLinear(w, dt, 5000)
			require.NoError(t, err)
			a := LoRA{In: in, Out: out, Rank: 2, Scale: 1, A: on(t, backend.Dev, snug.F32, kerneltest.Normal(2, 2*in)),
				B: on(t, backend.Dev, snug.F32, make([]float32, 2*out)), Magnitude: on(t, backend.Dev, snug.F32, make([]float32, out))}
			require.NoError(t, l.Norms(a.Magnitude, nil))
			both := on(t, backend.Dev, snug.F32, make([]float32, out))
			require.NoError(t, l.Norms(both, &a))
			sameBits(t, values(t, a.Magnitude), values(t, both))
			d, err := NewDoRA(l, &a)
			require.NoError(t, err)
			put := func(n int, seed uint64) snug.View { return on(t, backend.Dev, dt, kerneltest.Normal(seed, n)) }
			x, y, h, u, want := put(rows*in, 3), put(rows*out, 4), put(rows*out, 5), put(rows*2, 6), put(rows*out, 7)
			require.NoError(t, l.Forward(want, x, 0))
			require.NoError(t, d.Forward(y, h, u, x, Dropout{}))
			sameBits(t, values(t, want), values(t, y))
			require.Zero(t, values(t, y)[3], "of a row of zeros")
			g := Grads{A: on(t, backend.Dev, snug.F32, kerneltest.Normal(8, 2*in)), B: on(t, backend.Dev, snug.F32, kerneltest.Normal(8, 2*out)),
				Magnitude: on(t, backend.Dev, snug.F32, slices.Repeat([]float32{float32(math.NaN())}, out))}
			require.NoError(t, d.Backward(put(rows*in, 9), put(rows*2, 9), y, h, u, x, g, Dropout{}))
			for i, v := range values(t, g.Magnitude) {
				require.False(t, v != v, "dm[%d]", i)
			}
			require.NoError(t, errors.Join(d.Close(), l.Close(), w.Close()))
		}
	}
}

// TestDropoutIsDrawnAnew: the same numbers drop the same, others drop others, and a call
// allocates nothing.
func TestDropoutIsDrawnAnew(t *testing.T) {
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	x := snug.ViewOf(kerneltest.Normal(1, rows*in))
	a := LoRA{In: in, Out: out, Rank: rank, Scale: 1, A: snug.ViewOf(kerneltest.Normal(2, rank*in)), B: snug.ViewOf(kerneltest.Normal(3, out*rank)), Dropout: 0.3}
	pass := func(d Dropout) []float32 {
		y, u := v(rows*out), v(rows*rank)
		require.NoError(t, a.Forward(y, u, x, d))
		return y.Float32s()
	}
	first := pass(Dropout{Draw: amp.Draw{Seed: 1, Tensor: 2}, Work: v(rows * in)})
	sameBits(t, first, pass(Dropout{Draw: amp.Draw{Seed: 1, Tensor: 2}, Work: v(rows * in)}))
	for _, d := range []Dropout{
		{}, {Draw: amp.Draw{Seed: 1, Tensor: 2}}, {Draw: amp.Draw{Seed: 2, Tensor: 2}, Work: v(rows * in)}, {Draw: amp.Draw{Seed: 1, Tensor: 3}, Work: v(rows * in)},
		{Draw: amp.Draw{Seed: 1, Tensor: 2, First: in}, Work: v(rows * in)},
	} {
		require.NotEqual(t, first, pass(d))
	}
	tail, tailU := v((rows-1)*out), v((rows-1)*rank) // rows from 1 on, whose mask begins at element in
	require.NoError(t, a.Forward(tail, tailU, part(x, in, rows*in), Dropout{Draw: amp.Draw{Seed: 1, Tensor: 2, First: in}, Work: v((rows - 1) * in)}))
	require.InDeltaSlice(t, first[out:], tail.Float32s(), 1e-5)
	d, y, u, dx, du := Dropout{Work: v(rows * in)}, v(rows*out), v(rows*rank), v(rows*in), v(rows*rank)
	g := Grads{A: v(rank * in), B: v(out * rank)}
	kerneltest.NoAllocs(t, func() {
		_ = a.Forward(y, u, x, d)
		_ = a.Backward(dx, du, y, u, x, g, d)
	})
}

func TestLoRAErrors(t *testing.T) {
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	low := func(n int) snug.View { return snug.ViewOf(make([]snug.BFloat16, n)) }
	a := LoRA{In: 4, Out: 3, Rank: 2, Scale: 1, A: v(8), B: v(6), Dropout: 0.5}
	require.NoError(t, a.Forward(v(0), v(0), v(0), Dropout{}))
	require.ErrorIs(t, a.Forward(v(3), v(2), v(5), Dropout{}), snug.ErrShape)
	require.ErrorIs(t, a.Forward(v(4), v(2), v(4), Dropout{}), snug.ErrShape)
	require.ErrorIs(t, a.Forward(v(3), v(2), v(4), Dropout{Work: v(3)}), snug.ErrShape)
	require.ErrorIs(t, a.Forward(v(3), v(2), v(4), Dropout{Work: low(4)}), snug.ErrDType)
	shared := v(4)
	require.ErrorIs(t, a.Forward(v(3), v(2), shared, Dropout{Work: shared}), snug.ErrConfig, "Work is x")
	grads := Grads{A: v(8), B: v(6)}
	require.ErrorIs(t, a.Backward(v(3), v(2), v(3), v(2), v(4), grads, Dropout{}), snug.ErrShape)
	for _, g := range []Grads{{A: v(7), B: v(6)}, {A: v(8), B: v(6), Magnitude: v(3)}} {
		require.ErrorIs(t, a.Backward(v(4), v(2), v(3), v(2), v(4), g, Dropout{}), snug.ErrShape)
	}
	for _, into := range []snug.Into{{Alpha: float32(math.Inf(1))}, {Beta: float32(math.NaN())}} {
		require.ErrorIs(t, a.Backward(v(4), v(2), v(3), v(2), v(4), Grads{A: v(8), B: v(6), Into: into}, Dropout{}), snug.ErrConfig)
	}
	tiny := a
	tiny.Scale = 1e-30
	require.ErrorIs(t, tiny.Backward(v(4), v(2), v(3), v(2), v(4), Grads{A: v(8), B: v(6), Into: snug.Into{Alpha: 1e-30}}, Dropout{}), snug.ErrConfig)
	for _, bad := range []LoRA{
		{In: 4, Out: 3, Scale: 1},
		{In: 4, Out: 3, Rank: 2, A: v(8), B: v(6)},
		{In: 4, Out: 3, Rank: 2, Scale: float32(math.NaN()), A: v(8), B: v(6)},
		{In: 4, Out: 3, Rank: 2, Scale: 1, A: v(8), B: v(6), Dropout: 1},
		{In: 4, Out: 3, Rank: 2, Scale: 1, A: v(8), B: v(6), Dropout: float32(math.NaN())},
		{In: 4, Out: 3, Rank: 2, Scale: 1, A: v(8), B: v(6), Magnitude: v(3)},
	} {
		require.ErrorIs(t, bad.Forward(v(3), v(2), v(4), Dropout{}), snug.ErrConfig)
	}
	require.ErrorIs(t, (&LoRA{In: 4, Out: 3, Rank: 2, Scale: 1, A: v(7), B: v(6)}).Forward(v(3), v(2), v(4), Dropout{}), snug.ErrShape)
}

func TestDoRAErrors(t *testing.T) {
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	low := func(n int) snug.View { return snug.ViewOf(make([]snug.BFloat16, n)) }
	w, err := NewWeight(kerneltest.Normal(1, 64*32), []int{64, 32}, Options{})
	require.NoError(t, err)
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	require.ErrorIs(t, l.Norms(v(63), nil), snug.ErrShape)
	require.ErrorIs(t, l.Norms(low(64), nil), snug.ErrDType)
	good := LoRA{In: 32, Out: 64, Rank: 2, Scale: 1, A: v(64), B: v(128), Magnitude: v(64)}
	for want, change := range map[error]func(a *LoRA){
		snug.ErrConfig: func(a *LoRA) { a.Magnitude = v(0) },
		snug.ErrShape:  func(a *LoRA) { a.Magnitude = v(63) },
		snug.ErrDType:  func(a *LoRA) { a.Magnitude = low(64) },
	} {
		bad := good
		change(&bad)
		_, err := NewDoRA(l, &bad)
		require.ErrorIs(t, err, want)
	}
	turned := LoRA{In: 64, Out: 32, Rank: 2, Scale: 1, A: v(128), B: v(64), Magnitude: v(32)}
	_, err = NewDoRA(l, &turned)
	require.ErrorIs(t, err, snug.ErrShape)
	empty, err := NewWeight([]float32{}, []int{0, 4}, Options{})
	require.NoError(t, err)
	none, err := NewLinear(empty, snug.F32, 0)
	require.NoError(t, err)
	require.ErrorIs(t, none.Norms(v(0), nil), snug.ErrShape)

	d, err := NewDoRA(l, &good)
	require.NoError(t, err)
	require.NoError(t, d.Forward(v(0), v(0), v(0), v(0), Dropout{}))
	require.ErrorIs(t, d.Forward(v(64), v(63), v(2), v(32), Dropout{}), snug.ErrShape)
	require.ErrorIs(t, d.Forward(v(64), v(64), v(3), v(32), Dropout{}), snug.ErrShape)
	require.ErrorIs(t, d.Forward(v(64), low(64), v(2), v(32), Dropout{}), snug.ErrDType)
	g := Grads{A: v(64), B: v(128), Magnitude: v(64)}
	require.ErrorIs(t, d.Backward(low(32), v(2), v(64), v(64), v(2), v(32), g, Dropout{}), snug.ErrDType)
	require.ErrorIs(t, d.Backward(v(31), v(2), v(64), v(64), v(2), v(32), g, Dropout{}), snug.ErrShape)
	g.Magnitude = v(0)
	require.ErrorIs(t, d.Backward(v(32), v(2), v(64), v(64), v(2), v(32), g, Dropout{}), snug.ErrShape)
	good.Dropout = 0.5
	require.ErrorIs(t, d.Forward(v(64), v(64), v(2), v(32), Dropout{Work: v(1)}), snug.ErrShape)
	good.Magnitude = v(0)
	require.ErrorIs(t, d.Update(), snug.ErrShape)
	require.ErrorIs(t, d.Forward(v(64), v(64), v(2), v(32), Dropout{}), snug.ErrShape)
}
