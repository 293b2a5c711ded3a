package gemm

import "github.com/snug-ml/snug/internal/cpu"

// A large product goes in steps of a block of the depth and up to groups·maxCols
// columns. In a step, workers multiply strips of A with the step's part of B and
// pack the next step's part of B, which all of them will read.
const (
	groups    = 4
	wantItems = 32 // parts of a step that workers take
)

// SharedBytes is what a large Mul holds beyond the workers' scratch: the parts
// of B of two steps.
const SharedBytes = 4 * 2 * groups * sizeB

var sharedScratch cpu.Shared

// phase is a step of a product.
type phase struct {
	args
	step, steps   int
	groups        int // of a step
	strips, parts int // of A, and of the columns for each strip
	packed        []float32
}

var phases = cpu.NewTask(func(p *phase, item int) { p.do(item) })

// sharesB says whether packing B once pays: it has many rows of A to meet, and
// a step has work enough for all workers to wait for its end.
func (g *args) sharesB() bool {
	const enough = 1 << 25 // multiply-adds
	step := float64(g.m) * float64(min(g.n, groups*maxCols)) * maxDepth
	return !g.staged && g.m > maxRowsStaged && g.tiles() > 1 && step >= enough
}

// shared computes the product in steps.
func (g *args) shared() {
	buf := sharedScratch.Get(SharedBytes / 4)
	defer sharedScratch.Put(buf)
	n := cpu.Chunks(g.n, maxCols)
	wide := cpu.Chunks(n, groups)
	whole := block{args: *g, rows: g.m}
	p := phase{args: *g, step: -1, steps: wide * g.blocks, groups: cpu.Chunks(n, wide), strips: whole.strips(), packed: *buf}
	p.parts = min(p.groups, cpu.Chunks(wantItems, p.strips))
	for ; p.step < p.steps; p.step++ {
		items := p.groups
		if p.step >= 0 {
			items += p.strips * p.parts
		}
		phases.Run(items, p)
	}
}

// do packs a group of the next step or multiplies a part of this one.
func (p *phase) do(item int) {
	buf := scratch.Get(ScratchBytes / 4)
	defer scratch.Put(buf)
	if item < p.groups {
		p.pack(item, *buf)
	} else {
		item -= p.groups
		p.multiply(item/p.parts, item%p.parts, *buf)
	}
}

func (p *phase) pack(group int, work []float32) {
	if p.step+1 == p.steps {
		return
	}
	if t := p.block(p.step+1, group, work); t.cols > 0 {
		t.packB()
	}
}

func (p *phase) multiply(strip, share int, work []float32) {
	lo, hi := part(p.m, p.strips, strip)
	first, end := part(p.groups, p.parts, share)
	var a rowsOfA
	for group := first; group < end; group++ {
		t := p.block(p.step, group, work)
		if t.cols <= 0 {
			return
		}
		if group == first {
			a = t.strip(lo, hi)
		}
		t.mulStrip(a, lo, hi)
	}
}

// block returns all rows of a group of a step.
func (p *phase) block(step, group int, work []float32) block {
	n0 := (step/p.blocks*p.groups + group) * maxCols
	t := block{args: p.args, n0: n0, rows: p.m, cols: min(maxCols, p.n-n0), work: work[:sizeWork]}
	if t.cols > 0 {
		t.to = p.c.floats().at(0, n0)
	}
	t.packed = p.packed[(step%2*groups+group)*sizeB:][:sizeB]
	t.setDepth(step % p.blocks)
	return t
}
