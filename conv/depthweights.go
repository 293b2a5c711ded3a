package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/patch"
)

// depthWeights is a gradient of the weights of a depthwise convolution that is under way. For each tap it is the product
// of the planes of dy with the grid of x from the tap's offset on:
//
//	for groups                                     depthWeights.item
//	  for images and parts of planes               depthWeights.plane
//	    copy the part of x with the zeros around it
//	    for channels of y: sums[tap] += Σ dy · row patch.Dots
type depthWeights struct {
	weightProduct
	bands
}

var depthWeightItems = cpu.NewTask(func(d *depthWeights, item int) { d.item(item) })

// runDepthwise computes the gradient if the loops over planes take the problem.
func (g *weightProduct) runDepthwise() bool {
	d := depthWeights{weightProduct: *g}
	if !g.isDepthwise() || !d.bands.cut(&g.phase) {
		return false
	}
	depthWeightItems.Run(g.groups, d)
	return true
}

// depthTile is what a worker has: sums of the lanes of all taps, in groups of patch.DotTaps for each part of the kernel's
// depth, for each channel of y.
type depthTile struct {
	*depthWeights
	buffers
	group   int
	sums    []float32
	offsets []int
	taps    int // of a plane, rounded up to patch.DotTaps
	band    int
	grid    grid
}

func (d *depthWeights) item(group int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := depthTile{depthWeights: d, buffers: newBuffers(*buf), group: group, band: -1}
	a := &d.phase.axes
	planeTaps := a[1].taps * a[2].taps
	t.taps = cpu.Chunks(planeTaps, patch.DotTaps) * patch.DotTaps
	t.sums, t.c = t.c[:sizeC/2], t.c[sizeC/2:]
	t.sums, t.offsets = t.sums[:t.cout*a[0].taps*t.taps*d.patch.Lanes], t.ints()
	clear(t.sums)
	for image := range d.batch {
		for z := range a[0].n {
			for band := range d.bandsY * d.bandsX {
				t.plane(image, z, band)
			}
		}
	}
	dw := d.dw.Float32s()[group*d.cout*volume(d.kernel):]
	for o := range d.cout {
		for tz := range a[0].taps {
			for tap := range planeTaps {
				sums := t.sums[((o*a[0].taps+tz)*t.taps+tap)*d.patch.Lanes:][:d.patch.Lanes]
				for i := 1; i < len(sums); i++ {
					sums[0] += sums[i]
				}
				at := o*volume(d.kernel) + tz*planeTaps + tap
				addInto(d.into, dw[at:at+1], sums[:1])
			}
		}
	}
}

// plane adds a part of a plane of dy, and the planes of x that meet it.
func (t *depthTile) plane(image, z, band int) {
	a := &t.phase.axes
	y0, x0 := t.bands.band(band)
	rows, cols := min(t.bandRows, a[1].n-y0), min(t.bandCols, a[2].n-x0)
	if band != t.band {
		t.grid, t.band = newGrid(&t.phase, y0, x0, rows, cols), band
		clear(t.b[:t.grid.len()])
		t.grid.taps(t.offsets, a, y0, x0)
		for tap := a[1].taps * a[2].taps; tap < t.taps; tap++ {
			t.offsets[tap] = t.offsets[0]
		}
	}
	for tz := range a[0].taps {
		source := a[0].read(z, tz)
		if uint(source) >= uint(a[0].size) {
			continue
		}
		from, stride := t.element(image, t.group, source*a[1].size*a[2].size, t.groups, volume(t.in))
		t.grid.load(t.patch, t.b, t.x, from, a, stride)
		for o := range t.cout {
			y, pitch := t.dyPlane(image, o, z, y0, x0)
			sums := t.sums[(o*a[0].taps+tz)*t.taps*t.patch.Lanes:]
			for tap := 0; tap < t.taps; tap += patch.DotTaps {
				t.patch.Dots(sums[tap*t.patch.Lanes:], y, t.b, t.offsets[tap:tap+patch.DotTaps], rows, cols, pitch, t.grid.pitch)
			}
		}
	}
}

// element returns the element of a vector with channels in all, of planes of the given size, and the distance to the next
// position.
func (p *problem) element(image, channel, position, channels, size int) (at, stride int) {
	if p.last {
		return (image*size+position)*channels + channel, channels
	}
	return (image*channels+channel)*size + position, 1
}

// dyPlane returns the rows of a part of a plane of dy, and the distance between them.
func (t *depthTile) dyPlane(image, o, z, y0, x0 int) (rows []float32, pitch int) {
	a := &t.phase.axes
	at, stride := t.element(image, t.group*t.cout+o, (z*a[1].n+y0)*a[2].n+x0, t.groups*t.cout, volume(t.out))
	if t.dy.DType() == snug.F32 && stride == 1 {
		return t.dy.Float32s()[at:], a[2].n
	}
	t.patch.Copy(t.c, t.dy, at, t.grid.rows, t.grid.cols, a[2].n*stride, t.grid.cols, stride)
	return t.c, t.grid.cols
}
