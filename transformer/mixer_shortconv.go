package transformer

import (
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
)

// ShortConv is the gated short convolution of LFM2, see [layers.ShortConv]. Config.ConvTaps are the rows that it sees.
const ShortConv Mixer = "short_conv"

func init() {
	mixers[ShortConv] = &mixer{
		stage: "conv",
		check: func(c *Config) error {
			if c.names().convIn == "" {
				return bad("Mixers", "%q, and models of the family %q have none", ShortConv, c.Family)
			}
			if c.ConvTaps < 1 || c.ConvTaps > 256 || c.Dim > maxCount/3 {
				return bad("ConvTaps", "%d, want 1 to 256, and a Dim of %d at most", c.ConvTaps, maxCount/3)
			}
			return nil
		},
		list: func(l *lister) {
			n := l.names
			l.norm(n.attentionNorm)
			l.linear(n.convIn, 3*l.Dim, l.Dim, l.ConvBias)
			l.add(n.convTaps+".weight", l.Dim, 1, l.ConvTaps)
			if l.ConvBias {
				l.add(n.convTaps+".bias", l.Dim)
			}
			l.linear(n.convOut, l.Dim, l.Dim, l.ConvBias)
		},
		layer: func(m *Model, block string) mixing {
			c, n := &m.config, m.config.names()
			b := &layers.ShortConv{
				Norm: m.norm(block + n.attentionNorm), Taps: c.ConvTaps, Conv: m.param(block + n.convTaps + ".weight"), Bias: m.index[c.layout().body+block+n.convTaps+".bias"],
				In: []linear{m.linear(block+n.convIn, c.Dim, 3*c.Dim)}, Out: []linear{m.linear(block+n.convOut, c.Dim, c.Dim)},
			}
			m.addLayers(b.In, b.Out)
			return b
		},
		plan: func(c *Config, s sizes) plan.Layer {
			l := c.half(s)
			l.Params = linearShapes(l.Params, 3*c.Dim, c.Dim, c.ConvBias)
			l.Params = append(l.Params, []int{c.Dim, 1, c.ConvTaps})
			if c.ConvBias {
				l.Params = append(l.Params, []int{c.Dim})
			}
			l.Params = linearShapes(l.Params, c.Dim, c.Dim, c.ConvBias)
			l.Kept, l.Forward, l.Backward = 3*s.dim, 3*s.dim, 3*s.dim
			l.Adapters = []plan.Adapter{
				{In: s.dim, Out: 3 * s.dim, Forward: 3 * s.dim, Backward: s.dim, Gradient: s.dim, Shares: 1},
				{In: s.dim, Out: s.dim, Forward: s.dim, Backward: s.dim, Adds: true},
			}
			l.MACs = 4 * s.dim * int64(c.Dim)
			return l
		},
		width: func(c *Config) int { return 3 * c.Dim },
		work:  func(c *Config) int { return c.Dim * (4*c.Dim + c.ConvTaps) },
		state: func(c *Config) int { return (c.ConvTaps - 1) * c.Dim },
	}
}
