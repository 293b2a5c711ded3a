package layers

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// image is what rows are for a layer: channels at positions. The zero value is for what is not known.
type image struct {
	channels, positions int
	size                [3]int // 0 if only the positions are known
	last                bool   // channels are last
}

// imaged is a layer that knows what its rows are before and after it.
type imaged interface{ images() (in, out image) }

func imageOf(channels, dims int, size [3]int, layout conv.Layout) image {
	i := image{channels: channels, positions: 1, size: size, last: layout == conv.ChannelsLast}
	for _, n := range size[:min(max(dims, 0), 3)] {
		i.positions *= n
	}
	return i
}

// check returns an error if both are known and differ.
func (i image) check(takes image) error {
	if i.channels == 0 || takes.channels == 0 || i.channels == takes.channels && i.positions == takes.positions &&
		(i.size == takes.size || i.size == [3]int{} || takes.size == [3]int{}) && (i.last == takes.last || i.channels == 1 || i.positions == 1) {
		return nil
	}
	return fmt.Errorf("layers: rows are %v, and a layer takes them for %v: %w", i, takes, snug.ErrShape)
}

// String is for errors.
func (i image) String() string {
	order, size := "first", fmt.Sprint(i.positions, " positions")
	if i.last {
		order = "last"
	}
	if i.size != [3]int{} {
		size = fmt.Sprint("size ", i.size)
	}
	return fmt.Sprintf("images of %d channels, %s, and %s", i.channels, order, size)
}

// cut returns an error if n elements that lie one after the other are as many as an image has channels, which lie apart.
func (i image) cut(n int) error {
	if i.last || n != i.channels || n == 1 || i.positions == 1 || slices.Contains(i.size[:], n) {
		return nil
	}
	return fmt.Errorf("layers: rows are %v, and a layer takes %d elements one after the other for the channels of a position: %w", i, n, snug.ErrShape)
}

// after returns what rows are after a layer that gets this.
func (i image) after(l Layer) (image, error) {
	in, out := wrapped(l)
	return i.through(l, in, out)
}

// through is after for a layer whose images are in and out.
func (i image) through(l Layer, in, out image) (image, error) {
	switch l := l.(type) {
	case imaged:
		if err := i.check(in); err != nil {
			return image{}, err
		}
		if out.size == [3]int{} && out.channels == i.channels && out.positions == i.positions {
			return i, nil
		}
		return out, nil
	case *Norm:
		return i, l.cuts(i)
	case Norm:
		return i, l.cuts(i)
	case Activation, Dropout:
		return i, nil
	}
	return image{}, nil
}

func (c *Conv) images() (in, out image) {
	s := c.one()
	return imageOf(s.In, s.Dims, s.Size, s.Layout), imageOf(s.Out, s.Dims, s.OutSize(), s.Layout)
}

func poolImages(s conv.PoolShape) (in, out image) {
	s = pooled(s, 1)
	return imageOf(s.Channels, s.Dims, s.Size, s.Layout), imageOf(s.Channels, s.Dims, s.OutSize(), s.Layout)
}

func (l MaxPool) images() (in, out image) { return poolImages(l.Shape) }
func (l AvgPool) images() (in, out image) { return poolImages(l.Shape) }

func (l Resize) images() (in, out image) {
	s := l.Shape
	return imageOf(s.Channels, s.Dims, s.Size, s.Layout), imageOf(s.Channels, s.Dims, s.Out, s.Layout)
}

func (n *GroupNorm) images() (in, out image) {
	in = image{channels: n.Weight.Len(), positions: n.Positions, last: n.ChannelsLast}
	return in, in
}

func (n *BatchNorm) images() (in, out image) {
	in = image{channels: n.Weight.Len(), positions: n.Positions, last: n.ChannelsLast}
	return in, in
}

// images of a Sequential are those of its first and its last layer.
func (l Sequential) images() (in, out image) {
	known := true // whether all layers so far leave rows as they are
	for _, layer := range l {
		from, to := wrapped(layer)
		next, _ := out.through(layer, from, to) // Width has returned the error
		if known {
			in = from
		}
		switch layer.(type) {
		case Activation, Dropout:
		default:
			known = false
		}
		out = next
	}
	return in, out
}

func wrapped(l Layer) (in, out image) {
	if i, is := l.(imaged); is {
		return i.images()
	}
	return image{}, image{}
}

func (r Residual) images() (in, out image) { return wrapped(r.Layer) }
func (l Tiled) images() (in, out image)    { return wrapped(l.Layer) }

func (l Concat) images() (in, out image) {
	in, out = wrapped(l.Layer)
	if in.channels == 0 || out.channels == 0 || in.positions != out.positions {
		return in, image{}
	}
	out.channels += in.channels
	return in, out
}
