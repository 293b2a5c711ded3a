package layers

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Experts is a mixture of experts (Shazeer et al. 2017, arXiv:1701.06538), MLPs with a gate. For each row a router chooses a few
// of them:
//
//	y = x + Σ weight·down(act(gate·h)·up·h)   over the experts that the router chooses for a row, h = norm(x)
//
// If there is a Shared expert, its output is added for every row.
//
// Rows are grouped by expert, without padding: the rows of an expert are copied into one tensor, and the products of
// the expert run over this tensor only. The layer keeps its output and the router's logits. The backward step routes by
// these logits again, so it chooses the same experts, and recomputes the inner activations, one expert at a time.
// Besides tensors of all rows, a step holds the inner activations of one expert at a time, at most of the largest group,
// and on the host 12 bytes for each row and chosen expert. An expert that no row chooses is not read, and its gradients
// are 0.
type Experts struct {
	Norm    Norm
	Router  Linear // to an element for each expert
	Routing fused.Router
	// FloatLogits says that the router's logits are float32 whatever the type of the activations, so that experts whose logits are nearly
	// equal are not exchanged by their rounding. They are kept until the backward step, in 4 bytes each.
	FloatLogits bool

	Experts    []Expert
	Shared     *SharedExpert // nil for none
	Correction *Param        // of float32, which does not train: added to the scores where experts are chosen, see [fused.Route]; nil for none
	Activation Activation
	Balance    *Balance         // nil for none
	Prefetch   func(expert int) // unless nil, asks for the matrices of an expert that is needed next

	// RouterNorm is of the rows that the router reads in place of h, RouterScale·RouterNorm(x); zero: it reads h.
	RouterNorm  Norm
	RouterScale float32
	Scales      *Param // [experts], multiply the weights; nil for none; on the CPU alone
	WeighInput  bool   // weights multiply the rows that an expert reads, in place of its output, as in Llama 4
	Post        Norm   // of the sum of the experts, before x is added

	correction []float32 // its elements, once they are read from a device
	factors    []float32 // elements of Scales, and sums of their gradients
	sums       []float64

	entered uint64 // number of the last pass in which the layer's choice was added to the balancing loss
}

// Expert has the matrices of an expert: gate and up, and down.
type Expert struct{ In, Down []Linear }

// NewExperts returns Experts with an RMSNorm, without biases. The router chooses chosen of count experts for each row by a softmax. Its
// parameters are name.norm, name.router, and for each expert name.0.gate, name.0.up and name.0.down, which begins as 0.
func NewExperts(name string, width, hidden, count, chosen int) *Experts {
	b := &Experts{
		Norm: *NewRMSNorm(name+".norm", width), Router: *NewLinear(name+".router", width, count, false), Activation: SiLU,
		Routing: fused.Router{Experts: count, Chosen: chosen, Normalize: true},
	}
	for i := range count {
		e := NewMLP(fmt.Sprint(name, ".", i), width, hidden, SiLU, true)
		b.Experts = append(b.Experts, Expert{e.In, e.Down})
	}
	return b
}

type expertsSaved struct {
	blockSaved
	logits *Tensor // of the router
	router Stats   // of RouterNorm
}

// Tensors implements [Saved].
func (s *expertsSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.logits, s.router.mean, s.router.rstd)
}

// Width implements [Layer].
func (b *Experts) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.Experts) == 0 || b.Routing.Experts != len(b.Experts) || b.Routing.Chosen < 1 || b.Routing.Chosen > len(b.Experts) || b.Router.Out != len(b.Experts):
		return 0, fmt.Errorf("layers: Experts without experts, or with another Router or Routing: %w", snug.ErrConfig)
	case b.Correction != nil && (b.Correction.Len() != len(b.Experts) || b.Correction.Trains):
		return 0, fmt.Errorf("layers: the Correction of Experts has %d elements, or trains, want %d that do not: %w", b.Correction.Len(), len(b.Experts), snug.ErrConfig)
	case b.Activation.gated == nil:
		return 0, fmt.Errorf("layers: Experts want the Activation of a gate: %w", snug.ErrConfig)
	case b.Scales != nil && b.Scales.Len() != len(b.Experts):
		return 0, fmt.Errorf("layers: the Scales of Experts have %d elements, want %d: %w", b.Scales.Len(), len(b.Experts), snug.ErrConfig)
	}
	if _, err := b.RouterNorm.Width(in); err != nil {
		return 0, err
	}
	for i := range b.Experts {
		e := &b.Experts[i]
		if len(e.In) != 2 || len(e.Down) != 1 {
			return 0, fmt.Errorf("layers: expert %d has %d and %d matrices, want 2 and 1: %w", i, len(e.In), len(e.Down), snug.ErrConfig)
		}
		if err := blockWidth(in, b.Norm, b.Post, e.In, e.Down[0], e.In[0].Out); err != nil {
			return 0, err
		}
	}
	if err := b.Shared.check(in); err != nil {
		return 0, err
	}
	_, err := b.Router.Width(in)
	return in, err
}

// Params implements [Layer].
func (b *Experts) Params(yield func(*Param) bool) {
	lists := [][]*Param{b.Norm.list(), b.RouterNorm.list(), b.Router.list(), {b.Correction, b.Scales}}
	for i := range b.Experts {
		lists = append(lists, listOf(b.Experts[i].In), listOf(b.Experts[i].Down))
	}
	yieldAll(yield, append(append(lists, b.Shared.lists()...), b.Post.list())...)
}

// Forward implements [Layer].
func (b *Experts) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	y := p.Get(b.dim())
	p.Put(b.forward(p, nil, y, x, x))
	return y
}

// ForwardSave implements [Layer].
func (b *Experts) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.kept(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It computes only the norm and the router's logits, unless a norm follows.
func (b *Experts) Resave(p *Pass, x *Tensor) Saved { return b.kept(p, x, false) }

// kept returns the saved set, whose output has its values if whole says so.
func (b *Experts) kept(p *Pass, x *Tensor, whole bool) *expertsSaved {
	if p.refuses(b, x) {
		return &expertsSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[expertsSaved](p)
	s.y = p.Get(b.dim())
	b.save(p, s, s.y, x, x, whole)
	return s
}

// save computes the saved set of experts(from), and y = x + experts(from), or without x the sum alone, if whole says so, or the norm
// after it needs it.
func (b *Experts) save(p *Pass, s *expertsSaved, y, x, from *Tensor, whole bool) {
	s.norm, s.router = b.Norm.NewStats(p, 1), b.RouterNorm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.dim())
	if whole || !b.Post.none() {
		s.logits = b.forward(p, s, y, x, from)
		return
	}
	h := p.Get(b.dim())
	s.logits = b.logits(p, s, h, from)
	p.Put(h)
}

func (b *Experts) dim() int    { return b.Router.In }
func (b *Experts) hidden() int { return b.Experts[0].Down[0].In }

// logits computes h = norm(x), and returns the router's logits. s, unless nil, gets the statistics.
func (b *Experts) logits(p *Pass, s *expertsSaved, h, x *Tensor) *Tensor {
	norm, router := Stats{}, Stats{}
	if s != nil {
		norm, router = s.norm, s.router
	}
	logits := b.scores(p)
	b.Norm.Compute(p, h, norm, x)
	read := b.routed(p, router, h, x)
	b.Router.compute(p, logits, read, 0)
	if read != h {
		p.Put(read)
	}
	return logits
}

// routed returns the rows that the router reads: h, or a new tensor.
func (b *Experts) routed(p *Pass, s Stats, h, x *Tensor) *Tensor {
	if b.RouterNorm.none() {
		return h
	}
	read := p.Get(b.dim())
	b.RouterNorm.Compute(p, read, s, x)
	p.Do(func() error { return multiply(read.View, read.Len(), b.RouterScale) })
	return read
}

// scores returns a tensor for the router's logits, or their gradients.
func (b *Experts) scores(p *Pass) *Tensor {
	if b.FloatLogits {
		return p.Stat(len(b.Experts))
	}
	return p.Get(len(b.Experts))
}

// forward computes y = x + experts(from), or the sum alone if x is nil, and returns the router's logits. s, unless nil, gets what the
// backward step needs.
func (b *Experts) forward(p *Pass, s *expertsSaved, y, x, from *Tensor) *Tensor {
	h := p.Get(b.dim())
	logits := b.logits(p, s, h, from)
	b.route(p, logits)
	b.add(p, logits)
	b.clear(p, y)
	for i := range b.Experts {
		e := &b.Experts[i]
		if !b.begin(p, i) {
			continue
		}
		in, weights := b.pick(p, h), p.routed.weights
		if b.WeighInput {
			b.weigh(p, in)
			weights = nil
		}
		gate, up := b.project(p, e, in)
		b.Activation.compute(p, up, gate, up, nil)
		p.Put(gate)
		e.Down[0].compute(p, in, up, 0) // in is no longer needed as input
		p.Put(up)
		b.addRows(p, y, in, weights)
		p.Put(in)
	}
	b.finish(p)
	b.unroute(p)
	b.addShared(p, y, h)
	p.Put(h)
	if !b.Post.none() {
		half, kept := y, Stats{}
		if s != nil {
			half, kept = s.half, s.post
			p.copyTo(half, y)
		}
		b.Post.Compute(p, y, kept, half)
	}
	if x != nil {
		p.Do(func() error { return fused.Add(y.View, y.View, x.View) })
	}
	return logits
}

// project computes gate and up.
func (b *Experts) project(p *Pass, e *Expert, in *Tensor) (gate, up *Tensor) {
	gate, up = p.Get(b.hidden()), p.Get(b.hidden())
	e.In[0].compute(p, gate, in, 0)
	e.In[1].compute(p, up, in, 0)
	return gate, up
}

// begin makes the operations that follow run over the rows of an expert, and asks for the matrices of the next expert
// that has rows. It reports whether the expert has any.
func (b *Experts) begin(p *Pass, expert int) bool {
	if p.counts {
		p.rows = b.group(p.Batch)
		return true
	}
	if p.Err = cmp.Or(p.Failed(), p.ctx.Err()); p.Err != nil || !p.routed.group(expert) {
		return false
	}
	p.rows = len(p.routed.groupRows)
	if b.Prefetch != nil {
		if next := p.routed.after(expert); next < len(b.Experts) {
			b.Prefetch(next)
		}
	}
	return true
}

// group returns the rows of the largest group of an expert that costs count.
func (b *Experts) group(batch Batch) int {
	return cmp.Or(max(0, batch.Group), batch.Sequences*GroupRows(batch.Longest, b.Routing.Experts, b.Routing.Chosen))
}

// finish makes the operations that follow run over all rows.
func (b *Experts) finish(p *Pass) { p.rows = p.Batch.Rows }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *Experts) Backward(p *Pass, x *Tensor, kept Saved, d *Tensor) *Tensor {
	if !p.refuses(b, x) {
		b.backward(p, x, kept.(*expertsSaved), d, d)
	}
	return d
}

// backward adds the gradient of x to dx, from the gradient d of what the block adds; dx may be d.
func (b *Experts) backward(p *Pass, x *Tensor, s *expertsSaved, d, dx *Tensor) {
	if !b.Post.none() {
		sum := p.Get(b.dim())
		b.Post.Gradients(p, sum, d, s.post, s.half, 0)
		defer p.Put(sum)
		d = sum
	}
	h, dh := p.Get(b.dim()), p.Get(b.dim())
	b.Norm.Compute(p, h, Stats{}, x)
	b.route(p, s.logits)
	p.routed.dweights = p.Stat(b.Routing.Chosen)
	if b.WeighInput {
		b.clear(p, p.routed.dweights)
	}
	b.clear(p, dh)
	for i := range b.Experts {
		if b.begin(p, i) {
			b.expertBackward(p, &b.Experts[i], dh, d, h)
		} else {
			b.expertIdle(p, &b.Experts[i])
		}
	}
	b.finish(p)
	b.scalesBackward(p, s.logits)
	dlogits := b.scores(p)
	b.routeBackward(p, dlogits, s.logits)
	b.unroute(p)
	read := b.routed(p, Stats{}, h, x)
	b.Router.weightGradients(p, read, dlogits)
	if read == h {
		b.Router.inputGradient(p, dh, dlogits, 1)
	} else {
		b.Router.inputGradient(p, read, dlogits, 0)
		p.Do(func() error { return multiply(read.View, read.Len(), b.RouterScale) })
	}
	p.Done(b.Router.Weight, b.Router.Bias)
	p.Put(dlogits)
	b.sharedBackward(p, dh, d, h)
	p.Put(h)
	if read != h { // d, which may be dx, is not needed any more
		b.RouterNorm.Gradients(p, dx, read, s.router, x, 1)
		p.Put(read)
	}
	b.Norm.Gradients(p, dx, dh, s.norm, x, 1)
	p.Put(dh)
}

// expertBackward adds an expert's part of the gradient of h to dh, given the gradient d of y. It sets the gradients of
// the router's weights for the rows of the expert, and adds to the gradients of the expert's parameters.
func (b *Experts) expertBackward(p *Pass, e *Expert, dh, d, h *Tensor) {
	in := b.pick(p, h)
	if b.WeighInput {
		b.weigh(p, in)
	}
	gate, up := b.project(p, e, in)
	act, out := p.Get(b.hidden()), p.Get(b.dim())
	b.Activation.compute(p, act, gate, up, nil)
	if b.WeighInput {
		b.pickInto(p, out, d)
	} else {
		e.Down[0].compute(p, out, act, 0)
		b.addWeightedBackward(p, out, d)
	}
	dact := linearBackward(p, act, e.Down, out)
	p.Put(out)
	b.Activation.gradients(p, dact, gate, up, nil)
	p.Put(dact)
	din := linearBackward(p, in, e.In, gate, up)
	p.Put(gate, up)
	if b.WeighInput {
		b.weighBackward(p, din, h)
	}
	b.addRows(p, dh, din, nil)
	p.Put(din)
}

// expertIdle completes the gradients of an expert that has no rows.
func (b *Experts) expertIdle(p *Pass, e *Expert) {
	for _, list := range [...][]Linear{e.In, e.Down} {
		for i := range list {
			l := &list[i]
			b.addNothing(p, l.Weight, l.Bias)
			if a := l.Adapter; a != nil {
				b.addNothing(p, a.ParamA, a.ParamB, a.ParamM)
			}
		}
	}
}

// addNothing completes gradients to which this micro-batch adds nothing.
func (b *Experts) addNothing(p *Pass, list ...*Param) {
	for _, w := range list {
		if w == nil || !w.Trains {
			continue
		}
		p.Do(func() error {
			acc, into, err := p.Gradient(w)
			if err != nil || into.Beta == 1 {
				return err
			}
			return multiply(acc, w.Len(), into.Beta)
		})
	}
	p.Done(list...)
}

// clear sets the elements of x to 0.
func (b *Experts) clear(p *Pass, x *Tensor) {
	p.Do(func() error { return multiply(x.View, x.Len(), 0) })
}

// GroupRows returns the number of rows of a sequence that costs assume for the largest group of an expert: twice the mean.
func GroupRows(rows, experts, chosen int) int {
	e := int64(max(1, experts))
	return int(min(int64(rows), (2*int64(rows)*int64(chosen)+e-1)/e))
}
