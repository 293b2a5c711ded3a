package qlora

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/gemm"
)

// fuses reports whether products decode W in the kernel that multiplies, without a tile: on
// devices other than the CPU, of 4 bits, if the number of columns is a multiple of the block.
func (l *Linear) fuses() bool {
	return !l.w.Device().IsCPU() && l.w.grid.rows == 0 && l.in > 0 && l.in%l.w.block == 0
}

// product is Forward, or Backward if back is set, where W fuses.
func (l *Linear) product(op string, rows int, c, a snug.View, beta float32, back bool) error {
	if err := l.checkProduct(op, c, a, beta); err != nil {
		return err
	}
	j := newProduct(l.w, rows, c, a, beta, back)
	var err error
	if l.byPanels(rows, c, back) {
		err = device.Queue(l.w.Device(), panelsJob{j, l.tile.View, l.rows})
	} else {
		err = device.Queue(l.w.Device(), j)
	}
	return fault.Of(err, "qlora: linear", op)
}

// checkProduct checks what product refuses.
func (l *Linear) checkProduct(op string, c, a snug.View, beta float32) error {
	switch {
	case l.w.usable() != nil:
		return fmt.Errorf("qlora: linear: %s: the weight is closed: %w", op, snug.ErrDevice)
	case beta-beta != 0:
		return fmt.Errorf("qlora: linear: %s: beta is %v, want a finite number: %w", op, beta, snug.ErrConfig)
	case !c.DType().IsFloat():
		return fmt.Errorf("qlora: linear: %s: the result holds %s, want f32, f16 or bf16: %w", op, c.DType(), snug.ErrDType)
	case device.Mem(&c).Overlaps(*device.Mem(&a)):
		return fmt.Errorf("qlora: linear: %s: the result overlaps an operand: %w", op, snug.ErrConfig)
	}
	return nil
}

// productJob computes c = a·Wᵀ + beta·c, or c = a·W + beta·c if back is set, where the
// number of columns is a multiple of the block. scales holds absmax, or nested with double
// quantization.
type productJob struct {
	c, a, packed, scales, codes snug.View
	w                           *Weight
	rows                        int
	back                        bool
	beta                        float32
}

func newProduct(w *Weight, rows int, c, a snug.View, beta float32, back bool) productJob {
	m := w.arrays() // devices have no pages
	j := productJob{c: c, a: a, packed: m.packed, scales: m.absmax, w: w, rows: rows, back: back, beta: beta}
	if w.m != nil {
		j.scales, j.codes = m.nested, m.codes
	}
	return j
}

func (j *productJob) Kernel() string { return "qlora.product" }

func (j *productJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.c, &j.a, &j.packed, &j.scales, &j.codes)
}

// shape returns the columns of c and of a.
func (j *productJob) shape() (n, k int) {
	out, in := j.w.shape[0], j.w.shape[1]
	if j.back {
		return in, out
	}
	return out, in
}

// Run is the definition. It decodes W as a whole; the CPU uses products of tiles instead.
func (j *productJob) Run() {
	w := j.w
	whole, _, err := snug.MakeView(snug.CPU(), j.a.DType(), w.n)
	if err != nil {
		panic(err) // activations are floating-point
	}
	decode := dequantizeJob{dst: whole, packed: j.packed, absmax: j.scales, f: w.t.nibbles(), block: w.block}
	if w.m != nil {
		decode.absmax, decode.nested, decode.offset, decode.m = j.codes, j.scales, w.offset, w.m
	}
	decode.Run()
	n, k := j.shape()
	b := gemm.Matrix{Data: whole, Stride: w.shape[1], Trans: !j.back}
	gemm.Mul(j.rows, n, k, 1, gemm.Matrix{Data: j.a, Stride: k}, b, j.beta, gemm.Matrix{Data: j.c, Stride: n})
}
