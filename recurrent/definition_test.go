package recurrent

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// wide is a vector of float64 with its gradient, and the same in the type of a call.
type wide struct {
	x, grad  []float64
	in, back snug.View
}

// vector returns n numbers that the type holds, and room for their gradients.
func vector(t *testing.T, dt snug.DType, n int, seed uint64, factor, shift float32) *wide {
	w := &wide{x: make([]float64, n)}
	for i, x := range kerneltest.Normal(seed, n) {
		w.x[i] = float64(factor*x + shift)
	}
	var err error
	w.in, _, err = snug.MakeView(snug.CPU(), dt, n)
	require.NoError(t, err)
	w.back, _, err = snug.MakeView(snug.CPU(), dt, n)
	require.NoError(t, err)
	require.NoError(t, snug.FromFloat64(w.in, w.x))
	require.NoError(t, snug.ToFloat64(w.x, w.in))
	return w
}

// differentiate sets the gradients of loss in the vectors by central differences.
func differentiate(loss func() float64, list ...*wide) {
	const h = 1e-5
	for _, w := range list {
		w.grad = make([]float64, len(w.x))
		for i, x := range w.x {
			w.x[i] = x + h
			up := loss()
			w.x[i] = x - h
			w.grad[i] = (up - loss()) / (2 * h)
			w.x[i] = x
		}
	}
}

// near compares a vector with numbers, whose largest magnitude the error is measured by.
func near(t *testing.T, name string, want []float64, have snug.View, tolerance float64) {
	t.Helper()
	got, most, worst := make([]float64, have.Len()), 0.0, 0.0
	require.NoError(t, snug.ToFloat64(got, have))
	require.Len(t, got, len(want), name)
	for i, w := range want {
		most, worst = max(most, math.Abs(w)), max(worst, math.Abs(w-got[i]))
		require.False(t, math.IsNaN(got[i]), "%s[%d]", name, i)
	}
	require.LessOrEqual(t, worst, tolerance*max(most, 1e-3), "%s, whose largest is %g", name, most)
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

var tolerances = map[snug.DType]float64{snug.F32: 2e-5, snug.BF16: 1e-2, snug.F16: 2e-3}

// defineConv computes y and the last states of a Conv in float64.
func defineConv(c *Conv, x, w, bias, initial []float64) (y, final []float64) {
	n, halo := c.Channels, c.Taps-1
	y, final = make([]float64, c.Rows*n), make([]float64, c.count()*halo*n)
	for s := range c.count() {
		lo, hi := c.rows(s)
		for ch := range n {
			u := make([]float64, halo, halo+hi-lo)
			for i := range halo {
				u[i] = initial[(s*halo+i)*n+ch]
			}
			for row := lo; row < hi; row++ {
				v, gate := x[row*c.width()+ch], 1.0
				if c.Gates {
					v, gate = v*x[row*3*n+2*n+ch], x[row*3*n+n+ch]
				}
				u = append(u, v)
				z := bias[ch]
				for tap := range c.Taps {
					s := 1.0
					if c.Scales != nil {
						s = float64(c.Scales[ch])
					}
					z += w[ch*c.Taps+tap] * s * u[row-lo+tap]
				}
				if c.SiLU {
					z /= 1 + math.Exp(-z)
				}
				y[row*n+ch] = z * gate
			}
			for i := range halo {
				final[(s*halo+i)*n+ch] = u[hi-lo+i]
			}
		}
	}
	return y, final
}

// TestConv compares values, states and gradients with the definition and its central differences.
func TestConv(t *testing.T) {
	for _, c := range []Conv{
		{Batch: Batch{Rows: 5}, Channels: 3, Taps: 3},
		{Batch: Batch{Rows: 7}, Channels: 2, Taps: 4, SiLU: true},
		{Batch: Batch{Rows: 6, Sequences: 2}, Channels: 2, Taps: 3, Gates: true},
		{Batch: Batch{Rows: 70, Starts: []int{0, 1, 3, 68, 70}}, Channels: 2, Taps: 4, SiLU: true, Gates: true},
		{Batch: Batch{Rows: 36}, Channels: 1, Taps: 40, SiLU: true},
		{Batch: Batch{Rows: 9, Sequences: 3}, Channels: 3, Taps: 3, SiLU: true, Scales: []float32{0.5, 1, -3}},
		{Batch: Batch{Rows: 3, Sequences: 3}, Channels: 130, Taps: 1},
		{Batch: Batch{Rows: 3, Sequences: 3}, Channels: 130, Taps: 3, Gates: true},
	} {
		for dt, tolerance := range tolerances {
			t.Run(fmt.Sprintf("%d×%d×%d silu %v gates %v %v", c.Rows, c.Channels, c.Taps, c.SiLU, c.Gates, dt), func(t *testing.T) {
				state := c.StateLen()
				x, w, bias := vector(t, dt, c.Rows*c.width(), 1, 1, 0), vector(t, dt, c.Channels*c.Taps, 2, 0.7, 0), vector(t, dt, c.Channels, 3, 1, 0)
				initial, dfinal := vector(t, snug.F32, state, 4, 1, 0), vector(t, snug.F32, state, 5, 1, 0)
				dy, out, final := vector(t, dt, c.Rows*c.Channels, 6, 1, 0), vector(t, dt, c.Rows*c.Channels, 7, 1, 0), vector(t, snug.F32, state, 8, 1, 0)
				loss := func() float64 {
					y, f := defineConv(&c, x.x, w.x, bias.x, initial.x)
					return dot(y, dy.x) + dot(f, dfinal.x)
				}
				differentiate(loss, x, w, bias, initial)
				c := c
				c.Initial, c.Final, c.GradInitial, c.GradFinal = initial.in, final.in, initial.back, dfinal.in
				require.NoError(t, ConvForward(out.in, x.in, w.in, bias.in, c))
				y, f := defineConv(&c, x.x, w.x, bias.x, initial.x)
				near(t, "y", y, out.in, tolerance)
				near(t, "final", f, final.in, 1e-6)

				dw, db := vector(t, snug.F32, c.Channels*c.Taps, 9, 1, 0), vector(t, snug.F32, c.Channels, 10, 1, 0)
				for i := range w.grad {
					w.grad[i] = w.grad[i]*0.5 + 2*dw.x[i]
				}
				for i := range bias.grad {
					bias.grad[i] = bias.grad[i]*0.5 + 2*db.x[i]
				}
				require.NoError(t, ConvBackward(x.back, dw.in, db.in, dy.in, x.in, w.in, bias.in, c, snug.Into{Alpha: 0.5, Beta: 2}))
				near(t, "dx", x.grad, x.back, tolerance)
				near(t, "dw", w.grad, dw.in, 2e-5)
				near(t, "db", bias.grad, db.in, 2e-5)
				near(t, "dinitial", initial.grad, initial.back, 2e-5)
			})
		}
	}
}

// TestConvInParts: a sequence in parts, each from the state of the one before, has the values of the whole.
func TestConvInParts(t *testing.T) {
	const rows, channels, taps = 37, 5, 4
	x, w := kerneltest.Normal(1, rows*channels), kerneltest.Normal(2, channels*taps)
	whole, parts, state := make([]float32, rows*channels), make([]float32, rows*channels), make([]float32, (taps-1)*channels)
	c := Conv{Batch: Batch{Rows: rows}, Channels: channels, Taps: taps, SiLU: true}
	require.NoError(t, ConvForward(whole, x, w, nil, c))
	c.Initial, c.Final = snug.ViewOf(state), snug.ViewOf(state)
	for lo := 0; lo < rows; lo += c.Rows {
		c.Rows = min(lo%3+1, rows-lo)
		require.NoError(t, ConvForward(parts[lo*channels:][:c.Rows*channels], x[lo*channels:][:c.Rows*channels], w, nil, c))
	}
	require.Equal(t, whole, parts)
}

// defineDelta computes out and the last states of a Delta in float64, by the recurrence. q, k and v have rows side by side.
func defineDelta(d *Delta, q, k, v, g, beta, initial []float64) (out, final []float64) {
	out, final = make([]float64, d.Rows*d.Heads*d.Dim), append([]float64(nil), initial...)
	size, kd, vd := d.stateLen(), d.KeyDim, d.Dim
	for s := range d.count() {
		lo, hi := d.rows(s)
		for h := range d.Heads {
			state, key := final[(s*d.Heads+h)*size:][:size], h*d.KeyHeads/d.Heads
			for row := lo; row < hi; row++ {
				decay := math.Exp(g[row*d.Heads+h])
				qr, kr := q[(row*d.KeyHeads+key)*kd:][:kd], k[(row*d.KeyHeads+key)*kd:][:kd]
				fq, fk := float64(d.scale()), 1.0
				if d.Normalize {
					fq, fk = fq/math.Sqrt(dot(qr, qr)+normEps), 1/math.Sqrt(dot(kr, kr)+normEps)
				}
				for j := range vd {
					seen, o := 0.0, 0.0
					for i := range kd {
						state[i*vd+j] *= decay
						seen += state[i*vd+j] * kr[i] * fk
					}
					change := beta[row*d.Heads+h] * (v[(row*d.Heads+h)*vd+j] - seen)
					for i := range kd {
						state[i*vd+j] += kr[i] * fk * change
						o += state[i*vd+j] * qr[i] * fq
					}
					out[(row*d.Heads+h)*vd+j] = o
				}
			}
		}
	}
	return out, final
}

// deltas are shapes that have parts of chunks, several segments, heads that share keys, and sequences of one row.
var deltas = []Delta{
	{Batch: Batch{Rows: 5}, KeyHeads: 1, Heads: 1, KeyDim: 2, Dim: 3},
	{Batch: Batch{Rows: 66}, KeyHeads: 1, Heads: 2, KeyDim: 3, Dim: 2, Normalize: true},
	{Batch: Batch{Rows: 20, Starts: []int{0, 1, 18, 20}}, KeyHeads: 2, Heads: 4, KeyDim: 2, Dim: 1, Normalize: true, Scale: 0.7},
	{Batch: Batch{Rows: 40, Sequences: 2}, KeyHeads: 2, Heads: 2, KeyDim: 3, Dim: 5},
	{Batch: Batch{Rows: 3, Sequences: 3}, KeyHeads: 1, Heads: 2, KeyDim: 3, Dim: 2, Normalize: true},
}

type deltaOperands struct{ q, k, v, g, beta, initial, dfinal, dout *wide }

func operandsOf(t *testing.T, d *Delta, dt snug.DType) deltaOperands {
	o := deltaOperands{q: vector(t, dt, d.Rows*d.KeyHeads*d.KeyDim, 1, 0.8, 0), k: vector(t, dt, d.Rows*d.KeyHeads*d.KeyDim, 2, 0.6, 0), v: vector(t, dt, d.Rows*d.Heads*d.Dim, 3, 1, 0),
		g: vector(t, snug.F32, d.Rows*d.Heads, 4, 0.1, -0.3), beta: vector(t, snug.F32, d.Rows*d.Heads, 5, 0.1, 0.5),
		initial: vector(t, snug.F32, d.StateLen(), 6, 1, 0), dfinal: vector(t, snug.F32, d.StateLen(), 7, 1, 0), dout: vector(t, dt, d.Rows*d.Heads*d.Dim, 8, 1, 0)}
	if d.Normalize {
		return o
	}
	for i := range o.k.x { // so that the recurrence does not grow
		o.k.x[i] *= 0.5
	}
	require.NoError(t, snug.FromFloat64(o.k.in, o.k.x))
	require.NoError(t, snug.ToFloat64(o.k.x, o.k.in))
	return o
}

// TestDelta compares values, states and gradients with the recurrence and its central differences.
func TestDelta(t *testing.T) {
	for _, d := range deltas {
		for dt, tolerance := range tolerances {
			t.Run(fmt.Sprintf("%d rows, %d sequences, %d %d %v", d.Rows, d.count(), d.Heads, d.Dim, dt), func(t *testing.T) {
				o := operandsOf(t, &d, dt)
				out, final := vector(t, dt, d.Rows*d.Heads*d.Dim, 9, 1, 0), vector(t, snug.F32, d.StateLen(), 10, 1, 0)
				loss := func() float64 {
					y, f := defineDelta(&d, o.q.x, o.k.x, o.v.x, o.g.x, o.beta.x, o.initial.x)
					return dot(y, o.dout.x) + dot(f, o.dfinal.x)
				}
				differentiate(loss, o.q, o.k, o.v, o.g, o.beta, o.initial)
				d := d
				d.Initial, d.Final, d.GradInitial, d.GradFinal = o.initial.in, final.in, o.initial.back, o.dfinal.in
				states := snug.ViewOf(make([]float32, d.StatesLen()))
				require.NoError(t, DeltaForward(out.in, o.q.in, o.k.in, o.v.in, o.g.in, o.beta.in, states, d))
				y, f := defineDelta(&d, o.q.x, o.k.x, o.v.x, o.g.x, o.beta.x, o.initial.x)
				near(t, "out", y, out.in, tolerance)
				near(t, "final", f, final.in, 2e-5)
				require.NoError(t, DeltaBackward(o.q.back, o.k.back, o.v.back, o.g.back, o.beta.back, o.dout.in, o.q.in, o.k.in, o.v.in, o.g.in, o.beta.in, states, d))
				near(t, "dq", o.q.grad, o.q.back, tolerance)
				near(t, "dk", o.k.grad, o.k.back, tolerance)
				near(t, "dv", o.v.grad, o.v.back, tolerance)
				near(t, "dg", o.g.grad, o.g.back, 5e-5)
				near(t, "dbeta", o.beta.grad, o.beta.back, 5e-5)
				near(t, "dinitial", o.initial.grad, o.initial.back, 5e-5)
			})
		}
	}
}

// TestDeltaSegments: a sequence of several segments has the values of the recurrence, and its gradients are the derivatives along
// random directions.
func TestDeltaSegments(t *testing.T) {
	d := Delta{Batch: Batch{Rows: 2*SegmentRows + 190, Starts: []int{0, 60, 60 + SegmentRows, 2*SegmentRows + 190}}, KeyHeads: 1, Heads: 2, KeyDim: 7, Dim: 5, Normalize: true}
	o := operandsOf(t, &d, snug.F32)
	states, out := make([]float32, d.StatesLen()), make([]float32, d.Rows*d.Heads*d.Dim)
	require.Len(t, states, 1*2*35)
	d.Initial, d.GradInitial, d.GradFinal = o.initial.in, o.initial.back, o.dfinal.in
	require.NoError(t, DeltaForward(snug.ViewOf(out), o.q.in, o.k.in, o.v.in, o.g.in, o.beta.in, snug.ViewOf(states), d))
	y, _ := defineDelta(&d, o.q.x, o.k.x, o.v.x, o.g.x, o.beta.x, o.initial.x)
	near(t, "out", y, snug.ViewOf(out), 2e-5)
	require.NoError(t, DeltaBackward(o.q.back, o.k.back, o.v.back, o.g.back, o.beta.back, o.dout.in, o.q.in, o.k.in, o.v.in, o.g.in, o.beta.in, snug.ViewOf(states), d))
	for name, w := range map[string]*wide{"q": o.q, "k": o.k, "v": o.v, "g": o.g, "beta": o.beta, "initial": o.initial} {
		x, grad, direction := append([]float64(nil), w.x...), make([]float64, len(w.x)), make([]float64, len(w.x))
		require.NoError(t, snug.ToFloat64(grad, w.back))
		var at [2]float64
		const h = 1e-5
		for side := range at {
			for i, r := range kerneltest.Normal(20, len(x)) {
				direction[i] = float64(r)
				w.x[i] = x[i] + h*(1-2*float64(side))*direction[i]
			}
			y, f := defineDelta(&d, o.q.x, o.k.x, o.v.x, o.g.x, o.beta.x, o.initial.x)
			at[side] = dot(y, o.dout.x) + dot(f, o.dfinal.x)
		}
		copy(w.x, x)
		size := math.Sqrt(dot(grad, grad))
		require.InDelta(t, (at[0]-at[1])/(2*h), dot(grad, direction), 1e-4*size, name)
	}
}

// TestDeltaSteps: rows one at a time, each from the state of the one before, have the values of the chunks; q, k and v may lie in rows side by side.
func TestDeltaSteps(t *testing.T) {
	d := Delta{Batch: Batch{Rows: 70}, KeyHeads: 2, Heads: 4, KeyDim: 8, Dim: 6, Normalize: true}
	width := 2*16 + 24
	x := kerneltest.Normal(1, d.Rows*width)
	g, beta := make([]float32, d.Rows*d.Heads), kerneltest.Uniform(3, d.Rows*d.Heads)
	for i, u := range kerneltest.Uniform(2, len(g)) {
		g[i] = -max(u, -u)
	}
	d.QRow, d.KRow, d.VRow = width, width, width
	chunks, steps := make([]float32, d.Rows*24), make([]float32, d.Rows*24)
	require.NoError(t, DeltaForward(chunks, x, x[16:], x[32:], g, beta, nil, d))
	state := make([]float32, Delta{Batch: Batch{Rows: 1}, KeyHeads: 2, Heads: 4, KeyDim: 8, Dim: 6}.StateLen())
	d.Rows, d.Initial, d.Final = 1, snug.ViewOf(state), snug.ViewOf(state)
	for i := range 70 {
		row := x[i*width:][:width]
		require.NoError(t, DeltaForward(steps[i*24:][:24], row, row[16:], row[32:], g[i*4:][:4], beta[i*4:][:4], nil, d))
	}
	want := make([]float64, len(chunks))
	require.NoError(t, snug.ToFloat64(want, snug.ViewOf(chunks)))
	near(t, "steps", want, snug.ViewOf(steps), 2e-5)
}
