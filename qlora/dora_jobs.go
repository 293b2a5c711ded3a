package qlora

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// normsJob writes the norms of the rows of x, [len(norms), cols] elements. Unless scale is
// empty, it also writes the factors magnitude/norm, 0 for a row of zeros.
type normsJob struct {
	norms, scale, magnitude, x snug.View
	cols                       int
}

func (j *normsJob) Kernel() string { return "qlora.norms" }

func (j *normsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.norms, &j.scale, &j.magnitude, &j.x)
}

// rowsOf returns how many rows of cols elements one item of a parallel loop takes.
func rowsOf(cols int) int { return max(1, grain/cols) }

func (j normsJob) Run() { normsTask.Run(cpu.Chunks(j.norms.Len(), rowsOf(j.cols)), j) }

var normsTask = cpu.NewTask(func(j *normsJob, item int) {
	norms, scale, magnitude := j.norms.Float32s(), j.scale.Float32s(), j.magnitude.Float32s()
	first, last := cpu.Chunk(len(norms), rowsOf(j.cols), item)
	for r := first; r < last; r++ {
		norms[r] = float32(math.Sqrt(sweep.Squares(j.x, r*j.cols, (r+1)*j.cols)))
		switch {
		case len(magnitude) == 0:
		case norms[r] == 0:
			scale[r] = 0
		default:
			scale[r] = magnitude[r] / norms[r]
		}
	}
})

// blendJob computes dst = factor·src + beta·dst of [rows, cols] elements. The factor is
// shift + scale[column], or shift + scale[row] if byRow, or shift if scale is empty. With
// beta 0, dst is not read. dst may be src.
type blendJob struct {
	dst, src, scale snug.View
	cols            int
	byRow           bool
	shift, beta     float32
}

func (j *blendJob) Kernel() string { return "qlora.blend" }

func (j *blendJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dst, &j.src, &j.scale) }

func (j *blendJob) rows() int { return j.dst.Len() / j.cols }

func (j blendJob) Run() { blendTask.Run(cpu.Chunks(j.rows(), rowsOf(j.cols)), j) }

var blendTask = cpu.NewTask(func(j *blendJob, item int) {
	tile := tiles.Get(3 * half.Chunk)
	defer tiles.Put(tile)
	src, dst, factors := (*tile)[:half.Chunk], (*tile)[half.Chunk:2*half.Chunk], (*tile)[2*half.Chunk:]
	first, last := cpu.Chunk(j.rows(), rowsOf(j.cols), item)
	for r := first; r < last; r++ {
		for lo := 0; lo < j.cols; lo += half.Chunk {
			n, at := min(half.Chunk, j.cols-lo), r*j.cols+lo
			j.factors(factors[:n], r, lo)
			x, y := half.Floats(j.src, at, src[:n]), half.Floats(j.dst, at, dst[:n])
			for i, f := range factors[:n] {
				v := float32(f * x[i])
				if j.beta != 0 {
					v += float32(j.beta * y[i])
				}
				y[i] = v
			}
			half.Flush(j.dst, at, y)
		}
	}
})

// factors writes the factors of row r from column lo on.
func (j *blendJob) factors(f []float32, r, lo int) {
	scale := j.scale.Float32s()
	for i := range f {
		switch {
		case len(scale) == 0:
			f[i] = j.shift
		case j.byRow:
			f[i] = j.shift + scale[r]
		default:
			f[i] = j.shift + scale[lo+i]
		}
	}
}

// dotsJob computes acc[c] = beta·acc[c] + alpha·Σ dy[r,c]·h[r,c]/norms[c] over rows; where
// a norm is 0, the sum counts as 0. With beta 0, acc is not read.
type dotsJob struct {
	acc, norms, dy, h snug.View
	alpha, beta       float32
}

func (j *dotsJob) Kernel() string { return "qlora.dots" }

func (j *dotsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.acc, &j.norms, &j.dy, &j.h)
}

// dotsCols is how many columns one item of a parallel loop takes.
const dotsCols = 64

func (j dotsJob) Run() { dotsTask.Run(cpu.Chunks(j.acc.Len(), dotsCols), j) }

var dotsTask = cpu.NewTask(func(j *dotsJob, item int) {
	tile := tiles.Get(2 * dotsCols)
	defer tiles.Put(tile)
	acc, norms := j.acc.Float32s(), j.norms.Float32s()
	first, last := cpu.Chunk(len(acc), dotsCols, item)
	var sums [dotsCols]float64
	for lo := first; lo < j.dy.Len(); lo += len(acc) {
		dy := half.Floats(j.dy, lo, (*tile)[:last-first])
		h := half.Floats(j.h, lo, (*tile)[dotsCols:dotsCols+last-first])
		for c, d := range dy {
			sums[c] += float64(d) * float64(h[c])
		}
	}
	for c := range acc[first:last] {
		sum := float32(0)
		if n := norms[first+c]; n != 0 {
			sum = float32(j.alpha * (float32(sums[c]) / n))
		}
		if j.beta != 0 {
			sum += float32(j.beta * acc[first+c])
		}
		acc[first+c] = sum
	}
})
