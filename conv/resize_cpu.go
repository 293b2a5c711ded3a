package conv

import (
	"math"
	"sort"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

func (j resizeJob) Run() {
	s := &j.shape
	if j.x.Len() == 0 {
		return
	}
	c := resizeCall{resizeJob: j, in: outer(s.Size, s.Dims), out: outer(s.Out, s.Dims), dim: s.table(j.ws.Float32s())}
	task, size := resizeForward, c.out
	if j.backward {
		task, size = resizeBackward, c.in
	}
	c.lines = linesOf(s.Batch, s.Channels, size, s.Layout)
	task.Run(c.lines.items(), c)
}

// weights are those of one dimension: element o of y is made of the elements span[2·o] to span[2·o]+span[2·o+1]-1 of x, with the
// weights from w[o·taps] on. A dimension that a shape lacks has none.
type weights struct {
	taps int
	span []int32
	w    []float32
}

// of returns the first element of x that o is made of, and the weights.
func (w *weights) of(o int) (first int, weight []float32) {
	if w.taps == 0 {
		return 0, one
	}
	return int(w.span[2*o]), w.w[o*w.taps:][:w.span[2*o+1]]
}

var one = []float32{1}

// outputs returns the elements of y that are made of elements from lo up to hi of x: the first, and one after the last.
func (w *weights) outputs(lo, hi int) (first, last int) {
	if w.taps == 0 {
		return 0, 1
	}
	n := len(w.span) / 2
	first = sort.Search(n, func(o int) bool { return int(w.span[2*o]+w.span[2*o+1]) > lo })
	return first, sort.Search(n, func(o int) bool { return int(w.span[2*o]) >= hi })
}

// at returns the weight of element i of x in element o of y, which it is a part of.
func (w *weights) at(o, i int) float32 {
	first, weight := w.of(o)
	return weight[i-first]
}

// table computes the weights of all dimensions in a workspace.
func (s *ResizeShape) table(ws []float32) (all [3]weights) {
	for i := range s.Dims {
		n := s.Out[i] * (2 + s.taps(i))
		all[3-s.Dims+i] = fill(ws[:n], s, i)
		ws = ws[n:]
	}
	return all
}

// upload brings the weights to the workspace of a device, which its kernels read.
func (j *resizeJob) upload() error {
	table := make([]float32, j.shape.workspaceLen())
	j.shape.table(table)
	ws, err := j.ws.Slice(0, len(table))
	if err != nil {
		return err
	}
	return snug.Copy(ws, snug.SliceView(table))
}

// fill computes the weights of dimension i in a workspace.
func fill(ws []float32, s *ResizeShape, i int) weights {
	n := s.Out[i]
	w := weights{s.taps(i), unsafe.Slice((*int32)(unsafe.Pointer(&ws[0])), 2*n), ws[2*n:]}
	for o := range n {
		first, weight := 0, w.w[o*w.taps:][:0]
		switch {
		case s.Interpolation <= NearestExact:
			first, weight = s.nearest(i, o), append(weight, 1)
		case s.Antialias:
			first, weight = s.filtered(i, o, weight)
		default:
			first, weight = s.interpolated(i, o, weight)
		}
		w.span[2*o], w.span[2*o+1] = int32(first), int32(len(weight))
	}
	return w
}

// nearest returns the element of x that o is. PyTorch computes it in float32, and what it rounds to is a result.
func (s *ResizeShape) nearest(i, o int) int {
	scale, at := float32(s.Size[i])/float32(s.Out[i]), float32(o)
	if s.Interpolation == NearestExact {
		at += 0.5
	}
	return min(int(math.Floor(float64(at*scale))), s.Size[i]-1)
}

// interpolated returns the weights of an o that lies between elements of x. Those beyond the border are at the border.
func (s *ResizeShape) interpolated(i, o int, to []float32) (first int, weight []float32) {
	at := s.scale(i) * float64(o)
	if !s.AlignCorners {
		at = s.scale(i)*(float64(o)+0.5) - 0.5
	}
	if s.Interpolation == Linear {
		at = max(at, 0)
	}
	left := int(math.Floor(at))
	var w [4]float64
	n, t := 2, at-float64(left)
	w[0], w[1] = 1-t, t
	if s.Interpolation == Cubic {
		n, left = 4, left-1
		w = [4]float64{keys(1+t, -0.75), keys(t, -0.75), keys(1-t, -0.75), keys(2-t, -0.75)}
	}
	last := s.Size[i] - 1
	first = min(max(left, 0), last)
	weight = to[:min(max(left+n-1, 0), last)-first+1]
	var sum [4]float64
	for k, x := range w[:n] {
		sum[min(max(left+k, 0), last)-first] += x
	}
	for k := range weight {
		weight[k] = float32(sum[k])
	}
	return first, weight
}

// filtered returns the weights of a filter that is as wide as an element of y, at least.
func (s *ResizeShape) filtered(i, o int, to []float32) (first int, weight []float32) {
	scale := s.scale(i)
	wide := max(scale, 1)
	centre := scale * (float64(o) + 0.5)
	first = max(int(centre-s.reach()*wide+0.5), 0)
	weight = to[:max(min(int(centre+s.reach()*wide+0.5), s.Size[i])-first, 0)]
	sum := 0.0
	for k := range weight {
		sum += s.filter((float64(first+k) - centre + 0.5) / wide)
	}
	for k := range weight {
		weight[k] = float32(s.filter((float64(first+k)-centre+0.5)/wide) / sum)
	}
	return first, weight
}

func (s *ResizeShape) filter(x float64) float64 {
	x = math.Abs(x)
	if s.Interpolation == Cubic {
		return keys(x, -0.5)
	}
	return max(1-x, 0)
}

// keys is the cubic convolution kernel, for x ≥ 0.
func keys(x, a float64) float64 {
	switch {
	case x < 1:
		return ((a+2)*x-(a+3))*x*x + 1
	case x < 2:
		return ((a*x-5*a)*x+8*a)*x - 4*a
	}
	return 0
}

type resizeCall struct {
	resizeJob
	lines   lines
	dim     [3]weights
	in, out [3]int
}

var (
	resizeForward  = cpu.NewTask(func(c *resizeCall, item int) { c.run(item, c.forward) })
	resizeBackward = cpu.NewTask(func(c *resizeCall, item int) { c.run(item, c.gradient) })
)

func (c *resizeCall) run(item int, f func(l line, sum, tile []float32)) {
	buf := scratch.Get(poolScratch)
	defer scratch.Put(buf)
	c.lines.each(item, func(l line) {
		sum := (*buf)[:l.hi-l.lo]
		clear(sum)
		f(l, sum, (*buf)[lineLanes:][:lineTile])
	})
}

// forward computes a piece of a line of y.
func (c *resizeCall) forward(l line, sum, tile []float32) {
	z, wz := c.dim[0].of(l.at[0])
	y, wy := c.dim[1].of(l.at[1])
	for kz, a := range wz {
		for ky, b := range wy {
			at := [3]int{z + kz, y + ky, 0}
			if !c.lines.last {
				c.forwardRow(l, c.lines.row(l.plane, at, c.in), a*b, sum, tile)
				continue
			}
			x, wx := c.dim[2].of(l.at[2])
			for kx, w := range wx {
				at[2] = x + kx
				addScaled(sum, half.Floats(c.x, c.lines.row(l.plane, at, c.in)+l.lo, tile[:len(sum)]), a*b*w)
			}
		}
	}
	half.Store(c.y, l.base+l.lo, sum)
}

// forwardRow adds what a row of x is in a row of y.
func (c *resizeCall) forwardRow(l line, row int, factor float32, sum, tile []float32) {
	w := &c.dim[2]
	for lo := l.lo; lo < l.hi; {
		first, weight := w.of(lo)
		hi, end := lo+1, first+len(weight)
		for ; hi < l.hi; hi++ {
			from, weight := w.of(hi)
			if from+len(weight)-first > lineTile {
				break
			}
			end = from + len(weight)
		}
		for at := first; at < end; at += lineTile { // more than once for a single lane only
			n := min(lineTile, end-at)
			x := half.Floats(c.x, row+at, tile[:n])
			for o := lo; o < hi; o++ {
				from, weight := w.of(o)
				weight = weight[max(at-from, 0):min(at+n-from, len(weight))]
				part := float32(0)
				for k, v := range x[max(from-at, 0):][:len(weight)] {
					part += float32(weight[k] * v)
				}
				sum[o-l.lo] += float32(factor * part)
			}
		}
		lo = hi
	}
}

// gradient computes a piece of a line of dx.
func (c *resizeCall) gradient(l line, sum, tile []float32) {
	z0, z1 := c.dim[0].outputs(l.at[0], l.at[0]+1)
	y0, y1 := c.dim[1].outputs(l.at[1], l.at[1]+1)
	for oz := z0; oz < z1; oz++ {
		for oy := y0; oy < y1; oy++ {
			w := c.dim[0].at(oz, l.at[0]) * c.dim[1].at(oy, l.at[1])
			at := [3]int{oz, oy, 0}
			if !c.lines.last {
				c.gradientRow(l, c.lines.row(l.plane, at, c.out), w, sum)
				continue
			}
			x0, x1 := c.dim[2].outputs(l.at[2], l.at[2]+1)
			for at[2] = x0; at[2] < x1; at[2]++ {
				dy := half.Floats(c.y, c.lines.row(l.plane, at, c.out)+l.lo, tile[:len(sum)])
				addScaled(sum, dy, w*c.dim[2].at(at[2], l.at[2]))
			}
		}
	}
	enter(c.x, l.base+l.lo, sum, c.into, tile)
}

// gradientRow adds the gradient of a row of y to a row of dx.
func (c *resizeCall) gradientRow(l line, row int, factor float32, sum []float32) {
	w := &c.dim[2]
	lo, hi := w.outputs(l.lo, l.hi)
	for o := lo; o < hi; o++ {
		d := factor * elementAt(c.y, row+o)
		first, weight := w.of(o)
		for i := max(first, l.lo); i < min(first+len(weight), l.hi); i++ {
			sum[i-l.lo] += float32(d * weight[i-first])
		}
	}
}

func addScaled(sum, x []float32, factor float32) {
	for i, v := range x {
		sum[i] += float32(factor * v)
	}
}
