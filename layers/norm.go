package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Norm is a LayerNorm (Ba et al. 2016, arXiv:1607.06450), or without a Bias an RMSNorm (Zhang and Sennrich 2019,
// arXiv:1910.07467), over as many elements as Weight has: a norm of heads takes rows of several heads, and of images with
// channels last it takes the channels of each position. The zero Norm is the identity. With Unit and without a Weight it is an RMSNorm
// that multiplies by nothing, over Unit elements.
type Norm struct {
	Weight, Bias *Param
	Eps          float32
	Unit         int // elements of an RMSNorm without a Weight, whose factors are 1; 0 for others
	// Factor is of a Post without a Weight: it normalizes nothing, and what enters the residual stream is multiplied by it, as in Granite.
	// 0 is no such factor.
	Factor  float32
	PlusOne bool // multiplies by 1+w in place of w; see [Pass.GrowOnes]
	// Centered says that the norm subtracts the mean of what it normalizes: without a Bias it is a LayerNorm that adds nothing, as in Cohere.
	Centered bool
	// Groups, unless 0, says that so many equal parts of a row, such as heads, are normalized each by itself, and Weight has factors of
	// all of them, as in Command R+. It goes without Bias, ScaleOnly and PlusOne. Its backward step holds a row more for each row.
	Groups    int
	ScaleOnly bool // a LayerScale, which multiplies by w and normalizes nothing, see [NewLayerScale]; without a Bias
}

// NewRMSNorm returns an RMSNorm over cols elements, with the parameter name.weight.
func NewRMSNorm(name string, cols int) *Norm {
	return &Norm{Weight: ones(name+".weight", cols), Eps: 1e-6}
}

// NewLayerNorm returns a LayerNorm over cols elements, with the parameters name.weight and name.bias.
func NewLayerNorm(name string, cols int) *Norm {
	return &Norm{Weight: ones(name+".weight", cols), Bias: newParam(name+".bias", 0, cols), Eps: 1e-5}
}

// none reports whether a norm is the identity.
func (n Norm) none() bool { return n.Weight == nil && n.Unit == 0 }

// cols returns the elements that are normalized together.
func (n Norm) cols() int {
	switch {
	case n.Weight == nil:
		return n.Unit
	case n.Groups > 0:
		return n.Weight.Len() / n.Groups
	}
	return n.Weight.Len()
}

// centers reports whether the mean is subtracted.
func (n Norm) centers() bool { return n.Bias != nil || n.Centered }

// Stats has the statistics of rows that a norm keeps for its backward step. Only a LayerNorm has a mean.
type Stats struct{ mean, rstd *Tensor }

// Release frees the statistics.
func (s Stats) Release(p *Pass) {
	if p.made() {
		p.Put(s.mean, s.rstd)
	}
}

// NewStats returns memory for the statistics, width of them for each row.
func (n Norm) NewStats(p *Pass, width int) (s Stats) {
	if n.none() || n.ScaleOnly || !p.made() {
		return s
	}
	if s.rstd = p.Stat(width); n.centers() {
		s.mean = p.Stat(width)
	}
	return s
}

// gamma returns the factors of a norm: w, ones, or 1+w in a vector that the next call overwrites.
func (n Norm) gamma(p *Pass) (snug.View, error) {
	if n.Weight == nil {
		err := p.GrowOnes(n.Unit)
		return part(p.ones.v, 0, min(n.Unit, p.ones.v.Len())), err
	}
	w := n.Weight.Value
	if !n.PlusOne {
		return w, nil
	}
	if err := p.GrowOnes(w.Len()); err != nil {
		return w, err
	}
	sum := part(p.plusOne.v, 0, w.Len())
	return sum, fused.Add(sum, w, part(p.ones.v, 0, w.Len()))
}

// Compute computes out = norm(x), in place if both are the same. The zero Stats keep nothing.
func (n Norm) Compute(p *Pass, out *Tensor, s Stats, x *Tensor) {
	if n.none() {
		if out != x {
			p.copyTo(out, x)
		}
		return
	}
	p.Do(func() error {
		gamma, err := n.gamma(p)
		if err != nil {
			return err
		}
		switch {
		case n.ScaleOnly:
			return n.scale(p, out, x, gamma)
		case n.Groups > 0:
			if err := n.normalizeGroups(p, out, s, x); err != nil {
				return err
			}
			return n.scale(p, out, out, gamma)
		case n.Bias == nil && n.Centered:
			zeros, err := p.zero(n.cols())
			if err != nil {
				return err
			}
			return fused.LayerNorm(out.View, viewOf(s.mean), viewOf(s.rstd), x.View, gamma, zeros, n.Eps)
		case n.Bias != nil:
			return fused.LayerNorm(out.View, viewOf(s.mean), viewOf(s.rstd), x.View, gamma, n.Bias.Value, n.Eps)
		}
		return fused.RMSNorm(out.View, viewOf(s.rstd), x.View, gamma, n.Eps)
	})
}

// Gradients computes dx = beta·dx + the gradient with respect to x, and adds the gradients of the parameters to the
// window. beta is 0 or 1.
func (n Norm) Gradients(p *Pass, dx, dy *Tensor, s Stats, x *Tensor, beta float32) {
	if n.none() {
		if beta == 0 && dx != dy {
			p.copyTo(dx, dy)
		} else if beta != 0 {
			p.Do(func() error { return fused.Add(dx.View, dx.View, dy.View) })
		}
		return
	}
	if n.Groups > 0 {
		n.groupGradients(p, dx, dy, s, x, beta)
		p.Done(n.Weight)
		return
	}
	into := fused.GradsInto{Input: snug.Into{Alpha: 1, Beta: beta}}
	p.Do(func() error {
		gamma, err := n.gamma(p)
		if err != nil {
			return err
		}
		if n.ScaleOnly {
			return n.scaleGradients(p, dx, dy, x, gamma, into.Input)
		}
		cols := n.cols()
		rows := x.Len() / cols
		if n.Bias == nil && n.Centered {
			return n.centeredGradients(p, dx, dy, s, x, gamma, into)
		}
		if n.Bias == nil {
			dweight, params, err := p.Gradient(n.Weight)
			if err != nil {
				return err
			}
			ws, err := p.Workspace(fused.RMSNormWorkspaceLen(rows, cols))
			if err != nil {
				return err
			}
			into.Params = params
			return fused.RMSNormBackward(dx.View, dweight, dy.View, x.View, s.rstd.View, gamma, into, ws)
		}
		dweight, dbias, params, err := p.gradients(n.Weight, n.Bias)
		if err != nil {
			return err
		}
		into.Params = params
		ws, err := p.Workspace(fused.LayerNormWorkspaceLen(rows, cols))
		if err != nil {
			return err
		}
		return fused.LayerNormBackward(dx.View, dweight, dbias, dy.View, x.View, s.mean.View, s.rstd.View, gamma, into, ws)
	})
	p.Done(n.Weight, n.Bias)
}

// gradients returns the accumulators of a norm's parameters, which one kernel makes: one that is frozen beside one that trains gets
// memory whose contents nobody reads.
func (p *Pass) gradients(weight, bias *Param) (dweight, dbias snug.View, into snug.Into, err error) {
	var other snug.Into
	dweight, into, err = p.Gradient(weight)
	if err == nil {
		dbias, other, err = p.Gradient(bias)
	}
	switch {
	case err != nil || into == other && weight.Trains == bias.Trains:
		return dweight, dbias, into, err
	case weight.Trains == bias.Trains:
		return dweight, dbias, into, fmt.Errorf("the window's Into of %s and of %s differ: %w", weight.Name, bias.Name, snug.ErrConfig)
	}
	if err := p.discard.grow(weight.Len()); err != nil {
		return dweight, dbias, into, err
	}
	if waste := part(p.discard.v, 0, weight.Len()); weight.Trains {
		dbias = waste
	} else {
		dweight, into = waste, other
	}
	return dweight, dbias, into, nil
}

// Width implements [Layer].
func (n Norm) Width(in int) (int, error) {
	switch {
	case n.Factor != 0:
		return 0, fmt.Errorf("layers: a Norm with a Factor, which only a Post has: %w", snug.ErrConfig)
	case n.none():
		return in, nil
	case n.Weight == nil && (n.Bias != nil || n.ScaleOnly || n.PlusOne || n.Centered || n.Groups != 0 || n.Unit < 0):
		return 0, fmt.Errorf("layers: a norm of %d elements without a Weight has a Bias, ScaleOnly, PlusOne, Centered or Groups: %w", n.Unit, snug.ErrConfig)
	case n.Weight == nil:
		if !(n.Eps >= 0) || in%n.Unit != 0 {
			return 0, fmt.Errorf("layers: a norm of %d elements without a Weight, for rows of %d, and Eps is %v: %w", n.Unit, in, n.Eps, snug.ErrConfig)
		}
		return in, nil
	case n.Unit != 0:
		return 0, fmt.Errorf("layers: Unit of %s is %d, want 0 beside a Weight: %w", n.Weight.Name, n.Unit, snug.ErrConfig)
	case n.Groups != 0 && (n.Groups < 0 || n.Weight.Len()%n.Groups != 0 || n.Bias != nil || n.ScaleOnly || n.PlusOne):
		return 0, fmt.Errorf("layers: %s has %d elements in %d Groups, want a divisor, and neither Bias, ScaleOnly nor PlusOne: %w", n.Weight.Name, n.Weight.Len(), n.Groups, snug.ErrConfig)
	case n.ScaleOnly && n.Centered:
		return 0, fmt.Errorf("layers: %s is a LayerScale that is Centered: %w", n.Weight.Name, snug.ErrConfig)
	case n.ScaleOnly && n.Bias != nil:
		return 0, fmt.Errorf("layers: %s is a LayerScale with a Bias: %w", n.Weight.Name, snug.ErrConfig)
	case !(n.Eps >= 0) || n.Bias != nil && n.Bias.Len() != n.Weight.Len():
		return 0, fmt.Errorf("layers: Eps of %s is %v, or its Bias has another length: %w", n.Weight.Name, n.Eps, snug.ErrConfig)
	case n.Weight.Len() == 0 || in%n.Weight.Len() != 0:
		return 0, widthOf(n.Weight.Name, in, n.Weight.Len())
	}
	return in, nil
}

// cuts returns an error if the norm would take other elements of images for the channels of a position.
func (n Norm) cuts(i image) error {
	if n.none() {
		return nil
	}
	return i.cut(n.cols())
}

// Params implements [Layer].
func (n Norm) Params(yield func(*Param) bool) { yieldAll(yield, n.list()) }

type normSaved struct {
	output
	stats Stats
}

// Tensors implements [Saved].
func (s *normSaved) Tensors(list []*Tensor) []*Tensor {
	return append(list, s.y, s.stats.mean, s.stats.rstd)
}

// Forward implements [Layer].
func (n Norm) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(n, x) {
		return &Tensor{}
	}
	y := p.Get(p.width(x))
	n.Compute(p, y, Stats{}, x)
	return y
}

// ForwardSave implements [Layer].
func (n Norm) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(n, x) {
		return &Tensor{}, &normSaved{}
	}
	s := newSaved[normSaved](p)
	s.y = p.Get(p.width(x))
	if !n.none() {
		s.stats = n.NewStats(p, p.width(x)/n.cols())
	}
	n.Compute(p, s.y, s.stats, x)
	return s.y, s
}

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (n Norm) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if !p.refuses(n, x) {
		n.Gradients(p, dy, dy, kept.(*normSaved).stats, x, 0)
	}
	return dy
}

func (Norm) cheap() {}
