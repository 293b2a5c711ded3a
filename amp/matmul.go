package amp

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
)

// MatMulOptions is the shape and the factors of a [MatMul].
type MatMulOptions struct {
	M, N, K int // op(a) is M×K, op(b) is K×N, c is M×N; 0 is valid

	TransA bool // a holds K rows of M elements, the transpose of op(a)
	TransB bool // b holds N rows of K elements, the transpose of op(b)

	// Elements from the start of a row to the start of the next; 0 means that rows
	// are contiguous.
	LDA, LDB, LDC int

	Into snug.Into // how the product enters c; the zero value overwrites
}

// What [MatMul] holds on the CPU while it runs, in bytes.
const (
	MatMulScratch = 658432  // tiles, for each running worker
	MatMulShared  = 2113536 // packed panels, for each large product and each of bfloat16
)

// MatMul computes
//
//	c = Alpha·op(a)·op(b) + Beta·c
//
// for row-major matrices of float32, float16 and bfloat16 in any combination;
// op is the transpose for TransA and TransB. Products are added in float32 and
// rounded to c's type once, to nearest even. An element of c has an absolute
// error of at most (K+3)·2^-24·(|Alpha|·Σ|a||b| + |Beta·c|) before that
// rounding, unless float32 overflows or underflows; it does not depend on
// GOMAXPROCS. Matrix units of GPUs cut off where a processor rounds, so for them
// the bound is twice that. Processors that multiply bfloat16 in hardware (AMX, AVX512_BF16) do
// so where both operands hold it, and may take subnormal numbers, below 2^-126, for
// 0.
//
// A vector may be longer than its matrix. All lie on one device, and the
// range of c from its first to its last element may not overlap the range of a or
// b. Errors, with nothing written: [snug.ErrConfig] for a factor that is not
// finite, [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice], and
// [snug.ErrConfig] for an overlap. It allocates nothing beyond
// [MatMulScratch] and [MatMulShared], which are pooled.
func MatMul[C, A, B snug.Vector](c C, a A, b B, cfg MatMulOptions) error {
	return matMul(snug.ViewOf(c), snug.ViewOf(a), snug.ViewOf(b), cfg)
}

func matMul(c, a, b snug.View, cfg MatMulOptions) error {
	alpha, beta, err := cfg.Into.Factors()
	if err != nil {
		return fmt.Errorf("amp: MatMul: %w", err)
	}
	cfg.Into = snug.Into{Alpha: alpha, Beta: beta}
	operands := [...]matrix{
		{"c", c, cfg.M, cfg.N, cfg.LDC},
		{"a", a, cfg.M, cfg.K, cfg.LDA},
		{"b", b, cfg.K, cfg.N, cfg.LDB},
	}
	mc, ma, mb := &operands[0], &operands[1], &operands[2]
	if cfg.TransA {
		ma.rows, ma.cols = ma.cols, ma.rows
	}
	if cfg.TransB {
		mb.rows, mb.cols = mb.cols, mb.rows
	}
	for i := range operands {
		if err := checkFloat("MatMul", operands[i].name, operands[i].v); err != nil {
			return err
		}
	}
	for i := range operands {
		if err := operands[i].fit(); err != nil {
			return err
		}
	}
	dev, err := snug.CommonDevice(mc.v, ma.v, mb.v)
	if err != nil {
		return fmt.Errorf("amp: MatMul: %w", err)
	}
	if c := device.Mem(&mc.v); c.Overlaps(*device.Mem(&ma.v)) || c.Overlaps(*device.Mem(&mb.v)) {
		return fmt.Errorf("amp: MatMul: c overlaps an operand: %w", snug.ErrConfig)
	}
	cfg.LDC, cfg.LDA, cfg.LDB = mc.ld, ma.ld, mb.ld
	job := matMulJob{mc.v, ma.v, mb.v, cfg}
	return device.Run(dev, job)
}

func finite(x float32) bool {
	x = float32(x) // of a product too: x*y - x*y may be rounded once
	return x-x == 0
}

// matrix is an operand as it is stored.
type matrix struct {
	name       string
	v          snug.View
	rows, cols int
	ld         int
}

// fit checks the shape, sets a stride of 0 to contiguous rows, and cuts v
// behind the last element.
func (m *matrix) fit() error {
	if m.rows < 0 || m.cols < 0 {
		return fmt.Errorf("amp: MatMul: %s is %d×%d: %w", m.name, m.rows, m.cols, snug.ErrShape)
	}
	setDefault(&m.ld, m.cols)
	if m.ld < m.cols {
		return fmt.Errorf("amp: MatMul: %s has %d columns and a stride of %d: %w", m.name, m.cols, m.ld, snug.ErrShape)
	}
	size := 0
	if m.rows > 0 && m.cols > 0 {
		if m.rows-1 > (math.MaxInt-m.cols)/m.ld {
			return fmt.Errorf("amp: MatMul: %s of %d rows with a stride of %d overflows: %w", m.name, m.rows, m.ld, snug.ErrShape)
		}
		size = (m.rows-1)*m.ld + m.cols
	}
	if m.v.Len() < size {
		return fmt.Errorf("amp: MatMul: %s has %d elements, want %d, for %d×%d with a stride of %d: %w",
			m.name, m.v.Len(), size, m.rows, m.cols, m.ld, snug.ErrShape)
	}
	var err error
	m.v, err = m.v.Slice(0, size)
	return err
}

type matMulJob struct {
	c, a, b snug.View
	cfg     MatMulOptions
}

func (*matMulJob) Kernel() string { return "amp.matmul" }

func (j *matMulJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.c, &j.a, &j.b) }

func (j matMulJob) Run() {
	g := &j.cfg
	gemm.Mul(g.M, g.N, g.K, g.Into.Alpha,
		gemm.Matrix{Data: j.a, Stride: g.LDA, Trans: g.TransA},
		gemm.Matrix{Data: j.b, Stride: g.LDB, Trans: g.TransB},
		g.Into.Beta, gemm.Matrix{Data: j.c, Stride: g.LDC})
}
