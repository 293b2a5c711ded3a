package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/recurrent"
)

// ShortConv is y = x + post(out(c·conv(b·u))) for [b, c, u] = in(norm(x)), the gated short convolution of LFM2 (Liquid AI, 2025), which
// stands in place of attention: conv is causal and depthwise, see [recurrent.Conv], and begins anew with each sequence of the batch.
// Zero norms are the identity. It keeps b, c and u; the backward step computes the convolution and the norm again. It works on the CPU.
type ShortConv struct {
	Norm    Norm
	In, Out []Linear // one each, In with b, c and u side by side
	Conv    *Param   // [width, 1, Taps], as torch's Conv1d has it, the last tap that of the row itself
	Bias    *Param   // of the convolution; nil for none
	Taps    int
	Post    Norm // of the output
}

// NewShortConv returns a ShortConv with an RMSNorm and without biases. Its parameters are name.norm, name.in, name.conv and name.out, each
// with .weight; name.out begins as 0.
func NewShortConv(name string, width, taps int) *ShortConv {
	return &ShortConv{
		Norm: *NewRMSNorm(name+".norm", width), In: []Linear{*NewLinear(name+".in", width, 3*width, false)}, Out: []Linear{*newLast(name+".out", width, width)},
		Conv: newParam(name+".conv.weight", deviation(taps), width, 1, taps), Taps: taps,
	}
}

// Width implements [Layer].
func (b *ShortConv) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.In) != 1 || len(b.Out) != 1 || b.Conv == nil:
		return 0, fmt.Errorf("layers: a ShortConv without In, Out or Conv: %w", snug.ErrConfig)
	case b.Taps < 1 || b.Conv.Len() != b.Out[0].In*b.Taps || b.Bias != nil && b.Bias.Len() != b.Out[0].In:
		return 0, fmt.Errorf("layers: %s, or its bias, is of other sizes than %d taps of %d channels: %w", b.Conv.Name, b.Taps, b.Out[0].In, snug.ErrConfig)
	case b.In[0].Out != 3*b.Out[0].In:
		return 0, fmt.Errorf("layers: In of a ShortConv has %d outputs, want %d: %w", b.In[0].Out, 3*b.Out[0].In, snug.ErrConfig)
	}
	return in, blockWidth(in, b.Norm, b.Post, b.In, b.Out[0], b.Out[0].In)
}

type shortConvSaved struct {
	blockSaved
	in *Tensor // b, c and u
}

// Tensors implements [Saved].
func (s *shortConvSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.in)
}

func (b *ShortConv) width() int { return b.Out[0].In }

// project computes b, c and u of the rows of x.
func (b *ShortConv) project(p *Pass, s Stats, x *Tensor) *Tensor {
	in, h := p.Get(3*b.width()), p.Get(b.In[0].In)
	b.Norm.Compute(p, h, s, x)
	b.In[0].compute(p, in, h, 0)
	p.Put(h)
	return in
}

// options returns the options of package recurrent for the batch.
func (b *ShortConv) options(p *Pass) recurrent.Conv {
	return recurrent.Conv{Batch: recurrent.Batch{Rows: p.Batch.Rows, Sequences: p.Batch.Sequences, Starts: p.Batch.Starts}, Channels: b.width(), Taps: b.Taps, Gates: true}
}

// weights calls do with the weights of the convolution and its bias, of any of which may be none.
func (b *ShortConv) weights(do func(w, bias snug.View) error) error {
	return b.Conv.With(false, func(w snug.View) error {
		if b.Bias == nil {
			return do(w, snug.View{})
		}
		return b.Bias.With(false, func(bias snug.View) error { return do(w, bias) })
	})
}

// convolve returns c·conv(b·u).
func (b *ShortConv) convolve(p *Pass, in *Tensor) *Tensor {
	y := p.Get(b.width())
	p.Do(func() error {
		return b.weights(func(w, bias snug.View) error { return recurrent.ConvForward(y.View, in.View, w, bias, b.options(p)) })
	})
	return y
}

// Forward implements [Layer].
func (b *ShortConv) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	in := b.project(p, Stats{}, x)
	mixed := b.convolve(p, in)
	p.Put(in)
	return b.leave(p, x, mixed)
}

func (b *ShortConv) leave(p *Pass, x, mixed *Tensor) *Tensor {
	y := p.Get(b.Out[0].Out)
	leave(p, y, x, mixed, &b.Out[0], b.Post, nil)
	p.Put(mixed)
	return y
}

// save returns the saved set, whose output has its values if whole says so, or the norm after it needs it.
func (b *ShortConv) save(p *Pass, x *Tensor, whole bool) *shortConvSaved {
	if p.refuses(b, x) {
		return &shortConvSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[shortConvSaved](p)
	s.y, s.norm = p.Get(b.Out[0].Out), b.Norm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.Out[0].Out)
	s.in = b.project(p, s.norm, x)
	if whole || !b.Post.none() {
		mixed := b.convolve(p, s.in)
		leave(p, s.y, x, mixed, &b.Out[0], b.Post, &s.blockSaved)
		p.Put(mixed)
	}
	return s
}

// ForwardSave implements [Layer].
func (b *ShortConv) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It leaves out the convolution and the last product, unless its norm needs them.
func (b *ShortConv) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x, false) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *ShortConv) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s, d := kept.(*shortConvSaved), dy
	p.Put(s.y) // the next stage, which read y, is done with its backward step
	s.y = nil
	dout, out := leaveBackward(p, d, &b.Out[0], b.Post, &s.blockSaved), &b.Out[0]
	mixed := b.convolve(p, s.in)
	out.weightGradients(p, mixed, dout)
	dmixed := p.Get(b.width())
	out.inputGradients(p, dmixed, dout, mixed, inner(p, mixed, b.Out)[0], 0)
	p.Done(out.Weight, out.Bias)
	p.Put(mixed)
	if dout != d {
		p.Put(dout)
	}
	din := p.Get(3 * b.width())
	b.gradients(p, din, dmixed, s.in)
	p.Put(dmixed, s.in)
	s.in = nil
	h := p.Get(b.In[0].In)
	if anyTrains(b.In) {
		b.Norm.Compute(p, h, Stats{}, x)
	}
	dh := linearBackward(p, h, b.In, din)
	p.Put(din)
	b.Norm.Gradients(p, d, dh, s.norm, x, 1)
	p.Put(dh)
	return d
}

// gradients computes the gradients of b, c and u, and adds those of the convolution's parameters to the window.
func (b *ShortConv) gradients(p *Pass, din, dmixed, in *Tensor) {
	p.Do(func() error {
		dw, into, err := p.Gradient(b.Conv)
		if err != nil {
			return err
		}
		db, other, err := p.Gradient(b.Bias)
		if err != nil {
			return err
		}
		switch {
		case dw.Len() == 0:
			into = other
		case db.Len() > 0 && into != other:
			return fmt.Errorf("the window's Into of %s and of %s differ: %w", b.Conv.Name, b.Bias.Name, snug.ErrConfig)
		}
		return b.weights(func(w, bias snug.View) error {
			return recurrent.ConvBackward(din.View, dw, db, dmixed.View, in.View, w, bias, b.options(p), into)
		})
	})
	p.Done(b.Conv, b.Bias)
}

// StateLen returns the elements of the state of a sequence: the last Taps-1 rows of b·u.
func (b *ShortConv) StateLen() int {
	if b == nil || len(b.Out) != 1 || b.Taps < 1 {
		return 0
	}
	return (b.Taps - 1) * b.width()
}

// Continue is Forward for sequences of which earlier rows are gone: states[i], StateLen elements of float32, is the state of sequence i
// before its rows, and becomes that behind them. Every sequence has Rows of the batch divided by Sequences rows. Sequences without a
// state, the last ones, have arbitrary outputs, which are finite where those of the others are.
func (b *ShortConv) Continue(p *Pass, x *Tensor, states []snug.View) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	in := b.project(p, Stats{}, x)
	mixed := p.Get(b.width())
	c := b.options(p)
	rows, n := c.Rows/max(1, c.Sequences), b.width()
	c.Rows, c.Sequences = rows, 1
	for i := range p.Batch.Sequences {
		p.Do(func() error {
			if i >= len(states) {
				return snug.Copy(part(mixed.View, i*rows*n, rows*n), part(mixed.View, 0, rows*n))
			}
			c.Initial, c.Final = states[i], states[i]
			return b.weights(func(w, bias snug.View) error {
				return recurrent.ConvForward(part(mixed.View, i*rows*n, rows*n), part(in.View, 3*i*rows*n, 3*rows*n), w, bias, c)
			})
		})
	}
	p.Put(in)
	return b.leave(p, x, mixed)
}

// Params implements [Layer].
func (b *ShortConv) Params(yield func(*Param) bool) {
	yieldAll(yield, b.Norm.list(), listOf(b.In), []*Param{b.Conv, b.Bias}, listOf(b.Out), b.Post.list())
}
