package layers

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/recurrent"
)

// Mamba2 is y = x + post(out(norm(ssd(u, B, C, dt), z))) for h = norm(x), the layer of Mamba-2 in place of attention (Dao and Gu 2024,
// arXiv:2405.21060), with
//
//	[z, u, B, C, dt] = in(h)    [u, B, C] = silu(conv([u, B, C]))
//
// conv is causal and depthwise, see [recurrent.Conv], and ssd is [recurrent.SSD]; both begin anew with each sequence of the batch. The norm
// behind it is [recurrent.GatedNorm]. The zero Norm and Post are the identity. It keeps the product of In alone: the backward step
// computes the convolution, the state space and the norms again. It works on the CPU.
type Mamba2 struct {
	Norm             Norm
	In, Out          []Linear // one each; In makes z, u, B, C and dt side by side
	Conv, ConvBias   *Param   // of u, B and C: [channels, 1, Taps], as torch's Conv1d has it, the last tap that of the row itself; ConvBias is nil for none
	ALog, Skip, Bias *Param   // of Heads elements: the logarithm of the decay rate, D, and what dt has added
	Inner            *Param   // of the gated norm, of Heads·Dim elements; nil: no norm, the gate alone
	Eps              float32  // of the gated norm
	Before           bool     // the gated norm is before the gate
	InnerGroups      int      // that the gated norm is of; 0 stands for 1
	Post             Norm     // of the output

	Heads, Dim, Groups, StateDim, Taps int // Heads is a multiple of Groups, which have a B and a C each
	// Min and Max are the limits of the steps, see [recurrent.SSD].
	Min, Max float32
	// Factors are what z, u, B, C and dt are multiplied by, as in Falcon-H1; 0 stands for 1.
	Factors [5]float32

	scales []float32 // of the channels of the convolution
}

// NewMamba2 returns a Mamba2 with RMSNorms, whose gated norm has a group for each B, and without biases of linear layers. Its parameters are
// name.norm, name.in, name.conv (with .bias), name.inner and name.out, each with .weight, and name.log, name.skip and name.bias; name.out
// begins as 0. States decay by a hundredth a row at first.
func NewMamba2(name string, width, heads, dim, groups, stateDim, taps int) *Mamba2 {
	b := &Mamba2{Norm: *NewRMSNorm(name+".norm", width), Inner: ones(name+".inner.weight", heads*dim), Eps: 1e-5, InnerGroups: groups,
		Heads: heads, Dim: dim, Groups: groups, StateDim: stateDim, Taps: taps}
	b.In, b.Out = []Linear{*NewLinear(name+".in", width, b.width(), false)}, []Linear{*newLast(name+".out", b.values(), width)}
	b.Conv, b.ConvBias = newParam(name+".conv.weight", deviation(taps), b.channels(), 1, taps), newParam(name+".conv.bias", 0, b.channels())
	b.ALog, b.Skip, b.Bias = newParam(name+".log", 0, heads), ones(name+".skip", heads), newParam(name+".bias", 0, heads)
	b.Bias.constant = -4.6
	return b
}

func (b *Mamba2) values() int   { return b.Heads * b.Dim }
func (b *Mamba2) keys() int     { return b.Groups * b.StateDim }
func (b *Mamba2) channels() int { return b.values() + 2*b.keys() }

// width returns the elements of a row of In's product.
func (b *Mamba2) width() int { return b.values() + b.channels() + b.Heads }

// Width implements [Layer].
func (b *Mamba2) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.In) != 1 || len(b.Out) != 1 || b.Conv == nil || b.ALog == nil || b.Skip == nil || b.Bias == nil:
		return 0, fmt.Errorf("layers: a Mamba2 without In, Out, Conv, ALog, Skip or Bias: %w", snug.ErrConfig)
	case b.Heads < 1 || b.Dim < 1 || b.Groups < 1 || b.StateDim < 1 || b.Heads%b.Groups != 0 || b.InnerGroups < 0 || b.values()%max(1, b.InnerGroups) != 0:
		return 0, fmt.Errorf("layers: a Mamba2 of %d heads of %d elements in %d groups with %d rows of a state, whose norm has %d: want multiples of these, and 1 or more: %w",
			b.Heads, b.Dim, b.Groups, b.StateDim, b.InnerGroups, snug.ErrConfig)
	case b.Taps < 1 || b.Conv.Len() != b.channels()*b.Taps || b.ConvBias != nil && b.ConvBias.Len() != b.channels():
		return 0, fmt.Errorf("layers: %s, or its bias, is of other sizes than %d taps of %d channels: %w", b.Conv.Name, b.Taps, b.channels(), snug.ErrConfig)
	case b.ALog.Len() != b.Heads || b.Skip.Len() != b.Heads || b.Bias.Len() != b.Heads || b.Inner != nil && b.Inner.Len() != b.values():
		return 0, fmt.Errorf("layers: %s, %s or %s has not %d elements, or the norm behind them not %d: %w", b.ALog.Name, b.Skip.Name, b.Bias.Name, b.Heads, b.values(), snug.ErrConfig)
	case b.In[0].Out != b.width():
		return 0, fmt.Errorf("layers: In of a Mamba2 has %d outputs, want %d: %w", b.In[0].Out, b.width(), snug.ErrConfig)
	}
	return in, blockWidth(in, b.Norm, b.Post, b.In, b.Out[0], b.values())
}

type mamba2Saved struct {
	blockSaved
	in *Tensor // the product of In
}

// Tensors implements [Saved].
func (s *mamba2Saved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.in)
}

// project computes the product of the normalized input.
func (b *Mamba2) project(p *Pass, s Stats, x *Tensor) *Tensor {
	in, h := p.Get(b.width()), p.Get(b.In[0].In)
	b.Norm.Compute(p, h, s, x)
	b.In[0].compute(p, in, h, 0)
	p.Put(h)
	return in
}

func (b *Mamba2) batch(p *Pass) recurrent.Batch {
	return recurrent.Batch{Rows: p.Batch.Rows, Sequences: p.Batch.Sequences, Starts: p.Batch.Starts}
}

func (b *Mamba2) conv(batch recurrent.Batch) recurrent.Conv {
	if f := b.Factors; b.scales == nil && (f[1] != 0 || f[2] != 0 || f[3] != 0) {
		for i, n := range [...]int{b.values(), b.keys(), b.keys()} {
			for range n {
				if f[i+1] == 0 {
					f[i+1] = 1
				}
				b.scales = append(b.scales, f[i+1])
			}
		}
	}
	return recurrent.Conv{Batch: batch, Channels: b.channels(), Taps: b.Taps, SiLU: true, XRow: b.width(), Scales: b.scales}
}

func (b *Mamba2) ssd(batch recurrent.Batch) recurrent.SSD {
	n := b.channels()
	return recurrent.SSD{Batch: batch, Groups: b.Groups, Heads: b.Heads, StateDim: b.StateDim, Dim: b.Dim, Min: b.Min, Max: b.Max,
		Factor: b.Factors[4], XRow: n, BRow: n, CRow: n, DtRow: b.width()}
}

func (b *Mamba2) gated(rows int) recurrent.GatedNorm {
	groups := max(1, b.InnerGroups)
	return recurrent.GatedNorm{Rows: rows, Groups: groups, Dim: b.values() / groups, Eps: b.Eps, Before: b.Before, Factor: b.Factors[0], GateRow: b.width()}
}

// mixed returns u, B and C of rows that have them side by side, and parts the [u, B, C] and dt of the product of In.
func (b *Mamba2) mixed(v snug.View) (u, keys, queries snug.View) {
	return v, rest(v, b.values()), rest(v, b.values()+b.keys())
}

func (b *Mamba2) parts(v snug.View) (mixed, dt snug.View) {
	return rest(v, b.values()), rest(v, b.values()+b.channels())
}

// with calls do with the elements of up to 3 parameters, of any of which there may be none. It allocates nothing.
func with(do func(w [3]snug.View) error, params ...*Param) (err error) {
	var w [3]snug.View
	for i, q := range params {
		if q == nil {
			continue
		}
		if w[i], err = q.Acquire(); err != nil {
			return errors.Join(err, release(params[:i]))
		}
	}
	return errors.Join(do(w), release(params))
}

// release ends what with has begun.
func release(params []*Param) (err error) {
	for _, q := range params {
		if q != nil {
			err = errors.Join(err, q.Release(false))
		}
	}
	return err
}

// convolve computes silu(conv([u, B, C])).
func (b *Mamba2) convolve(y, in snug.View, c recurrent.Conv) error {
	mixed, _ := b.parts(in)
	return with(func(w [3]snug.View) error { return recurrent.ConvForward(y, mixed, w[0], w[1], c) }, b.Conv, b.ConvBias)
}

// scan computes the state space.
func (b *Mamba2) scan(y, mixed, in, states snug.View, d recurrent.SSD) error {
	u, keys, queries := b.mixed(mixed)
	_, dt := b.parts(in)
	return with(func(w [3]snug.View) error {
		return recurrent.SSDForward(y, u, keys, queries, dt, w[0], w[1], w[2], states, d)
	}, b.ALog, b.Skip, b.Bias)
}

// open computes the gated norm, in place if y is x.
func (b *Mamba2) open(p *Pass, y, x, in *Tensor) {
	p.Do(func() error {
		return with(func(w [3]snug.View) error {
			return recurrent.GatedNormForward(y.View, x.View, in.View, w[0], b.gated(p.rows))
		}, b.Inner)
	})
}

// work returns the multiply-adds of the state space, as the recurrence has them.
func (b *Mamba2) work(p *Pass) float64 { return 2 * float64(p.rows) * float64(b.values()*b.StateDim) }

// mix returns what Out multiplies.
func (b *Mamba2) mix(p *Pass, in *Tensor) *Tensor {
	mixed, o := p.Get(b.channels()), p.Get(b.values())
	p.macs += b.work(p)
	p.Do(func() error { return b.convolve(mixed.View, in.View, b.conv(b.batch(p))) })
	p.Do(func() error { return b.scan(o.View, mixed.View, in.View, none32, b.ssd(b.batch(p))) })
	p.Put(mixed)
	b.open(p, o, o, in)
	return o
}

// Forward implements [Layer].
func (b *Mamba2) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	return b.forward(p, nil, x, x)
}

// forward computes y = x + what the layer adds to from, in y unless that is nil, and keeps nothing.
func (b *Mamba2) forward(p *Pass, y, x, from *Tensor) *Tensor {
	in := b.project(p, Stats{}, from)
	o := b.mix(p, in)
	p.Put(in)
	return b.leave(p, y, x, o)
}

func (b *Mamba2) leave(p *Pass, y, x, o *Tensor) *Tensor {
	if y == nil {
		y = p.Get(b.Out[0].Out)
	}
	leave(p, y, x, o, &b.Out[0], b.Post, nil)
	p.Put(o)
	return y
}

// kept returns the saved set, whose output has its values if whole says so, or the norm after it needs it.
func (b *Mamba2) kept(p *Pass, x *Tensor, whole bool) *mamba2Saved {
	if p.refuses(b, x) {
		return &mamba2Saved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[mamba2Saved](p)
	s.y = p.Get(b.Out[0].Out)
	b.save(p, s, x, x, whole)
	return s
}

// save computes the saved set for from, and the output, which is added to x.
func (b *Mamba2) save(p *Pass, s *mamba2Saved, x, from *Tensor, whole bool) {
	s.norm = b.Norm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.Out[0].Out)
	s.in = b.project(p, s.norm, from)
	if whole || !b.Post.none() {
		o := b.mix(p, s.in)
		leave(p, s.y, x, o, &b.Out[0], b.Post, &s.blockSaved)
		p.Put(o)
	}
}

// ForwardSave implements [Layer].
func (b *Mamba2) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.kept(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It leaves out all but the product of In, unless the norm after the layer needs it.
func (b *Mamba2) Resave(p *Pass, x *Tensor) Saved { return b.kept(p, x, false) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *Mamba2) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s := kept.(*mamba2Saved)
	p.Put(s.y) // the next stage, which read y, is done with its backward step
	s.y = nil
	b.backward(p, x, s, dy, dy, 1)
	return dy
}

// stats returns float32 memory of so many elements or more, nil for none.
func (p *Pass) stats(n int) *Tensor {
	if n == 0 {
		return nil
	}
	return p.Stat((n-1)/max(1, p.rows) + 1)
}

// states returns memory for what the state space keeps for its backward step, and for its workspace.
func (b *Mamba2) states(p *Pass, d recurrent.SSD) (states, workspace *Tensor) {
	return p.stats(d.StatesLen()), p.stats(d.WorkspaceLen())
}

func firstOf(t *Tensor, n int) snug.View {
	if t == nil {
		return none32
	}
	return part(t.View, 0, n)
}

// backward computes dx = beta·dx + the gradient of x from the gradient dy of what the layer adds; dx may be dy.
func (b *Mamba2) backward(p *Pass, x *Tensor, s *mamba2Saved, dy, dx *Tensor, beta float32) {
	d := b.ssd(b.batch(p))
	states, ws := b.states(p, d)
	mixed, o := p.Get(b.channels()), p.Get(b.values())
	p.macs += b.work(p)
	p.Do(func() error { return b.convolve(mixed.View, s.in.View, b.conv(d.Batch)) })
	p.Do(func() error { return b.scan(o.View, mixed.View, s.in.View, firstOf(states, d.StatesLen()), d) })
	din := p.Get(b.width())
	do := b.outBackward(p, s, din, dy, o)
	p.Put(o)
	dmixed := p.Get(b.channels())
	p.macs += 4 * b.work(p)
	b.scanBackward(p, din, dmixed, do, mixed, s.in, states, ws, d)
	p.Put(do, mixed, states, ws)
	b.convBackward(p, din, dmixed, s.in)
	p.Put(dmixed, s.in)
	s.in = nil
	h := p.Get(b.In[0].In)
	if anyTrains(b.In) {
		b.Norm.Compute(p, h, Stats{}, x)
	}
	dh := linearBackward(p, h, b.In, din)
	p.Put(din)
	b.Norm.Gradients(p, dx, dh, s.norm, x, beta)
	p.Put(dh)
}

// outBackward returns the gradient of o, the output of the state space, and writes that of z into din.
func (b *Mamba2) outBackward(p *Pass, s *mamba2Saved, din, dy, o *Tensor) *Tensor {
	dout := leaveBackward(p, dy, &b.Out[0], b.Post, &s.blockSaved)
	opened := p.Get(b.values())
	b.open(p, opened, o, s.in)
	do := linearBackward(p, opened, b.Out, dout)
	if dout != dy {
		p.Put(dout)
	}
	p.Do(func() error {
		dw, into, err := p.Gradient(b.Inner)
		if err != nil {
			return err
		}
		n, ws := b.gated(p.rows), none32
		if dw.Len() > 0 {
			if ws, err = p.Workspace(n.WorkspaceLen()); err != nil {
				return err
			}
		}
		return with(func(w [3]snug.View) error {
			return recurrent.GatedNormBackward(do.View, din.View, dw, do.View, o.View, s.in.View, w[0], ws, n, into)
		}, b.Inner)
	})
	p.Done(b.Inner)
	return do
}

// scanBackward writes the gradients of u, B and C into dmixed and that of dt into din.
func (b *Mamba2) scanBackward(p *Pass, din, dmixed, do, mixed, in, states, ws *Tensor, d recurrent.SSD) {
	p.Do(func() error {
		params := [...]*Param{b.ALog, b.Skip, b.Bias}
		var g recurrent.SSDGrads
		for i, to := range [...]*snug.View{&g.ALog, &g.Skip, &g.Bias} {
			acc, into, err := p.Gradient(params[i])
			switch {
			case err != nil:
				return err
			case acc.Len() > 0 && g.ALog.Len()+g.Skip.Len() > 0 && into != g.Into:
				return fmt.Errorf("the window's Into of %s and of those before it differ: %w", params[i].Name, snug.ErrConfig)
			case acc.Len() > 0:
				*to, g.Into = acc, into
			}
		}
		g.X, g.B, g.C = b.mixed(dmixed.View)
		_, g.Dt = b.parts(din.View)
		u, keys, queries := b.mixed(mixed.View)
		_, dt := b.parts(in.View)
		return with(func(w [3]snug.View) error {
			return recurrent.SSDBackward(g, do.View, u, keys, queries, dt, w[0], w[1], w[2], firstOf(states, d.StatesLen()), firstOf(ws, d.WorkspaceLen()), d)
		}, params[:]...)
	})
	p.Done(b.ALog, b.Skip, b.Bias)
}

// convBackward writes the gradient of what the convolution read into din.
func (b *Mamba2) convBackward(p *Pass, din, dmixed, in *Tensor) {
	p.Do(func() error {
		dw, into, err := p.Gradient(b.Conv)
		if err != nil {
			return err
		}
		db, other, err := p.Gradient(b.ConvBias)
		switch {
		case err != nil:
			return err
		case dw.Len() == 0:
			into = other
		case db.Len() > 0 && into != other:
			return fmt.Errorf("the window's Into of %s and of %s differ: %w", b.Conv.Name, b.ConvBias.Name, snug.ErrConfig)
		}
		to, _ := b.parts(din.View)
		from, _ := b.parts(in.View)
		return with(func(w [3]snug.View) error {
			return recurrent.ConvBackward(to, dw, db, dmixed.View, from, w[0], w[1], b.conv(b.batch(p)), into)
		}, b.Conv, b.ConvBias)
	})
	p.Done(b.Conv, b.ConvBias)
}

// StateLen returns the elements of the state of a sequence: the last Taps-1 rows of u, B and C, and the state of each head.
func (b *Mamba2) StateLen() int {
	if b == nil || b.Taps < 1 {
		return 0
	}
	return (b.Taps-1)*b.channels() + b.values()*b.StateDim
}

// Continue is Forward for sequences of which earlier rows are gone: states[i], StateLen elements of float32, is the state of sequence i
// before its rows, and becomes that behind them. Every sequence has Rows of the batch divided by Sequences rows. Sequences without a
// state, the last ones, have arbitrary outputs, which without [Batch].Used are finite where those of the others are.
func (b *Mamba2) Continue(p *Pass, x *Tensor, states []snug.View) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	return b.proceed(p, nil, x, x, states)
}

// proceed is forward from states.
func (b *Mamba2) proceed(p *Pass, y, x, from *Tensor, states []snug.View) *Tensor {
	in := b.project(p, Stats{}, from)
	mixed, o := p.Get(b.channels()), p.Get(b.values())
	rows, n := p.Batch.Rows/max(1, p.Batch.Sequences), (b.Taps-1)*b.channels()
	c, d := b.conv(recurrent.Batch{Rows: rows}), b.ssd(recurrent.Batch{Rows: rows})
	of := func(t *Tensor, i, width int) snug.View { return part(t.View, i*rows*width, rows*width) }
	for i := range p.Batch.Sequences {
		p.Do(func() error {
			if i >= len(states) {
				return errors.Join(snug.Copy(of(o, i, b.values()), of(o, 0, b.values())), snug.Copy(of(in, i, b.width()), of(in, 0, b.width())))
			}
			last, state := part(states[i], 0, n), rest(states[i], n)
			c.Initial, c.Final, d.Initial, d.Final = last, last, state, state
			if err := b.convolve(of(mixed, i, b.channels()), of(in, i, b.width()), c); err != nil {
				return err
			}
			return b.scan(of(o, i, b.values()), of(mixed, i, b.channels()), of(in, i, b.width()), none32, d)
		})
	}
	p.Put(mixed)
	b.open(p, o, o, in)
	p.Put(in)
	return b.leave(p, y, x, o)
}

// Params implements [Layer].
func (b *Mamba2) Params(yield func(*Param) bool) {
	yieldAll(yield, b.Norm.list(), listOf(b.In), []*Param{b.Conv, b.ConvBias, b.ALog, b.Skip, b.Bias, b.Inner}, listOf(b.Out), b.Post.list())
}
