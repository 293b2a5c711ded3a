//go:build cuda || hip || metal || emu

package gemm

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "gemm"}

// Form is how the blocks of a kernel compute tiles of c.
type Form uint8

// The forms, which product_plain.h and product_units.h define.
const (
	Plain    Form = iota // of any types and strides
	Thin                 // the same, with the depth cut into slices within a block
	Units64              // on matrix units
	Units128             // with larger tiles
)

// tile is the part of c that a block computes.
type tile struct{ rows, cols int }

var tileOf = [...]tile{Plain: {64, 64}, Thin: {16, 32}, Units64: {64, 64}, Units128: {128, 128}}

// Blocks returns the blocks of a kernel that makes an m×n c.
func (f Form) Blocks(m, n int) int {
	t := tileOf[f]
	return gpu.CeilDiv(m, t.rows) * gpu.CeilDiv(n, t.cols)
}

// names are the entry points by form and by the type of both operands, where it matters.
var names = [...]gpu.Floats{
	Plain:    {"gemm_plain", "gemm_plain", "gemm_plain"},
	Thin:     {"gemm_thin", "gemm_thin", "gemm_thin"},
	Units64:  gpu.ForFloats("gemm_units64"), // no f32
	Units128: gpu.ForFloats("gemm_units128"),
}

const (
	Threads = 256 // of a block of every form
	busy    = 96  // blocks that keep a GPU busy
)

// lines is a matrix of lines, as the kernels take it: the rows of a and c, the
// columns of b.
type lines struct {
	line, step  uint64 // elements from a line to the next, and within a line
	dtype, wide uint32
}

// Params is ProductParams of product.h.
type Params struct {
	m, n, k     uint64
	a, b, c     lines
	alpha, beta float32
}

// GPU returns m for [Grids], inside of a job whose operands the device has bound.
func (m Matrix) GPU() gpu.Matrix {
	return gpu.Matrix{Mem: *device.Mem(&m.Data), Type: gpu.Type(m.Data.DType() - 1), Stride: m.Stride, Trans: m.Trans}
}

// Grids queues what [Mul] does: with the vendor's library if q has one that
// takes the product, or with snug's own kernels. Those have the error bound of
// Mul but where a and b are both binary16 or both bfloat16: GPUs add
// their products with one more unit of 2^-24 a step, for they cut off where
// Mul rounds. Operands may start at any multiple of their element's size.
// Results have the same bits in every run on one device.
func Grids(q gpu.Launcher, m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) error {
	if m <= 0 || n <= 0 {
		return nil
	}
	if vendor, ok := q.(gpu.MatMuler); ok {
		if done, err := vendor.MatMul(m, n, k, alpha, a, b, beta, c); done || err != nil {
			return err
		}
	}
	if n <= tileOf[Thin].rows && m > n { // c is tall: compute its transpose
		m, n, a, b = n, m, b, a
		a.Trans, b.Trans, c.Trans = !a.Trans, !b.Trans, !c.Trans
	}
	return Choose(q, m, n, a, b).launch(q, m, n, k, alpha, a, b, beta, c)
}

// NewParams returns the parameters of a kernel.
func NewParams(m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) Params {
	p := Params{
		m: uint64(m), n: uint64(n), k: uint64(k),
		a: linesOf(a, a.Trans, 4), b: linesOf(b, !b.Trans, 4), c: linesOf(c, c.Trans, 2),
		alpha: alpha, beta: beta,
	}
	if c.Trans { // neighbours are not of one line
		p.c.wide = 0
	}
	return p
}

func (f Form) launch(q gpu.Launcher, m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) error {
	p := NewParams(m, n, k, alpha, a, b, beta, c)
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: names[f][a.Type], Blocks: [3]int{f.Blocks(m, n), 1, 1}, Threads: Threads,
		Operands: []driver.Mem{c.Mem, a.Mem, b.Mem}, Params: gpu.Params(&p),
	})
}

// Choose returns how Grids computes a product with snug's own kernels. Kernels that make
// the elements of b themselves, with any multiple of 16 bytes for the address of b, have the
// bits of those.
func Choose(q gpu.Launcher, m, n int, a, b gpu.Matrix) Form {
	switch {
	case min(m, n) <= tileOf[Thin].rows:
		return Thin
	case a.Type == b.Type && a.Type != gpu.F32 && inChunks(a) && inChunks(b) && gpu.HasUnits(q):
		if Units128.Blocks(m, n) >= busy {
			return Units128
		}
		return Units64
	case Plain.Blocks(m, n) < busy:
		return Thin
	}
	return Plain
}

// inChunks says whether all rows of a 16-bit matrix start at multiples of 16
// bytes.
func inChunks(x gpu.Matrix) bool { return x.Mem.Addr%16 == 0 && x.Stride%8 == 0 }

// linesOf returns x with lines that are its rows in memory, or its columns if
// across is set. They are wide if groups of so many neighbours are aligned.
func linesOf(x gpu.Matrix, across bool, group int) lines {
	size := 2
	if x.Type == gpu.F32 {
		size = 4
	}
	l := lines{line: uint64(x.Stride), step: 1, dtype: uint32(x.Type)}
	if x.Mem.Addr%uintptr(group*size) == 0 && x.Stride%group == 0 {
		l.wide = 1
	}
	if across {
		l.line, l.step = l.step, l.line
	}
	return l
}
