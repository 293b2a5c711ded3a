package transformer

import (
	"math"
	"math/rand/v2"
	"strings"

	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/recurrent"
)

// DeltaNet is the gated delta net of Qwen3-Next and Qwen3.5, see [layers.DeltaNet]. Config.Delta has its sizes.
const DeltaNet Mixer = "delta_net"

// Delta are the sizes of gated delta nets. The zero Delta is of a model without them.
type Delta struct {
	KeyHeads, Heads int // heads of queries and keys, a divisor of Heads, and heads of values
	KeyDim, Dim     int // elements of such heads
	Taps            int // rows that the convolution sees, its own included
}

// channels returns the width of queries, keys and values, and values that of values alone.
func (d *Delta) channels() int { return 2*d.KeyHeads*d.KeyDim + d.values() }
func (d *Delta) values() int   { return d.Heads * d.Dim }

// state returns the elements of the states of all heads.
func (d *Delta) state() int { return d.Heads * d.KeyDim * d.Dim }

// deltaNames are the names of a layer. A family whose products are interleaved has z in qkv and a in b, see [layers.DeltaNet].
type deltaNames struct{ qkv, z, b, a, conv, bias, log, norm, out string }

func (d *Delta) check(c *Config) error {
	const most = 1 << 12 // of a head
	switch {
	case d.KeyHeads < 1 || d.Heads < 1 || d.Heads > maxCount || d.Heads%d.KeyHeads != 0:
		return bad("Delta.Heads", "%d, and %d KeyHeads, want a multiple of these, up to %d", d.Heads, d.KeyHeads, maxCount)
	case d.KeyDim < 1 || d.Dim < 1 || d.KeyDim > most || d.Dim > most:
		return bad("Delta.Dim", "%d, and a KeyDim of %d, want 1 to %d", d.Dim, d.KeyDim, most)
	case d.Taps < 1 || d.Taps > 256:
		return bad("Delta.Taps", "%d, want 1 to 256", d.Taps)
	}
	width := int64(2*d.KeyDim)*int64(d.KeyHeads) + 2*int64(d.Dim)*int64(d.Heads)
	if width > maxCount || width > int64(math.MaxInt/max(c.Dim, 256)) || int64(d.Heads)*int64(d.KeyDim*d.Dim) > maxCount {
		return bad("Delta.Heads", "%d heads of %d and %d elements are too many", d.Heads, d.KeyDim, d.Dim)
	}
	return nil
}

func init() {
	mixers[DeltaNet] = &mixer{
		stage: "delta",
		check: func(c *Config) error {
			if c.names().delta.qkv == "" {
				return bad("Mixers", "%q, and models of the family %q have none", DeltaNet, c.Family)
			}
			return c.Delta.check(c)
		},
		list: func(l *lister) {
			n, d := &l.names.delta, &l.Delta
			l.norm(l.names.attentionNorm)
			l.add(n.bias, d.Heads)
			l.add(n.log, d.Heads)
			l.add(n.conv+".weight", d.channels(), 1, d.Taps)
			if n.z == "" {
				l.linear(n.qkv, d.channels()+d.values(), l.Dim, false)
				l.linear(n.b, 2*d.Heads, l.Dim, false)
			} else {
				l.linear(n.qkv, d.channels(), l.Dim, false)
				l.linear(n.z, d.values(), l.Dim, false)
				l.linear(n.b, d.Heads, l.Dim, false)
				l.linear(n.a, d.Heads, l.Dim, false)
			}
			l.add(n.norm+".weight", d.Dim)
			l.linear(n.out, l.Dim, d.values(), false)
		},
		layer: func(m *Model, block string) mixing {
			c, n, d := &m.config, m.config.names().delta, &m.config.Delta
			b := &layers.DeltaNet{
				Norm: m.norm(block + m.config.names().attentionNorm), KeyHeads: d.KeyHeads, Heads: d.Heads, KeyDim: d.KeyDim, Dim: d.Dim, Taps: d.Taps,
				Conv: m.param(block + n.conv + ".weight"), ALog: m.param(block + n.log), Bias: m.param(block + n.bias), Interleaved: n.z == "",
				Inner: layers.Norm{Weight: m.param(block + n.norm + ".weight"), Eps: float32(c.NormEps)},
			}
			if b.Interleaved {
				b.In = []linear{m.linear(block+n.qkv, c.Dim, d.channels()+d.values()), m.linear(block+n.b, c.Dim, 2*d.Heads)}
			} else {
				b.In = []linear{m.linear(block+n.qkv, c.Dim, d.channels()), m.linear(block+n.z, c.Dim, d.values()),
					m.linear(block+n.b, c.Dim, d.Heads), m.linear(block+n.a, c.Dim, d.Heads)}
			}
			b.Out = []linear{m.linear(block+n.out, d.values(), c.Dim)}
			m.addLayers(b.In, b.Out)
			return b
		},
		first: func(c *Config, name string) (f first, own bool) {
			switch n := &c.names().delta; {
			case strings.HasSuffix(name, n.log): // heads forget at rates between 0.01 and 16
				return first{draw: func(rng *rand.Rand) float64 { return math.Log(0.01 + 15.99*rng.Float64()) }}, true
			case strings.HasSuffix(name, n.bias), strings.HasSuffix(name, n.norm+".weight"):
				return first{constant: 1}, true
			}
			return first{}, false
		},
		plan:  planDelta,
		width: func(c *Config) int { return c.Delta.channels() + c.Delta.values() },
		work: func(c *Config) int {
			d := &c.Delta
			return c.Dim*(d.channels()+2*d.values()+2*d.Heads) + d.channels()*d.Taps + 3*d.state()
		},
		state: func(c *Config) int { return (c.Delta.Taps-1)*c.Delta.channels() + c.Delta.state() },
		norm:  func(c *Config) (heads, cols int) { return c.Delta.Heads, c.Delta.Dim },
	}
}

// planDelta describes the stage of a gated delta net, in the order of its steps.
func planDelta(c *Config, s sizes) plan.Layer {
	d, l := &c.Delta, c.half(s)
	qkv, z, logits := s.rows*int64(d.channels()), s.rows*int64(d.values()), 2*s.rows*int64(d.Heads)
	states := s.rows * int64((d.state()-1)/recurrent.SegmentRows+1)
	l.Params = append(l.Params[:len(l.Params):len(l.Params)], []int{d.Heads}, []int{d.Heads}, []int{d.channels(), 1, d.Taps}, []int{d.Dim})
	shares, widest, apart := 4, max(qkv, z), int64(0)
	if c.names().delta.z == "" { // products are copied apart, and their gradients side by side
		shares, widest, apart = 2, qkv+z, qkv+z+logits
		l.Params = append(l.Params, []int{d.channels() + d.values(), c.Dim}, []int{2 * d.Heads, c.Dim})
	} else {
		l.Params = append(l.Params, []int{d.channels(), c.Dim}, []int{d.values(), c.Dim}, []int{d.Heads, c.Dim}, []int{d.Heads, c.Dim})
	}
	l.Params = append(l.Params, []int{c.Dim, d.values()})
	l.Kept = qkv + z + logits
	l.Forward, l.ForwardStats = most(
		[2]int64{l.Kept}, [2]int64{l.Kept + apart - s.dim}, [2]int64{max(apart, s.dim)}, // of the products
		[2]int64{l.Kept + qkv + z - s.dim, logits}, [2]int64{qkv + z, logits}, // of the rule
	)
	l.Backward, l.BackwardStats = most(
		[2]int64{qkv + 3*z - s.dim, logits + logits/2 + states}, // of the norm within
		[2]int64{2*qkv + z - s.dim, 2*logits + states},          // of the rule
		[2]int64{2*qkv - s.dim}, [2]int64{apart - s.dim}, [2]int64{0},
	)
	l.Adapters = []plan.Adapter{
		{In: s.dim, Out: widest, Forward: max(l.Kept, s.dim), Backward: s.dim, Gradient: s.dim, Shares: shares},
		{In: z, Out: s.dim, Forward: z, Backward: qkv + 3*z - s.dim, Adds: s.left == 0},
	}
	l.HeadRows, l.HeadNorm = int(s.rows)*d.Heads, d.Dim
	l.MACs = s.rows * int64(mixers[DeltaNet].work(c))
	return l
}

// most returns the elements and float32 numbers of the steps that hold the most, where an element has 2 bytes.
func most(steps ...[2]int64) (elements, numbers int64) {
	for _, s := range steps {
		if 2*s[0]+4*s[1] > 2*elements+4*numbers {
			elements, numbers = s[0], s[1]
		}
	}
	return elements, numbers
}
