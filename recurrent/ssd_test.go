package recurrent

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// ssdOperands are the operands of an SSD with rows side by side.
type ssdOperands struct {
	d                                                     SSD
	x, b, c, dt, aLog, skip, bias, initial, dfinal, dy, y *wide
}

func ssdOperandsOf(t *testing.T, d SSD, dt snug.DType) *ssdOperands {
	return &ssdOperands{d: d, x: vector(t, dt, d.Rows*d.Heads*d.Dim, 1, 1, 0), b: vector(t, dt, d.Rows*d.Groups*d.StateDim, 2, 0.6, 0),
		c: vector(t, dt, d.Rows*d.Groups*d.StateDim, 3, 0.6, 0), dt: vector(t, dt, d.Rows*d.Heads, 4, 1, -1), aLog: vector(t, dt, d.Heads, 5, 1, -0.5),
		skip: vector(t, dt, d.Heads, 6, 1, 0.5), bias: vector(t, dt, d.Heads, 7, 0.5, 0),
		initial: vector(t, snug.F32, d.StateLen(), 8, 1, 0), dfinal: vector(t, snug.F32, d.StateLen(), 9, 1, 0),
		dy: vector(t, dt, d.Rows*d.Heads*d.Dim, 10, 1, 0), y: vector(t, dt, d.Rows*d.Heads*d.Dim, 11, 1, 0)}
}

// define computes y and the last states in float64, by the recurrence.
func (o *ssdOperands) define() (y, final []float64) {
	d := &o.d
	y, final = make([]float64, d.Rows*d.Heads*d.Dim), append([]float64(nil), o.initial.x...)
	for s := range d.count() {
		lo, hi := d.rows(s)
		for h := range d.Heads {
			state, group, a := final[(s*d.Heads+h)*d.stateLen():][:d.stateLen()], h*d.Groups/d.Heads, -math.Exp(o.aLog.x[h])
			for row := lo; row < hi; row++ {
				delta := o.dt.x[row*d.Heads+h]*float64(d.factor()) + o.bias.x[h]
				if delta < 40 {
					delta = math.Log1p(math.Exp(delta))
				}
				if delta = max(delta, float64(d.Min)); d.Max > 0 {
					delta = min(delta, float64(d.Max))
				}
				b, c := o.b.x[(row*d.Groups+group)*d.StateDim:], o.c.x[(row*d.Groups+group)*d.StateDim:]
				for j := range d.Dim {
					x := o.x.x[(row*d.Heads+h)*d.Dim+j]
					sum := o.skip.x[h] * x
					for i := range d.StateDim {
						at := i*d.Dim + j
						state[at] = math.Exp(a*delta)*state[at] + b[i]*delta*x
						sum += c[i] * state[at]
					}
					y[(row*d.Heads+h)*d.Dim+j] = sum
				}
			}
		}
	}
	return y, final
}

func (o *ssdOperands) loss() float64 {
	y, f := o.define()
	return dot(y, o.dy.x) + dot(f, o.dfinal.x)
}

// forward computes y and the last states.
func (o *ssdOperands) forward(t *testing.T) (final *wide, states snug.View) {
	final, states = vector(t, snug.F32, o.d.StateLen(), 12, 1, 0), snug.ViewOf(make([]float32, o.d.StatesLen()))
	d := o.d
	d.Initial, d.Final = o.initial.in, final.in
	require.NoError(t, SSDForward(o.y.in, o.x.in, o.b.in, o.c.in, o.dt.in, o.aLog.in, o.skip.in, o.bias.in, states, d))
	return final, states
}

// backward computes the gradients; those of numbers of a head are float32.
func (o *ssdOperands) backward(t *testing.T, states snug.View, into snug.Into) (aLog, skip, bias []float32) {
	d := o.d
	d.Initial, d.GradInitial, d.GradFinal = o.initial.in, o.initial.back, o.dfinal.in
	aLog, skip, bias = kerneltest.Normal(13, d.Heads), kerneltest.Normal(14, d.Heads), kerneltest.Normal(15, d.Heads)
	ws := kerneltest.Normal(16, d.WorkspaceLen())
	g := SSDGrads{X: o.x.back, B: o.b.back, C: o.c.back, Dt: o.dt.back, ALog: snug.ViewOf(aLog), Skip: snug.ViewOf(skip), Bias: snug.ViewOf(bias), Into: into}
	require.NoError(t, SSDBackward(g, o.dy.in, o.x.in, o.b.in, o.c.in, o.dt.in, o.aLog.in, o.skip.in, o.bias.in, states, snug.ViewOf(ws), d))
	return aLog, skip, bias
}

// ssds are shapes that have parts of chunks, heads that share B and C, more heads than an item has, sequences of one row, and limits.
var ssds = []SSD{
	{Batch: Batch{Rows: 1}, Groups: 1, Heads: 2, StateDim: 3, Dim: 2},
	{Batch: Batch{Rows: 5}, Groups: 1, Heads: 1, StateDim: 2, Dim: 3},
	{Batch: Batch{Rows: 66}, Groups: 1, Heads: 2, StateDim: 3, Dim: 2, Min: 0.2, Max: 0.6},
	{Batch: Batch{Rows: 20, Starts: []int{0, 1, 18, 20}}, Groups: 2, Heads: 4, StateDim: 2, Dim: 1},
	{Batch: Batch{Rows: 10, Sequences: 2}, Groups: 1, Heads: 11, StateDim: 3, Dim: 2, Max: 0.5, Factor: 0.3},
	{Batch: Batch{Rows: 64, Sequences: 1}, Groups: 2, Heads: 2, StateDim: 1, Dim: 3},
	{Batch: Batch{Rows: 3, Sequences: 3}, Groups: 3, Heads: 3, StateDim: 5, Dim: 2, Min: 0.3},
}

// TestSSD compares values, states and gradients with the recurrence and its central differences.
func TestSSD(t *testing.T) {
	for _, d := range ssds {
		for dt, tolerance := range tolerances {
			t.Run(fmt.Sprintf("%d rows, %d sequences, %d heads, %d, %v", d.Rows, d.count(), d.Heads, d.StateDim, dt), func(t *testing.T) {
				o := ssdOperandsOf(t, d, dt)
				differentiate(o.loss, o.x, o.b, o.c, o.dt, o.aLog, o.skip, o.bias, o.initial)
				final, states := o.forward(t)
				y, f := o.define()
				near(t, "y", y, o.y.in, tolerance)
				near(t, "final", f, final.in, 2e-5)
				aLog, skip, bias := o.backward(t, states, snug.Into{})
				near(t, "dx", o.x.grad, o.x.back, tolerance)
				near(t, "dB", o.b.grad, o.b.back, tolerance)
				near(t, "dC", o.c.grad, o.c.back, tolerance)
				near(t, "ddt", o.dt.grad, o.dt.back, max(tolerance, 5e-5))
				near(t, "dA_log", o.aLog.grad, snug.ViewOf(aLog), 5e-5)
				near(t, "dD", o.skip.grad, snug.ViewOf(skip), 5e-5)
				near(t, "dbias", o.bias.grad, snug.ViewOf(bias), 5e-5)
				near(t, "dinitial", o.initial.grad, o.initial.back, 5e-5)
				moreA, moreSkip, moreBias := o.backward(t, states, snug.Into{Alpha: 0.5, Beta: 2})
				for i := range d.Heads {
					require.InDelta(t, 0.5*aLog[i]+2*kerneltest.Normal(13, d.Heads)[i], moreA[i], 1e-4)
					require.InDelta(t, 0.5*skip[i]+2*kerneltest.Normal(14, d.Heads)[i], moreSkip[i], 1e-4)
					require.InDelta(t, 0.5*bias[i]+2*kerneltest.Normal(15, d.Heads)[i], moreBias[i], 1e-4)
				}
			})
		}
	}
}

// TestSSDSegments: sequences of several segments have the values of the recurrence, and the gradients are the derivatives along random directions.
// Any number of workers has the same bits.
func TestSSDSegments(t *testing.T) {
	d := SSD{Batch: Batch{Rows: 2*SegmentRows + 190, Starts: []int{0, 60, 60 + SegmentRows, 60 + 2*SegmentRows + 1, 2*SegmentRows + 190}}, Groups: 1, Heads: 9, StateDim: 7, Dim: 5}
	o := ssdOperandsOf(t, d, snug.F32)
	for i := range o.aLog.x { // decays by which a segment sees the one before
		o.aLog.x[i] -= 5
	}
	require.NoError(t, snug.FromFloat64(o.aLog.in, o.aLog.x))
	require.NoError(t, snug.ToFloat64(o.aLog.x, o.aLog.in))
	final, states := o.forward(t)
	require.Equal(t, 1*9*35, states.Len())
	y, f := o.define()
	near(t, "y", y, o.y.in, 2e-5)
	near(t, "final", f, final.in, 2e-5)
	aLog, skip, bias := o.backward(t, states, snug.Into{})
	of := func(w *wide) snug.View { return w.back }
	for name, row := range map[string]struct {
		of   *wide
		grad snug.View
	}{"x": {o.x, of(o.x)}, "B": {o.b, of(o.b)}, "C": {o.c, of(o.c)}, "dt": {o.dt, of(o.dt)}, "initial": {o.initial, of(o.initial)},
		"A_log": {o.aLog, snug.ViewOf(aLog)}, "D": {o.skip, snug.ViewOf(skip)}, "bias": {o.bias, snug.ViewOf(bias)}} {
		x, grad, direction := append([]float64(nil), row.of.x...), make([]float64, len(row.of.x)), make([]float64, len(row.of.x))
		require.NoError(t, snug.ToFloat64(grad, row.grad))
		var at [2]float64
		const h = 1e-5
		for side := range at {
			for i, r := range kerneltest.Normal(20, len(x)) {
				direction[i] = float64(r)
				row.of.x[i] = x[i] + h*(1-2*float64(side))*direction[i]
			}
			at[side] = o.loss()
		}
		copy(row.of.x, x)
		require.InDelta(t, (at[0]-at[1])/(2*h), dot(grad, direction), 1e-4*math.Sqrt(dot(grad, grad)), name)
	}

	before := append([]float32(nil), snug.Host[float32](o.b.back)...)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a2, _, b2 := o.backward(t, states, snug.Into{})
	require.Equal(t, before, snug.Host[float32](o.b.back))
	require.Equal(t, aLog, a2)
	require.Equal(t, bias, b2)
}

// TestSSDSteps: rows one at a time, each from the state of the one before, have the values of the chunks; x, B, C and dt may lie in rows side by side.
func TestSSDSteps(t *testing.T) {
	d := SSD{Batch: Batch{Rows: 70}, Groups: 2, Heads: 4, StateDim: 8, Dim: 6}
	const width = 24 + 16 + 16 + 4
	d.XRow, d.BRow, d.CRow, d.DtRow = width, width, width, width
	x := kerneltest.Normal(1, d.Rows*width)
	a, skip, bias := kerneltest.Normal(2, 4), kerneltest.Normal(3, 4), kerneltest.Normal(4, 4)
	chunks, steps, parts := make([]float32, d.Rows*24), make([]float32, d.Rows*24), make([]float32, d.Rows*24)
	require.NoError(t, SSDForward(chunks, x, x[24:], x[40:], x[56:], a, skip, bias, []float32(nil), d))
	want := make([]float64, len(chunks))
	require.NoError(t, snug.ToFloat64(want, snug.ViewOf(chunks)))
	for _, row := range []struct {
		name string
		to   []float32
		rows int
	}{{"steps", steps, 1}, {"parts", parts, 7}} {
		state := make([]float32, 4*8*6)
		d.Rows, d.Initial, d.Final = row.rows, snug.ViewOf(state), snug.ViewOf(state)
		for i := 0; i < 70; i += row.rows {
			in := x[i*width:][:row.rows*width]
			require.NoError(t, SSDForward(row.to[i*24:][:row.rows*24], in, in[24:], in[40:], in[56:], a, skip, bias, []float32(nil), d))
		}
		near(t, row.name, want, snug.ViewOf(row.to), 2e-5)
	}
}

// TestSSDExtremes: steps that forget all, or nothing, give what the recurrence does, and nothing that is not a number.
func TestSSDExtremes(t *testing.T) {
	for _, row := range []struct {
		name     string
		dt, aLog func(i int) float64
	}{
		{"large steps", func(i int) float64 { return float64(i%7) * 300 }, func(i int) float64 { return 3 }},
		{"one large step", func(i int) float64 { return float64(i % 50 / 49 * 2000) }, func(i int) float64 { return -2 }},
		{"no steps", func(i int) float64 { return -200 }, func(i int) float64 { return 0 }},
		{"large A", func(i int) float64 { return float64(i%3) - 2 }, func(i int) float64 { return 80 }},
		{"A above float32", func(i int) float64 { return float64(i % 3) }, func(i int) float64 { return 100 }},
		{"no A", func(i int) float64 { return 0 }, func(i int) float64 { return -80 }},
		{"subnormal decays", func(i int) float64 { return 0.5 }, func(i int) float64 { return 1 }},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := ssdOperandsOf(t, SSD{Batch: Batch{Rows: 150}, Groups: 1, Heads: 2, StateDim: 3, Dim: 2}, snug.F32)
			for i := range o.dt.x {
				o.dt.x[i] = row.dt(i)
			}
			for i := range o.aLog.x {
				o.aLog.x[i] = row.aLog(i)
			}
			require.NoError(t, snug.FromFloat64(o.dt.in, o.dt.x))
			require.NoError(t, snug.FromFloat64(o.aLog.in, o.aLog.x))
			final, states := o.forward(t)
			y, f := o.define()
			near(t, "y", y, o.y.in, 2e-5)
			near(t, "final", f, final.in, 2e-5)
			aLog, skip, bias := o.backward(t, states, snug.Into{})
			for _, list := range [][]float32{snug.Host[float32](o.x.back), snug.Host[float32](o.b.back), snug.Host[float32](o.c.back), snug.Host[float32](o.dt.back), aLog, skip, bias} {
				for i, x := range list {
					require.False(t, math.IsNaN(float64(x)) || math.IsInf(float64(x), 0), i)
				}
			}
		})
	}
}
