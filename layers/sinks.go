package layers

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// This file has the sinks of attention. A sink is a learned logit of a head, which enters the denominator of the
// softmax and has no value.

// sinkColumns returns the number of probabilities of a row that are not of keys: its sink's, if there is one.
func (b *Attention) sinkColumns() int {
	if b.Sinks != nil {
		return 1
	}
	return 0
}

// sinks gives c the sinks in float32, as package attention takes them. They stay there until the next layer's.
func (b *Attention) sinks(p *Pass, c *attention.Options) {
	if b.Sinks == nil || p.counts {
		return
	}
	p.Do(func() error {
		if err := p.GrowSinks(b.Heads); err != nil {
			return err
		}
		c.Sinks.X = part(p.sunk.v, 0, b.Heads)
		return amp.Cast(c.Sinks.X, b.Sinks.Value)
	})
}

// sinkGradient returns where a backward step of attention writes the gradient of sinks, empty if they do not train.
func (b *Attention) sinkGradient(p *Pass) snug.View {
	if b.Sinks == nil || !b.Sinks.Trains || p.sunk.v.Len() == 0 {
		return snug.View{}
	}
	return part(p.sunk.v, b.Heads, b.Heads)
}

// addSinks adds to the window the gradient that attention wrote to sinkGradient.
func (b *Attention) addSinks(p *Pass) {
	if b.Sinks == nil || !b.Sinks.Trains {
		return
	}
	p.Do(func() error {
		acc, into, err := p.Gradient(b.Sinks)
		if err != nil {
			return err
		}
		ws, err := p.Workspace(fused.BiasAddWorkspaceLen(1, b.Heads))
		if err != nil {
			return err
		}
		return fused.BiasAddBackward(acc, b.sinkGradient(p), into, ws)
	})
	p.Done(b.Sinks)
}
