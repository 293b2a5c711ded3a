package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/patch"
	"github.com/snug-ml/snug/internal/rowwise"
)

// With channels last, the vectors of a depthwise convolution run across channels, which lie side by side.
//
//	for images, planes, bands of rows of the result, and parts of the channels    across.item
//	  copy the rows of x that the band reads, with the padding                    acrossTile.load
//	  for rows: sum over taps of w[tap] · positions                               patch.TapsAcross
//
// The adjoint does so for each phase. With channels first, planes with few columns are transposed on the way in and out, because
// their rows are too short for vectors along them.

const (
	acrossLen     = sizeB / 2             // floats of the copy of x: it fits the L2 cache together with the result
	mostAcross    = 256                   // channels of a part
	leastRows     = 7                     // if a band has fewer rows, parts get fewer channels
	narrowAcross  = 2 * patch.AcrossLanes // channels of a part that is not made narrower for this
	acrossWeights = 8                     // parts of the images in a gradient of weights, times the parts of the channels

	smallPlane     = 32  // columns below which planes are transposed
	mostTransposed = 512 // positions of a band of a transposed plane
)

// acrossCuts say how planes are cut into bands of rows, and channels into parts.
type acrossCuts struct {
	rows, bands  int // of a band, and how many
	width, parts int // channels of a part, and how many
}

// window is the range of elements of a dimension that taps read: len elements from first on. Some may lie outside of the source.
type window struct{ first, len int }

// window returns what the taps of elements j to j+n-1 of the result read.
func (a *axis) window(j, n int) window {
	if a.taps == 0 {
		return window{}
	}
	return window{j*a.step + a.off + min((a.taps-1)*a.offStep, 0), (n-1)*a.step + a.reach() + 1}
}

// reach returns the distance from the first to the last element that the taps of one result read.
func (a *axis) reach() int { return (a.taps - 1) * max(a.offStep, -a.offStep) }

// cutAcross returns the cuts for f, the first phase, with up to width channels a part. The first phase has the most elements, but
// others may have more taps: it makes room for the most. ok is false for problems that do not go this way.
func (p *problem) cutAcross(f phase, width int) (c acrossCuts, ok bool) {
	a := &f.axes
	small := max(p.in[2], p.out[2]) < smallPlane && p.groups >= patch.AcrossLanes
	if !p.last && !small || p.cin != 1 || p.cout != 1 || p.groups == 1 || volume(p.kernel) > mostTaps {
		return c, false
	}
	if !p.last {
		width = min(width, narrowAcross)
	}
	for i := range a {
		a[i].taps = cpu.Chunks(p.kernel[i], a[i].tapStep)
	}
	x, all := a[2].window(0, a[2].n).len, cpu.Chunks(p.groups, patch.AcrossLanes)*patch.AcrossLanes
	for c.width = min(all, width); ; c.width = cpu.Chunks(c.width/2, patch.AcrossLanes) * patch.AcrossLanes {
		fits := acrossLen / (c.width * a[0].taps * x)
		c.rows = min(a[1].n, floorDiv(fits-a[1].reach()-1, a[1].step)+1)
		if !p.last {
			c.rows = min(c.rows, mostTransposed/a[2].n)
		}
		room := (volume(p.kernel)+patch.AcrossLanes)*c.width <= sizeTmp
		if room && c.rows > 0 && (c.rows >= min(a[1].n, leastRows) || c.width <= narrowAcross) {
			break
		}
		if c.width == patch.AcrossLanes {
			return c, false
		}
	}
	c.bands, c.parts = cpu.Chunks(a[1].n, c.rows), cpu.Chunks(all, c.width)
	return c, true
}

// across is a depthwise convolution that computes across channels.
type across struct {
	correlation
	acrossCuts
	depth  int // planes of the largest phase
	images int // of an item
}

var acrosses = cpu.NewTask(func(d *across, item int) { d.item(item) })

// runAcross computes the correlation across channels. It returns false, and does nothing, if that does not suit the problem.
func (g *correlation) runAcross(phases int) bool {
	first := g.phase(0)
	cuts, ok := g.cutAcross(first, mostAcross)
	if !ok {
		return false
	}
	d := across{*g, cuts, first.axes[0].n, 1}
	d.images = max(1, unitLen/(d.rows*first.axes[2].n*d.width))
	d.itemsOfPhase = cpu.Chunks(g.batch, d.images) * d.depth * d.bands * d.parts
	acrosses.Run(phases*d.itemsOfPhase, d)
	return true
}

// acrossTile is the state of a worker. Its b has the rows of x, of all planes that the taps read: [plane][row][column][width].
type acrossTile struct {
	*problem
	acrossCuts
	buffers
	phase   phase
	kern    *gemm.Kernel
	patch   *patch.Kernels
	c0, n   int    // channels c0 to c0+n-1
	offsets []int  // of the taps of the first result, in b
	y, x    window // rows and columns of x in b
}

// lanes returns n, rounded up to whole vectors.
func (t *acrossTile) lanes() int { return cpu.Chunks(t.n, patch.AcrossLanes) * patch.AcrossLanes }

// begin prepares for part i of the channels.
func (t *acrossTile) begin(i int) {
	t.c0 = i * t.width
	t.n = min(t.width, t.groups-t.c0)
	t.offsets = t.ints()[:t.phase.taps()]
	a := &t.phase.axes
	t.x = a[2].window(0, a[2].n)
	t.y = a[1].window(0, min(t.rows, a[1].n))
	for i := range t.offsets {
		tz, ty, tx := t.phase.tap(i)
		y := a[1].read(0, ty) - t.y.first
		t.offsets[i] = ((tz*t.y.len+y)*t.x.len + a[2].read(0, tx) - t.x.first) * t.width
	}
}

// load copies to b what the taps read for rows y0 to y0+rows-1 of plane z of the result, with zeros for the padding.
func (t *acrossTile) load(src snug.View, image, z, y0, rows int) {
	a := &t.phase.axes
	if len(t.offsets) == 0 {
		return
	}
	window, line := a[1].window(y0, rows), t.x.len*t.width
	lo, hi := (&axis{step: 1, size: a[2].size}).inside(t.x.first, t.x.len)
	for tz := range a[0].taps {
		source := a[0].read(z, tz)
		for i := range window.len {
			to, y := t.b[(tz*t.y.len+i)*line:][:line], window.first+i
			if uint(source) >= uint(a[0].size) || uint(y) >= uint(a[1].size) {
				clear(to)
				continue
			}
			clear(to[:lo*t.width])
			if lo < hi {
				at := (source*a[1].size+y)*a[2].size + t.x.first + lo
				t.copy(t.b[(tz*t.y.len+i)*line+lo*t.width:], src, image, at, hi-lo, a[0].size*a[1].size*a[2].size)
			}
			clear(to[hi*t.width:])
		}
	}
}

// copy copies n positions of an image, from position at on, to dst [n][width]. src has size positions an image. With channels first it
// transposes, and may write zeros to the channels after n.
func (t *acrossTile) copy(dst []float32, src snug.View, image, at, n, size int) {
	if t.last {
		t.patch.Copy(dst, src, (image*size+at)*t.groups+t.c0, n, t.n, t.groups, t.width, 1)
		return
	}
	for c := 0; c < t.n; c += t.kern.NR {
		lines, from := min(t.kern.NR, t.n-c), (image*t.groups+t.c0+c)*size+at
		if src.DType() == snug.F32 {
			t.kern.PackLines(dst[c:], src.Float32s()[from:], lines, n, size, t.width)
			continue
		}
		for i := 0; i < n; i += tmpRows {
			m := min(tmpRows, n-i)
			t.patch.Copy(t.lines, src, from+i, lines, m, size, m, 1)
			t.kern.PackLines(dst[i*t.width+c:], t.lines, lines, m, m, t.width)
		}
	}
}

func (d *across) item(item int) {
	phase := d.phase(item / d.itemsOfPhase)
	item %= d.itemsOfPhase
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := acrossTile{problem: &d.problem, acrossCuts: d.acrossCuts, buffers: newBuffers(*buf), phase: phase, kern: d.kern, patch: d.patch}
	a := &t.phase.axes
	item, part := item/d.parts, item%d.parts
	item, y0 := item/d.bands, item%d.bands*d.rows
	item, z := item/d.depth, item%d.depth
	rows := min(d.rows, a[1].n-y0)
	if z >= a[0].n || rows <= 0 || a[2].n <= 0 {
		return
	}
	t.begin(part)
	d.packAcross(&t)
	for image := item * d.images; image < min((item+1)*d.images, d.batch); image++ {
		t.load(d.src, image, z, y0, rows)
		if d.last {
			d.sumRows(&t, image, z, y0, rows)
		} else {
			d.sumPlanes(&t, image, z, y0, rows)
		}
	}
}

// place returns the position in the whole result at which row y of plane z of a phase begins.
func (p *phase) place(z, y int) int {
	a := &p.axes
	return ((z*a[0].outStep+a[0].out)*a[1].outSize+y*a[1].outStep+a[1].out)*a[2].outSize + a[2].out
}

// sumRows computes and stores rows of the result, from y0 on, with channels last.
func (d *across) sumRows(t *acrossTile, image, z, y0, rows int) {
	a := &t.phase.axes
	for y := range rows {
		at := (image*d.dstSize+t.phase.place(z, y0+y))*d.groups + t.c0
		from := t.b[y*a[1].step*t.x.len*t.width:]
		step, next := a[2].step*t.width, a[2].outStep*d.groups
		if d.dst.DType() == snug.F32 && d.into.Beta == 0 && t.n == t.lanes() {
			t.patch.TapsAcross(d.dst.Float32s()[at:], from, t.tmp, t.offsets, a[2].n, t.n, step, next, t.width)
			continue
		}
		t.patch.TapsAcross(t.c, from, t.tmp, t.offsets, a[2].n, t.lanes(), step, t.width, t.width)
		(&tile{correlation: &d.correlation, buffers: t.buffers}).putRows(at, 1, next, t.c, a[2].n, t.n, t.width)
	}
}

// sumPlanes is sumRows with channels first.
func (d *across) sumPlanes(t *acrossTile, image, z, y0, rows int) {
	a := &t.phase.axes
	cols, n := a[2].n, rows*a[2].n
	for y := range rows {
		from := t.b[y*a[1].step*t.x.len*t.width:]
		t.patch.TapsAcross(t.c[y*cols*t.width:], from, t.tmp, t.offsets, cols, t.lanes(), a[2].step*t.width, t.width, t.width)
	}
	pitch := n + rowGap
	for i := 0; i < n; i += d.kern.NR {
		d.kern.PackLines(t.a[i:], t.c[i*t.width:], min(d.kern.NR, n-i), t.n, t.width, pitch)
	}
	to := &tile{correlation: &d.correlation, buffers: t.buffers}
	first := (image*d.groups + t.c0) * d.dstSize
	if t.phase.dense() {
		to.putRows(first+t.phase.place(z, y0), 1, d.dstSize, t.a, t.n, n, pitch)
		return
	}
	for y := range rows {
		to.putRows(first+t.phase.place(z, y0+y), a[2].outStep, d.dstSize, t.a[y*cols:], t.n, cols, pitch)
	}
}

// packAcross sets tmp to [taps + 1][width]: the weights times Alpha of each tap, and then the bias or zeros.
func (d *across) packAcross(t *acrossTile) {
	all := volume(d.kernel)
	for c := 0; c < t.n; c += d.kern.NR {
		lines := min(d.kern.NR, t.n-c)
		w := half.Floats(d.w, (t.c0+c)*all, t.lines[:lines*all])
		d.kern.PackLines(t.tmp[c:], w, lines, all, all, t.width)
	}
	for tap := range t.offsets {
		if k := t.phase.kernelTap(tap, d.kernel); k != tap {
			copy(t.tmp[tap*t.width:][:t.width], t.tmp[k*t.width:])
		}
	}
	if alpha := d.into.Alpha; alpha != 1 {
		w := t.tmp[:len(t.offsets)*t.width]
		rowwise.Registry.Best().Scale(w, w, alpha)
	}
	bias := t.tmp[len(t.offsets)*t.width:][:t.width]
	clear(bias)
	if d.bias.Len() > 0 {
		half.Load(bias[:t.n], d.bias, t.c0)
	}
}

// acrossGradient is a gradient of the weights of a depthwise convolution. It has an item for each part of the channels and part of
// the images.
type acrossGradient struct {
	weightProduct
	acrossCuts
}

var acrossGradients = cpu.NewTask(func(d *acrossGradient, item int) { d.item(item) })

// cutAcrossWeights returns the cuts for the gradient of the weights, and the number of parts of the images. ok is as in cutAcross.
func (p *problem) cutAcrossWeights() (c acrossCuts, images int, ok bool) {
	f := p.gatherPhase()
	c, ok = p.cutAcross(f, mostAcross)
	if !ok || (f.taps()+2*patch.DotTaps)*c.width > sizeTmp/2 {
		return c, 1, false
	}
	return c, max(1, min(acrossWeights/c.parts, p.batch)), true
}

// runAcross computes the gradient across channels. It returns false, and does nothing, if that does not suit the problem.
func (g *weightProduct) runAcross() bool {
	cuts, images, ok := g.cutAcrossWeights()
	if ok {
		g.parts = images
		acrossGradients.Run(images*cuts.parts, acrossGradient{*g, cuts})
		g.addParts()
	}
	return ok
}

func (d *acrossGradient) item(item int) {
	images, part := item/d.acrossCuts.parts, item%d.acrossCuts.parts
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := acrossTile{problem: &d.problem, acrossCuts: d.acrossCuts, buffers: newBuffers(*buf), phase: d.phase, kern: d.kern, patch: d.patch}
	t.begin(part)
	a, taps := &t.phase.axes, len(t.offsets)
	t.offsets = append(t.offsets, t.offsets[0], t.offsets[0]) // fills the last group of DotTaps; ints has room
	n := cpu.Chunks(taps, patch.DotTaps) * patch.DotTaps * t.width
	all, sums := t.tmp[:n], t.tmp[sizeTmp/2:][:n]
	clear(all)
	each := a[0].n * d.bands // bands of an image
	for i := images * d.batch / d.weightCuts.parts * each; i < (images+1)*d.batch/d.weightCuts.parts*each; i++ {
		image, z, y0 := i/each, i/d.bands%a[0].n, i%d.bands*d.rows
		rows := min(d.rows, a[1].n-y0)
		t.load(d.x, image, z, y0, rows)
		y, row, step := t.dyBand(d.dy, image, z, y0, rows)
		clear(sums)
		for tap := 0; tap < taps; tap += patch.DotTaps {
			t.patch.DotsAcross(sums[tap*t.width:], y, t.b, t.offsets[tap:tap+patch.DotTaps], rows, a[2].n, t.lanes(),
				row, step, a[1].step*t.x.len*t.width, a[2].step*t.width, t.width)
		}
		rowwise.Registry.Best().Axpby(all, sums, 1, 1)
	}
	dw, into := d.partOf(images)
	for i := range t.n * taps {
		to, sum := &dw[t.c0*taps+i], all[i%taps*t.width+i/taps]
		if into.Beta == 0 {
			*to = into.Alpha * sum
		} else {
			*to = float32(into.Beta**to) + float32(into.Alpha*sum)
		}
	}
}

// dyBand returns rows of a plane of dy as float32, with the distances in elements from row to row and from position to position.
func (t *acrossTile) dyBand(dy snug.View, image, z, y0, rows int) (y []float32, row, step int) {
	a := &t.phase.axes
	at := (z*a[1].n + y0) * a[2].n
	if t.last && dy.DType() == snug.F32 && t.n == t.lanes() {
		return dy.Float32s()[(image*volume(t.out)+at)*t.groups+t.c0:], a[2].n * t.groups, t.groups
	}
	t.copy(t.c, dy, image, at, rows*a[2].n, volume(t.out))
	return t.c, a[2].n * t.width, t.width
}
