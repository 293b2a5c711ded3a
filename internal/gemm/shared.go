package gemm

import (
	"runtime"
	"sync/atomic"

	"github.com/snug-ml/snug/internal/cpu"
)

// A large product goes in steps of a block of the depth and up to groups·sharedCols
// columns, for a band of A's rows. In a step, workers multiply strips of A with the step's part of B,
// and meanwhile pack the next step's part, which all of them will read.
const (
	groups    = 4
	wantItems = 16 // parts of a step that workers take
	maxStrips = 64 // of a band
)

// SharedBytes is what a large Mul holds beyond the workers' scratch: the parts
// of B of two steps.
const SharedBytes = 4 * 2 * groups * sizeB

var sharedScratch cpu.Shared

// phase is a large product that is under way. Workers take its items in order and do not meet between steps: an item
// waits for those before it that it needs.
type phase struct {
	args
	bands, steps  int
	groups        int // of a step
	strips, parts int // of a band, and of the columns for each strip
	packed        []float32
	ready         [2]int32                     // groups that are packed, of even and of odd steps
	done          [maxStrips + wantItems]int32 // steps that are multiplied, by strip and part
}

var phases = cpu.NewTask(func(p *phase, item int) { p.do(item) })

// sharesB says whether packing B once pays: it has many rows of A to meet, and
// a step has work enough for several workers.
func sharesB(m, n, k int) bool {
	const enough = 1 << 25 // multiply-adds
	step := float64(m) * float64(min(n, groups*sharedCols)) * float64(min(k, sharedDepth))
	return m > maxRowsStaged && n > sharedCols && step >= enough
}

// shared computes the product in steps.
func (g *args) shared() {
	buf := sharedScratch.Get(SharedBytes / 4)
	defer sharedScratch.Put(buf)
	rows := g.kern.strip() * g.kern.MR
	p := phase{args: *g, bands: cpu.Chunks(g.m, maxStrips*rows), packed: *buf}
	p.strips = cpu.Chunks(cpu.Chunks(g.m, p.bands), rows)
	n := cpu.Chunks(g.n, sharedCols)
	wide := cpu.Chunks(n, groups)
	p.groups, p.steps = cpu.Chunks(n, wide), p.bands*wide*g.blocks
	p.parts = min(p.groups, cpu.Chunks(wantItems, p.strips))
	phases.Run(p.groups+p.steps*(p.strips*p.parts+p.groups), p)
}

// do packs a group or multiplies a strip. The groups of a step come in the middle of the step before.
func (p *phase) do(item int) {
	buf := scratch.Get(ScratchBytes / 4)
	defer scratch.Put(buf)
	if item < p.groups {
		p.pack(0, item, *buf)
		return
	}
	item -= p.groups
	items := p.strips * p.parts
	step, i := item/(items+p.groups), item%(items+p.groups)
	switch half := items / 2; {
	case i < half:
		p.multiply(step, i, *buf)
	case i < half+p.groups:
		p.pack(step+1, i-half, *buf)
	default:
		p.multiply(step, i-p.groups, *buf)
	}
}

// pack packs a group of a step, where the step before the last had its own.
func (p *phase) pack(step, group int, work []float32) {
	if step == p.steps {
		return
	}
	for i := range p.strips * p.parts {
		await(&p.done[i], step-1)
	}
	if t := p.block(step, group, work); t.cols > 0 {
		t.packB()
	}
	atomic.AddInt32(&p.ready[step%2], 1)
}

// multiply multiplies a strip with a share of a step's columns.
func (p *phase) multiply(step, i int, work []float32) {
	await(&p.ready[step%2], (step/2+1)*p.groups)
	await(&p.done[i], step) // the block before of the same sums
	first, end := part(p.groups, p.parts, i%p.parts)
	var a rowsOfA
	for group := first; group < end; group++ {
		t := p.block(step, group, work)
		if t.cols <= 0 {
			break
		}
		lo, hi := part(t.rows, p.strips, i/p.parts)
		if group == first {
			a = t.strip(lo, hi)
		}
		t.mulStrip(a, lo, hi)
	}
	atomic.AddInt32(&p.done[i], 1)
}

// await returns when the count is at least n.
func await(count *int32, n int) {
	for int(atomic.LoadInt32(count)) < n {
		runtime.Gosched()
	}
}

// block returns all rows of a group of a step.
func (p *phase) block(step, group int, work []float32) block {
	depth, rest := step%p.blocks, step/p.blocks
	m0, m1 := part(p.m, p.bands, rest%p.bands)
	n0 := (rest/p.bands*p.groups + group) * sharedCols
	t := block{args: p.args, m0: m0, n0: n0, rows: m1 - m0, cols: min(sharedCols, p.n-n0), work: work[:sizeWork]}
	if t.cols > 0 {
		t.to = p.c.floats().at(m0, n0)
	}
	t.packed = p.packed[(step%2*groups+group)*sizeB:][:sizeB]
	t.setDepth(depth)
	return t
}
