package layers

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// Streams are the matrices between a row and the streams of an [AltUp]. Before the first layer stream 0 is the row x, and stream i
// projection[i−1]·x with the root mean square of x. After the last layer the row is the mean of stream 0 and of the projections of the
// others, each with the root mean square of stream 0.
type Streams struct{ Projections []Linear }

func (l *Streams) list() []*Param {
	if l == nil {
		return nil
	}
	return listOf(l.Projections)
}

func (l *Streams) dim() int { return l.Projections[0].In }

// view returns rows of a tensor of streams.
func (l *Streams) view(p *Pass, x *Tensor, i int) *Tensor {
	t := &Tensor{}
	p.Do(func() error {
		t.View = part(x.View, i*p.rows*l.dim(), p.rows*l.dim())
		return nil
	})
	return t
}

// widen makes streams of rows.
func (l *Streams) widen(p *Pass, x *Tensor) *Tensor {
	y := p.Get((1 + len(l.Projections)) * l.dim())
	p.copyTo(l.view(p, y, 0), x)
	for i := range l.Projections {
		to := l.view(p, y, i+1)
		l.Projections[i].compute(p, to, x, 0)
		l.rescale(p, to, x)
	}
	return y
}

// widenBackward returns the gradient of x for the gradient dy of its streams, which it overwrites.
func (l *Streams) widenBackward(p *Pass, x, dy *Tensor) *Tensor {
	dx, raw := p.Get(l.dim()), p.Get(l.dim())
	p.copyTo(dx, l.view(p, dy, 0))
	for i := range l.Projections {
		d := l.view(p, dy, i+1)
		l.Projections[i].compute(p, raw, x, 0)
		l.rescaleBackward(p, dx, d, raw, x)
		in := p.Get(l.dim())
		p.copyTo(in, x)
		dp := linearBackward(p, in, l.Projections[i:i+1], d)
		p.add(dx, dp)
		p.Put(dp)
	}
	p.Put(raw)
	return dx
}

// narrow makes rows of streams.
func (l *Streams) narrow(p *Pass, x *Tensor) *Tensor {
	y, one := p.Get(l.dim()), p.Get(l.dim())
	first := l.view(p, x, 0)
	p.copyTo(y, first)
	for i := range l.Projections {
		l.Projections[i].compute(p, one, l.view(p, x, i+1), 0)
		l.rescale(p, one, first)
		p.add(y, one)
	}
	p.Put(one)
	p.times(y, 1/float32(1+len(l.Projections)))
	return y
}

// narrowBackward returns the gradient of streams x for the gradient dy of the rows, which it overwrites.
func (l *Streams) narrowBackward(p *Pass, x, dy *Tensor) *Tensor {
	n := 1 + len(l.Projections)
	dx, raw, d := p.Get(n*l.dim()), p.Get(l.dim()), p.Get(l.dim())
	p.times(dy, 1/float32(n))
	first, dfirst := l.view(p, x, 0), l.view(p, dx, 0)
	p.copyTo(dfirst, dy)
	for i := range l.Projections {
		stream := l.view(p, x, i+1)
		l.Projections[i].compute(p, raw, stream, 0)
		p.copyTo(d, dy)
		l.rescaleBackward(p, dfirst, d, raw, first)
		in := p.Get(l.dim())
		p.copyTo(in, stream)
		dp := linearBackward(p, in, l.Projections[i:i+1], d)
		p.copyTo(l.view(p, dx, i+1), dp)
		p.Put(dp)
	}
	p.Put(raw, d)
	return dx
}

const leastSquare = 1e-5 // of the mean square of a projection

// rows32 are the rows of a tensor as float32.
type rows32 struct {
	v      snug.View
	n      int
	buffer []float32
}

func newRows32(v snug.View, n int) rows32 {
	r := rows32{v: v, n: n}
	if v.DType() != snug.F32 {
		r.buffer = make([]float32, n)
	}
	return r
}

// load returns row i.
func (r *rows32) load(i int) []float32 {
	if r.buffer == nil {
		return r.v.Float32s()[i*r.n:][:r.n]
	}
	if err := amp.Cast(snug.ViewOf(r.buffer), part(r.v, i*r.n, r.n)); err != nil {
		panic(err) // both are floats of n elements
	}
	return r.buffer
}

// store puts the row that load returned back.
func (r *rows32) store(i int) {
	if r.buffer == nil {
		return
	}
	if err := amp.Cast(part(r.v, i*r.n, r.n), snug.ViewOf(r.buffer)); err != nil {
		panic(err)
	}
}

func meanSquare(x []float32) (sum float64) {
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return sum / float64(len(x))
}

// rescale gives the rows of y the root mean squares of those of x.
func (l *Streams) rescale(p *Pass, y, x *Tensor) {
	p.Do(func() error {
		ys, xs := newRows32(y.View, l.dim()), newRows32(x.View, l.dim())
		for i := range p.rows {
			row := ys.load(i)
			f := float32(math.Sqrt(meanSquare(xs.load(i)) / max(meanSquare(row), leastSquare)))
			for j := range row {
				row[j] *= f
			}
			ys.store(i)
		}
		return nil
	})
}

// rescaleBackward turns the gradient d of rescale's output into the gradient of raw, what it took, and adds the gradient of x to dx.
func (l *Streams) rescaleBackward(p *Pass, dx, d, raw, x *Tensor) {
	p.Do(func() error {
		n := l.dim()
		ds, raws, xs, dxs := newRows32(d.View, n), newRows32(raw.View, n), newRows32(x.View, n), newRows32(dx.View, n)
		for i := range p.rows {
			g, y, x, dx := ds.load(i), raws.load(i), xs.load(i), dxs.load(i)
			have, want, dot := meanSquare(y), math.Sqrt(meanSquare(x)), 0.0
			for j, v := range g {
				dot += float64(v) * float64(y[j])
			}
			root := math.Sqrt(max(have, leastSquare))
			back := 0.0
			if have > leastSquare {
				back = dot * want / (root * root * root * float64(n))
			}
			for j := range g {
				g[j] = float32(float64(g[j])*want/root - float64(y[j])*back)
			}
			if want > 0 {
				f := dot / (root * want * float64(n))
				for j, v := range x {
					dx[j] += float32(f * float64(v))
				}
			}
			ds.store(i)
			dxs.store(i)
		}
		return nil
	})
}

// scale multiplies the rows of x by Scale. With an input, x is a gradient, and the gradient of Scale is added to the window.
func (b *AltUp) scale(p *Pass, x, input *Tensor) {
	if b.Scale == nil {
		return
	}
	p.Do(func() error {
		if b.factors == nil {
			b.factors, b.sums = make([]float32, b.dim()), make([]float32, b.dim())
		}
		if err := amp.Cast(snug.ViewOf(b.factors), b.Scale.Value); err != nil {
			return err
		}
		clear(b.sums)
		xs, ins := newRows32(x.View, b.dim()), rows32{}
		if input != nil {
			ins = newRows32(input.View, b.dim())
		}
		for i := range p.rows {
			row := xs.load(i)
			if input != nil {
				for j, v := range ins.load(i) {
					b.sums[j] += v * row[j]
				}
			}
			for j, f := range b.factors {
				row[j] *= f
			}
			xs.store(i)
		}
		if input == nil || !b.Scale.Trains {
			return nil
		}
		acc, into, err := p.Gradient(b.Scale)
		if err != nil {
			return err
		}
		alpha, beta, err := into.Factors()
		if err != nil {
			return err
		}
		g := acc.Float32s()
		for j, sum := range b.sums {
			if beta == 0 {
				g[j] = 0
			}
			g[j] = beta*g[j] + alpha*sum
		}
		return nil
	})
	if input != nil {
		p.Done(b.Scale)
	}
}
