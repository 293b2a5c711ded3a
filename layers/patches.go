package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Patches is the first layer of a vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), for rows that are patches of images.
// A sequence of the batch is an image. Its rows are the pixels of its patches, or with a Class token first a row of zeros and then
// these:
//
//	y[0] = Class + Positions[0]                for a Class token
//	y[i] = Project·x[i] + Positions[i]         for patch i, counted from 1 behind a Class token, otherwise from 0
//
// A convolution whose stride is its kernel is such a product: its weight [width, channels, height, width of a patch] has the elements
// of a patch in the order in which they lie in an image with channels first. It keeps nothing but its output.
type Patches struct {
	Project   Linear
	Class     *Param // [1, width], nil for none
	Positions *Param // [rows of an image, width]: every image of a batch has so many rows
}

// NewPatches returns Patches for rows of in elements, so many for each image with that of the class token. Its parameters are
// name.projection.weight and .bias, name.positions, and name.class if class says so.
func NewPatches(name string, in, width, rows int, class bool) *Patches {
	e := &Patches{Project: *NewLinear(name+".projection", in, width, true), Positions: newTable(name+".positions", rows, width)}
	if class {
		e.Class = newTable(name+".class", 1, width)
	}
	return e
}

// Width implements [Layer].
func (e *Patches) Width(in int) (int, error) {
	if e == nil || e.Positions == nil || e.Project.Out < 1 || e.Positions.Len() < 1 || e.Positions.Len()%e.Project.Out != 0 || e.Class != nil && e.Class.Len() != e.Project.Out {
		return 0, fmt.Errorf("layers: Patches without Project or Positions, or whose Positions or Class have other widths: %w", snug.ErrConfig)
	}
	return e.Project.Width(in)
}

// Params implements [Layer].
func (e *Patches) Params(yield func(*Param) bool) {
	yieldAll(yield, []*Param{e.Class}, e.Project.list(), []*Param{e.Positions})
}

// untiled implements untiled.
func (*Patches) untiled() string { return "Patches, which read whole images" }

// rows returns the rows of an image, of which the first class are not patches.
func (e *Patches) rows() (rows, class int) {
	if e.Class != nil {
		class = 1
	}
	return e.Positions.Len() / e.Project.Out, class
}

// each calls do with the rows of each image of a tensor: all, that of the class token, and those of the patches.
func (e *Patches) each(p *Pass, y *Tensor, do func(i int, all, class, patches snug.View) error) {
	p.Do(func() error {
		rows, class := e.rows()
		if b := &p.Batch; b.Starts != nil || b.Rows != b.Sequences*rows {
			return fmt.Errorf("a batch of %d rows for %d images, want %d rows for each: %w", b.Rows, b.Sequences, rows, snug.ErrShape)
		}
		width := e.Project.Out
		for i := range p.Batch.Sequences {
			all := part(y.View, i*rows*width, rows*width)
			if err := do(i, all, part(all, 0, class*width), part(all, class*width, (rows-class)*width)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Forward implements [Layer].
func (e *Patches) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(e, x) {
		return &Tensor{}
	}
	y, project := p.Get(e.Project.Out), e.Project
	project.Bias = nil // which the class token's row does not have
	project.compute(p, y, x, 0)
	e.each(p, y, func(_ int, all, class, patches snug.View) error {
		if e.Project.Bias != nil {
			if err := fused.BiasAdd(patches, patches, e.Project.Bias.Value); err != nil {
				return err
			}
		}
		if e.Class != nil {
			if err := fused.Add(class, class, e.Class.Value); err != nil {
				return err
			}
		}
		return fused.Add(all, all, e.Positions.Value)
	})
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (e *Patches) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, e, x) }

// Backward implements [Layer].
func (e *Patches) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	return e.backward(p, x, dy, false)
}

// backwardFirst implements starter.
func (e *Patches) backwardFirst(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	return e.backward(p, x, dy, true)
}

func (e *Patches) backward(p *Pass, x, dy *Tensor, first bool) *Tensor {
	if p.refuses(e, x) {
		return dy
	}
	width := e.Project.Out
	for _, g := range []struct {
		w    *Param
		cols int
		of   func(all, class, patches snug.View) snug.View
	}{
		{e.Positions, e.Positions.Len(), func(all, _, _ snug.View) snug.View { return all }},
		{e.Class, width, func(_, class, _ snug.View) snug.View { return class }},
		{e.Project.Bias, width, func(_, _, patches snug.View) snug.View { return patches }},
	} {
		if g.w == nil || !g.w.Trains {
			continue
		}
		var acc snug.View
		var into snug.Into
		p.Do(func() (err error) {
			acc, into, err = p.Gradient(g.w)
			return err
		})
		e.each(p, dy, func(i int, all, class, patches snug.View) error {
			from := g.of(all, class, patches)
			ws, err := p.Workspace(fused.BiasAddWorkspaceLen(from.Len()/g.cols, g.cols))
			if err != nil {
				return err
			}
			if i > 0 {
				into.Beta = 1
			}
			return fused.BiasAddBackward(acc, from, into, ws)
		})
		p.Done(g.w)
	}
	project := []Linear{e.Project}
	project[0].Bias = nil
	project[0].weightGradients(p, x, dy)
	dx := p.Get(e.Project.In)
	if a := project[0].Adapter; !first || a != nil { // whose gradients come with that of x
		project[0].inputGradients(p, dx, dy, x, inner(p, x, project)[0], 0)
	}
	p.Done(e.Project.Weight)
	p.Put(dy)
	return dx
}
