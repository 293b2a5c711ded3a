package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
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
// The adjoint does so for each phase. Where x holds float32 and its channels are whole vectors, rows are read where they lie, unless
// their taps reach far into the padding. With channels first, planes with few columns are transposed on the way in and out, because
// their rows are too short for vectors along them.

const (
	acrossLen     = sizeB / 2             // floats of the copy of x: it fits the L2 cache together with the result
	mostAcross    = 256                   // channels of a part
	leastRows     = 7                     // if a band has fewer rows, parts get fewer channels
	narrowAcross  = 2 * patch.AcrossLanes // channels of a part that is not made narrower for this
	inPlaceLen    = 1 << 16               // about the results of a band whose x is read where it lies
	acrossWeights = 8                     // parts of the images in a gradient of weights, times the parts of the channels

	smallPlane     = 32  // columns below which planes are transposed
	stridedPlane   = 64  // and of results that would be written with a stride otherwise
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
	most := smallPlane
	if a[2].outStep > 1 {
		most = stridedPlane
	}
	small := max(p.in[2], p.out[2]) < most && p.groups >= patch.AcrossLanes
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
			c.rows = min(c.rows, mostTransposed/(a[1].outStep*a[2].outSize))
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

// cutInPlace returns the cuts where x is read where it lies. A row of the result has room in scratch.
func (p *problem) cutInPlace(f phase) (c acrossCuts) {
	most := min(mostAcross, sizeTmp/2/(volume(p.kernel)+1), inPlaceLen/f.axes[2].n)
	c.width = evenly(p.groups/patch.AcrossLanes, most/patch.AcrossLanes) * patch.AcrossLanes
	c.rows = min(f.axes[1].n, max(1, inPlaceLen/(f.axes[2].n*c.width)))
	c.bands, c.parts = cpu.Chunks(f.axes[1].n, c.rows), cpu.Chunks(p.groups, c.width)
	return c
}

// across is a depthwise convolution that computes across channels.
type across struct {
	correlation
	acrossCuts
	depth   int  // planes of the largest phase
	images  int  // of an item
	inPlace bool // x is read where it lies
}

var acrosses = cpu.NewTask(func(d *across, item int) { d.item(item) })

// runAcross computes the correlation across channels. It returns false, and does nothing, if that does not suit the problem.
func (g *correlation) runAcross(phases int) bool {
	first := g.phase(0)
	cuts, ok := g.cutAcross(first, mostAcross)
	if !ok {
		return false
	}
	d := across{correlation: *g, acrossCuts: cuts, depth: first.axes[0].n}
	d.numberOfPhases = phases
	d.inPlace = d.last && d.src.DType() == snug.F32 && d.groups%patch.AcrossLanes == 0
	for i := range phases {
		f := d.phase(i)
		d.inPlace = d.inPlace && f.axes[2].inPlace()
	}
	if d.inPlace {
		d.acrossCuts = g.cutInPlace(first)
	}
	d.images = max(1, unitLen/(d.rows*first.axes[2].n*d.width))
	acrosses.Run(cpu.Chunks(g.batch, d.images)*d.depth*d.bands*d.parts, d)
	return true
}

func (d *across) item(item int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := acrossTile{problem: &d.problem, acrossCuts: d.acrossCuts, buffers: newBuffers(*buf), kern: d.kern, patch: d.patch}
	item, part := item/d.parts, item%d.parts
	item, y0 := item/d.bands, item%d.bands*d.acrossCuts.rows
	item, z := item/d.depth, item%d.depth
	t.begin(part)
	d.packAcross(&t)
	for image := item * d.images; image < min((item+1)*d.images, d.batch); image++ {
		if d.last {
			d.sumPhases(&t, image, z, y0)
			continue
		}
		for first := 0; first < d.numberOfPhases; first += d.phasesY * d.phasesX {
			d.sumPlanes(&t, first, image, z, y0)
		}
	}
}

// sumPhases computes and stores a band of all phases, with channels last.
func (d *across) sumPhases(t *acrossTile, image, z, y0 int) {
	for i := range d.numberOfPhases {
		rows := t.setPhase(d.phase(i), z, y0)
		switch {
		case rows == 0:
		case d.inPlace:
			d.sumInPlace(t, image, z, y0, rows)
		default:
			t.load(d.src, image, z, y0, rows)
			d.sumRows(t, image, z, y0, rows, t.b, t.beginBand())
		}
	}
}

// place returns the position in the whole result at which row y of plane z of a phase begins.
func (p *phase) place(z, y int) int {
	a := &p.axes
	return ((z*a[0].outStep+a[0].out)*a[1].outSize+y*a[1].outStep+a[1].out)*a[2].outSize + a[2].out
}

// sumInPlace computes and stores rows of the result, from y0 on, from rows of the source where they lie.
func (d *across) sumInPlace(t *acrossTile, image, z, y0, rows int) {
	t.beginInPlace()
	for y, n := y0, 0; y < y0+rows; y += n {
		n = t.phase.axes[1].alike(y, y0+rows-y)
		d.sumRows(t, image, z, y, n, d.src.Float32s(), t.rows(image, z, y))
	}
}

// sumRows computes and stores n rows of plane z of the result, from y on, with channels last.
func (d *across) sumRows(t *acrossTile, image, z, y, n int, src []float32, rows []patch.AcrossRow) {
	a, bias := &t.phase.axes, t.tmp[volume(d.kernel)*t.width:]
	at, next := (image*d.dstSize+t.phase.place(z, y))*d.groups+t.c0, a[2].outStep*d.groups
	line := a[1].outStep * a[2].outSize * d.groups
	t.across.Lines = n
	if d.dst.DType() == snug.F32 && d.into.Beta == 0 && t.n == t.lanes() {
		t.across.StepDst, t.across.LineDst = next, line
		t.patch.TapsAcross(d.dst.Float32s()[at:], src, t.tmp, bias, rows, t.across)
		return
	}
	t.across.StepDst, t.across.LineDst = t.width, a[2].n*t.width
	t.patch.TapsAcross(t.c, src, t.tmp, bias, rows, t.across)
	to := &tile{correlation: &d.correlation, buffers: t.buffers}
	for i := range n {
		to.putRows(at+i*line, 1, next, t.c[i*a[2].n*t.width:], a[2].n, t.n, t.width)
	}
}

// sumPlanes computes and stores a band of a plane of the result, with channels first: of all phases from the first that has the plane.
func (d *across) sumPlanes(t *acrossTile, first, image, z, y0 int) {
	bias := t.tmp[volume(d.kernel)*t.width:]
	for i := first; i < first+d.phasesY*d.phasesX; i++ {
		rows := t.setPhase(d.phase(i), z, y0)
		if rows == 0 {
			continue
		}
		a := &t.phase.axes
		t.load(d.src, image, z, y0, rows)
		list := t.beginBand()
		t.across.Lines, t.across.StepDst, t.across.LineDst = rows, a[2].outStep*t.width, a[1].outStep*a[2].outSize*t.width
		t.patch.TapsAcross(t.c[(a[1].out*a[2].outSize+a[2].out)*t.width:], t.b, t.tmp, bias, list, t.across)
	}
	p := d.phase(first)
	a := &p.axes
	if z >= a[0].n {
		return
	}
	n := min(t.acrossCuts.rows*a[1].outStep, a[1].outSize-y0*a[1].outStep) * a[2].outSize
	pitch := n + rowGap
	for i := 0; i < n; i += d.kern.NR {
		d.kern.PackLines(t.a[i:], t.c[i*t.width:], min(d.kern.NR, n-i), t.n, t.width, pitch)
	}
	to := &tile{correlation: &d.correlation, buffers: t.buffers}
	to.putRows((image*d.groups+t.c0)*d.dstSize+p.place(z, y0), 1, d.dstSize, t.a, t.n, n, pitch)
}

// packAcross sets tmp.
func (d *across) packAcross(t *acrossTile) {
	all := volume(d.kernel)
	for c := 0; c < t.n; c += d.kern.NR {
		lines := min(d.kern.NR, t.n-c)
		w := half.Floats(d.w, (t.c0+c)*all, t.lines[:lines*all])
		d.kern.PackLines(t.tmp[c:], w, lines, all, all, t.width)
	}
	if alpha := d.into.Alpha; alpha != 1 {
		w := t.tmp[:all*t.width]
		rowwise.Registry.Best().Scale(w, w, alpha)
	}
	bias := t.tmp[all*t.width:][:t.width]
	clear(bias)
	if d.bias.Len() > 0 {
		half.Load(bias[:t.n], d.bias, t.c0)
	}
}
