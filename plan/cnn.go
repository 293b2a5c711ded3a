package plan

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug/internal/saturate"
)

// CNN is a residual network (He et al. 2016, arXiv:1512.03385): a convolution of 7×7
// pixels and a pooling, which both halve the sides; groups of residual blocks, where
// every group after the first halves the sides and doubles the channels; and the mean
// over all pixels. A sample is an image.
//
// A convolution is followed by batch normalization and ReLU, which work in place, except
// that the backward step of normalization needs the output of the convolution. A block
// therefore keeps two copies of the output of each convolution, and one copy for the
// convolution on its shortcut. The last copy is the output of the block. Convolutions
// take no workspace: they are computed without a matrix of patches. The mean and variance
// of batch normalization are not counted: they are 16 bytes a channel, independent of the
// samples.
//
// Packages transformer and train run no such network: these are figures for a program with convolutions of its own, which
// are as said only if it computes them without patches, in place as above, and with that planner's recomputation.
type CNN struct {
	Name       string `json:"name,omitempty"`
	Image      int    `json:"image"`              // pixels of a side
	Channels   int    `json:"channels,omitempty"` // channels of the image; 0: 3
	Classes    int    `json:"classes"`
	Width      int    `json:"width,omitempty"`      // channels of the first group; 0: 64
	Blocks     []int  `json:"blocks"`               // blocks of each group
	Bottleneck bool   `json:"bottleneck,omitempty"` // 1×1, 3×3 and 1×1 with 4 times the channels, instead of two 3×3
}

// Model returns the chain. The error wraps [snug.ErrShape].
func (c CNN) Model() (Model, error) {
	c.Name = cmp.Or(c.Name, "cnn")
	c.Channels = cmp.Or(c.Channels, 3)
	c.Width = cmp.Or(c.Width, 64)
	if err := c.check(); err != nil {
		return Model{}, err
	}
	half := ceilHalf(c.Image)
	stem, pixels := newConv(c.Channels, c.Width, 7, half), area(half)
	side := ceilHalf(half)
	width := int64(c.Width)
	m := Model{Name: c.Name, Input: int64(c.Channels) * area(c.Image), Layers: []Layer{{
		Name: "stem", Params: stem.params(), Output: width * area(side),
		Kept: 2 * width * pixels, Forward: width * pixels, Backward: 2 * width * pixels, MACs: stem.macs(),
	}}}
	in := c.Width
	for group, n := range c.Blocks {
		for i := range n {
			b := residual{in: in, width: c.Width << group, from: side, to: side, bottleneck: c.Bottleneck}
			if group > 0 && i == 0 {
				b.to = ceilHalf(side)
			}
			m.Layers = append(m.Layers, b.layer(fmt.Sprintf("group %d", group+1)))
			in, side = b.out(), b.to
		}
	}
	m.Layers = append(m.Layers, Layer{Name: "mean", Output: int64(in)})
	m.Head = Head{Params: [][]int{{c.Classes, in}, {c.Classes}}, Rows: 1, Cols: in, Classes: c.Classes}
	return m, m.Validate()
}

const maxWidth = 1 << 12 // channels of an image and of the first group

func (c CNN) check() error {
	all := counts{{"image", c.Image}, {"channels", c.Channels}, {"classes", c.Classes}, {"width", c.Width}, {"number of groups", len(c.Blocks)}}
	for i, n := range c.Blocks {
		all = append(all, counts{{fmt.Sprintf("blocks[%d]", i), n}}...)
	}
	if err := atLeastOne(c.Name, all); err != nil {
		return err
	}
	if c.Image > maxSide || c.Channels > maxWidth || c.Width > maxWidth || c.Classes > maxCount>>20 || len(c.Blocks) > 8 {
		return shapeless("model %.40q: an image of %d with %d channels, width %d, %d classes and %d groups is too large",
			c.Name, c.Image, c.Channels, c.Width, c.Classes, len(c.Blocks))
	}
	blocks := 0
	for _, n := range c.Blocks {
		if blocks += n; n > maxStages || blocks > maxStages {
			return shapeless("model %.40q: more than %d blocks", c.Name, maxStages)
		}
	}
	return nil
}

func ceilHalf(n int) int  { return (n + 1) / 2 }
func area(side int) int64 { return int64(side) * int64(side) }

// conv is a convolution of kernel×kernel pixels with outputs of to×to, and the
// normalization of its output.
type conv struct{ in, out, kernel, to int }

func newConv(in, out, kernel, to int) conv { return conv{in, out, kernel, to} }

func (c conv) params() [][]int {
	return [][]int{{c.out, c.in * c.kernel * c.kernel}, {c.out}, {c.out}}
}
func (c conv) len() int64  { return int64(c.out) * area(c.to) }
func (c conv) macs() int64 { return times(c.len(), int64(c.in), int64(c.kernel), int64(c.kernel)) }

// residual is a block with a shortcut, from sides of from to sides of to.
type residual struct {
	in, width, from, to int
	bottleneck          bool
}

func (r residual) out() int {
	if r.bottleneck {
		return 4 * r.width
	}
	return r.width
}

// convs returns the convolutions, with the convolution of the shortcut last. As in
// torchvision, the middle convolution of a bottleneck has the stride.
func (r residual) convs() (main, shortcut []conv) {
	if r.bottleneck {
		main = []conv{newConv(r.in, r.width, 1, r.from), newConv(r.width, r.width, 3, r.to), newConv(r.width, r.out(), 1, r.to)}
	} else {
		main = []conv{newConv(r.in, r.width, 3, r.to), newConv(r.width, r.width, 3, r.to)}
	}
	if r.in != r.out() || r.from != r.to {
		shortcut = []conv{newConv(r.in, r.out(), 1, r.to)}
	}
	return main, shortcut
}

func (r residual) layer(name string) Layer {
	main, shortcut := r.convs()
	l := Layer{Name: name, Output: int64(r.out()) * area(r.to)}
	largest := int64(0) // the largest sum of an output and the input from which it is computed
	for i, c := range main {
		l.Kept += 2 * c.len()
		if i > 0 {
			largest = max(largest, main[i-1].len()+c.len())
		}
	}
	l.Kept -= l.Output
	for _, c := range shortcut {
		l.Kept += c.len()
		largest += c.len()
	}
	for _, c := range append(main, shortcut...) {
		l.Params = append(l.Params, c.params()...)
		l.MACs = saturate.Add(l.MACs, c.macs())
	}
	l.Forward, l.Backward = largest, largest
	return l
}
