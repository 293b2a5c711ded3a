package layers

import (
	"cmp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// This file has the norms that subtract a mean and add nothing, and those of parts of a row with factors of all parts:
//
//	y[g] = w[g]·(x[g] − mean(x[g]))·rstd(x[g])   for each part g of a row
//
// They are made of the kernels of other norms, so that they run on every device.

// GrowZeros makes room for norms of up to n elements that are Centered without a Bias.
func (p *Pass) GrowZeros(n int) error {
	return cmp.Or(p.zeros.grow(n), p.discard.grow(n))
}

// centeredGradients is Gradients for a LayerNorm without a Bias. The kernel's gradient of a bias goes to memory that nobody reads.
func (n Norm) centeredGradients(p *Pass, dx, dy *Tensor, s Stats, x *Tensor, gamma snug.View, into fused.GradsInto) error {
	cols := n.cols()
	dweight, params, err := p.Gradient(n.Weight)
	if err != nil {
		return err
	}
	waste := none32
	if dweight.Len() > 0 {
		if err := p.discard.grow(cols); err != nil {
			return err
		}
		if waste = part(p.discard.v, 0, cols); params.Beta != 0 { // what it adds to
			if err := multiply(waste, cols, 0); err != nil {
				return err
			}
		}
	}
	ws, err := p.Workspace(fused.LayerNormWorkspaceLen(x.Len()/cols, cols))
	if err != nil {
		return err
	}
	into.Params = params
	return fused.LayerNormBackward(dx.View, dweight, waste, dy.View, x.View, s.mean.View, s.rstd.View, gamma, into, ws)
}

// normalizeGroups computes the parts of x without their factors.
func (n Norm) normalizeGroups(p *Pass, out *Tensor, s Stats, x *Tensor) error {
	cols := n.cols()
	if err := p.GrowOnes(cols); err != nil {
		return err
	}
	ones := part(p.ones.v, 0, cols)
	if !n.Centered {
		return fused.RMSNorm(out.View, viewOf(s.rstd), x.View, ones, n.Eps)
	}
	zeros, err := p.zero(cols)
	if err != nil {
		return err
	}
	return fused.LayerNorm(out.View, viewOf(s.mean), viewOf(s.rstd), x.View, ones, zeros, n.Eps)
}

// groupGradients is Gradients for Groups: the gradient of the factors, then of the parts without them.
func (n Norm) groupGradients(p *Pass, dx, dy *Tensor, s Stats, x *Tensor, beta float32) {
	bare := p.Get(p.width(x))
	scaled := dx
	if beta != 0 {
		scaled = p.Get(p.width(x))
	}
	p.Do(func() error {
		if err := n.normalizeGroups(p, bare, Stats{}, x); err != nil {
			return err
		}
		if err := n.scaleGradients(p, scaled, dy, bare, n.Weight.Value, snug.Into{Alpha: 1}); err != nil {
			return err
		}
		into := fused.GradsInto{Input: snug.Into{Alpha: 1, Beta: beta}}
		ones := part(p.ones.v, 0, n.cols())
		if !n.Centered {
			return fused.RMSNormBackward(dx.View, none32, scaled.View, x.View, s.rstd.View, ones, into, none32)
		}
		return fused.LayerNormBackward(dx.View, none32, none32, scaled.View, x.View, s.mean.View, s.rstd.View, ones, into, none32)
	})
	p.Put(bare)
	if scaled != dx {
		p.Put(scaled)
	}
}

// GroupsWorkspaceLen returns the workspace in float32 elements of a Norm with Groups for so many rows of so many elements.
func GroupsWorkspaceLen(rows, cols int) int {
	return 4*cols + fused.BatchNormWorkspaceLen(fused.Image{Batch: rows, Channels: cols, Positions: 1})
}
