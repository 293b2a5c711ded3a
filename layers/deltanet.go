package layers

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/recurrent"
)

// DeltaNet is y = x + post(out(norm(delta(q, k, v, g, beta))·silu(z))) for h = norm(x), the gated delta net of Yang, Kautz and Hatamizadeh
// (2024, arXiv:2412.06464) as Qwen3-Next and Qwen3.5 have it in place of attention:
//
//	[q, k, v] = silu(conv(qkv·h))    g = −exp(ALog)·softplus(a·h + Bias)    beta = σ(b·h)    z = z·h
//
// conv is causal and depthwise, see [recurrent.Conv], and delta is [recurrent.Delta] with normalized q and k; both begin anew with each
// sequence of the batch. Its Inner norm is of each head, of Dim elements. Zero norms are the identity. It keeps the products alone: the
// backward step computes the convolution, the delta rule and the norms again. It works on the CPU.
type DeltaNet struct {
	Norm Norm
	// In has four layers: to q, k and v side by side, each of all heads; to z; to b; and to a. With Interleaved it has two, whose outputs
	// lie by heads of keys: q, k, and the v and the z of the heads that share these; and b and a of these heads.
	In, Out     []Linear // Out: one
	Interleaved bool
	Conv        *Param // [2·KeyHeads·KeyDim + Heads·Dim, 1, Taps], as torch's Conv1d has it, the last tap that of the row itself
	ALog, Bias  *Param // of Heads elements
	Inner       Norm
	Post        Norm // of the output

	KeyHeads, Heads, KeyDim, Dim, Taps int // Heads is a multiple of KeyHeads; a head of q and k has KeyDim elements, one of v and z Dim
}

// NewDeltaNet returns a DeltaNet with RMSNorms and without biases. Its parameters are name.norm, name.qkv, name.z, name.b, name.a,
// name.conv, name.inner and name.out, each with .weight, and name.bias and name.log; name.out begins as 0. States decay by a hundredth
// a row at first.
func NewDeltaNet(name string, width, keyHeads, heads, keyDim, dim, taps int) *DeltaNet {
	b := &DeltaNet{Norm: *NewRMSNorm(name+".norm", width), Inner: *NewRMSNorm(name+".inner", dim), KeyHeads: keyHeads, Heads: heads, KeyDim: keyDim, Dim: dim, Taps: taps}
	for _, l := range []struct {
		name string
		out  int
	}{{".qkv", b.channels()}, {".z", b.values()}, {".b", heads}, {".a", heads}} {
		b.In = append(b.In, *NewLinear(name+l.name, width, l.out, false))
	}
	b.Out = []Linear{*newLast(name+".out", b.values(), width)}
	b.Conv = newParam(name+".conv.weight", deviation(taps), b.channels(), 1, taps)
	b.Bias, b.ALog = newParam(name+".bias", 0, heads), newParam(name+".log", 0, heads)
	b.Bias.constant = -4.6
	return b
}

// Width implements [Layer].
func (b *DeltaNet) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.In) != 4 && !b.Interleaved || len(b.In) != 2 && b.Interleaved || len(b.Out) != 1 || b.Conv == nil || b.ALog == nil || b.Bias == nil:
		return 0, fmt.Errorf("layers: a DeltaNet without In, Out, Conv, ALog or Bias: %w", snug.ErrConfig)
	case b.KeyHeads < 1 || b.Heads < 1 || b.KeyDim < 1 || b.Dim < 1 || b.Heads%b.KeyHeads != 0:
		return 0, fmt.Errorf("layers: a DeltaNet of %d heads of %d elements, and %d of keys of %d: want a multiple of these, and 1 or more: %w", b.Heads, b.Dim, b.KeyHeads, b.KeyDim, snug.ErrConfig)
	case b.Taps < 1 || b.Conv.Len() != b.channels()*b.Taps:
		return 0, fmt.Errorf("layers: %s has %d elements, want %d taps of %d channels: %w", b.Conv.Name, b.Conv.Len(), b.Taps, b.channels(), snug.ErrConfig)
	case b.ALog.Len() != b.Heads || b.Bias.Len() != b.Heads:
		return 0, fmt.Errorf("layers: %s and %s have %d and %d elements, want %d: %w", b.ALog.Name, b.Bias.Name, b.ALog.Len(), b.Bias.Len(), b.Heads, snug.ErrConfig)
	case !b.Inner.none() && b.Inner.cols() != b.Dim:
		return 0, fmt.Errorf("layers: the Inner norm of a DeltaNet is of %d elements, want the %d of a head: %w", b.Inner.cols(), b.Dim, snug.ErrConfig)
	}
	if _, err := b.Inner.Width(b.values()); err != nil {
		return 0, err
	}
	want := []int{b.channels(), b.values(), b.Heads, b.Heads}
	if b.Interleaved {
		want = []int{b.channels() + b.values(), 2 * b.Heads}
	}
	for i := range b.In {
		if b.In[i].Out != want[i] {
			return 0, fmt.Errorf("layers: In %d of a DeltaNet has %d outputs, want %d: %w", i, b.In[i].Out, want[i], snug.ErrConfig)
		}
	}
	return in, blockWidth(in, b.Norm, b.Post, b.In, b.Out[0], b.values())
}

type deltaNetSaved struct {
	blockSaved
	qkv, z, b, a *Tensor // the products
}

// Tensors implements [Saved].
func (s *deltaNetSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.qkv, s.z, s.b, s.a)
}

func (b *DeltaNet) keys() int     { return b.KeyHeads * b.KeyDim }
func (b *DeltaNet) values() int   { return b.Heads * b.Dim }
func (b *DeltaNet) channels() int { return 2*b.keys() + b.values() }

// project computes the products of the normalized input.
func (b *DeltaNet) project(p *Pass, s Stats, x *Tensor) (qkv, z, beta, a *Tensor) {
	h := p.Get(b.In[0].In)
	b.Norm.Compute(p, h, s, x)
	if !b.Interleaved {
		qkv, z, beta, a = p.Get(b.channels()), p.Get(b.values()), p.Get(b.Heads), p.Get(b.Heads)
		for i, y := range [...]*Tensor{qkv, z, beta, a} {
			b.In[i].compute(p, y, h, 0)
		}
		p.Put(h)
		return qkv, z, beta, a
	}
	wide, logits := p.Get(b.In[0].Out), p.Get(b.In[1].Out)
	b.In[0].compute(p, wide, h, 0)
	b.In[1].compute(p, logits, h, 0)
	p.Put(h)
	qkv, z, beta, a = p.Get(b.channels()), p.Get(b.values()), p.Get(b.Heads), p.Get(b.Heads)
	b.interleave(p, wide, logits, qkv, z, beta, a, false)
	p.Put(wide, logits)
	return qkv, z, beta, a
}

// interleave copies q, k, v, z, b and a out of the rows of interleaved products, or into them.
func (b *DeltaNet) interleave(p *Pass, wide, logits, qkv, z, beta, a *Tensor, into bool) {
	each := b.Heads / b.KeyHeads
	n := each * b.Dim
	for _, c := range [...]struct {
		all, part     *Tensor
		first, at     int // elements before those of the first head
		unit, row, of int // elements of a head of keys in all, of a row of the part, and that are copied
	}{
		{wide, qkv, 0, 0, 2*b.KeyDim + 2*n, b.channels(), b.KeyDim},
		{wide, qkv, b.KeyDim, b.keys(), 2*b.KeyDim + 2*n, b.channels(), b.KeyDim},
		{wide, qkv, 2 * b.KeyDim, 2 * b.keys(), 2*b.KeyDim + 2*n, b.channels(), n},
		{wide, z, 2*b.KeyDim + n, 0, 2*b.KeyDim + 2*n, b.values(), n},
		{logits, beta, 0, 0, 2 * each, b.Heads, each},
		{logits, a, each, 0, 2 * each, b.Heads, each},
	} {
		p.Do(func() error {
			all, some := part(c.all.View, c.first, c.all.Len()-c.first), part(c.part.View, c.at, c.part.Len()-c.at)
			in, out := fused.Heads{Row: c.unit * b.KeyHeads, Head: c.unit}, fused.Heads{Row: c.row, Head: c.of}
			if into {
				return fused.CopyHeads(all, some, in, out, p.rows, b.KeyHeads, c.of)
			}
			return fused.CopyHeads(some, all, out, in, p.rows, b.KeyHeads, c.of)
		})
	}
}

func (b *DeltaNet) batch(p *Pass) recurrent.Batch {
	return recurrent.Batch{Rows: p.Batch.Rows, Sequences: p.Batch.Sequences, Starts: p.Batch.Starts}
}

func (b *DeltaNet) conv(batch recurrent.Batch) recurrent.Conv {
	return recurrent.Conv{Batch: batch, Channels: b.channels(), Taps: b.Taps, SiLU: true}
}

func (b *DeltaNet) delta(batch recurrent.Batch) recurrent.Delta {
	n := b.channels()
	return recurrent.Delta{Batch: batch, KeyHeads: b.KeyHeads, Heads: b.Heads, KeyDim: b.KeyDim, Dim: b.Dim, Normalize: true, QRow: n, KRow: n, VRow: n}
}

// split returns q, k and v of rows that have them side by side.
func (b *DeltaNet) split(qkv snug.View) (q, k, v snug.View) {
	n := qkv.Len()
	return qkv, part(qkv, b.keys(), n-b.keys()), part(qkv, 2*b.keys(), n-2*b.keys())
}

// convolve returns silu(conv(qkv)).
func (b *DeltaNet) convolve(p *Pass, qkv *Tensor) *Tensor {
	y := p.Get(b.channels())
	p.Do(func() error {
		return b.Conv.With(false, func(w snug.View) error {
			return recurrent.ConvForward(y.View, qkv.View, w, snug.View{}, b.conv(b.batch(p)))
		})
	})
	return y
}

// gates returns the decays and the step sizes.
func (b *DeltaNet) gates(p *Pass, beta, a *Tensor) (g, steps *Tensor) {
	g, steps = p.Stat(b.Heads), p.Stat(b.Heads)
	p.Do(func() error {
		return b.ALog.With(false, func(aLog snug.View) error {
			return b.Bias.With(false, func(bias snug.View) error {
				return recurrent.GatesForward(g.View, steps.View, a.View, beta.View, aLog, bias, b.Heads)
			})
		})
	})
	return g, steps
}

// state returns the elements of a row of what the delta rule keeps: it has a state for every SegmentRows rows.
func (b *DeltaNet) state() int {
	return (b.Heads*b.KeyDim*b.Dim-1)/recurrent.SegmentRows + 1
}

// recur computes the delta rule. states, unless nil, takes what its backward step needs.
func (b *DeltaNet) recur(p *Pass, out, mixed, g, steps, states *Tensor) {
	p.macs += b.work(p)
	p.Do(func() error {
		d := b.delta(b.batch(p))
		q, k, v := b.split(mixed.View)
		return recurrent.DeltaForward(out.View, q, k, v, g.View, steps.View, b.kept(states, d), d)
	})
}

func (b *DeltaNet) kept(states *Tensor, d recurrent.Delta) snug.View {
	if states == nil {
		return none32
	}
	return part(states.View, 0, d.StatesLen())
}

// work returns the multiply-adds of the delta rule for the rows of a pass, as the recurrence has them.
func (b *DeltaNet) work(p *Pass) float64 {
	return 3 * float64(p.rows) * float64(b.Heads*b.KeyDim*b.Dim)
}

// open computes out = norm(o)·silu(z), in place if out is o.
func (b *DeltaNet) open(p *Pass, out, o, z *Tensor, s Stats) {
	b.Inner.Compute(p, out, s, o)
	p.Do(func() error { return fused.SwiGLU(out.View, z.View, out.View) })
}

// mix returns norm(delta(q, k, v, g, beta))·silu(z).
func (b *DeltaNet) mix(p *Pass, qkv, z, beta, a *Tensor) *Tensor {
	mixed := b.convolve(p, qkv)
	g, steps := b.gates(p, beta, a)
	o := p.Get(b.values())
	b.recur(p, o, mixed, g, steps, nil)
	p.Put(mixed, g, steps)
	b.open(p, o, o, z, Stats{})
	return o
}

// Forward implements [Layer].
func (b *DeltaNet) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	qkv, z, beta, a := b.project(p, Stats{}, x)
	o := b.mix(p, qkv, z, beta, a)
	p.Put(qkv, z, beta, a)
	return b.leave(p, x, o)
}

func (b *DeltaNet) leave(p *Pass, x, o *Tensor) *Tensor {
	y := p.Get(b.Out[0].Out)
	leave(p, y, x, o, &b.Out[0], b.Post, nil)
	p.Put(o)
	return y
}

// save returns the saved set, whose output has its values if whole says so, or the norm after it needs it.
func (b *DeltaNet) save(p *Pass, x *Tensor, whole bool) *deltaNetSaved {
	if p.refuses(b, x) {
		return &deltaNetSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[deltaNetSaved](p)
	s.y, s.norm = p.Get(b.Out[0].Out), b.Norm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.Out[0].Out)
	s.qkv, s.z, s.b, s.a = b.project(p, s.norm, x)
	if whole || !b.Post.none() {
		o := b.mix(p, s.qkv, s.z, s.b, s.a)
		leave(p, s.y, x, o, &b.Out[0], b.Post, &s.blockSaved)
		p.Put(o)
	}
	return s
}

// ForwardSave implements [Layer].
func (b *DeltaNet) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It leaves out all but the products, unless the norm after the layer needs it.
func (b *DeltaNet) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x, false) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *DeltaNet) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s, d := kept.(*deltaNetSaved), dy
	p.Put(s.y) // the next stage, which read y, is done with its backward step
	s.y = nil
	mixed := b.convolve(p, s.qkv)
	g, steps := b.gates(p, s.b, s.a)
	states, o := p.Stat(b.state()), p.Get(b.values())
	b.recur(p, o, mixed, g, steps, states)
	do := b.outBackward(p, s, d, o)
	p.Put(o)
	dmixed := b.deltaBackward(p, s, do, mixed, g, steps, states)
	p.Put(do, mixed, g, steps, states)
	dqkv := p.Get(b.channels())
	b.convBackward(p, dqkv, dmixed, s.qkv)
	p.Put(dmixed, s.qkv)
	list := []*Tensor{dqkv, s.z, s.b, s.a}
	if b.Interleaved {
		wide, logits := p.Get(b.In[0].Out), p.Get(b.In[1].Out)
		b.interleave(p, wide, logits, dqkv, s.z, s.b, s.a, true)
		p.Put(list...)
		list = []*Tensor{wide, logits}
	}
	s.qkv, s.z, s.b, s.a = nil, nil, nil, nil
	h := p.Get(b.In[0].In)
	if anyTrains(b.In) {
		b.Norm.Compute(p, h, Stats{}, x)
	}
	dh := linearBackward(p, h, b.In, list...)
	p.Put(list...)
	b.Norm.Gradients(p, d, dh, s.norm, x, 1)
	p.Put(dh)
	return d
}

// outBackward returns the gradient of the delta rule's output o for the gradient d of the layer's, and turns z into its gradient.
func (b *DeltaNet) outBackward(p *Pass, s *deltaNetSaved, d, o *Tensor) *Tensor {
	out := &b.Out[0]
	dout := leaveBackward(p, d, out, b.Post, &s.blockSaved)
	stats := b.Inner.NewStats(p, b.Heads)
	normed := p.Get(b.values())
	b.open(p, normed, o, s.z, stats)
	out.weightGradients(p, normed, dout)
	do := p.Get(b.values())
	out.inputGradients(p, do, dout, normed, inner(p, normed, b.Out)[0], 0)
	p.Done(out.Weight, out.Bias)
	if dout != d {
		p.Put(dout)
	}
	b.Inner.Compute(p, normed, Stats{}, o)
	p.Do(func() error { return fused.SwiGLUBackward(s.z.View, do.View, do.View, s.z.View, normed.View) })
	p.Put(normed)
	b.Inner.Gradients(p, do, do, stats, o, 0)
	stats.Release(p)
	return do
}

// deltaBackward returns the gradient of [q, k, v], and turns a and b into their gradients.
func (b *DeltaNet) deltaBackward(p *Pass, s *deltaNetSaved, do, mixed, g, steps, states *Tensor) *Tensor {
	dmixed, dg, dsteps := p.Get(b.channels()), p.Stat(b.Heads), p.Stat(b.Heads)
	p.macs += 3 * b.work(p)
	p.Do(func() error {
		d := b.delta(b.batch(p))
		q, k, v := b.split(mixed.View)
		dq, dk, dv := b.split(dmixed.View)
		return recurrent.DeltaBackward(dq, dk, dv, dg.View, dsteps.View, do.View, q, k, v, g.View, steps.View, b.kept(states, d), d)
	})
	p.Do(func() error {
		daLog, into, err := p.Gradient(b.ALog)
		if err != nil {
			return err
		}
		dbias, other, err := p.Gradient(b.Bias)
		switch {
		case err != nil:
			return err
		case daLog.Len() == 0:
			into = other
		case dbias.Len() > 0 && into != other:
			return fmt.Errorf("the window's Into of %s and of %s differ: %w", b.ALog.Name, b.Bias.Name, snug.ErrConfig)
		}
		return b.ALog.With(false, func(aLog snug.View) error {
			return b.Bias.With(false, func(bias snug.View) error {
				return recurrent.GatesBackward(s.a.View, s.b.View, daLog, dbias, dg.View, dsteps.View, s.a.View, s.b.View, aLog, bias, b.Heads, into)
			})
		})
	})
	p.Done(b.ALog, b.Bias)
	p.Put(dg, dsteps)
	return dmixed
}

// convBackward computes the gradient of qkv, and adds that of the convolution to the window.
func (b *DeltaNet) convBackward(p *Pass, dqkv, dmixed, qkv *Tensor) {
	p.Do(func() error {
		dw, into, err := p.Gradient(b.Conv)
		if err != nil {
			return err
		}
		return b.Conv.With(false, func(w snug.View) error {
			return recurrent.ConvBackward(dqkv.View, dw, none32, dmixed.View, qkv.View, w, snug.View{}, b.conv(b.batch(p)), into)
		})
	})
	p.Done(b.Conv)
}

// StateLen returns the elements of the state of a sequence: the last Taps-1 rows of q, k and v, and the state of each head.
func (b *DeltaNet) StateLen() int {
	if b == nil || b.Taps < 1 {
		return 0
	}
	return (b.Taps-1)*b.channels() + b.Heads*b.KeyDim*b.Dim
}

// Continue is Forward for sequences of which earlier rows are gone: states[i], StateLen elements of float32, is the state of sequence i
// before its rows, and becomes that behind them. Every sequence has Rows of the batch divided by Sequences rows. Sequences without a
// state, the last ones, have arbitrary outputs, which without [Batch].Used are finite where those of the others are.
func (b *DeltaNet) Continue(p *Pass, x *Tensor, states []snug.View) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	qkv, z, beta, a := b.project(p, Stats{}, x)
	mixed, o := p.Get(b.channels()), p.Get(b.values())
	g, steps := b.gates(p, beta, a)
	rows, n := p.Batch.Rows/max(1, p.Batch.Sequences), (b.Taps-1)*b.channels()
	c, d := b.conv(recurrent.Batch{Rows: rows}), b.delta(recurrent.Batch{Rows: rows})
	of := func(t *Tensor, i, width int) snug.View { return part(t.View, i*rows*width, rows*width) }
	for i := range p.Batch.Sequences {
		p.Do(func() error {
			if i >= len(states) {
				return errors.Join(snug.Copy(of(o, i, b.values()), of(o, 0, b.values())), snug.Copy(of(z, i, b.values()), of(z, 0, b.values())))
			}
			last, state := part(states[i], 0, n), part(states[i], n, states[i].Len()-n)
			c.Initial, c.Final, d.Initial, d.Final = last, last, state, state
			err := b.Conv.With(false, func(w snug.View) error {
				return recurrent.ConvForward(of(mixed, i, b.channels()), of(qkv, i, b.channels()), w, snug.View{}, c)
			})
			if err != nil {
				return err
			}
			q, k, v := b.split(of(mixed, i, b.channels()))
			return recurrent.DeltaForward(of(o, i, b.values()), q, k, v, of(g, i, b.Heads), of(steps, i, b.Heads), none32, d)
		})
	}
	p.Put(mixed, g, steps)
	b.open(p, o, o, z, Stats{})
	p.Put(qkv, z, beta, a)
	return b.leave(p, x, o)
}

// Params implements [Layer].
func (b *DeltaNet) Params(yield func(*Param) bool) {
	yieldAll(yield, b.Norm.list(), listOf(b.In), []*Param{b.Conv, b.Bias, b.ALog}, b.Inner.list(), listOf(b.Out), b.Post.list())
}
