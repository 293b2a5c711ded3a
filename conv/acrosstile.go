package conv

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/patch"
)

// acrossTile is the state of a worker. Its b has the rows of x, of all planes that the taps read: [plane][row][column][width]. Its
// tmp has the weights times Alpha, and then the bias or zeros: [taps + 1][width].
type acrossTile struct {
	*problem
	acrossCuts
	buffers
	phase  phase
	kern   *gemm.Kernel
	patch  *patch.Kernels
	c0, n  int    // channels c0 to c0+n-1
	y, x   window // rows and columns of x in b
	across patch.Across
}

// lanes returns n, rounded up to whole vectors.
func (t *acrossTile) lanes() int { return cpu.Chunks(t.n, patch.AcrossLanes) * patch.AcrossLanes }

// begin prepares for part i of the channels.
func (t *acrossTile) begin(i int) {
	t.c0 = i * t.width
	t.n = min(t.width, t.groups-t.c0)
}

// setPhase prepares for a phase. It returns the rows of the band of plane z that begins at row y0.
func (t *acrossTile) setPhase(p phase, z, y0 int) (rows int) {
	t.phase = p
	a := &t.phase.axes
	t.x = a[2].window(0, a[2].n)
	t.y = a[1].window(0, min(t.acrossCuts.rows, a[1].n))
	t.across = patch.Across{Cols: a[2].n, Channels: t.lanes(), StepW: a[2].tapStep * t.width}
	t.across.Taps, t.across.Step = a[2].together()
	if a[2].offStep < 0 {
		t.across.StepW = -t.across.StepW
	}
	if z >= a[0].n || a[2].n <= 0 {
		return 0
	}
	return max(0, min(t.acrossCuts.rows, a[1].n-y0))
}

// beginInPlace prepares for rows of a source where they lie.
func (t *acrossTile) beginInPlace() {
	a := &t.phase.axes
	t.across.StepSrc = t.groups
	if t.across.Taps == 1 {
		t.across.StepSrc *= a[2].step
	}
	t.across.LineSrc = a[1].step * a[2].size * t.groups
	t.across.Before, t.across.After = t.x.first < 0, t.x.first+t.x.len > a[2].size
}

// beginBand prepares for rows of the copy of the source.
func (t *acrossTile) beginBand() []patch.AcrossRow {
	t.across.StepSrc, t.across.Before, t.across.After = t.width, false, false
	if t.across.Taps == 1 {
		t.across.StepSrc *= t.phase.axes[2].step
	}
	t.across.LineSrc = t.phase.axes[1].step * t.x.len * t.width
	return t.rowsOfBand()
}

// rows returns the rows of the kernel for row y of plane z of the result, of an image of a source that holds float32 and has its
// channels last. Those that lie in the padding are left out.
func (t *acrossTile) rows(image, z, y int) []patch.AcrossRow {
	list := t.rowList()
	for tz := range t.phase.axes[0].taps {
		for ty := range t.phase.axes[1].taps {
			a := &t.phase.axes
			z, y := a[0].read(z, tz), a[1].read(y, ty)
			if uint(z) < uint(a[0].size) && uint(y) < uint(a[1].size) {
				line := ((image*a[0].size+z)*a[1].size + y) * a[2].size
				list = t.addRow(list, tz, ty, line*t.groups+t.c0, t.groups)
			}
		}
	}
	return list
}

// rowsOfBand returns the rows of the kernel for the first row of a band that lies in b.
func (t *acrossTile) rowsOfBand() []patch.AcrossRow {
	list := t.rowList()
	for tz := range t.phase.axes[0].taps {
		for ty := range t.phase.axes[1].taps {
			line := (tz*t.y.len + t.phase.axes[1].read(0, ty) - t.y.first) * t.x.len
			list = t.addRow(list, tz, ty, (line-t.x.first)*t.width, t.width)
		}
	}
	return list
}

// rowList returns room for the rows of a kernel.
func (t *acrossTile) rowList() []patch.AcrossRow {
	return unsafe.Slice((*patch.AcrossRow)(unsafe.Pointer(unsafe.SliceData(t.pieces))), mostTaps)[:0]
}

// addRow adds taps tz and ty of the other dimensions, whose line begins at an element of the source: a row, or one for each tap.
func (t *acrossTile) addRow(list []patch.AcrossRow, tz, ty, line, stepSrc int) []patch.AcrossRow {
	a := &t.phase.axes
	first := 0
	if t.across.Taps > 1 && a[2].offStep < 0 {
		first = a[2].taps - 1
	}
	for tx := first; tx < a[2].taps; tx++ {
		k := (a[0].element(tz)*t.kernel[1]+a[1].element(ty))*t.kernel[2] + a[2].element(tx)
		list = append(list, patch.AcrossRow{Src: line + a[2].read(0, tx)*stepSrc, W: k * t.width})
		if t.across.Taps > 1 {
			break
		}
	}
	return list
}

// load copies to b what the taps read for rows y0 to y0+rows-1 of plane z of the result, with zeros for the padding.
func (t *acrossTile) load(src snug.View, image, z, y0, rows int) {
	a := &t.phase.axes
	if t.phase.taps() == 0 {
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

// together returns how many of the taps of a dimension patch.TapsAcross takes together, all or one, and its step.
func (a *axis) together() (taps, step int) {
	if a.offStep*a.offStep == 1 && (a.taps == 3 && a.step <= 2 || a.taps == 2 && a.step == 1) {
		return a.taps, a.step
	}
	return 1, 1
}

// inPlace says whether patch.TapsAcross can read the source where it lies: in this dimension all taps of all results lie inside,
// except for one before and one after.
func (a *axis) inPlace() bool {
	over := 0
	if taps, _ := a.together(); taps > 1 {
		over = 1
	}
	w := a.window(0, a.n)
	return a.taps == 0 || a.n <= 0 || w.first >= -over && w.first+w.len <= a.size+over
}

// alike returns how many of n elements of the result, from j on, read the source alike: by all taps, or else one.
func (a *axis) alike(j, n int) int {
	count := 1
	for count < n && a.covers(j) && a.covers(j+count) {
		count++
	}
	return count
}

// covers says whether all taps of an element of the result lie inside of the source.
func (a *axis) covers(j int) bool {
	w := a.window(j, 1)
	return w.first >= 0 && w.first+w.len <= a.size
}
