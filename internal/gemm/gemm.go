// Package gemm multiplies matrices of float32, binary16 and bfloat16 with
// float32 accumulation.
//
// The result is cut into tiles by its shape alone. For each tile a worker
// packs a block of A and a block of B as float32, in the order in which the
// micro-kernel reads them, and adds their product to a float32 tile of C; the
// tile is rounded to C's type once, after the whole of K. This is the scheme of
// Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (ACM TOMS 2008), with one level of blocking less, since every worker packs
// for itself. The order of every sum is fixed, so results do not depend on
// GOMAXPROCS.
package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Matrix is an operand in host memory: row-major, with Stride elements from a
// row to the next. With Trans set, Data holds the transpose of the operand.
// The caller checks that every addressed element lies in Data and that
// the element type is floating-point.
type Matrix struct {
	Data   snug.View
	Stride int
	Trans  bool
}

// Kernel is a micro-kernel: for packed panels a[kc][MR] and b[kc][NR], kc at
// least 1, it adds aᵀb to the MR×NR floats of c, whose rows lie ldc apart. NR
// divides tileN.
type Kernel struct {
	MR, NR int
	Add    func(a, b, c []float32, ldc int)
}

// Registry holds the micro-kernels of every tier.
var Registry cpu.Registry[Kernel]

func init() { Registry.Add(cpu.Go, Kernel{2, 4, add2x4}) }

// The tile of C and the depth of a packed block: 96 KiB of A, 256 KiB of B and
// 96 KiB of C, which a core's second-level cache holds. A tile has as many rows
// of tileM as are a multiple of MR.
const (
	tileM = 96
	tileN = 256
	tileK = 256
)

// ScratchBytes is what each worker that multiplies holds: its tiles and a line
// that is being converted.
const ScratchBytes = 4 * (tileM*tileK + tileK*tileN + tileM*tileN + tileK)

var scratch cpu.Scratch

type args struct {
	kern        *Kernel
	m, n, k     int
	alpha, beta float32
	a, b, c     Matrix
	tileM       int // rows of a tile
	tilesN      int // tiles side by side
}

var tiles = cpu.NewTask(func(g *args, item int) { g.tile(item/g.tilesN, item%g.tilesN) })

// Mul computes C = alpha·A·B + beta·C for A of m×k, B of k×n and C of m×n, in
// parallel. C may not overlap A or B and is not transposed. With beta 0, C is
// not read. It allocates nothing beyond ScratchBytes a worker.
func Mul(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) {
	g, count := newArgs(m, n, k, alpha, a, b, beta, c)
	tiles.Run(count, g)
}

// MulSerial is Mul on the calling goroutine, for use inside a parallel loop.
// Its results have the same bits.
func MulSerial(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) {
	g, count := newArgs(m, n, k, alpha, a, b, beta, c)
	for i := range count {
		g.tile(i/g.tilesN, i%g.tilesN)
	}
}

func newArgs(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) (g args, count int) {
	if m <= 0 || n <= 0 {
		return g, 0
	}
	g = args{kern: Registry.Best(), m: m, n: n, k: k, alpha: alpha, beta: beta, a: a, b: b, c: c}
	return g, g.cut()
}

// cut lays the tiles out and returns their number.
func (g *args) cut() int {
	g.tileM = tileM / g.kern.MR * g.kern.MR
	g.tilesN = cpu.Chunks(g.n, tileN)
	return cpu.Chunks(g.m, g.tileM) * g.tilesN
}

// tile computes tile (i, j) of C.
func (g *args) tile(i, j int) {
	buf := scratch.Get(ScratchBytes / 4)
	defer scratch.Put(buf)
	pa, rest := (*buf)[:tileM*tileK], (*buf)[tileM*tileK:]
	pb, rest := rest[:tileK*tileN], rest[tileK*tileN:]
	pc, conv := rest[:tileM*tileN], rest[tileM*tileN:]
	m0, m1 := cpu.Chunk(g.m, g.tileM, i)
	n0, n1 := cpu.Chunk(g.n, tileN, j)
	mr, nr := g.kern.MR, g.kern.NR
	clear(pc)
	for k0 := 0; k0 < g.k; k0 += tileK {
		kc := min(tileK, g.k-k0)
		packed{pa, mr, kc, conv}.pack(g.a, !g.a.Trans, m0, m1, k0)
		packed{pb, nr, kc, conv}.pack(g.b, g.b.Trans, n0, n1, k0)
		for q := 0; q < n1-n0; q += nr {
			b := pb[q*kc : (q+nr)*kc]
			for p := 0; p < m1-m0; p += mr {
				g.kern.Add(pa[p*kc:(p+mr)*kc], b, pc[p*tileN+q:], tileN)
			}
		}
	}
	for r := m0; r < m1; r++ {
		g.store(pc[(r-m0)*tileN:][:n1-n0], conv, r*g.c.Stride+n0)
	}
}

// add2x4 keeps the tile in registers.
func add2x4(a, b, c []float32, ldc int) {
	var c00, c01, c02, c03, c10, c11, c12, c13 float32
	for len(a) >= 2 && len(b) >= 4 {
		a0, a1 := a[0], a[1]
		b0, b1, b2, b3 := b[0], b[1], b[2], b[3]
		c00 += a0 * b0
		c01 += a0 * b1
		c02 += a0 * b2
		c03 += a0 * b3
		c10 += a1 * b0
		c11 += a1 * b1
		c12 += a1 * b2
		c13 += a1 * b3
		a, b = a[2:], b[4:]
	}
	r := c[:4]
	r[0] += c00
	r[1] += c01
	r[2] += c02
	r[3] += c03
	r = c[ldc:][:4]
	r[0] += c10
	r[1] += c11
	r[2] += c12
	r[3] += c13
}
