package plan

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/saturate"
)

// CNN is a residual network (He et al. 2016, arXiv:1512.03385): a convolution of 7×7
// pixels and a pooling, which both halve the sides; groups of residual blocks, where
// every group after the first halves the sides and doubles the channels; and the mean
// over all pixels. A sample is an image.
//
// Built from package layers it is a chain of Sequentials of Conv, BatchNorm and ReLU, each
// block in a Residual or, if its shortcut has a convolution, in a Sum, with a CrossEntropy
// that has a Bias. Its costs are those of layers.Pass.Cost, to the byte. A block keeps the
// output of each convolution, and its own output. ReLU overwrites the output of the
// normalization, and the backward step computes both again. The pooling keeps 4 bits for
// each element of its output. The running averages take 8 bytes a channel. The statistics
// of a micro-batch, which take 8 bytes a channel too, are not counted.
type CNN struct {
	Name       string `json:"name,omitempty"`
	Image      int    `json:"image"`              // pixels of a side
	Channels   int    `json:"channels,omitempty"` // channels of the image; 0: 3
	Classes    int    `json:"classes"`
	Width      int    `json:"width,omitempty"`      // channels of the stem and of the first group's 3×3 convolutions; 0: 64
	Blocks     []int  `json:"blocks"`               // blocks of each group
	Bottleneck bool   `json:"bottleneck,omitempty"` // a block has 1×1, 3×3 and 1×1 with 4 times the channels, instead of two 3×3
}

// Model returns the network as a chain, with its sizes in elements of one sample. The error wraps [snug.ErrShape].
func (c CNN) Model() (Model, error) {
	c.Name = cmp.Or(c.Name, "cnn")
	c.Channels = cmp.Or(c.Channels, 3)
	c.Width = cmp.Or(c.Width, 64)
	if err := c.check(); err != nil {
		return Model{}, err
	}
	stem := Conv{In: c.Channels, Out: c.Width, Kernel: 7, Stride: 2, Size: c.Image}
	pool := maxPool(c.Width, stem.to())
	side, width, output := pool.OutSize()[0], stem.len(), int64(pool.YLen())
	m := Model{Name: c.Name, Input: int64(c.Channels) * area(c.Image)}
	m.Layers = []Layer{{
		Name: "stem", Params: stem.params(), Output: output, Kept: width, Stats: (int64(pool.IndexLen()) + 3) / 4,
		Forward: max(2*width-output, width), Backward: output - m.Input + max(2*width, width+m.Input-output), MACs: stem.macs(), Convs: []Conv{stem},
	}}
	in := c.Width
	for group, n := range c.Blocks {
		for i := range n {
			b := residual{in: in, width: c.Width << group, from: side, stride: 1, bottleneck: c.Bottleneck}
			if group > 0 && i == 0 {
				b.stride = 2
			}
			l, last := b.layer(fmt.Sprintf("layer%d.%d", group+1, i))
			m.Layers = append(m.Layers, l)
			in, side = last.Out, last.to()
		}
	}
	m.Layers = append(m.Layers, Layer{Name: "mean", Output: int64(in), Backward: int64(in)})
	m.Head = Head{Params: [][]int{{c.Classes, in}, {c.Classes}}, Rows: 1, Cols: in, Classes: c.Classes}
	for _, l := range m.Layers {
		for _, k := range l.Convs {
			m.Tables += 2 * int64(k.Out)
		}
	}
	return m, m.Validate()
}

// maxPool is the pooling after the stem.
func maxPool(channels, side int) conv.PoolShape {
	return conv.PoolShape{Batch: 1, Channels: channels, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2},
		PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}}
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

func area(side int) int64 { return int64(side) * int64(side) }

// Conv is a convolution of square images, followed by batch normalization. It has Kernel/2 pixels of padding on each side. A [Layer]
// lists its Convs, because their workspace depends on the number of samples.
type Conv struct {
	In     int `json:"in"` // channels
	Out    int `json:"out"`
	Kernel int `json:"kernel"` // pixels of a side
	Stride int `json:"stride"`
	Size   int `json:"size"` // pixels of a side of the input
}

// to returns the pixels of a side of the output.
func (c Conv) to() int { return (c.Size+c.Kernel/2*2-c.Kernel)/c.Stride + 1 }

func (c Conv) params() [][]int {
	return [][]int{{c.Out, c.In * c.Kernel * c.Kernel}, {c.Out}, {c.Out}}
}
func (c Conv) len() int64  { return int64(c.Out) * area(c.to()) }
func (c Conv) macs() int64 { return times(c.len(), int64(c.In), int64(c.Kernel), int64(c.Kernel)) }

// workspaceLen returns the float32 elements of workspace that a Conv and a BatchNorm of package layers need for so many samples.
func (c Conv) workspaceLen(samples int) int {
	pad := [3]int{c.Kernel / 2, c.Kernel / 2}
	s := conv.Shape{Batch: samples, In: c.In, Out: c.Out, Dims: 2, Size: [3]int{c.Size, c.Size}, Kernel: [3]int{c.Kernel, c.Kernel},
		Stride: [3]int{c.Stride, c.Stride}, PadBefore: pad, PadAfter: pad}
	norm := fused.Image{Batch: samples, Channels: c.Out, Positions: int(area(c.to()))}
	return max(s.WorkspaceLen(), 3*c.Out+fused.BatchNormWorkspaceLen(norm))
}

// residual is a block with a shortcut. Its input has in channels and from pixels a side.
type residual struct {
	in, width, from, stride int
	bottleneck              bool
}

// convs returns the convolutions of the block, and that of its shortcut, if it has one. As
// in torchvision, the middle convolution of a bottleneck has the stride.
func (r residual) convs() (main, shortcut []Conv) {
	next := Conv{In: r.in, Size: r.from}
	add := func(out, kernel, stride int) {
		next.Out, next.Kernel, next.Stride = out, kernel, stride
		main = append(main, next)
		next = Conv{In: out, Size: next.to()}
	}
	if r.bottleneck {
		add(r.width, 1, 1)
		add(r.width, 3, r.stride)
		add(4*r.width, 1, 1)
	} else {
		add(r.width, 3, r.stride)
		add(r.width, 3, 1)
	}
	if r.in != next.In || r.from != next.Size {
		shortcut = []Conv{{In: r.in, Out: next.In, Kernel: 1, Stride: r.stride, Size: r.from}}
	}
	return main, shortcut
}

// layer returns the memory and work of a block in package layers, and its last convolution, whose output has the shape of the block's.
func (r residual) layer(name string) (l Layer, last Conv) {
	main, shortcut := r.convs()
	last = main[len(main)-1]
	l = Layer{Name: name, Output: last.len(), Convs: append(main, shortcut...)}
	var discard, save, back int64 // the most elements that Forward, ForwardSave and Backward hold at a time
	var dropped int64             // the normalized output of the convolution before, which is not kept
	input := int64(r.in) * area(r.from)
	for i, c := range main {
		n := c.len()
		discard = max(discard, dropped+n, 2*n) // an output and its normalization
		save = max(save, l.Kept+dropped+n, l.Kept+2*n)
		l.Kept += n
		if i > 0 {
			back = max(back, n+2*dropped) // with the normalized input, and its gradient
		} else {
			back = max(back, n+input)
		}
		dropped = n
	}
	saved := l.Kept + l.Output
	for _, c := range shortcut { // runs while the output of the others is held
		discard = max(discard, l.Output+2*c.len())
		save = max(save, saved+2*c.len())
		back = max(back, 2*input)
		l.Kept, saved = l.Kept+c.len(), saved+c.len()
	}
	l.Forward, l.Backward = max(discard-l.Output, save-saved), l.Output-input+back
	for _, c := range l.Convs {
		l.Params = append(l.Params, c.params()...)
		l.MACs = saturate.Add(l.MACs, c.macs())
	}
	return l, last
}
