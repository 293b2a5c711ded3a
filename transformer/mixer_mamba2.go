package transformer

import (
	"math"
	"slices"

	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/recurrent"
)

// Mamba2 is the layer of Mamba-2, see [layers.Mamba2]. Config.Mamba describes it.
const Mamba2 Mixer = "mamba2"

// Mamba describes the layers with the Mixer [Mamba2]. The zero Mamba says that there are none.
type Mamba struct {
	Heads, HeadDim   int // each head has a state of StateDim·HeadDim elements
	Groups, StateDim int // Groups, a divisor of Heads, have a B and a C of StateDim elements each
	Taps             int // rows that the convolution sees, its own included

	ConvBias, InBias, OutBias bool // of the convolution, and of the projections

	Norm      bool // an RMSNorm of each of Groups parts of a row follows the state space; without it the gate alone does
	NormFirst bool // that norm is before the gate

	// StepMin and StepMax are the limits of the steps Δ; a StepMax of 0 is none.
	StepMin, StepMax float64
	// Factors multiply z, x, B, C and dt, and OutFactor the output; 0 stands for 1.
	Factors   [5]float64
	OutFactor float64
	// Beside says that layers with the mixer have attention, too: both read the same rows, and their outputs are added.
	Beside bool
}

func (d *Mamba) values() int   { return d.Heads * d.HeadDim }
func (d *Mamba) channels() int { return d.values() + 2*d.Groups*d.StateDim }

// width returns the elements of a row of the first product.
func (d *Mamba) width() int { return d.values() + d.channels() + d.Heads }

// work returns the multiply-adds of the state space of a row.
func (d *Mamba) work() int { return 2*d.values()*d.StateDim + d.Taps*d.channels() }

// checkMamba returns an error unless the fields fit one another.
func (c *Config) checkMamba() error {
	d := &c.Mamba
	if c.names().mamba == "" {
		return bad("Mixers", "%q, and models of the family %q have none", Mamba2, c.Family)
	}
	for _, n := range []struct {
		name  string
		value int
		most  int
	}{
		{"Heads", d.Heads, maxCount}, {"HeadDim", d.HeadDim, maxCount}, {"Groups", d.Groups, maxCount}, {"StateDim", d.StateDim, maxCount}, {"Taps", d.Taps, 256},
	} {
		if n.value < 1 || n.value > n.most {
			return bad("Mamba."+n.name, "%d, want 1 to %d", n.value, n.most)
		}
	}
	width := 2*int64(d.Heads)*int64(d.HeadDim) + 2*int64(d.Groups)*int64(d.StateDim) + int64(d.Heads)
	state := float64(d.Heads) * float64(d.HeadDim) * float64(d.StateDim)
	switch {
	case d.Heads%d.Groups != 0:
		return bad("Mamba.Groups", "%d, want a divisor of the %d heads", d.Groups, d.Heads)
	case width > maxCount || width > int64(math.MaxInt/c.Dim) || state > 1<<40 || state > math.MaxInt/2:
		return bad("Mamba.Heads", "%d heads of %d elements with states of %d, and %d groups, are too many", d.Heads, d.HeadDim, d.StateDim, d.Groups)
	case d.NormFirst && !d.Norm:
		return bad("Mamba.NormFirst", "true without a Norm")
	case !(d.StepMin >= 0 && d.StepMin < math.MaxFloat32) || !(d.StepMax >= 0 && d.StepMax < math.MaxFloat32) || d.StepMax != 0 && d.StepMax < d.StepMin:
		return bad("Mamba.StepMin", "%v, and StepMax %v: want numbers of 0 or more, the second not less, or 0", d.StepMin, d.StepMax)
	case !(d.OutFactor >= 0 && d.OutFactor < math.MaxFloat32):
		return bad("Mamba.OutFactor", "%v, want a number of 0 or more", d.OutFactor)
	}
	for i, f := range d.Factors {
		if !(math.Abs(f) < math.MaxFloat32) {
			return bad("Mamba.Factors", "%v in place %d, want a number", f, i)
		}
	}
	return nil
}

// outFactor returns what multiplies the output of a Mamba2, 0 for none.
func (c *Config) outFactor() float64 { return factor(c.ResidualScale, c.Mamba.OutFactor) }

// mambaLayer makes a Mamba2.
func (m *Model) mambaLayer(block string) *layers.Mamba2 {
	c, n, d := &m.config, m.config.names(), &m.config.Mamba
	block += n.mamba + "."
	b := &layers.Mamba2{
		Conv: m.param(block + "conv1d.weight"), ConvBias: m.index[c.layout().body+block+"conv1d.bias"],
		ALog: m.param(block + "A_log"), Skip: m.param(block + "D"), Bias: m.param(block + "dt_bias"),
		Inner: m.index[c.layout().body+block+"norm.weight"], Eps: float32(c.NormEps), Before: d.NormFirst, InnerGroups: d.Groups,
		In: []linear{m.linear(block+"in_proj", c.Dim, d.width())}, Out: []linear{m.linear(block+"out_proj", d.values(), c.Dim)},
		Heads: d.Heads, Dim: d.HeadDim, Groups: d.Groups, StateDim: d.StateDim, Taps: d.Taps, Min: float32(d.StepMin), Max: float32(d.StepMax),
	}
	for i, f := range d.Factors {
		b.Factors[i] = float32(f)
	}
	b.Post.Factor = float32(c.outFactor())
	m.addLayers(b.In, b.Out)
	return b
}

// mamba lists the tensors of a Mamba2, without the norm before it.
func (l *lister) mamba() {
	n, d := l.names.mamba+".", &l.Mamba
	l.linear(n+"in_proj", d.width(), l.Dim, d.InBias)
	l.add(n+"conv1d.weight", d.channels(), 1, d.Taps)
	if d.ConvBias {
		l.add(n+"conv1d.bias", d.channels())
	}
	l.add(n+"A_log", d.Heads)
	l.add(n+"D", d.Heads)
	l.add(n+"dt_bias", d.Heads)
	if d.Norm {
		l.add(n+"norm.weight", d.values())
	}
	l.linear(n+"out_proj", l.Dim, d.values(), d.OutBias)
}

// hybridLayer makes a Mamba2 with attention beside it.
func (m *Model) hybridLayer(layer int) *layers.Parallel {
	a := m.attentionLayer(layer).(*layers.Attention) // supported refuses others
	b := &layers.Parallel{Norm: a.Norm, Attention: a, Mamba: m.mambaLayer(m.config.block(layer))}
	a.Norm = layers.Norm{}
	return b
}

// planHybrid describes a Mamba2 with attention beside it.
func (c *Config) planHybrid(s sizes, layer int) plan.Layer {
	l, second := c.planAttention(s, layer), c.planMamba(s)
	held, in := s.dim, second.Kept // the rows that both read, and what the first backward step of the two frees
	for _, at := range second.Plain {
		l.Plain = append(l.Plain, len(l.Params)+at-len(s.norm))
	}
	l.Params = slices.Concat(l.Params, second.Params[len(s.norm):])
	l.Kept += second.Kept
	d := &c.Mamba
	channels, values := s.rows*int64(d.channels()), s.rows*int64(d.values())
	left := s.scaled(c.outFactor()).left
	l.Forward = held + max(l.Forward, in+s.dim, in+channels+values, values+left)
	l.Backward = held + s.dim + max(l.Backward-in, second.Backward+s.dim)
	l.BackwardStats, l.RMSNorm = second.BackwardStats, max(l.RMSNorm, second.RMSNorm)
	for i := range l.Adapters {
		a := &l.Adapters[i]
		a.Forward, a.Backward = a.Forward+held, max(0, a.Backward+held+s.dim-in)
	}
	for i, a := range second.Adapters {
		a.Forward, a.Backward = max(a.Forward, []int64{in + s.dim, values + left}[i])+held, a.Backward+held+2*s.dim
		l.Adapters = append(l.Adapters, a)
	}
	l.MACs += second.MACs
	return l
}

// planMamba describes a Mamba2 to package plan.
func (c *Config) planMamba(s sizes) plan.Layer {
	d, l := &c.Mamba, c.half(s)
	width, channels, values := s.rows*int64(d.width()), s.rows*int64(d.channels()), s.rows*int64(d.values())
	l.Params = linearShapes(l.Params, d.width(), c.Dim, d.InBias)
	l.Params = append(l.Params, []int{d.channels(), 1, d.Taps})
	if d.ConvBias {
		l.Params = append(l.Params, []int{d.channels()})
	}
	l.Params = append(l.Params, []int{d.Heads}, []int{d.Heads}, []int{d.Heads})
	if d.Norm {
		l.Params = append(l.Params, []int{d.values()})
		l.RMSNorm = max(l.RMSNorm, d.values())
	}
	l.Params = linearShapes(l.Params, c.Dim, d.values(), d.OutBias)
	at := len(l.Params) - 1 // of the last matrix
	if d.OutBias {
		at--
	}
	left := s.scaled(c.outFactor()).left
	l.Kept = width
	l.Forward = max(width, width+channels+values-s.dim, channels+values, s.dim)
	l.Backward = width - s.dim + max(channels+2*values+left, 2*channels+values)
	// the states that the backward step computes again, and its workspace
	n := recurrent.SSD{Batch: recurrent.Batch{Rows: int(s.rows)}, Groups: d.Groups, Heads: d.Heads, StateDim: d.StateDim, Dim: d.HeadDim}
	for _, some := range []int{n.StatesLen(), n.WorkspaceLen()} {
		l.BackwardStats += (int64(some) + s.rows - 1) / s.rows * s.rows
	}
	l.Adapters = []plan.Adapter{
		{In: s.dim, Out: width, Forward: max(width, s.dim), Backward: s.dim, Gradient: s.dim, Shares: 1},
		{In: values, Out: s.dim, Forward: values, Backward: width + channels + 3*values + left - s.dim, Gradient: values, Adds: left == 0},
	}
	if c.unadapted("." + c.names().mamba + ".out_proj") {
		l.Plain, l.Adapters = []int{at}, l.Adapters[:1]
	}
	l.MACs = (width + values) * int64(c.Dim)
	return l
}

func init() {
	mixers[Mamba2] = &mixer{
		stage: "mamba", scales: true,
		check: (*Config).checkMamba,
		list: func(l *lister) {
			l.norm(l.names.attentionNorm)
			l.mamba()
		},
		layer: func(m *Model, block string) mixing {
			b := m.mambaLayer(block)
			b.Norm = m.norm(block + m.config.names().attentionNorm)
			return b
		},
		plan:  (*Config).planMamba,
		width: func(c *Config) int { return c.Mamba.width() },
		work:  func(c *Config) int { return c.Dim*(c.Mamba.width()+c.Mamba.values()) + c.Mamba.work() },
		state: func(c *Config) int { return (c.Mamba.Taps-1)*c.Mamba.channels() + c.Mamba.values()*c.Mamba.StateDim },
	}
}
