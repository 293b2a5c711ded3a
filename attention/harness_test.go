package attention

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// gap is what strided buffers hold between their rows.
const gap = 55

// aligning is the elements that put leaves out so that a tensor of 16 bits starts at
// a multiple of 16 bytes: before them are the guard words of a buffer.
const aligning = 1

// strided is a tensor in the layout of a Options, on some backend.
type strided struct {
	*kerneltest.Floats
	t     testing.TB
	op    operand
	start int // of the tensor in the buffer
}

// each calls f with the place in the buffer of every element of the contiguous
// tensor.
func (o operand) each(f func(i, at int)) {
	i := 0
	for b := range o.batch {
		for h := range o.heads {
			for n := range o.n {
				for d := range o.dim {
					f(i, b*o.strides.Batch+h*o.strides.Head+n*o.strides.Row+d)
					i++
				}
			}
		}
	}
}

// put lays out a contiguous tensor, from element start of a buffer on; nil means an
// output.
func put(t testing.TB, backend kerneltest.Backend, dt snug.DType, op operand, start int, x []float32) strided {
	buf := make([]float32, start+op.extent())
	for i := range buf {
		buf[i] = gap
	}
	if x != nil {
		op.each(func(i, at int) { buf[start+at] = x[i] })
	}
	f := kerneltest.PutFloats(t, backend, dt, buf)
	var err error
	f.View, err = f.Slice(start, len(buf))
	require.NoError(t, err)
	return strided{f, t, op, start}
}

// contiguous returns the tensor's elements, and fails the test if an element
// between them changed.
func (s strided) contiguous() []float32 {
	s.t.Helper()
	buf := s.Get()
	var x []float32
	s.op.each(func(_, at int) {
		x = append(x, buf[s.start+at])
		buf[s.start+at] = gap
	})
	for at, v := range buf {
		if v != gap {
			s.t.Fatalf("element %d, which no row addresses, became %g", at, v)
		}
	}
	return x
}

// run computes forward and backward on a backend.
func (p *problem) run(t testing.TB, backend kerneltest.Backend, dt snug.DType) values[float32] {
	t.Helper()
	r := resolved(t, p.c)
	o := r.operands()
	put := func(o operand, x []float32) strided { return put(t, backend, dt, o, p.start, x) }
	q, k, v := put(o[0], p.q), put(o[1], p.k), put(o[2], p.v)
	out, dout := put(o[3], nil), put(o[3], p.dout)
	lse := kerneltest.Put(t, backend, filled(r.queries()))
	c := p.c
	dbias, dsinks := p.put(t, backend, &c)
	require.NoError(t, Forward(out.View, lse.View, q.View, k.View, v.View, c))

	dq, dk, dv := put(o[0], nil), put(o[1], nil), put(o[2], nil)
	ws := kerneltest.Put(t, backend, make([]float32, c.WorkspaceLen()))
	require.NoError(t, Backward(dq.View, dk.View, dv.View, dout.View, q.View, k.View, v.View, out.View, lse.View, c, ws.View))
	ws.Get() // its guard words
	got := values[float32]{out.contiguous(), lse.Get(), dq.contiguous(), dk.contiguous(), dv.contiguous(), nil, nil}
	if dbias != nil {
		got.dbias = dbias.Get()
	}
	if dsinks != nil {
		got.dsinks = dsinks.Get()
	}
	return got
}

// filled returns what outputs hold before a call.
func filled(n int) []float32 {
	x := make([]float32, n)
	fill(x, gap)
	return x
}

// put lays out the features, and returns where their gradients will be.
func (p *problem) put(t testing.TB, backend kerneltest.Backend, c *Options) (dbias, dsinks *kerneltest.Buf[float32]) {
	view := func(x []float32) snug.View {
		if x == nil {
			return snug.View{}
		}
		return kerneltest.Put(t, backend, x).View
	}
	if c.Mask != nil && backend.Dev != nil {
		m, err := c.Mask.On(backend.Dev)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		c.Mask = m
	}
	c.Slopes, c.GradLSE, c.Sinks.X = view(p.slopes), view(p.dlse), view(p.sinks)
	if p.bias != nil {
		c.Bias.X = kerneltest.PutFloats(t, backend, p.biasType, p.bias).View
	}
	if c.Bias.Grad.Len() > 0 {
		dbias = kerneltest.Put(t, backend, filled(c.Bias.Grad.Len()))
		c.Bias.Grad = dbias.View
	}
	if c.Sinks.Grad.Len() > 0 {
		dsinks = kerneltest.Put(t, backend, filled(c.Sinks.Grad.Len()))
		c.Sinks.Grad = dsinks.View
	}
	return dbias, dsinks
}

// within fails the test where got is further from want than bound; the largest
// share of a bound that was used up is returned.
func within(t testing.TB, name string, want, bound []float64, got []float32) float64 {
	t.Helper()
	require.Len(t, got, len(want), name)
	worst := 0.0
	for i, w := range want {
		g := float64(got[i])
		if g == w {
			continue
		}
		diff := g - w
		if diff < 0 {
			diff = -diff
		}
		if !(diff <= bound[i]) {
			t.Fatalf("%s[%d] is %g, want %g within %g", name, i, g, w, bound[i])
		}
		worst = max(worst, diff/bound[i])
	}
	return worst
}

// check runs p and compares everything with the reference.
func (p *problem) check(t testing.TB, backend kerneltest.Backend, dt snug.DType) {
	t.Helper()
	want, bound := p.reference(t, backend, dt)
	got := p.run(t, backend, dt)
	t.Logf("share of the bounds: out %.2f, lse %.2f, dq %.2f, dk %.2f, dv %.2f, dbias %.2f, dsinks %.2f",
		within(t, "out", want.out, bound.out, got.out), within(t, "lse", want.lse, bound.lse, got.lse),
		within(t, "dq", want.dq, bound.dq, got.dq), within(t, "dk", want.dk, bound.dk, got.dk),
		within(t, "dv", want.dv, bound.dv, got.dv), within(t, "dbias", want.dbias, bound.dbias, got.dbias),
		within(t, "dsinks", want.dsinks, bound.dsinks, got.dsinks))
}

// slidingWindow returns the Window of FlashAttention's window_size: left keys before the
// query's own position and right keys after it; a negative number is no limit.
func slidingWindow(left, right int) Window {
	side := func(n int) int {
		if n < 0 || n >= unlimited {
			return 0
		}
		return n + 1
	}
	return Window{side(left), side(right)}
}
