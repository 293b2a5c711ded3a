package layers

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
)

// Patches is the first layer of a vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), for rows that are patches of images.
// A sequence of the batch is an image. Its rows are the pixels of its patches, behind rows of zeros for each token of Class and each of
// the Registers, and then these:
//
//	y = Class[j] + Positions[j]          for token j of Class
//	y = Registers[j]                     for register j
//	y = Project·x + Positions[i]         for patch i, counted behind the tokens of Class
//
// A convolution whose stride is its kernel is such a product: its weight [width, channels, height, width of a patch] has the elements
// of a patch in the order in which they lie in an image with channels first. It keeps nothing but its output.
type Patches struct {
	Project   Linear
	Class     []*Param // of [1, width] each: a class token, and where there is one that of distillation; nil for none
	Registers *Param   // [registers, width]: rows without positions (Darcet et al. 2023, arXiv:2309.16588), nil for none
	Positions *Param   // [tokens of Class and patches of an image, width]: every image of a batch has so many
	// Resize, unless nil, interpolates the Positions of patches to images of another size: Size is the grid of patches that Positions has,
	// Out that of an image. Of the other fields Interpolation, AlignCorners and Antialias count. A step computes it once, with its
	// gradient; backward steps hold the positions of an image once more, in float32.
	Resize *conv.ResizeShape
}

// NewPatches returns Patches for rows of in elements, so many for each image with that of the class token. Its parameters are
// name.projection.weight and .bias, name.positions, and name.class if class says so.
func NewPatches(name string, in, width, rows int, class bool) *Patches {
	e := &Patches{Project: *NewLinear(name+".projection", in, width, true), Positions: newTable(name+".positions", rows, width)}
	if class {
		e.Class = []*Param{newTable(name+".class", 1, width)}
	}
	return e
}

// Width implements [Layer].
func (e *Patches) Width(in int) (int, error) {
	if e == nil || e.Positions == nil || e.Project.Out < 1 || e.Positions.Len() < 1 || e.Positions.Len()%e.Project.Out != 0 || e.Registers != nil && (e.Registers.Len() < 1 || e.Registers.Len()%e.Project.Out != 0) ||
		slices.ContainsFunc(e.Class, func(w *Param) bool { return w == nil || w.Len() != e.Project.Out }) || e.Positions.Len()/e.Project.Out <= len(e.Class) {
		return 0, fmt.Errorf("layers: Patches without Project or Positions, or whose Positions, Class or Registers have other widths: %w", snug.ErrConfig)
	}
	if e.Resize != nil {
		s := e.resize()
		if err := s.Check(); err != nil {
			return 0, fmt.Errorf("layers: Resize of Patches: %w", err)
		}
		if of := e.of(); s.XLen() != e.Positions.Len()-of.class*e.Project.Out {
			return 0, fmt.Errorf("layers: Resize of Patches from %d by %d, of %d Positions: %w", s.Size[0], s.Size[1], e.Positions.Len()/e.Project.Out, snug.ErrShape)
		}
	}
	return e.Project.Width(in)
}

// Params implements [Layer].
func (e *Patches) Params(yield func(*Param) bool) {
	yieldAll(yield, e.Class, []*Param{e.Registers}, e.Project.list(), []*Param{e.Positions})
}

// untiled implements untiled.
func (*Patches) untiled() string { return "Patches, which read whole images" }

// resize returns what Resize is for the width of the rows.
func (e *Patches) resize() conv.ResizeShape {
	s := *e.Resize
	s.Batch, s.Channels, s.Dims, s.Layout = 1, e.Project.Out, 2, conv.ChannelsLast
	return s
}

// kinds are how many rows of an image there are of each kind, in their order.
type kinds struct{ class, registers, patches int }

func (k kinds) rows() int { return k.class + k.registers + k.patches }

func (e *Patches) of() (k kinds) {
	width := e.Project.Out
	k.class = len(e.Class)
	if e.Registers != nil {
		k.registers = e.Registers.Len() / width
	}
	if k.patches = e.Positions.Len()/width - k.class; e.Resize != nil {
		k.patches = e.Resize.Out[0] * e.Resize.Out[1]
	}
	return k
}

// parts are the rows of an image, by their kinds.
type parts struct{ all, class, registers, patches snug.View }

// parts returns the rows of image i of a tensor.
func (e *Patches) parts(y snug.View, i int) (r parts) {
	k, width := e.of(), e.Project.Out
	r.all = part(y, i*k.rows()*width, k.rows()*width)
	r.class = part(r.all, 0, k.class*width)
	r.registers = part(r.all, k.class*width, k.registers*width)
	r.patches = part(r.all, (k.class+k.registers)*width, k.patches*width)
	return r
}

// table returns the positions of the class token, and those of patches that there are before Resize.
func (e *Patches) table(positions snug.View) (class, patches snug.View) {
	n := e.of().class * e.Project.Out
	return part(positions, 0, n), part(positions, n, e.Positions.Len()-n)
}

// fits returns an error unless the batch has the rows of images.
func (e *Patches) fits(b *Batch) error {
	if rows := e.of().rows(); b.Starts != nil || b.Rows != b.Sequences*rows {
		return fmt.Errorf("a batch of %d rows for %d images, want %d rows for each: %w", b.Rows, b.Sequences, rows, snug.ErrShape)
	}
	return nil
}

// fill writes what the rows of an image have before the products are added.
func (e *Patches) fill(p *Pass, r parts) error {
	class, patches := e.table(e.Positions.Value)
	if e.Resize == nil {
		if err := snug.Copy(r.patches, patches); err != nil {
			return err
		}
	} else {
		s := e.resize()
		ws, err := p.Workspace(s.WorkspaceLen())
		if err != nil {
			return err
		}
		if err := conv.Resize(r.patches, patches, s, ws); err != nil {
			return err
		}
	}
	if e.Project.Bias != nil {
		if err := fused.BiasAdd(r.patches, r.patches, e.Project.Bias.Value); err != nil {
			return err
		}
	}
	for i, w := range e.Class {
		width := e.Project.Out
		if err := fused.Add(part(r.class, i*width, width), part(class, i*width, width), w.Value); err != nil {
			return err
		}
	}
	if e.Registers != nil {
		return snug.Copy(r.registers, e.Registers.Value)
	}
	return nil
}

// Forward implements [Layer].
func (e *Patches) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(e, x) {
		return &Tensor{}
	}
	y, project := p.Get(e.Project.Out), e.Project
	p.Do(func() error {
		if err := e.fits(&p.Batch); err != nil {
			return err
		}
		first := e.parts(y.View, 0)
		if err := e.fill(p, first); err != nil {
			return err
		}
		for i := 1; i < p.Batch.Sequences; i++ {
			if err := snug.Copy(e.parts(y.View, i).all, first.all); err != nil {
				return err
			}
		}
		return nil
	})
	project.Bias = nil // which other rows than patches do not have
	project.compute(p, y, x, 1)
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
	p.Do(func() error { return e.fits(&p.Batch) })
	width := e.Project.Out
	ofClass := func(r parts) snug.View { return r.class }
	ofPatches := func(r parts) snug.View { return r.patches }
	e.gradient(p, e.Positions, func(acc snug.View, into snug.Into) error {
		class, patches := e.table(acc)
		if err := e.sum(p, class, dy, ofClass, class.Len(), into, 0); err != nil || e.Resize == nil {
			return cmp.Or(err, e.sum(p, patches, dy, ofPatches, patches.Len(), into, 0))
		}
		s := e.resize()
		sum, err := p.Workspace(s.YLen() + max(s.WorkspaceLen(), fused.BiasAddWorkspaceLen(1, s.YLen())))
		if err != nil {
			return err
		}
		sum, ws := part(sum, 0, s.YLen()), part(sum, s.YLen(), s.WorkspaceLen())
		if err := e.sum(p, sum, dy, ofPatches, s.YLen(), snug.Into{}, s.YLen()); err != nil {
			return err
		}
		return conv.ResizeBackward(patches, sum, s, into, ws)
	})
	for i, w := range e.Class {
		e.gradient(p, w, func(acc snug.View, into snug.Into) error {
			return e.sum(p, acc, dy, func(r parts) snug.View { return part(r.class, i*width, width) }, width, into, 0)
		})
	}
	e.gradient(p, e.Registers, func(acc snug.View, into snug.Into) error {
		return e.sum(p, acc, dy, func(r parts) snug.View { return r.registers }, acc.Len(), into, 0)
	})
	e.gradient(p, e.Project.Bias, func(acc snug.View, into snug.Into) error { return e.sum(p, acc, dy, ofPatches, width, into, 0) })
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

// gradient calls add with where the gradient of a parameter goes, if it trains.
func (e *Patches) gradient(p *Pass, w *Param, add func(acc snug.View, into snug.Into) error) {
	if w == nil || !w.Trains {
		return
	}
	p.Do(func() error {
		acc, into, err := p.Gradient(w)
		if err != nil {
			return err
		}
		return add(acc, into)
	})
	p.Done(w)
}

// sum adds the rows of a part of all images to acc, whose cols elements are as many of them. Its workspace lies behind used elements.
func (e *Patches) sum(p *Pass, acc snug.View, dy *Tensor, of func(parts) snug.View, cols int, into snug.Into, used int) error {
	for i := range p.Batch.Sequences {
		from := of(e.parts(dy.View, i))
		if from.Len() == 0 {
			return nil
		}
		n := fused.BiasAddWorkspaceLen(from.Len()/cols, cols)
		ws, err := p.Workspace(used + n)
		if err != nil {
			return err
		}
		if i > 0 {
			into.Beta = 1
		}
		if err := fused.BiasAddBackward(acc, from, into, part(ws, used, n)); err != nil {
			return err
		}
	}
	return nil
}
