package conv

import "github.com/snug-ml/snug"

// problem is a convolution as the loops see it: of three dimensions, those that a Shape lacks of size 1, and not
// transposed. A transposed convolution is the adjoint of its problem, whose y is its x.
type problem struct {
	batch, groups int
	cin, cout     int // channels a group, of x and of y
	in, out       [3]int
	kernel        [3]int
	stride        [3]int
	dilation      [3]int
	pad           [3]int // before x
	last          bool   // channels are last
}

func newProblem(s *Shape) problem {
	g := or1(s.Groups)
	p := problem{batch: s.Batch, groups: g, cin: s.In / g, cout: s.Out / g, last: s.Layout == ChannelsLast}
	size, outSize := s.Size, s.outSize()
	if s.Transposed {
		p.cin, p.cout, size, outSize = p.cout, p.cin, outSize, size
	}
	for i := range 3 {
		p.in[i], p.out[i], p.kernel[i], p.stride[i], p.dilation[i] = 1, 1, 1, 1, 1
	}
	for i := range s.Dims {
		at := 3 - s.Dims + i
		p.in[at], p.out[at], p.kernel[at], p.pad[at] = size[i], outSize[i], s.Kernel[i], s.PadBefore[i]
		p.stride[at], p.dilation[at] = or1(s.Stride[i]), or1(s.Dilation[i])
	}
	return p
}

func volume(n [3]int) int { return n[0] * n[1] * n[2] }

// index returns the element of channel ch of group g in image b at a position, of a vector with the given channels
// a group and size.
func (p *problem) index(b, g, ch, channels int, size [3]int, at [3]int) int {
	pos := (at[0]*size[1]+at[1])*size[2] + at[2]
	if p.last {
		return (b*volume(size)+pos)*p.groups*channels + g*channels + ch
	}
	return (b*p.groups*channels+g*channels+ch)*volume(size) + pos
}

// weight returns the element of w for output channel o and input channel c of group g and the first tap.
func (p *problem) weight(g, o, c int) int { return ((g*p.cout+o)*p.cin + c) * volume(p.kernel) }

// source returns where the tap t of the output position o reads x, if that is in x.
func (p *problem) source(o, t [3]int) (at [3]int, inside bool) {
	for i := range at {
		at[i] = o[i]*p.stride[i] + t[i]*p.dilation[i] - p.pad[i]
		if at[i] < 0 || at[i] >= p.in[i] {
			return at, false
		}
	}
	return at, true
}

// at returns an element as float32.
func at(v snug.View, i int) float32 {
	switch v.DType() {
	case snug.F16:
		return v.Float16s()[i].Float32()
	case snug.BF16:
		return v.BFloat16s()[i].Float32()
	}
	return v.Float32s()[i]
}
