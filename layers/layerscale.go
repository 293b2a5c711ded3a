package layers

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// NewLayerScale returns a LayerScale (Touvron et al. 2021, arXiv:2103.17239), y = w·x for each row, as the Post of a block x + post(f(x)).
// Its parameter is name.weight, whose elements begin as value.
func NewLayerScale(name string, cols int, value float32) *Norm {
	n := &Norm{Weight: ones(name+".weight", cols), ScaleOnly: true}
	n.Weight.constant = value
	return n
}

// rows returns the shape of x for the kernels of batch norms, of which a LayerScale is one with a mean of 0 and a variance of 1, and in
// the workspace ws both.
func (n Norm) rows(x *Tensor, ws snug.View) (s fused.Image, mean, rstd snug.View, err error) {
	c := n.Weight.Len()
	s = fused.Image{Batch: x.Len() / c, Channels: c, Positions: 1}
	mean, rstd = part(ws, 0, c), part(ws, c, c)
	if err = multiply(mean, c, 0); err == nil {
		err = fused.BatchRstd(rstd, mean, 1, 1)
	}
	return s, mean, rstd, err
}

// scale computes out = w·x.
func (n Norm) scale(p *Pass, out, x *Tensor, w snug.View) error {
	zeros, err := p.zero(w.Len())
	if err != nil {
		return err
	}
	ws, err := p.Workspace(2 * w.Len())
	if err != nil {
		return err
	}
	s, mean, rstd, err := n.rows(x, ws)
	if err != nil {
		return err
	}
	return fused.BatchNorm(out.View, x.View, mean, rstd, w, zeros, s)
}

// scaleGradients computes dx from w·dy, and adds the gradient of w to the window: the sum of dy·x over the rows.
func (n Norm) scaleGradients(p *Pass, dx, dy, x *Tensor, w snug.View, into snug.Into) error {
	c := w.Len()
	sums := fused.BatchNormWorkspaceLen(fused.Image{Batch: x.Len() / c, Channels: c, Positions: 1})
	ws, err := p.Workspace(4*c + sums)
	if err != nil {
		return err
	}
	s, mean, rstd, err := n.rows(x, ws)
	if err != nil {
		return err
	}
	if n.Weight.Trains {
		dw, params, err := p.Gradient(n.Weight)
		if err != nil {
			return err
		}
		if err := p.discard.grow(c); err != nil {
			return err
		}
		if err := fused.BatchNormSums(part(ws, 2*c, 2*c), dw, part(p.discard.v, 0, c), dy.View, x.View, mean, rstd, s, params, part(ws, 4*c, sums)); err != nil {
			return err
		}
	}
	return fused.BatchNormBackward(dx.View, dy.View, x.View, mean, rstd, none32, w, s, 1, into)
}
