package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/patch"
	"github.com/snug-ml/snug/internal/rowwise"
)

// acrossGradient is a gradient of the weights of a depthwise convolution. It has an item for each part of the channels and part of
// the images.
type acrossGradient struct {
	weightProduct
	acrossCuts
	inPlace bool // x and dy are read where they lie
}

var acrossGradients = cpu.NewTask(func(d *acrossGradient, item int) { d.item(item) })

// cutAcrossWeights returns the cuts for the gradient of the weights, and the number of parts of the images. ok is as in cutAcross.
func (p *problem) cutAcrossWeights() (c acrossCuts, images int, ok bool) {
	f := p.gatherPhase()
	c, ok = p.cutAcross(f, mostAcross)
	if !ok || f.taps()*c.width > sizeTmp/2 {
		return c, 1, false
	}
	parts := c.parts
	if p.weightsInPlace() {
		parts = p.cutInPlace(f).parts
	}
	return c, max(1, min(acrossWeights/parts, p.batch)), true
}

// weightsInPlace says whether patch.DotsAcross can read x and dy of float32 where they lie.
func (p *problem) weightsInPlace() bool {
	a := p.gatherAxis(2)
	taps, _ := a.together()
	return p.last && p.groups%patch.AcrossLanes == 0 && taps == 3 && a.n > 1 && a.inPlace()
}

// runAcross computes the gradient across channels. It returns false, and does nothing, if that does not suit the problem.
func (g *weightProduct) runAcross() bool {
	cuts, images, ok := g.cutAcrossWeights()
	if ok {
		g.parts = images
		d := acrossGradient{*g, cuts, g.weightsInPlace() && g.x.DType() == snug.F32 && g.dy.DType() == snug.F32}
		if d.inPlace {
			d.acrossCuts = g.cutInPlace(g.phase)
		}
		acrossGradients.Run(images*d.acrossCuts.parts, d)
		g.addParts()
	}
	return ok
}

func (d *acrossGradient) item(item int) {
	images, part := item/d.acrossCuts.parts, item%d.acrossCuts.parts
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := acrossTile{problem: &d.problem, acrossCuts: d.acrossCuts, buffers: newBuffers(*buf), kern: d.kern, patch: d.patch}
	t.begin(part)
	t.setPhase(d.phase, 0, 0)
	a, taps := &t.phase.axes, t.phase.taps()
	if t.across.Taps == 2 { // patch.DotsAcross takes them one by one
		t.across.Taps = 1
	}
	all, sums := t.tmp[:taps*t.width], t.tmp[sizeTmp/2:][:taps*t.width]
	clear(all)
	each := a[0].n * d.bands // bands of an image
	for i := images * d.batch / d.weightCuts.parts * each; i < (images+1)*d.batch/d.weightCuts.parts*each; i++ {
		image, z, y0 := i/each, i/d.bands%a[0].n, i%d.bands*d.acrossCuts.rows
		rows := min(d.acrossCuts.rows, a[1].n-y0)
		clear(sums)
		if d.inPlace {
			d.addInPlace(&t, sums, image, z, y0, rows)
		} else {
			t.load(d.x, image, z, y0, rows)
			list, y := t.beginBand(), t.dyBand(d.dy, image, z, y0, rows)
			t.across.Lines = rows
			t.patch.DotsAcross(sums, y, t.b, list, t.across)
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

// addInPlace adds rows of a plane of dy, from y0 on, with rows of x where they lie: a row after the other, so that all channels of a
// few rows are read together.
func (d *acrossGradient) addInPlace(t *acrossTile, sums []float32, image, z, y0, rows int) {
	a := &t.phase.axes
	t.beginInPlace()
	t.across.Lines, t.across.StepDst, t.across.LineDst = 1, t.groups, a[2].n*t.groups
	for y := y0; y < y0+rows; y++ {
		dy := d.dy.Float32s()[((image*a[0].n+z)*a[1].n+y)*t.across.LineDst+t.c0:]
		t.patch.DotsAcross(sums, dy, d.x.Float32s(), t.rows(image, z, y), t.across)
	}
}

// dyBand returns rows of a plane of dy as float32, with distances as in t.across.
func (t *acrossTile) dyBand(dy snug.View, image, z, y0, rows int) []float32 {
	a := &t.phase.axes
	at := (z*a[1].n + y0) * a[2].n
	if t.last && dy.DType() == snug.F32 && t.n == t.lanes() {
		t.across.StepDst, t.across.LineDst = t.groups, a[2].n*t.groups
		return dy.Float32s()[(image*volume(t.out)+at)*t.groups+t.c0:]
	}
	t.copy(t.c, dy, image, at, rows*a[2].n, volume(t.out))
	t.across.StepDst, t.across.LineDst = t.width, a[2].n*t.width
	return t.c
}
