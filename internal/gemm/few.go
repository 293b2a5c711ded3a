package gemm

import (
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// few is how many rows of A meet B where it lies, if its lines run along the depth: packing B
// takes longer than such a product, which is as fast as memory.
const few = 4

// mostFew is the most rows for which B is read so where it is not multiplied by pairs: few at a time, while lines of B
// are in the second cache.
const mostFew = 8

const (
	fewDepth   = 64      // below it a line is too short
	fewGrain   = 1 << 16 // elements of B that a worker takes at a time
	fewLongest = SharedBytes / 4 / mostFew
)

// Dots writes the products of rows of x, 1 or few of them, rowX apart, with lines of B, from element at on,
// to rows of y, rowY apart. It returns how much of the depth it took: all but fewer than fewDepth elements.
type Dots func(y, x []float32, b Matrix, at, rows, lines, depth, rowY, rowX int) (taken int)

// takesFew says whether the product is one of few rows.
func (g *args) takesFew() bool {
	most := mostFew
	if g.takesPairs() {
		most = few
	}
	return g.kern.Dots != nil && g.m <= most && !g.a.Trans && g.b.Trans && g.k >= fewDepth && g.k <= fewLongest
}

// fewProduct is a product of few rows that is under way.
type fewProduct struct {
	args
	x           []float32 // [rows, k]
	rows, lines int       // 1 or a multiple of few; lines that a worker takes at a time
}

var fewItems = cpu.NewTask(func(f *fewProduct, item int) { f.do(item) })

// runFew computes the product.
func (g *args) runFew(parallel bool) {
	rows := 1
	if g.m > 1 {
		rows = cpu.Chunks(g.m, few) * few
	}
	buf := sharedScratch.Get(rows * g.k)
	defer sharedScratch.Put(buf)
	x := (*buf)[:rows*g.k]
	for r := range g.m {
		half.Load(x[r*g.k:(r+1)*g.k], g.a.Data, r*g.a.Stride)
	}
	clear(x[g.m*g.k:])
	f := fewProduct{*g, x, rows, max(1, fewGrain/g.k)}
	items := cpu.Chunks(g.n, f.lines)
	if parallel && items > 1 {
		fewItems.Run(items, f)
		return
	}
	for i := range items {
		f.do(i)
	}
}

// do computes the columns of C that some lines of B give.
func (f *fewProduct) do(item int) {
	lo, hi := cpu.Chunk(f.n, f.lines, item)
	n := hi - lo
	buf := scratch.Get((f.rows+1)*n + fewDepth)
	defer scratch.Put(buf)
	sums, old, tail := (*buf)[:f.rows*n], (*buf)[f.rows*n:(f.rows+1)*n], (*buf)[(f.rows+1)*n:]
	taken := 0
	for r := 0; r < f.rows; r += few {
		taken = f.kern.Dots(sums[r*n:], f.x[r*f.k:], f.b, lo*f.b.Stride, min(few, f.rows), n, f.k, n, f.k)
	}
	if taken < f.k {
		f.rest(sums, tail[:f.k-taken], lo, n, taken)
	}
	for r := range f.m {
		row, at := sums[r*n:(r+1)*n], r*f.c.Stride+lo
		if f.alpha != 1 {
			for i := range row {
				row[i] *= f.alpha
			}
		}
		if f.beta != 0 {
			for i, v := range half.Floats(f.c.Data, at, old) {
				row[i] += float32(f.beta * v)
			}
		}
		half.Store(f.c.Data, at, row)
	}
}

// rest adds the products of the depth from element from on. w has the length of the rest.
func (f *fewProduct) rest(sums, w []float32, lo, n, from int) {
	for j := range n {
		half.Load(w, f.b.Data, (lo+j)*f.b.Stride+from)
		for r := range f.m {
			sum := sums[r*n+j]
			for i, v := range f.x[r*f.k+from : (r+1)*f.k] {
				sum += float32(v * w[i])
			}
			sums[r*n+j] = sum
		}
	}
}
