package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// GroupNorm normalizes groups of channels of rows that are images, signals or volumes, see [fused.GroupNorm]: one group is a
// LayerNorm of the whole, as many groups as channels an InstanceNorm.
type GroupNorm struct {
	Weight, Bias *Param // factors and shifts of the channels
	Groups       int
	Positions    int // of a row: height times width
	ChannelsLast bool
	Eps          float32
}

// NewGroupNorm returns a GroupNorm, channels first, with the parameters name.weight, which begins as 1, and name.bias, which begins as 0.
func NewGroupNorm(name string, groups, channels, positions int) *GroupNorm {
	return &GroupNorm{Weight: ones(name+".weight", channels), Bias: newParam(name+".bias", 0, channels), Groups: groups, Positions: positions, Eps: 1e-5}
}

// image returns the shape of so many rows.
func (n *GroupNorm) image(rows int) fused.Image {
	return fused.Image{Batch: rows, Channels: n.Weight.Len(), Positions: n.Positions, ChannelsLast: n.ChannelsLast}
}

func (n *GroupNorm) list() []*Param { return []*Param{n.Weight, n.Bias} }

// Width implements [Layer].
func (n *GroupNorm) Width(in int) (int, error) {
	if n == nil || n.Weight == nil || n.Bias == nil || n.Weight.Len() < 1 || n.Bias.Len() != n.Weight.Len() || n.Positions < 1 || n.Groups < 1 ||
		n.Weight.Len()%n.Groups != 0 || !(n.Eps >= 0) {
		return 0, fmt.Errorf("layers: a GroupNorm without Weight and Bias of as many channels, Positions, Groups that divide the channels, or an Eps of 0 or more: %w", snug.ErrConfig)
	}
	return in, widthOf(n.Weight.Name, in, n.image(1).Len())
}

// Params implements [Layer].
func (n *GroupNorm) Params(yield func(*Param) bool) { yieldAll(yield, n.list()) }

// compute computes y and the statistics.
func (n *GroupNorm) compute(p *Pass, y, x *Tensor, s Stats) {
	p.Do(func() error {
		ws, err := p.Workspace(fused.GroupNormWorkspaceLen(n.image(p.rows)))
		if err != nil {
			return err
		}
		return fused.GroupNorm(y.View, s.mean.View, s.rstd.View, x.View, n.Weight.Value, n.Bias.Value, n.image(p.rows), n.Groups, n.Eps, ws)
	})
}

// stats returns memory for the statistics.
func (n *GroupNorm) stats(p *Pass) Stats { return Stats{p.Stat(n.Groups), p.Stat(n.Groups)} }

// Forward implements [Layer].
func (n *GroupNorm) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(n, x) {
		return &Tensor{}
	}
	y, s := p.Get(p.width(x)), n.stats(p)
	n.compute(p, y, x, s)
	s.Release(p)
	return y
}

// ForwardSave implements [Layer].
func (n *GroupNorm) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(n, x) {
		return &Tensor{}, &normSaved{}
	}
	s := newSaved[normSaved](p)
	s.y, s.stats = p.Get(p.width(x)), n.stats(p)
	n.compute(p, s.y, x, s.stats)
	return s.y, s
}

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (n *GroupNorm) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(n, x) {
		return dy
	}
	s := kept.(*normSaved).stats
	p.Do(func() error {
		dweight, dbias, into, err := p.gradients(n.Weight, n.Bias)
		if err != nil {
			return err
		}
		shape := n.image(p.rows)
		ws, err := p.Workspace(fused.GroupNormWorkspaceLen(shape))
		if err != nil {
			return err
		}
		return fused.GroupNormBackward(dy.View, dweight, dbias, dy.View, x.View, s.mean.View, s.rstd.View, n.Weight.Value, shape, n.Groups, fused.GradsInto{Params: into}, ws)
	})
	p.Done(n.Weight, n.Bias)
	return dy
}

func (*GroupNorm) cheap() {}
