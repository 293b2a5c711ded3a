//go:build cuda || metal || emu

package gemm

import (
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "gemm"}

// form is an entry point whose blocks compute tiles of c.
type form struct {
	name       string
	rows, cols int
}

var (
	plain = form{"gemm_plain", 64, 64}
	// thin cuts the depth into slices within a block.
	thin = form{"gemm_thin", 16, 32}
	// units are those on matrix units, by type and size.
	units = [...][2]form{
		gpu.F16:  {{"gemm_units64_f16", 64, 64}, {"gemm_units128_f16", 128, 128}},
		gpu.BF16: {{"gemm_units64_bf16", 64, 64}, {"gemm_units128_bf16", 128, 128}},
	}
)

const (
	threads = 256 // of a block of every form
	busy    = 96  // blocks that keep a GPU busy
)

func (f *form) blocks(m, n int) int { return gpu.CeilDiv(m, f.rows) * gpu.CeilDiv(n, f.cols) }

// lines is a matrix of lines, as the kernels take it: the rows of a and c, the
// columns of b.
type lines struct {
	line, step  uint64 // elements from a line to the next, and within a line
	dtype, wide uint32
}

// params is GemmParams of gemm.h.
type params struct {
	m, n, k     uint64
	a, b, c     lines
	alpha, beta float32
}

// GPU returns m for [Grids], inside of a job whose operands the device has bound.
func (m Matrix) GPU() gpu.Matrix {
	return gpu.Matrix{Mem: *m.Data.Mem(), Type: gpu.Type(m.Data.DType() - 1), Stride: m.Stride, Trans: m.Trans}
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
	if n <= thin.rows && m > n { // c is tall: compute its transpose
		m, n, a, b = n, m, b, a
		a.Trans, b.Trans, c.Trans = !a.Trans, !b.Trans, !c.Trans
	}
	return choose(m, n, a, b).launch(q, m, n, k, alpha, a, b, beta, c)
}

func (f *form) launch(q gpu.Launcher, m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) error {
	p := params{
		m: uint64(m), n: uint64(n), k: uint64(k),
		a: linesOf(a, a.Trans, 4), b: linesOf(b, !b.Trans, 4), c: linesOf(c, c.Trans, 2),
		alpha: alpha, beta: beta,
	}
	if c.Trans { // neighbours are not of one line
		p.c.wide = 0
	}
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: f.name, Blocks: [3]int{f.blocks(m, n), 1, 1}, Threads: threads,
		Operands: []driver.Mem{c.Mem, a.Mem, b.Mem}, Params: gpu.Params(&p),
	})
}

// choose returns how to compute a product.
func choose(m, n int, a, b gpu.Matrix) *form {
	switch {
	case m <= thin.rows:
		return &thin
	case a.Type == b.Type && a.Type != gpu.F32 && inChunks(a) && inChunks(b):
		f := &units[a.Type]
		if f[1].blocks(m, n) >= busy {
			return &f[1]
		}
		return &f[0]
	case plain.blocks(m, n) < busy:
		return &thin
	}
	return &plain
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
