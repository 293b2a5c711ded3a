package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/patch"
)

// A depthwise convolution has one channel of x a group. As a matrix product it would spend its time on copying patches, because it
// has only few multiply-adds for each element of a patch. So it loops over planes:
//
//	for channels of the images, and parts of a plane     depthwise.unit
//	  copy the part of x with the zeros around it        grid.load
//	  for rows: sum over taps of w[tap] · row            patch.Taps
//
// Where taps read every second element, the grid has a plane of even and one of odd elements, so that each tap reads
// elements side by side; likewise for other strides. The adjoint adds the planes of all channels of y in turn, a phase
// after the other.

const (
	mostTaps = 128     // most taps of the kernel
	mostOut  = 8       // most channels of y in a group
	bandCols = 2048    // most columns of a part of a plane
	unitLen  = 1 << 14 // about the results of an item
)

// grid is the layout in scratch of the part of a plane of the source that a part of the result reads. It has a plane for each remainder
// of rows and columns by their step: y.len rows of pitch floats. Row and column 0 are the first that taps read.
type grid struct {
	y, x       gridAxis
	rows, cols int // of the result
	pitch      int
	size       int // of a plane
}

// gridAxis is a dimension of a grid: element k of plane r is element step·(k+first)+r of the source.
type gridAxis struct{ step, first, len int }

// newGridAxis returns the dimension for elements j0 to j0+n-1 of a result.
func newGridAxis(a *axis, j0, n int) gridAxis {
	lo, hi := a.off, a.off+(a.taps-1)*a.offStep
	if lo > hi {
		lo, hi = hi, lo
	}
	first, last := floorDiv(lo, a.step), floorDiv(hi, a.step)
	return gridAxis{a.step, j0 + first, n + last - first}
}

func floorDiv(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// at returns the plane, and the element of it, where element 0 of the result reads for a tap.
func (g *gridAxis) at(a *axis, j0, tap int) (plane, k int) {
	off := a.off + tap*a.offStep
	q := floorDiv(off, a.step)
	return off - q*a.step, q + j0 - g.first
}

// planes returns the number of planes in this dimension.
func (g *gridAxis) planes() int { return g.step }

func newGrid(p *phase, y0, x0, rows, cols int) grid {
	g := grid{y: newGridAxis(&p.axes[1], y0, rows), x: newGridAxis(&p.axes[2], x0, cols), rows: rows, cols: cols}
	g.pitch = g.x.len
	g.size = g.y.len * g.pitch // may overflow: then len refuses it
	return g
}

// len returns the floats of the grid, with those that Taps may read beyond its end. For a grid that is too large it returns more than
// sizeB.
func (g *grid) len() int {
	if float64(g.y.planes())*float64(g.x.planes())*float64(g.y.len)*float64(g.x.len) > sizeB {
		return 2 * sizeB
	}
	return g.y.planes()*g.x.planes()*g.size + 64
}

// load copies a plane of the source to the grid in dst. The plane begins at element at of src, and its columns are stride elements
// apart. The elements of dst for the padding are 0 already.
func (g *grid) load(k *patch.Kernels, dst []float32, src snug.View, at int, a *[3]axis, stride int) {
	for py := range g.y.planes() {
		y := axis{step: g.y.step, size: a[1].size}
		top := g.y.step*g.y.first + py
		lo, hi := y.inside(top, g.y.len)
		if lo >= hi {
			continue
		}
		for px := range g.x.planes() {
			x := axis{step: g.x.step, size: a[2].size}
			left := g.x.step*g.x.first + px
			from, to := x.inside(left, g.x.len)
			if from >= to {
				continue
			}
			plane := (py*g.x.planes()+px)*g.size + lo*g.pitch + from
			first := (top+lo*g.y.step)*a[2].size + left + from*g.x.step
			k.Copy(dst[plane:], src, at+first*stride, hi-lo, to-from, g.y.step*a[2].size*stride, g.pitch, g.x.step*stride)
		}
	}
}

// taps sets offsets to the elements of the grid that the taps read for element 0 of the result.
func (g *grid) taps(offsets []int, a *[3]axis, y0, x0 int) {
	for tap := range a[1].taps * a[2].taps {
		py, ky := g.y.at(&a[1], y0, tap/a[2].taps)
		px, kx := g.x.at(&a[2], x0, tap%a[2].taps)
		offsets[tap] = (py*g.x.planes()+px)*g.size + ky*g.pitch + kx
	}
}

// depthwise is a depthwise convolution that loops over planes.
type depthwise struct {
	correlation
	bands
	depth              int // planes of the largest phase
	units, unitsOfItem int // parts of planes: all, and those of an item
}

// bands say how a plane of the result is cut into bands.
type bands struct {
	bandRows, bandCols int // rows and columns of a band
	bandsY, bandsX     int // number of bands in each dimension
}

// cut chooses bands whose grid has room in scratch. It returns false if there are none.
func (b *bands) cut(p *phase) bool {
	rows, cols := p.axes[1].n, p.axes[2].n
	b.bandCols = min(cols, bandCols)
	one, two := newGrid(p, 0, 0, 1, b.bandCols), newGrid(p, 0, 0, 2, b.bandCols)
	room := sizeB - one.len()
	if room < 0 {
		return false
	}
	b.bandRows = min(rows, 1+room/max(two.len()-one.len(), 1), sizeC/2/b.bandCols)
	b.bandsY, b.bandsX = cpu.Chunks(rows, b.bandRows), cpu.Chunks(cols, b.bandCols)
	return true
}

// band returns where band i begins.
func (b *bands) band(i int) (y, x int) { return i / b.bandsX * b.bandRows, i % b.bandsX * b.bandCols }

var depthwises = cpu.NewTask(func(d *depthwise, item int) { d.item(item) })

// isDepthwise reports whether the loops over planes suit a problem.
func (p *problem) isDepthwise() bool {
	return p.cin == 1 && p.cout <= mostOut && p.groups > 1 && volume(p.kernel) <= mostTaps
}

// runDepthwise computes the correlation over planes. It returns false, and does nothing, if that does not suit the problem or a band
// has no room in scratch.
func (g *correlation) runDepthwise(phases int) bool {
	if !g.isDepthwise() {
		return false
	}
	d := depthwise{correlation: *g}
	first := d.phase(0)
	if !d.bands.cut(&first) {
		return false
	}
	d.depth = first.axes[0].n
	d.units = g.batch * g.groups * g.results * first.axes[0].n * d.bandsY * d.bandsX
	d.unitsOfItem = max(1, unitLen/(d.bandRows*d.bandCols))
	d.itemsOfPhase = cpu.Chunks(d.units, d.unitsOfItem)
	depthwises.Run(phases*d.itemsOfPhase, d)
	return true
}

func (d *depthwise) item(item int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := planeTile{depthwise: d, tile: tile{correlation: &d.correlation, buffers: newBuffers(*buf), phase: d.phase(item / d.itemsOfPhase)}}
	lo, hi := cpu.Chunk(d.units, d.unitsOfItem, item%d.itemsOfPhase)
	ints := t.tile.ints()
	t.band, t.offsets, t.kernelTaps = -1, ints[:mostTaps], ints[mostTaps:][:t.tile.phase.taps()]
	for tap := range t.kernelTaps {
		t.kernelTaps[tap] = t.tile.phase.kernelTap(tap, d.kernel)
	}
	for i := lo; i < hi; i++ {
		t.unit(i)
	}
}

// planeTile is the state of a worker of a depthwise convolution.
type planeTile struct {
	*depthwise
	tile
	band       int // the band for which grid, offsets and the zeros of the padding are set
	grid       grid
	offsets    []int // of the taps in the grid
	kernelTaps []int // the elements of the kernel for the taps
}

// unit computes unit i: a band of a plane of the result.
func (t *planeTile) unit(i int) {
	a := &t.phase.axes
	count := t.bandsY * t.bandsX
	band := i % count
	i /= count
	z := i % t.depth
	i /= t.depth
	y0, x0 := t.bands.band(band)
	rows, cols := min(t.bandRows, a[1].n-y0), min(t.bandCols, a[2].n-x0)
	if z >= a[0].n || rows <= 0 || cols <= 0 {
		return
	}
	if band != t.band {
		t.grid, t.band = newGrid(&t.phase, y0, x0, rows, cols), band
		clear(t.tile.b[:t.grid.len()])
		t.grid.taps(t.offsets, a, y0, x0)
	}
	result, image := i%t.tile.results, i/t.tile.results
	t.group = image % t.tile.groups
	image /= t.tile.groups
	t.sum(image, result, z, y0, x0)
}

// sum computes and stores the band of plane z that begins at y0 and x0.
func (t *planeTile) sum(image, result, z, y0, x0 int) {
	a, c := &t.phase.axes, t.tile.correlation
	rows, cols := t.grid.rows, t.grid.cols
	stride, imageLen, channelLen := 1, c.groups*c.channels*c.srcSize, c.srcSize
	outStride, outImage, outChannel := 1, c.groups*c.results*c.dstSize, c.dstSize
	if c.last {
		stride, channelLen = c.groups*c.channels, 1
		outStride, outChannel = c.groups*c.results, 1
	}
	place := func(y int) int {
		at := (z*a[0].outStep+a[0].out)*a[1].outSize + (y0+y)*a[1].outStep + a[1].out
		return image*outImage + (t.group*c.results+result)*outChannel + (at*a[2].outSize+a[2].out+x0*a[2].outStep)*outStride
	}
	var bias [1]float32
	if c.bias.Len() > 0 {
		bias[0] = at(c.bias, t.group*c.results+result)
	}
	dst, pitch := t.tile.c, cols
	direct := c.dst.DType() == snug.F32 && c.into.Beta == 0 && outStride*a[2].outStep == 1
	if direct {
		dst, pitch = c.dst.Float32s()[place(0):], a[1].outStep*a[2].outSize
	}
	add := false
	for channel := range c.channels {
		for tz := range a[0].taps {
			source := a[0].read(z, tz)
			if uint(source) >= uint(a[0].size) || a[1].taps*a[2].taps == 0 {
				continue
			}
			from := image*imageLen + (t.group*c.channels+channel)*channelLen + source*a[1].size*a[2].size*stride
			t.grid.load(c.patch, t.tile.b, c.src, from, a, stride)
			w := t.weights(result, channel, tz)
			c.patch.Taps(dst, t.tile.b, w, t.offsets[:len(w)], rows, cols, t.grid.pitch, pitch, bias[0], add)
			add = true
		}
	}
	if !add {
		for y := range rows {
			row := dst[y*pitch:][:cols]
			for i := range row {
				row[i] = bias[0]
			}
		}
	}
	if direct {
		return
	}
	t.putRows(place(0), a[2].outStep*outStride, a[1].outStep*a[2].outSize*outStride, dst, rows, cols, pitch)
}

// weights returns the weights times Alpha of the taps in plane tz of the kernel.
func (t *planeTile) weights(result, channel, tz int) []float32 {
	c, taps := t.tile.correlation, t.phase.axes[1].taps*t.phase.axes[2].taps
	all := half.Floats(c.w, t.weight(result, channel), t.tile.lines[:volume(c.kernel)])
	w := t.tile.tmp[:taps]
	for i, k := range t.kernelTaps[tz*taps:][:taps] {
		w[i] = c.into.Alpha * all[k]
	}
	return w
}

// at returns element i as float32.
func at(v snug.View, i int) float32 {
	switch v.DType() {
	case snug.F16:
		return half.F16ToFloat32(v.Float16s()[i])
	case snug.BF16:
		return v.BFloat16s()[i].Float32()
	}
	return v.Float32s()[i]
}
