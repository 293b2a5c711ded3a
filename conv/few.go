package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// An adjoint whose result has few channels, such as the gradient of an RGB image or the last layer of a decoder, would be a matrix
// product with as few rows, which wastes most of the micro-kernel. Instead it is computed as col2im: the product has a row for each
// pair of a channel of the result and a tap, and a column for each position of y. Each row is then added to the result at its tap.
//
//	for images, groups, and bands of rows of x                few.item
//	  for parts of the positions of y that reach the band     fewTile.add
//	    for parts of KC of the channels of y                  fewTile.packY: pack B[KC][NC] from y
//	      C[channels of x × taps][NC] += A·B                  gemm.Kernel.MulRows
//	    add each row of C to the band
//
// A row of a band is stored by phases: the columns that are equal modulo the stride lie side by side.

const (
	mostFew  = 4  // most channels of the result
	fewTaps  = 4  // least taps
	fewDepth = 16 // least channels of y
)

// few is an adjoint that is computed as col2im.
type few struct {
	correlation
	bandRows, bands int // rows of a band, and bands of an image
	line            int // floats of one phase of a row of a band
}

var fews = cpu.NewTask(func(d *few, item int) { d.item(item) })

// runFew computes the adjoint as col2im. It returns false, and does nothing, unless the correlation is an adjoint in one or two
// dimensions whose result has few channels.
func (g *correlation) runFew() bool {
	all := volume(g.kernel)
	d := few{correlation: *g, line: cpu.Chunks(g.in[2], g.stride[2])}
	if !g.adjoint || g.results > mostFew || all < fewTaps || g.results*all > mcStaged || g.channels < fewDepth ||
		g.kernel[0]*g.in[0]*g.out[0] != 1 || g.stride[2] > g.in[2] || !g.last && g.takesPairs() {
		return false
	}
	most := sizeA / (g.results * g.stride[2] * d.line)
	if most == 0 {
		return false
	}
	d.bands = max(cpu.Chunks(g.in[1], most), min(cpu.Chunks(wantItems, g.batch*g.groups), g.in[1]/(4*g.kernel[1])))
	d.bandRows = cpu.Chunks(g.in[1], d.bands)
	d.bands = cpu.Chunks(g.in[1], d.bandRows)
	fews.Run(g.batch*g.groups*d.bands, d)
	return true
}

// fewTile is rows y0 to y1-1 of an image of x, for one group, which one worker computes. Its a holds them.
type fewTile struct {
	tile
	few           *few
	image, y0, y1 int
}

// row returns where a phase of row y of channel m begins in a.
func (t *fewTile) row(m, y, phase int) int {
	return ((m*t.few.bandRows+y-t.y0)*t.stride[2] + phase) * t.few.line
}

func (d *few) item(item int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	item, band := item/d.bands, item%d.bands
	t := fewTile{tile: tile{correlation: &d.correlation, buffers: newBuffers(*buf), group: item % d.groups}, few: d, image: item / d.groups}
	t.y0 = band * d.bandRows
	t.y1 = min(t.y0+d.bandRows, d.in[1])
	each := d.bandRows * d.stride[2] * d.line
	for m := range d.results {
		sums := t.a[m*each:][:each]
		clear(sums)
		if d.bias.Len() > 0 {
			bias := at(d.bias, t.group*d.results+m)
			for i := range sums {
				sums[i] = bias
			}
		}
	}
	s, pad := d.stride[1], d.pad[1]
	lo := max(0, -floorDiv((d.kernel[1]-1)*d.dilation[1]-t.y0-pad, s))
	hi := min(d.out[1], floorDiv(t.y1-1+pad, s)+1)
	count := nc
	if d.out[2] < nc {
		count = nc / d.out[2] * d.out[2]
	}
	for n := lo * d.out[2]; n < hi*d.out[2]; n += count {
		t.add(n, min(n+count, hi*d.out[2]))
	}
	step, line := 1, d.in[2]
	if d.last {
		step = d.groups * d.results
	}
	for m := range d.results {
		channel := t.group*d.results + m
		at := (t.image*d.groups*d.results+channel)*d.dstSize + t.y0*line
		if d.last {
			at = (t.image*d.dstSize+t.y0*line)*step + channel
		}
		for phase := range d.stride[2] {
			cols := (line-phase-1)/d.stride[2] + 1
			t.putRows(at+phase*step, d.stride[2]*step, line*step, t.a[t.row(m, t.y0, phase):], t.y1-t.y0, cols, d.stride[2]*d.line)
		}
	}
}

// add adds the contributions of positions n0 to n1-1 of y to the band.
func (t *fewTile) add(n0, n1 int) {
	all, n := volume(t.kernel), n1-n0
	rows := t.results * all
	depth := evenly(t.channels, min(kc, sizeTmp/rows))
	beta := float32(0)
	for c := 0; c < t.channels; c += depth {
		k := min(depth, t.channels-c)
		t.packY(c, k, n0, n1)
		w := half.Floats(t.w, t.weight(0, c), t.tmp[:k*rows])
		t.kern.MulRows(rows, n, k, t.into.Alpha, gemm.Rows{X: w, Row: 1, Col: rows}, t.b, beta, t.c, n)
		beta = 1
	}
	add := rowwise.Registry.Best().Axpby
	s, width := t.stride, t.out[2]
	for at := n0; at < n1; {
		oy, ox := at/width, at%width
		count := min(width-ox, n1-at)
		for r := range rows {
			m, ty, tx := r/all, r%all/t.kernel[2], r%t.kernel[2]
			y := oy*s[1] + ty*t.dilation[1] - t.pad[1]
			if y < t.y0 || y >= t.y1 {
				continue
			}
			x := tx*t.dilation[2] - t.pad[2]
			k := floorDiv(x, s[2])
			phase := x - k*s[2]
			k += ox
			lo, hi := max(0, -k), min(count, (t.in[2]-phase-1)/s[2]+1-k)
			if lo < hi {
				to := t.row(m, y, phase) + k
				add(t.a[to+lo:to+hi], t.c[r*n+at-n0+lo:][:hi-lo], 1, 1)
			}
		}
		at += count
	}
}

// packY packs B: channels c to c+k-1 of positions n0 to n1-1 of y, in panels of NR positions.
func (t *fewTile) packY(c, k, n0, n1 int) {
	nr, stride := t.kern.NR, t.groups*t.channels
	channel := t.group*t.channels + c
	if !t.last {
		t.kern.CopyRows(t.b, t.src, (t.image*stride+channel)*t.srcSize+n0, k, n1-n0, t.srcSize, nr, nr*k)
		return
	}
	for n := n0; n < n1; n += nr {
		lines, dst, at := min(nr, n1-n), t.b[(n-n0)*k:], (t.image*t.srcSize+n)*stride+channel
		if t.src.DType() == snug.F32 {
			t.kern.PackLines(dst, t.src.Float32s()[at:], lines, k, stride, nr)
		} else {
			t.patch.Copy(t.lines, t.src, at, lines, k, stride, k+rowGap, 1)
			t.kern.PackLines(dst, t.lines, lines, k, k+rowGap, nr)
		}
	}
}
