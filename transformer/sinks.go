package transformer

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// This file has the sinks of attention. A sink is a learned logit of a head, which enters the denominator of the
// softmax and has no value.

// sinks gives c the sinks of a layer in float32, as package attention takes them; nil: none. They stay there until the
// next layer's.
func (o *ops) sinks(c *attention.Options, p *Param) {
	if p == nil {
		return
	}
	c.Sinks.X = part(o.sunk.v, 0, p.Len())
	o.do(func() error { return amp.Cast(c.Sinks.X, p.Value) })
}

// sinkGradient returns where a backward step of attention writes the gradient of sinks, empty if they do not train.
func (o *ops) sinkGradient(p *Param) snug.View {
	if p == nil || !p.Trains {
		return snug.View{}
	}
	return part(o.sunk.v, p.Len(), p.Len())
}

// addSinks adds to the window the gradient that attention wrote to sinkGradient.
func (o *ops) addSinks(p *Param) {
	if p == nil || !p.Trains {
		return
	}
	o.do(func() error {
		acc, into, err := o.gradient(p)
		if err != nil {
			return err
		}
		return fused.BiasAddBackward(acc, o.sinkGradient(p), into, o.ws.v)
	})
	o.done(p)
}
