package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
)

// inBackward updates each parameter while the model runs backward, as soon as its gradient is complete.
type inBackward[B any] struct {
	updater[B]
	inPass
	single single
}

func (*inBackward[B]) traits() traits { return traits{backward: true, changes: true} }

func (*inBackward[B]) excludes(o *Options) []fault.Rule { return withoutAll("InBackward", o) }

// withoutAll returns what does not go with a way that never has all gradients.
func withoutAll(name string, o *Options) []fault.Rule {
	return []fault.Rule{
		{o.Scaler != nil, name + " does not go with a loss scale, because one parameter is updated before another is known to be finite"},
		{o.Fill != nil, name + " has no master weights to fill"},
	}
}

func (b *inBackward[B]) make() error {
	t := b.t
	b.single = single{dev: t.params[0].value.Device(), values: map[string]snug.View{}, holders: &t.holders, closes: t.closes}
	for _, p := range t.params {
		b.single.values[p.name] = p.value
	}
	return b.updater.make()
}

func (b *inBackward[B]) bytes() meter.Bytes {
	all := b.updater.bytes()
	all[meter.Gradients] = b.single.held
	return all
}

func (b *inBackward[B]) pass(ctx context.Context, batches []B, rate float32) (loss fused.Loss, err error) {
	t := b.t
	if len(batches) != 1 {
		return loss, fmt.Errorf("%d micro-batches, and InBackward takes one: %w", len(batches), snug.ErrConfig)
	}
	b.advance(rate)
	measures := t.options.Clip > 0 // the first pass only measures the norm
	b.found.Norm, err = b.opt.StepInBackward(quant8.BackwardOptions{MaxNorm: t.options.Clip}, func(ready quant8.Ready) (err error) {
		if !measures {
			ready = b.changing(ready)
		}
		measures = false
		loss, err = b.run(ctx, batches[0], ready)
		return err
	})
	return loss, err
}

// run runs a micro-batch, and calls ready for each parameter.
func (b *inBackward[B]) run(ctx context.Context, batch B, ready quant8.Ready) (fused.Loss, error) {
	if err := b.t.buffers.restore(); err != nil { // after a pass that measured
		return fused.Loss{}, err
	}
	b.single.begin(ready)
	loss, err := b.t.collected(b.t.model.Backprop(ctx, batch, 1, &b.single))
	if err == nil {
		err = b.single.end()
	}
	return loss, err
}

// advance begins a step in the backward pass, unless a failed attempt that changed nothing has already begun it.
func (b *inBackward[B]) advance(rate float32) {
	t := b.t
	if !t.begun || t.halfway {
		b.opt.Advance(rate)
	}
	t.begun = true
}

// changing wraps ready to note that the step has changed parameters or the state. A gradient that is not finite changes
// neither.
func (b *inBackward[B]) changing(ready quant8.Ready) quant8.Ready {
	t := b.t
	return func(name string, p, g snug.View) error {
		before := t.halfway
		t.halfway = true
		err := ready(name, p, g)
		if errors.Is(err, snug.ErrNonFinite) {
			t.halfway = before
		}
		return err
	}
}

// single is a Window that holds a gradient only until it is complete. The gradient of an embedding that is also the
// head has two parts, and is held from the first to the second.
type single struct {
	values map[string]snug.View
	dev    *snug.Device
	ready  quant8.Ready
	open   map[string]*gradient
	done   int // gradients of this pass
	unused []*gradient
	held   int64 // bytes of all gradients

	holders *holders
	closes  func(free func() error)
}

// gradient is the memory of a gradient.
type gradient struct {
	all, view snug.View
	by        *meter.Holder // that counts it
}

// unusedGradient names the memory of gradients that are complete.
const unusedGradient = "room for the next gradient"

// give makes the holder of a layer count a gradient, in place of the holder that counts it now.
func (s *single) give(g *gradient, layer string) {
	if s.holders.monitor == nil {
		return
	}
	to := s.holders.of(meter.Gradients, layer).Holder
	if to == g.by {
		return
	}
	n := int64(g.all.Bytes())
	if g.by != nil {
		g.by.Add(-n)
	}
	to.Add(n)
	g.by = to
}

func (s *single) begin(ready quant8.Ready) {
	s.ready, s.done = ready, 0
	for _, g := range s.open { // of a pass that failed
		s.unused = append(s.unused, g)
		s.give(g, unusedGradient)
	}
	s.open = map[string]*gradient{}
}

// end returns an error unless the model has called Done for every parameter.
func (s *single) end() error {
	if s.done != len(s.values) {
		return fmt.Errorf("the model has completed %d gradients of %d: it does not call Done of the Window: %w", s.done, len(s.values), snug.ErrConfig)
	}
	return nil
}

// Into returns the accumulator of a parameter, which the first gradient overwrites.
func (s *single) Into(name string) (snug.View, snug.Into, error) {
	if g := s.open[name]; g != nil {
		return g.view, snug.Into{Alpha: 1, Beta: 1}, nil
	}
	p, known := s.values[name]
	if !known {
		return snug.View{}, snug.Into{}, fmt.Errorf("unknown parameter %q: %w", name, snug.ErrConfig)
	}
	g, err := s.take(p.Len())
	if err != nil {
		return snug.View{}, snug.Into{}, fmt.Errorf("the gradient of %q: %w", name, err)
	}
	s.open[name] = g
	s.give(g, meter.LayerOf(name))
	return g.view, snug.Into{Alpha: 1}, nil
}

// take returns memory for n elements: the smallest unused memory that is large enough, or new memory. It is rarely new,
// because models complete gradients layer by layer, and the sizes of layers repeat.
func (s *single) take(n int) (*gradient, error) {
	best := -1
	for i, g := range s.unused {
		if g.all.Len() >= n && (best < 0 || g.all.Len() < s.unused[best].all.Len()) {
			best = i
		}
	}
	var g *gradient
	if best >= 0 {
		g = s.unused[best]
		s.unused = append(s.unused[:best], s.unused[best+1:]...)
	} else {
		all, free, err := snug.MakeView(s.dev, snug.F32, n)
		if err != nil {
			return nil, err
		}
		g = &gradient{all: all}
		s.held += int64(all.Bytes())
		s.closes(free)
	}
	view, err := g.all.Slice(0, n)
	g.view = view
	return g, err
}

// Done updates a parameter, whose gradient is complete.
func (s *single) Done(name string) error {
	g := s.open[name]
	if g == nil {
		return fmt.Errorf("Done of %q, which has no gradient: %w", name, snug.ErrConfig)
	}
	delete(s.open, name)
	s.unused = append(s.unused, g)
	s.done++
	err := s.ready(name, s.values[name], g.view)
	s.give(g, unusedGradient)
	return err
}

var (
	_ Completer = (*single)(nil)
	_ OneHolder = (*single)(nil)
)

// HoldsOne says that the model should complete a gradient before it begins the next one.
func (s *single) HoldsOne() bool { return true }
