package layers

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Layer is a function of rows with parameters. It keeps the first error in the pass.
type Layer interface {
	// Forward returns the output for x, which it only borrows, and keeps nothing else.
	Forward(p *Pass, x *Tensor) (y *Tensor)
	// ForwardSave returns the output for x, and what Backward needs besides x. y belongs to s.
	ForwardSave(p *Pass, x *Tensor) (y *Tensor, s Saved)
	// Backward returns the gradient of x from the gradient of y, whose memory it frees or returns, and adds the gradients
	// of the parameters to the window. It does not read the output in s, which may have any value, and does not release s.
	Backward(p *Pass, x *Tensor, s Saved, dy *Tensor) (dx *Tensor)
	// Width returns the elements of a row of the output for an input with rows of so many. The error wraps [snug.ErrShape]
	// for an input that the layer does not take, or [snug.ErrConfig] for a layer that is not whole.
	Width(in int) (out int, err error)
	// Params calls yield for each parameter, in the order in which the forward pass uses them, until yield returns false.
	Params(yield func(*Param) bool)
}

// Resaver is a Layer that computes its saved set again for less than ForwardSave.
type Resaver interface {
	// Resave returns the set of ForwardSave to the bit, except for the output in it, which may have any value.
	Resave(p *Pass, x *Tensor) Saved
}

// Saved is what a layer keeps for its backward step.
type Saved interface {
	// Tensors appends all tensors of the set, the output included, nil for those that it does not have.
	Tensors(list []*Tensor) []*Tensor
}

// newSaved returns an empty set of type S, a freed one of the pass if there is any.
func newSaved[S any, P interface {
	*S
	Saved
}](p *Pass) P {
	at := slices.IndexFunc(p.sets, func(s Saved) bool { _, is := s.(P); return is })
	if at < 0 {
		return new(S)
	}
	s := p.sets[at].(P)
	p.sets = slices.Delete(p.sets, at, at+1)
	*s = *new(S)
	return s
}

// SavedBytes returns the bytes of a set.
func (p *Pass) SavedBytes(s Saved) (sum int64) {
	if s == nil {
		return 0
	}
	p.kept = s.Tensors(p.kept[:0])
	for _, t := range p.kept {
		if t != nil {
			sum += t.Bytes()
		}
	}
	return sum
}

// ReleaseSaved frees the tensors of a set.
func (p *Pass) ReleaseSaved(s Saved) {
	if s == nil {
		return
	}
	p.kept = s.Tensors(p.kept[:0])
	p.Put(p.kept...)
	if outer, is := s.(*perLayerSaved); is && outer.inner != nil {
		p.sets = append(p.sets, outer.inner)
	}
	switch s.(type) { // newSaved uses these again
	case *output, *normSaved, *batchSaved, *perLayerSaved, *attentionSaved, *parallelSaved, *besideSaved, *altUpSaved, *latentSaved, *shortConvSaved, *deltaNetSaved, *mamba2Saved, *mlpSaved, *expertsSaved, *maxPoolSaved:
		p.sets = append(p.sets, s)
	}
}

// Chain returns a chain without stages, whose values are those of p.
func (p *Pass) Chain() *remat.Chain[*Tensor, Saved] {
	return &remat.Chain[*Tensor, Saved]{
		Bytes:        func(t *Tensor) int64 { return t.Bytes() },
		SavedBytes:   p.SavedBytes,
		Release:      func(t *Tensor) { p.Put(t) },
		ReleaseSaved: p.ReleaseSaved,
	}
}

// Cost returns the sizes of a layer with an input of so many elements a row, for batches of the shape b: it runs the
// layer without memory and counts. Times are 10⁹ multiply-adds of matrix products. For a layer that does not take such an input the cost is 0. A backward step counts a window that holds all gradients.
func (p *Pass) Cost(l Layer, width int, b Batch) (c remat.Cost) {
	if l == nil || !p.made() || b.Rows < 1 || b.Sequences < 1 {
		return c
	}
	if _, err := l.Width(width); err != nil {
		return c
	}
	p = p.counting(b)
	x := p.Get(width)
	var y *Tensor
	var s Saved
	forward := p.Measure(func() { y = l.Forward(p, x) })
	c.Output, c.ForwardTime = y.Bytes(), p.macs/1e9
	save := p.Measure(func() { _, s = l.ForwardSave(p, x) })
	c.Saved = p.SavedBytes(s)
	c.ForwardExtra = max(forward-c.Output, save-c.Saved)
	p.macs = 0
	c.BackwardExtra = c.Output - x.Bytes() // package remat counts the gradient of x in place of that of y, which is held beside it
	c.BackwardExtra += p.Measure(func() { l.Backward(p, x, s, y) })
	c.BackwardTime = p.macs / 1e9
	return c
}

// starter is a layer that may leave out the gradient of its input, which nobody reads of the first layer of a model.
type starter interface {
	// backwardFirst is Backward, except that the gradient that it returns may have any value.
	backwardFirst(p *Pass, x *Tensor, s Saved, dy *Tensor) (dx *Tensor)
}

// backward is Backward of a layer, which may be the first.
func backward(p *Pass, l Layer, x *Tensor, s Saved, dy *Tensor, first bool) *Tensor {
	if f, is := l.(starter); is && first {
		return f.backwardFirst(p, x, s, dy)
	}
	return l.Backward(p, x, s, dy)
}

// stage makes a Layer a stage of a chain.
type stage struct {
	Layer
	p     *Pass
	first bool // of the chain
	counted
}

// start begins a phase.
func (s stage) start(ctx context.Context, phase meter.Phase) *Pass {
	s.enter(ctx, s.p, phase)
	return s.p.Start(ctx)
}

// Resave implements [remat.Resaver].
func (s stage) Resave(ctx context.Context, x *Tensor) (kept Saved, err error) {
	if r, is := s.Layer.(Resaver); is {
		kept = r.Resave(s.start(ctx, meter.Forward), x)
	} else {
		_, kept = s.Layer.ForwardSave(s.start(ctx, meter.Forward), x)
	}
	return kept, s.p.Failed()
}

func (s stage) Forward(ctx context.Context, x *Tensor) (*Tensor, error) {
	y := s.Layer.Forward(s.start(ctx, meter.Forward), x)
	return y, s.p.Failed()
}

func (s stage) ForwardSave(ctx context.Context, x *Tensor) (*Tensor, Saved, error) {
	y, kept := s.Layer.ForwardSave(s.start(ctx, meter.Forward), x)
	return y, kept, s.p.Failed()
}

func (s stage) Backward(ctx context.Context, x *Tensor, kept Saved, dy *Tensor) (*Tensor, error) {
	dx := backward(s.start(ctx, meter.Backward), s.Layer, x, kept, dy, s.first)
	return dx, s.p.Failed()
}

// output is a saved set of the output alone.
type output struct{ y *Tensor }

// Tensors implements [Saved].
func (s *output) Tensors(list []*Tensor) []*Tensor { return append(list, s.y) }

func (s *output) dropOutput(p *Pass) {
	p.Put(s.y)
	s.y = nil
}

// dropper is a set that can free the output in it, which a layer around has copied. Sets of other packages keep theirs.
type dropper interface{ dropOutput(p *Pass) }

// dropOutput frees the output in a set, unless a backward step reads it.
func dropOutput(p *Pass, s Saved) {
	if d, is := s.(dropper); is && !readsOutput(s) {
		d.dropOutput(p)
	}
}

// saveOutput is ForwardSave of a layer whose backward step needs its input alone.
func saveOutput(p *Pass, l Layer, x *Tensor) (*Tensor, Saved) {
	y := l.Forward(p, x)
	if p == nil {
		return y, &output{y}
	}
	s := newSaved[output](p)
	s.y = y
	return y, s
}

// widthOf returns an error unless rows of in elements are want.
func widthOf(name string, in, want int) error {
	if in == want {
		return nil
	}
	return fmt.Errorf("layers: %s has rows of %d elements, want %d: %w", name, in, want, snug.ErrShape)
}

// blockWidth checks a block of matrices on norm(x), and out on rows of inner elements.
func blockWidth(in int, norm, post Norm, matrices []Linear, out Linear, inner int) error {
	for i := range matrices {
		if _, err := matrices[i].Width(in); err != nil {
			return err
		}
	}
	if _, err := out.Width(inner); err != nil {
		return err
	}
	if f := post.Factor; !(f >= 0 && f <= math.MaxFloat32) || f != 0 && !post.none() {
		return fmt.Errorf("layers: the Factor of a Post is %v, want a number of 0 or more, and no Weight beside it: %w", f, snug.ErrConfig)
	}
	post.Factor = 0
	for _, n := range [...]Norm{norm, post} {
		if _, err := n.Width(in); err != nil {
			return err
		}
	}
	return widthOf(out.Weight.Name, out.Out, in)
}

// blockSaved is what blocks x + post(f(norm(x))) keep.
type blockSaved struct {
	output
	norm Stats
	half *Tensor // input of the norm after the block, if there is one
	post Stats
}

// Tensors implements [Saved].
func (s *blockSaved) Tensors(list []*Tensor) []*Tensor {
	return append(list, s.y, s.norm.mean, s.norm.rstd, s.half, s.post.mean, s.post.rstd)
}

// keepPost allocates what the norm after a block keeps.
func (s *blockSaved) keepPost(p *Pass, post Norm, width int) {
	if !post.none() {
		s.half, s.post = p.Get(width), post.NewStats(p, 1)
	}
}

// leave computes y = x + post(in·w + b), the end of a block; without a post y may be x. Without an x it adds nothing. s, unless nil, keeps what the backward step of post needs.
func leave(p *Pass, y, x, in *Tensor, l *Linear, post Norm, s *blockSaved) {
	if post.none() && post.Factor != 0 {
		half := y
		if y == x {
			half = p.Get(l.Out)
		}
		l.compute(p, half, in, 0)
		p.Do(func() error { return multiply(half.View, half.Len(), post.Factor) })
		if x != nil {
			p.Do(func() error { return fused.Add(y.View, half.View, x.View) })
		}
		if half != y {
			p.Put(half)
		}
		return
	}
	if post.none() && x == nil {
		l.compute(p, y, in, 0)
		return
	}
	if post.none() {
		if y != x {
			p.copyTo(y, x)
		}
		l.compute(p, y, in, 1)
		return
	}
	half, kept := y, Stats{}
	if s != nil {
		half, kept = s.half, s.post
	}
	l.compute(p, half, in, 0)
	post.Compute(p, y, kept, half)
	if x != nil {
		p.Do(func() error { return fused.Add(y.View, y.View, x.View) })
	}
}

// leaveBackward returns the gradient of in·w + b for the gradient d of leave's y, which has l.Out elements a row: d itself if there is neither
// a post nor a factor, otherwise a new tensor. The tensors of a tile have no bytes while costs are counted, so that d does not tell its width.
func leaveBackward(p *Pass, d *Tensor, l *Linear, post Norm, s *blockSaved) *Tensor {
	if post.none() && post.Factor != 0 {
		half := p.Get(l.Out)
		p.copyTo(half, d)
		p.Do(func() error { return multiply(half.View, half.Len(), post.Factor) })
		return half
	}
	if post.none() {
		return d
	}
	half := p.Get(post.cols())
	post.Gradients(p, half, d, s.post, s.half, 0)
	return half
}
