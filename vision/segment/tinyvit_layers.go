package segment

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
)

// Layers of TinyViT have images for rows, with channels last, and no backward step. What lies between two of their operations exists for
// some rows of an image at once.

// stripLen is about the elements of such a part.
const stripLen = 1 << 19

// frozen has what layers of TinyViT share.
type frozen struct {
	strip int // elements of a part; 0: stripLen
}

// ForwardSave implements [layers.Layer]: a NoGrad calls Forward alone.
func (frozen) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	refuse(p)
	return x, nil
}

// Backward implements [layers.Layer].
func (frozen) Backward(p *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	refuse(p)
	return dy
}

func refuse(p *layers.Pass) {
	p.Do(func() error {
		return fmt.Errorf("segment: the encoder of images has no backward step: %w", snug.ErrConfig)
	})
}

// paramsOf yields the parameters of a list of layers.
func paramsOf(yield func(*layers.Param) bool, list ...*folded) {
	all := layers.Sequential{}
	for _, f := range list {
		all = append(all, f.Conv)
	}
	all.Params(yield)
}

// fits returns out, and an error unless in is what a layer takes.
func fits(name string, in, want, out int) (int, error) {
	if in != want {
		return 0, fmt.Errorf("segment: %s gets %d elements, want %d: %w", name, in, want, snug.ErrShape)
	}
	return out, nil
}

// scratch returns n elements that all images use one after the other.
func scratch(p *layers.Pass, n int) *layers.Tensor { return p.Get((n-1)/p.Rows() + 1) }

// rows returns how many of n rows of so many elements are computed at once.
func (f frozen) rows(n, row int) int { return min(n, 1+cmp.Or(f.strip, stripLen)/row) }

// stripRows returns how many rows of a result are computed at once from an image of side rows of so many elements, and how many of these it takes.
func (f frozen) stripRows(side, row, stride int) (rows, needs int) {
	rows = f.rows(side/stride, stride*row)
	return rows, min(side, (rows-1)*stride+3)
}

// strips computes a convolution of 3 by 3 taps of an image of side rows of so many elements, of which x has some rows at once: fill
// makes rows lo to hi-1, which x does not have yet, and use gets the row that x begins with and the rows of the result to compute.
func (f frozen) strips(x snug.View, side, row, stride int, fill func(to snug.View, lo, hi int) error, use func(first, lo, hi int) error) error {
	rows, _ := f.stripRows(side, row, stride)
	for first, have, lo := 0, 0, 0; lo < side/stride; lo += rows {
		hi := min(lo+rows, side/stride)
		from, to := max(0, lo*stride-1), min(side, (hi-1)*stride+2)
		err := steps(
			func() error {
				return snug.Copy(cut(x, 0, (have-from)*row), cut(x, (from-first)*row, (have-from)*row))
			},
			func() error { return fill(cut(x, (have-from)*row, (to-have)*row), have, to) },
			func() error { return use(from, lo, hi) })
		if err != nil {
			return err
		}
		first, have = from, to
	}
	return nil
}

// stem is two convolutions of stride 2 with GELU between them.
type stem struct {
	frozen
	near, merge *folded
	grid        int // of rows and columns between them
}

func (s *stem) folds() []*folded { return []*folded{s.near, s.merge} }

// Params implements [layers.Layer].
func (s *stem) Params(yield func(*layers.Param) bool) { paramsOf(yield, s.near, s.merge) }

// Width implements [layers.Layer].
func (s *stem) Width(in int) (int, error) {
	return fits(s.near.name, in, 4*s.grid*s.grid*s.near.Shape.In, s.grid*s.grid/4*s.merge.Shape.Out)
}

// Forward implements [layers.Layer].
func (s *stem) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	width, _ := s.Width(4 * s.grid * s.grid * s.near.Shape.In)
	row, outRow := s.grid*s.near.Shape.Out, s.grid/2*s.merge.Shape.Out
	_, needs := s.stripRows(s.grid, row, 2)
	y, mid := p.Get(width), scratch(p, needs*row)
	p.Do(func() error {
		in := x.Len() / p.Rows()
		for i := range p.Rows() {
			image, out := cut(x.View, i*in, in), cut(y.View, i*width, width)
			err := s.strips(mid.View, s.grid, row, 2, func(to snug.View, lo, hi int) error {
				return steps(
					func() error { return s.near.rows(to, image, 0, 2*s.grid, lo, hi) },
					func() error { return s.near.gelu(to) })
			}, func(first, lo, hi int) error {
				return s.merge.rows(cut(out, lo*outRow, (hi-lo)*outRow), mid.View, first, s.grid, lo, hi)
			})
			if err != nil {
				return err
			}
		}
		return s.merge.bias(y.View)
	})
	p.Put(mid)
	return y
}

// bottleneck is an inverted bottleneck (Sandler et al. 2018, arXiv:1801.04381) with GELU, or what makes a stage's image of the one before:
//
//	y = out(GELU(near(GELU(in(x)))))        or GELU(x + that)
//
// where in and out see a position and near 3 by 3 of a channel.
type bottleneck struct {
	frozen
	in, near, out *folded
	grid, stride  int
	residual      bool
}

func newBottleneck(name string, in, hidden, out, grid, stride int, residual bool) *bottleneck {
	return &bottleneck{
		in: newFolded(name+"conv1", in, hidden, 1, 1, 1), near: newFolded(name+"conv2", hidden, hidden, 3, stride, hidden), out: newFolded(name+"conv3", hidden, out, 1, 1, 1),
		grid: grid, stride: stride, residual: residual,
	}
}

func (b *bottleneck) folds() []*folded { return []*folded{b.in, b.near, b.out} }

// Params implements [layers.Layer].
func (b *bottleneck) Params(yield func(*layers.Param) bool) { paramsOf(yield, b.in, b.near, b.out) }

// Width implements [layers.Layer].
func (b *bottleneck) Width(in int) (int, error) {
	small := b.grid / b.stride
	return fits(b.in.name, in, b.grid*b.grid*b.in.Shape.In, small*small*b.out.Shape.Out)
}

// Forward implements [layers.Layer].
func (b *bottleneck) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	small, hidden := b.grid/b.stride, b.near.Shape.Out
	inRow, row, outRow := b.grid*b.in.Shape.In, b.grid*hidden, small*b.out.Shape.Out
	rows, needs := b.stripRows(b.grid, row, b.stride)
	y, mid, low := p.Get(small*outRow), scratch(p, needs*row), scratch(p, rows*small*hidden)
	p.Do(func() error {
		for i := range p.Rows() {
			image, all := cut(x.View, i*b.grid*inRow, b.grid*inRow), cut(y.View, i*small*outRow, small*outRow)
			err := b.strips(mid.View, b.grid, row, b.stride, func(to snug.View, lo, hi int) error {
				return steps(
					func() error { return b.in.at1(to, cut(image, lo*inRow, (hi-lo)*inRow), snug.Into{}) },
					func() error { return b.in.gelu(to) })
			}, func(first, lo, hi int) error {
				to, out := cut(low.View, 0, (hi-lo)*small*hidden), cut(all, lo*outRow, (hi-lo)*outRow)
				err := steps(
					func() error { return b.near.rows(to, mid.View, first, b.grid, lo, hi) },
					func() error { return b.near.gelu(to) })
				if err != nil {
					return err
				}
				if !b.residual {
					return steps(func() error { return b.out.at1(out, to, snug.Into{}) }, func() error { return b.out.bias(out) })
				}
				return steps(
					func() error { return snug.Copy(out, cut(image, lo*inRow, out.Len())) },
					func() error { return b.out.at1(out, to, snug.Into{Alpha: 1, Beta: 1}) },
					func() error { return b.out.gelu(out) })
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	p.Put(mid, low)
	return y
}
