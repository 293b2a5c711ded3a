package vision

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
)

// tapped is a layer between two parts of a tower, the identity: the projector reads its rows, and gives their gradient.
type tapped struct {
	t    *gridTower
	part int
}

// Width implements [layers.Layer].
func (l tapped) Width(in int) (int, error) { return sameWidth(in, l.t.width) }

func sameWidth(in, want int) (int, error) {
	if in != want {
		return 0, fmt.Errorf("rows of %d elements, want %d: %w", in, want, snug.ErrShape)
	}
	return in, nil
}

// Params implements [layers.Layer].
func (tapped) Params(func(*layers.Param) bool) {}

// Forward implements [layers.Layer].
func (l tapped) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	y := p.Get(l.t.width)
	p.Do(func() error { return snug.Copy(y.View, x.View) })
	p.Do(func() error {
		l.t.y = grown(l.t.y, y.Len())
		err := toHost(l.t.y, y.View)
		l.t.collect(l.t.y, l.part)
		return err
	})
	return y
}

// ForwardSave implements [layers.Layer]. It keeps the output alone.
func (l tapped) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	y := l.Forward(p, x)
	return y, output{y}
}

// Backward implements [layers.Layer]. It turns dy, in place, into the gradient of x.
func (l tapped) Backward(p *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	p.Do(func() error {
		l.t.y = grown(l.t.y, dy.Len())
		l.t.uncollect(l.t.y, l.part)
		return addHost(dy.View, l.t.y)
	})
	return dy
}

// addHost adds numbers in float32 on the host to a vector of any device and type.
func addHost(to snug.View, x []float32) error {
	v, free, err := snug.MakeView(to.Device(), to.DType(), to.Len())
	if err != nil {
		return err
	}
	if err = fromHost(v, x); err == nil {
		err = fused.Add(to, to, v)
	}
	return errors.Join(err, free())
}

// positions is the layer that adds learned positions to rows, interpolated to the grid of each image.
type positions struct {
	t     *gridTower
	table *layers.Param // [places, width], of which a square table is used
}

func newPositions(t *gridTower, prefix string) *positions {
	l := &positions{t, layers.NewEmbedding("", t.places, t.width).Table}
	l.table.Name = prefix + "pos_embed.weight"
	return l
}

// Width implements [layers.Layer].
func (l *positions) Width(in int) (int, error) { return sameWidth(in, l.t.width) }

// Params implements [layers.Layer].
func (l *positions) Params(yield func(*layers.Param) bool) { yield(l.table) }

// used returns how many elements of the table are used.
func (l *positions) used() int { return l.t.side * l.t.side * l.t.width }

// resize returns the interpolation of the table to the grid of an image.
func (l *positions) resize(x Pixels) conv.ResizeShape {
	return conv.ResizeShape{
		Batch: 1, Channels: l.t.width, Dims: 2, Size: [3]int{l.t.side, l.t.side}, Out: [3]int{x.Grid[1], x.Grid[2]},
		Interpolation: conv.Linear, AlignCorners: true, Layout: conv.ChannelsLast,
	}
}

// each calls do for each patch of an image, with its row and its place in the grid.
func (l *positions) each(x Pixels, at, n int, do func(row, place int)) {
	call, unit := &l.t.running, l.t.unit()
	for i := at * unit; i < (at+n)*unit; i++ {
		do(i, int(call.positions[1][i])*x.Grid[2]+int(call.positions[2][i]))
	}
}

// eachImage calls do for each image until an error.
func (l *positions) eachImage(do func(x Pixels, at, n int) error) (err error) {
	l.t.running.eachImage(l.t.running.images, func(x Pixels, at, n int) {
		if err == nil {
			err = do(x, at, n)
		}
	})
	return err
}

// Forward implements [layers.Layer].
func (l *positions) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	y, width := p.Get(l.t.width), l.t.width
	p.Do(func() error { return snug.Copy(y.View, x.View) })
	p.Do(func() error {
		l.t.y = grown(l.t.y, y.Len())
		table := make([]float32, l.table.Len())
		if err := toHost(table, l.table.Value); err != nil {
			return err
		}
		err := l.eachImage(func(x Pixels, at, n int) error {
			s := l.resize(x)
			of := make([]float32, s.YLen())
			if err := conv.Resize(of, table[:l.used()], s, make([]float32, s.WorkspaceLen())); err != nil {
				return err
			}
			l.each(x, at, n, func(row, place int) { copy(l.t.y[row*width:][:width], of[place*width:]) })
			return nil
		})
		if err != nil {
			return err
		}
		return addHost(y.View, l.t.y)
	})
	return y
}

// ForwardSave implements [layers.Layer]. It keeps the output alone.
func (l *positions) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	y := l.Forward(p, x)
	return y, output{y}
}

// Backward implements [layers.Layer]. The gradient of x is dy.
func (l *positions) Backward(p *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	if !l.table.Trains {
		return dy
	}
	p.Do(func() error {
		width := l.t.width
		l.t.y = grown(l.t.y, dy.Len())
		if err := toHost(l.t.y, dy.View); err != nil {
			return err
		}
		sum := make([]float32, l.table.Len())
		err := l.eachImage(func(x Pixels, at, n int) error {
			s := l.resize(x)
			of := make([]float32, s.YLen())
			l.each(x, at, n, func(row, place int) {
				for i, v := range l.t.y[row*width:][:width] {
					of[place*width+i] += v
				}
			})
			return conv.ResizeBackward(sum[:l.used()], of, s, snug.Into{Alpha: 1, Beta: 1}, make([]float32, s.WorkspaceLen()))
		})
		if err != nil {
			return err
		}
		acc, into, err := p.Gradient(l.table)
		if err != nil {
			return err
		}
		return l.give(acc, into, sum)
	})
	p.Done(l.table)
	return dy
}

// give adds a gradient on the host to an accumulator.
func (l *positions) give(acc snug.View, into snug.Into, sum []float32) error {
	v, free, err := snug.MakeView(acc.Device(), snug.F32, 1+len(sum))
	if err != nil {
		return err
	}
	one, rest := part(v, 0, 1), part(v, 1, len(sum))
	if err = fromHost(v, append([]float32{1}, sum...)); err == nil {
		err = amp.MatMul(acc, one, rest, amp.MatMulOptions{M: 1, N: len(sum), K: 1, Into: into})
	}
	return errors.Join(err, free())
}

// part returns n elements of a vector from lo on, which has them.
func part(v snug.View, lo, n int) snug.View {
	v, _ = v.Slice(lo, lo+n)
	return v
}
