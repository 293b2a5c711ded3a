package train

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// single is a Window that holds a gradient only until it is complete. The gradient of an embedding that is also the
// head has two parts, and is held from the first to the second.
type single struct {
	params []param
	values map[string]snug.View
	dev    *snug.Device
	ready  quant8.Ready
	open   map[string]*gradient
	done   int // gradients of this pass
	unused []*gradient
	held   int64 // bytes of all gradients
	free   []func() error

	holders *holders
}

// gradient is the memory of a gradient.
type gradient struct {
	all, view snug.View
	by        *plan.Holder // that counts it
}

// unusedGradient names the memory of gradients that are complete.
const unusedGradient = "room for the next gradient"

// give makes the holder of a layer count a gradient, in place of the holder that counts it now.
func (s *single) give(g *gradient, layer string) {
	if s.holders == nil || s.holders.monitor == nil {
		return
	}
	to := s.holders.of(plan.Gradients, layer).Holder
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
	if s.done != len(s.params) {
		return fmt.Errorf("the model has completed %d gradients of %d: it does not call Done of the Window: %w", s.done, len(s.params), snug.ErrConfig)
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
	s.give(g, plan.LayerOf(name))
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
		s.free = append(s.free, free)
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

// HoldsOne says that the model should complete a gradient before it begins the next one.
func (s *single) HoldsOne() bool { return true }

func (s *single) close() (err error) {
	for _, free := range s.free {
		err = errors.Join(err, free())
	}
	s.free = nil
	return err
}
