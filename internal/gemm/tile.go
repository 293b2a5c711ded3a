package gemm

import (
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// The parts of a worker's scratch, in floats.
const (
	sizeB    = maxDepth*maxCols + 512 // PackLines may write 15 rows of a panel beyond the end
	sizeWork = 80*sharedDepth + 256   // a strip of A and the lines of a panel that it is made of, or lines of B, as float32
	sizeC    = maxRowsStaged * maxCols
)

// ScratchBytes is what each worker that multiplies holds at most: a block of B,
// a strip of A, and a tile of C where C does not hold float32.
const ScratchBytes = 4 * (sizeB + sizeWork + sizeC)

var scratch cpu.Scratch

// tile computes a tile of C.
func (g *args) tile(item int) {
	buf := scratch.Get(ScratchBytes / 4)
	defer scratch.Put(buf)
	packed, rest := (*buf)[:sizeB], (*buf)[sizeB:]
	work, stage := rest[:sizeWork], rest[sizeWork:]
	m0, m1 := part(g.m, g.tilesM, item/g.tilesN)
	n0, n1 := cpu.Chunk(g.n, g.cols, item%g.tilesN)
	t := block{args: *g, m0: m0, n0: n0, rows: m1 - m0, cols: n1 - n0, packed: packed, work: work}
	if g.staged {
		t.to = strided{stage, t.cols, 1}
		t.loadC()
	} else {
		t.to = g.c.floats().at(m0, n0)
	}
	t.mul()
	if g.staged {
		t.storeC()
	}
}

// mul sets the tile to alpha·A·B + beta times itself.
func (t *block) mul() {
	if t.k == 0 {
		t.scale()
	}
	for p := range t.blocks {
		t.setDepth(p)
		t.from = t.readable()
		t.packB()
		strips := t.strips()
		for s := range strips {
			lo, hi := part(t.rows, strips, s)
			t.mulStrip(t.strip(lo, hi), lo, hi)
		}
	}
}

// scale is all that a product of depth 0 does.
func (t *block) scale() {
	for i := range t.rows {
		row := t.to.at(i, 0).x[:t.cols]
		if t.beta == 0 {
			clear(row)
			continue
		}
		for j := range row {
			row[j] *= t.beta
		}
	}
}

// loadC fills a staged tile with what C holds, if that counts.
func (t *block) loadC() {
	if t.beta == 0 {
		return
	}
	if !t.swapped {
		t.lines(t.to.x, t.c, t.m0, t.m0+t.rows, t.n0, t.cols, t.cols)
		return
	}
	line := t.work[:t.rows]
	for j := range t.cols {
		half.Load(line, t.c.Data, (t.n0+j)*t.c.Stride+t.m0)
		for i, x := range line {
			t.to.x[i*t.cols+j] = x
		}
	}
}

// storeC rounds a staged tile into C.
func (t *block) storeC() {
	if !t.swapped {
		for i := range t.rows {
			half.Store(t.c.Data, (t.m0+i)*t.c.Stride+t.n0, t.to.at(i, 0).x[:t.cols])
		}
		return
	}
	nr := t.kern.NR
	for i := 0; i < t.rows; i += nr {
		rows := min(nr, t.rows-i)
		t.kern.PackLines(t.work, t.to.at(i, 0).x, rows, t.cols, t.cols, nr)
		for j := range t.cols {
			half.Store(t.c.Data, (t.n0+j)*t.c.Stride+t.m0+i, t.work[j*nr:][:rows])
		}
	}
}
