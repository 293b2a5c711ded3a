package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// Scratch is what each running worker holds, in bytes.
const Scratch = 0

func (s *Shape) workspaceLen() int { return 0 }

// WorkspaceLen returns the workspace of [BackwardWeight] in float32 elements; 0 if [Shape.Check] reports an error.
func (s Shape) WorkspaceLen() int { return s.checked((*Shape).workspaceLen) }

// place is a position, by the size that it is in.
func place(i int, size [3]int) [3]int {
	return [3]int{i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]}
}

// put sets an element to beta times itself plus alpha·sum.
func put(v snug.View, i int, sum float32, into snug.Into) {
	x := into.Alpha * sum
	if into.Beta != 0 {
		x += float32(into.Beta * at(v, i))
	}
	switch v.DType() {
	case snug.F16:
		v.Float16s()[i] = half.Float32ToF16(x)
	case snug.BF16:
		v.BFloat16s()[i] = snug.ToBFloat16(x)
	default:
		v.Float32s()[i] = x
	}
}

// call is a call that is under way: y and x are those of the problem.
type call struct {
	problem
	y, x, w, bias snug.View
	into          snug.Into
}

var (
	gatherTask  = cpu.NewTask(func(c *call, item int) { c.gatherPlane(item) })
	scatterTask = cpu.NewTask(func(c *call, item int) { c.scatterPlane(item) })
	weightTask  = cpu.NewTask(func(c *call, item int) { c.weightPlane(item) })
)

func (p *problem) gather(y, x, w, bias snug.View, into snug.Into) {
	gatherTask.Run(p.batch*p.groups*p.cout, call{*p, y, x, w, bias, into})
}

func (p *problem) scatter(x, y, w, bias snug.View, into snug.Into) {
	scatterTask.Run(p.batch*p.groups*p.cin, call{*p, y, x, w, bias, into})
}

func (p *problem) weights(w, x, y snug.View, into snug.Into, ws snug.View) {
	weightTask.Run(p.groups*p.cout, call{*p, y, x, w, snug.View{}, into})
}

// gatherPlane computes a channel of y in one image.
func (c *call) gatherPlane(item int) {
	b, g, o := item/(c.groups*c.cout), item/c.cout%c.groups, item%c.cout
	for i := range volume(c.out) {
		pos := place(i, c.out)
		var sum float32
		for ch := range c.cin {
			for t := range volume(c.kernel) {
				if from, ok := c.source(pos, place(t, c.kernel)); ok {
					sum += float32(at(c.w, c.weight(g, o, ch)+t) * at(c.x, c.index(b, g, ch, c.cin, c.in, from)))
				}
			}
		}
		if c.bias.Len() > 0 {
			sum += at(c.bias, g*c.cout+o)
		}
		put(c.y, c.index(b, g, o, c.cout, c.out, pos), sum, c.into)
	}
}

// scatterPlane computes a channel of x in one image from y.
func (c *call) scatterPlane(item int) {
	b, g, ch := item/(c.groups*c.cin), item/c.cin%c.groups, item%c.cin
	for i := range volume(c.in) {
		pos := place(i, c.in)
		var sum float32
		for o := range c.cout {
			for t := range volume(c.kernel) {
				if from, ok := c.target(pos, place(t, c.kernel)); ok {
					sum += float32(at(c.w, c.weight(g, o, ch)+t) * at(c.y, c.index(b, g, o, c.cout, c.out, from)))
				}
			}
		}
		if c.bias.Len() > 0 {
			sum += at(c.bias, g*c.cin+ch)
		}
		put(c.x, c.index(b, g, ch, c.cin, c.in, pos), sum, c.into)
	}
}

// target returns the output position whose tap t reads x at a position, if there is one.
func (p *problem) target(x, t [3]int) (at [3]int, inside bool) {
	for i := range at {
		n := x[i] + p.pad[i] - t[i]*p.dilation[i]
		if n < 0 || n%p.stride[i] != 0 || n/p.stride[i] >= p.out[i] {
			return at, false
		}
		at[i] = n / p.stride[i]
	}
	return at, true
}

// weightPlane computes the gradients of the weights of an output channel.
func (c *call) weightPlane(item int) {
	g, o := item/c.cout, item%c.cout
	for ch := range c.cin {
		for t := range volume(c.kernel) {
			var sum float32
			for b := range c.batch {
				for i := range volume(c.out) {
					pos := place(i, c.out)
					if from, ok := c.source(pos, place(t, c.kernel)); ok {
						sum += float32(at(c.x, c.index(b, g, ch, c.cin, c.in, from)) * at(c.y, c.index(b, g, o, c.cout, c.out, pos)))
					}
				}
			}
			put(c.w, c.weight(g, o, ch)+t, sum, c.into)
		}
	}
}

// sumChannels computes the gradient of a bias.
func sumChannels(db, dy snug.View, s *Shape, into snug.Into) {
	n, first := s.positions(s.outSize()), s.Layout == ChannelsFirst
	for o := range s.Out {
		var sum float32
		for b := range s.Batch {
			for i := range n {
				if first {
					sum += at(dy, (b*s.Out+o)*n+i)
				} else {
					sum += at(dy, (b*n+i)*s.Out+o)
				}
			}
		}
		put(db, o, sum, into)
	}
}
