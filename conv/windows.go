package conv

import (
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
)

// With channels last, the elements that one row of the kernel reads for a position lie side by side in x, and those for the next
// position begin one stride later. So a padded row of x serves as operand A with overlapping rows. It is copied once for each row of
// the kernel, not once for each tap:
//
//	for parts of the channels of y, and of those of x    tile.windows
//	  pack B[rows of the kernel][taps × channels][NC]    tile.packWindows
//	  for rows of the result, and of the kernel          tile.multiplyWindow
//	    copy the row of x that they read, with padding
//	    C[row of the result][NC] += A·B                  gemm.Kernel.MulRows

const (
	leastWindow = 48  // the least depth of a product, taps of a row of the kernel × channels
	goodWindow  = 144 // below it, the channels of y are halved to make room for more channels of x,
	fewCols     = 64  // while they are more than these
)

// windowParts returns the channels of y and of x of a part, the latter 0 if the products would be too small or too wasteful.
func (t *tile) windowParts() (cols, channels int) {
	a, mr, nr := &t.phase.axes[2], t.kern.MR, t.kern.NR
	whole := 10*a.n >= 9*mr*cpu.Chunks(a.n, mr) // at most a tenth of the rows of the micro-kernel's tiles is unused
	if a.taps < 2 || t.phase.taps() == 0 || a.offStep*a.offStep != 1 || !whole || volume(t.kernel) > tmpRows {
		return 0, 0
	}
	for cols = cpu.Chunks(t.m1-t.m0, nr) * nr; ; cols = cpu.Chunks(cols/2, nr) * nr {
		channels = min(t.channels, (len(t.windowB())-1024)/(t.phase.taps()*cols), sizeA/((min(a.n, t.n1-t.n0)-1)*a.step+a.taps))
		if channels < t.channels {
			channels = channels / vectorLen * vectorLen
		}
		if channels == t.channels || channels*a.taps >= goodWindow || cols <= fewCols {
			break
		}
	}
	if channels*a.taps < leastWindow {
		return 0, 0
	}
	return cols, channels
}

// windowB returns the memory for B: that for sums, where these go to the result.
func (t *tile) windowB() []float32 {
	if t.staged {
		return t.b
	}
	return t.c
}

// windows computes a tile with channels last from padded rows of x, in rows of c, strideC apart:
// c = beta·c + the sums, or with a bias c = bias + the sums. It returns false, and does nothing, if windowParts returns no channels.
func (t *tile) windows(c []float32, strideC int, beta float32) bool {
	cols, channels := t.windowParts()
	if channels == 0 {
		return false
	}
	if t.bias.Len() > 0 {
		half.Load(t.lines[:t.m1-t.m0], t.bias, t.group*t.results+t.m0)
		for n := range t.n1 - t.n0 {
			copy(c[n*strideC:][:t.m1-t.m0], t.lines)
		}
		beta = 1
	}
	part := *t
	part.b = t.windowB()
	for ; part.m0 < t.m1; part.m0 = part.m1 {
		part.m1 = min(part.m0+cols, t.m1)
		c, beta := c[part.m0-t.m0:], beta
		for c0 := 0; c0 < t.channels; c0 += channels {
			b := block{c0: c0, c1: min(c0+channels, t.channels), t1: t.phase.taps()}
			part.packWindows(&b)
			for r := newRuns(&part.phase, t.n0, t.n1); r.next(); {
				part.multiplyWindow(&b, &r, c[r.col*strideC:], strideC, beta)
			}
			beta = 1
		}
	}
	return true
}

// packWindows packs B for the block's channels: for each row of the kernel, panels of NR channels of y, with the taps in the order of
// the elements of x that they read.
func (t *tile) packWindows(b *block) {
	nr, taps, channels := t.kern.NR, t.phase.axes[2].taps, b.c1-b.c0
	cols := cpu.Chunks(t.m1-t.m0, nr) * nr
	together := max(1, tmpRows/volume(t.kernel))
	for m := t.m0; m < t.m1; m += nr {
		for c := b.c0; c < b.c1; c += together {
			part := block{c0: c, c1: min(c+together, b.c1), t1: b.t1}
			n := part.c1 - c
			t.packWeights(&part, t.a, m, min(nr, t.m1-m), nr, true)
			for tap := range b.t1 {
				row, tx := tap/taps, tap%taps
				if t.phase.axes[2].offStep < 0 {
					tx = taps - 1 - tx
				}
				copy(t.b[row*taps*channels*cols+((m-t.m0)*taps+tx*nr)*channels+(c-b.c0)*nr:], t.a[tap*n*nr:][:n*nr])
			}
		}
	}
}

// multiplyWindow computes the rows of c for a run of positions.
func (t *tile) multiplyWindow(b *block, r *runs, c []float32, strideC int, beta float32) {
	a, channels, stride := &t.phase.axes, b.c1-b.c0, t.groups*t.channels
	cols, taps := cpu.Chunks(t.m1-t.m0, t.kern.NR)*t.kern.NR, a[2].taps
	x, n := a[2].read(r.at[2], 0)+min(0, (taps-1)*a[2].offStep), (r.len-1)*a[2].step+taps
	lo, hi := (&axis{step: 1, size: a[2].size}).inside(x, n)
	operand := gemm.Rows{X: t.a, Row: a[2].step * channels, Col: 1}
	for row := range a[0].taps * a[1].taps {
		z, y := a[0].read(r.at[0], row/a[1].taps), a[1].read(r.at[1], row%a[1].taps)
		if uint(z) >= uint(a[0].size) || uint(y) >= uint(a[1].size) || lo >= hi {
			continue
		}
		at := (r.image*t.srcSize+(z*a[1].size+y)*a[2].size+x+lo)*stride + t.group*t.channels + b.c0
		clear(t.a[:lo*channels])
		t.patch.Copy(t.a[lo*channels:], t.src, at, hi-lo, channels, stride, channels, 1)
		clear(t.a[hi*channels : n*channels])
		depth := taps * channels
		t.kern.MulRows(r.len, t.m1-t.m0, depth, t.into.Alpha, operand, t.b[row*depth*cols:], beta, c, strideC)
		beta = 1
	}
	if beta != 1 { // the run reads padding only
		t.scaleRows(c, r.len, strideC, beta)
	}
}
