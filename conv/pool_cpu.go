package conv

import (
	"encoding/binary"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
)

const (
	lineLanes = 512     // results that a worker computes at a time
	lineTile  = 1024    // elements that it converts to float32 at a time
	itemLanes = 4 << 10 // results of an item of a parallel loop, at least, where a line has less
)

type poolJob struct {
	y, x, index snug.View // of a backward pass: their gradients

	shape         PoolShape
	into          snug.Into
	max, backward bool
}

func (*poolJob) Kernel() string { return "conv.pool" }

func (j *poolJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.y, &j.x, &j.index) }

func (j poolJob) Run() {
	p := &j.shape
	c := poolCall{poolJob: j, in: outer(p.Size, p.Dims), out: outer(p.outSize(), p.Dims)}
	c.dim = p.all()
	c.bits, c.bytes = p.indexBits(), device.Mem(&j.index).Bytes()
	c.mask = 1<<c.bits - 1
	_, lanes := p.rows()
	c.rowBytes = indexBytes(lanes, c.bits)
	task, size := poolForward, c.out
	if j.backward {
		task, size = poolBackward, c.in
	}
	c.lines = linesOf(p.Batch, p.Channels, size, p.Layout)
	task.Run(c.lines.items(), c)
}

// lines are the results of a call as lines of elements that lie one behind the other: rows of the last dimension, or the channels
// of a position.
type lines struct {
	count, lanes int
	size         [3]int
	last         bool // lanes are channels
}

func linesOf(batch, channels int, size [3]int, layout Layout) lines {
	l := lines{count: batch * channels * size[0] * size[1], lanes: size[2], size: size}
	if layout == ChannelsLast {
		l = lines{count: batch * volume(size), lanes: channels, size: size, last: true}
	}
	return l
}

// line is a piece of one.
type line struct {
	plane  int // the image, and the channel in it unless channels are last
	at     [3]int
	lo, hi int // lanes
	base   int // element of lane 0
}

// units returns how many pieces the lines have, and how many of them an item of a loop computes.
func (l *lines) units() (units, each int) {
	return l.count * cpu.Chunks(l.lanes, lineLanes), max(1, itemLanes/l.lanes)
}

func (l *lines) items() int { return cpu.Chunks(l.units()) }

// each calls f for the pieces of an item.
func (l *lines) each(item int, f func(line)) {
	units, each := l.units()
	lo, hi := cpu.Chunk(units, each, item)
	chunks := cpu.Chunks(l.lanes, lineLanes)
	for u := lo; u < hi; u++ {
		n := u / chunks
		ln := line{base: n * l.lanes}
		ln.lo, ln.hi = cpu.Chunk(l.lanes, lineLanes, u%chunks)
		if l.last {
			ln.at[2] = n % l.size[2]
			n /= l.size[2]
		}
		ln.at[1] = n % l.size[1]
		ln.at[0] = n / l.size[1] % l.size[0]
		ln.plane = n / l.size[1] / l.size[0]
		f(ln)
	}
}

// row returns the first element of the line at a position of a vector of another size, with as many channels.
func (l *lines) row(plane int, at, size [3]int) int {
	n := (plane*size[0]+at[0])*size[1] + at[1]
	if l.last {
		return (n*size[2] + at[2]) * l.lanes
	}
	return n * size[2]
}

// enter adds a piece of results to a vector.
func enter(v snug.View, at int, sum []float32, into snug.Into, tile []float32) {
	if into.Beta != 0 {
		old := half.Floats(v, at, tile[:len(sum)])
		for i, x := range old {
			sum[i] = float32(into.Alpha*sum[i]) + float32(into.Beta*x)
		}
	} else if into.Alpha != 1 {
		for i := range sum {
			sum[i] *= into.Alpha
		}
	}
	half.Store(v, at, sum)
}

var scratch cpu.Scratch

// Scratch for a worker: sums and what is converted.
const poolScratch = lineLanes + lineTile

type poolCall struct {
	poolJob
	lines    lines
	dim      [3]windows
	in, out  [3]int
	bits     int // of the index, an element
	rowBytes int // of the index, a line of y
	mask     int
	bytes    []byte
}

var (
	poolForward  = cpu.NewTask(func(c *poolCall, item int) { c.run(item, c.forward) })
	poolBackward = cpu.NewTask(func(c *poolCall, item int) { c.run(item, c.gradient) })
)

func (c *poolCall) run(item int, f func(l line, sum, tile []float32)) {
	buf := scratch.Get(poolScratch)
	defer scratch.Put(buf)
	c.lines.each(item, func(l line) { f(l, (*buf)[:l.hi-l.lo], (*buf)[lineLanes:][:lineTile]) })
}

// best is the largest element so far, and its tap; -1 before there is one.
type best [lineLanes]int32

// forward computes a piece of a line of y.
func (c *poolCall) forward(l line, sum, tile []float32) {
	var tap best
	if c.max {
		for i := range sum {
			sum[i], tap[i] = float32(math.Inf(-1)), -1
		}
	} else {
		clear(sum)
	}
	add := func(from, stride, lane, n, k int) {
		step := max(1, min(n, (lineTile-1)/stride+1))
		for i := 0; i < n; i += step {
			m := min(step, n-i)
			x := half.Floats(c.x, from+i*stride, tile[:min((m-1)*stride+1, lineTile)])
			c.take(sum[lane+i:][:m], tap[lane+i:][:m], x, stride, k)
		}
	}
	z0, z1 := c.dim[0].taps(l.at[0])
	y0, y1 := c.dim[1].taps(l.at[1])
	for kz := z0; kz < z1; kz++ {
		for ky := y0; ky < y1; ky++ {
			at := [3]int{c.dim[0].start(l.at[0]) + kz*c.dim[0].dilation, c.dim[1].start(l.at[1]) + ky*c.dim[1].dilation, 0}
			k := (kz*c.dim[1].kernel + ky) * c.dim[2].kernel
			c.across(l, at, k, add)
		}
	}
	if c.max {
		c.writeIndex(l, tap[:len(sum)])
	} else {
		c.divide(l, sum)
	}
	half.Store(c.y, l.base+l.lo, sum)
}

// across calls add for the elements of a row of x that the windows of a line have: n lanes from lane on, with an element each,
// stride apart, of tap k. Where windows differ in size they are added lane by lane.
func (c *poolCall) across(l line, at [3]int, k int, add func(from, stride, lane, n, k int)) {
	w := &c.dim[2]
	switch {
	case c.lines.last:
		lo, hi := w.taps(l.at[2])
		for kx := lo; kx < hi; kx++ {
			at[2] = w.start(l.at[2]) + kx*w.dilation
			add(c.lines.row(l.plane, at, c.in)+l.lo, 1, 0, l.hi-l.lo, k+kx)
		}
	case w.adaptive:
		row := c.lines.row(l.plane, at, c.in)
		for o := l.lo; o < l.hi; o++ {
			_, hi := w.taps(o)
			for kx := range hi {
				add(row+w.start(o)+kx, 1, o-l.lo, 1, k+kx)
			}
		}
	default:
		row := c.lines.row(l.plane, at, c.in)
		for kx := range w.kernel {
			shift := w.before - kx*w.dilation
			lo, hi := max(l.lo, ceilDiv(shift, w.stride)), min(l.hi, ceilDiv(w.in+shift, w.stride))
			if lo < hi {
				add(row+lo*w.stride-shift, w.stride, lo-l.lo, hi-lo, k+kx)
			}
		}
	}
}

// ceilDiv returns ⌈a/b⌉ for b > 0, and 0 for a < 0.
func ceilDiv(a, b int) int {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}

// take adds elements of x to the results of one tap.
func (c *poolCall) take(sum []float32, tap []int32, x []float32, stride, k int) {
	if !c.max {
		for i := range sum {
			sum[i] += x[i*stride]
		}
		return
	}
	for i := range sum {
		if v := x[i*stride]; v > sum[i] || v != v || tap[i] < 0 {
			sum[i], tap[i] = v, int32(k)
		}
	}
}

// divide makes means of sums.
func (c *poolCall) divide(l line, sum []float32) {
	n := c.divisor(0, l.at[0]) * c.divisor(1, l.at[1])
	for i := range sum {
		o := l.at[2]
		if !c.lines.last {
			o = l.lo + i
		}
		sum[i] /= n * c.divisor(2, o)
	}
}

func (c *poolCall) divisor(i, o int) float32 {
	return float32(c.dim[i].divisor(o, c.shape.SkipPadding))
}

// writeIndex writes the taps of a piece of a line, which begins with a byte.
func (c *poolCall) writeIndex(l line, tap []int32) {
	if c.index.Len() == 0 {
		return
	}
	at := l.base/c.lines.lanes*c.rowBytes + indexBytes(l.lo, c.bits)
	to := c.bytes[at:][:indexBytes(len(tap), c.bits)]
	clear(to)
	for i, k := range tap {
		k := uint32(max(k, 0))
		switch c.bits {
		case 16:
			binary.LittleEndian.PutUint16(to[2*i:], uint16(k))
		case 32:
			binary.LittleEndian.PutUint32(to[4*i:], k)
		default:
			to[i*c.bits/8] |= byte(k << (i * c.bits % 8))
		}
	}
}

// readIndex returns the tap of a lane of a line of y, given the line's first byte.
func (c *poolCall) readIndex(at, lane int) int {
	bit := lane * c.bits
	if c.bits <= 8 {
		return int(c.bytes[at+bit>>3]) >> (bit & 7) & c.mask
	}
	return readWide(c.bytes[at+bit>>3:], c.bits)
}

func readWide(b []byte, bits int) int {
	if bits == 16 {
		return int(binary.LittleEndian.Uint16(b))
	}
	return int(binary.LittleEndian.Uint32(b))
}

// gradient computes a piece of a line of dx.
func (c *poolCall) gradient(l line, sum, tile []float32) {
	clear(sum)
	z0, z1 := c.dim[0].of(l.at[0])
	y0, y1 := c.dim[1].of(l.at[1])
	for oz := z0; oz < z1; oz++ {
		for oy := y0; oy < y1; oy++ {
			kz, inZ := c.dim[0].tap(l.at[0], oz)
			ky, inY := c.dim[1].tap(l.at[1], oy)
			if !inZ || !inY {
				continue
			}
			k := (kz*c.dim[1].kernel + ky) * c.dim[2].kernel
			if c.lines.last {
				c.gradientChannels(l, [3]int{oz, oy, 0}, k, sum, tile)
			} else {
				c.gradientRow(l, [3]int{oz, oy, 0}, k, sum, tile)
			}
		}
	}
	enter(c.x, l.base+l.lo, sum, c.into, tile)
}

// gradientChannels adds the gradients of the windows of a row of y to the channels of a position.
func (c *poolCall) gradientChannels(l line, at [3]int, k int, sum, tile []float32) {
	w := &c.dim[2]
	lo, hi := w.of(l.at[2])
	for ox := lo; ox < hi; ox++ {
		kx, ok := w.tap(l.at[2], ox)
		if !ok {
			continue
		}
		at[2] = ox
		row := c.lines.row(l.plane, at, c.out)
		dy := half.Floats(c.y, row+l.lo, tile[:len(sum)])
		if !c.max {
			n := c.divisor(0, at[0]) * c.divisor(1, at[1]) * c.divisor(2, ox)
			for i, d := range dy {
				sum[i] += d / n
			}
			continue
		}
		first := row / c.lines.lanes * c.rowBytes
		for i, d := range dy {
			if c.readIndex(first, l.lo+i) == k+kx {
				sum[i] += d
			}
		}
	}
}

// gradientRow adds the gradients of the windows of a row of y to a row.
func (c *poolCall) gradientRow(l line, at [3]int, k int, sum, tile []float32) {
	w := &c.dim[2]
	lo, _ := w.of(l.lo)
	_, hi := w.of(l.hi - 1)
	row := c.lines.row(l.plane, at, c.out)
	first := row / c.out[2] * c.rowBytes
	n := c.divisor(0, at[0]) * c.divisor(1, at[1])
	for ; lo < hi; lo += lineTile {
		dy := half.Floats(c.y, row+lo, tile[:min(lineTile, hi-lo)])
		if !c.max {
			c.spread(l, lo, dy, n, sum)
			continue
		}
		for i, d := range dy {
			if kx := c.readIndex(first, lo+i) - k; kx >= 0 && kx < w.kernel {
				if at := w.start(lo+i) + kx*w.dilation - l.lo; at >= 0 && at < len(sum) {
					sum[at] += d
				}
			}
		}
	}
}

// spread adds the gradients of means, from window o on, to the elements of a row that they are the means of.
func (c *poolCall) spread(l line, o int, dy []float32, n float32, sum []float32) {
	w := &c.dim[2]
	whole := n * float32(w.kernel)
	for _, d := range dy {
		from, to := w.start(o), 0
		if to = from + w.kernel; !w.adaptive && from >= 0 && to <= w.in {
			d /= whole
		} else {
			first, last := w.taps(o)
			from, to = from+first, from+last
			d /= n * c.divisor(2, o)
		}
		for i := max(from, l.lo); i < min(to, l.hi); i++ {
			sum[i-l.lo] += d
		}
		o++
	}
}

// elementAt returns an element as float32.
func elementAt(v snug.View, i int) float32 {
	switch v.DType() {
	case snug.F16:
		return half.F16ToFloat32(v.Float16s()[i])
	case snug.BF16:
		return v.BFloat16s()[i].Float32()
	}
	return v.Float32s()[i]
}
