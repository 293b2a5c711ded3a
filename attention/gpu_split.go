//go:build cuda || hip || metal || emu

package attention

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

const (
	// maxSplits is the most splits of the keys that a tile of queries sees.
	maxSplits = 64
	// maxRoom is the most bytes that a call borrows for what splits leave.
	maxRoom = 4 << 20
	// minKeys is the keys for each query from which on they are split. A sequence that attends to itself, as in
	// training, has enough tiles of queries sooner than splits pay.
	minKeys = 4
)

// The time of a launch is counted in steps over keys. A block takes splitSetup more, to load its queries and to leave
// results, and joinSteps more are those of a second launch.
const splitSetup, joinSteps = 1, 4

// splitsOf returns the number of splits, from 1 to most, with the least time by the model above, and the fewest of those.
// tiles is the number of tiles of queries, steps that of steps over the keys of a tile, and processors that of blocks that
// run at a time. It returns 1 if each processor has a tile, or if splits take more than gain of the time without.
func splitsOf(tiles, steps, processors, most int, gain float64) int {
	if tiles == 0 || tiles >= processors {
		return 1
	}
	time := func(splits int) int {
		t := gpu.CeilDiv(tiles*splits, processors) * (gpu.CeilDiv(steps, splits) + splitSetup)
		if splits > 1 {
			t += joinSteps
		}
		return t
	}
	best := 1
	for n := 2; n <= min(most, steps, maxSplits); n++ {
		if time(n) < time(best) {
			best = n
		}
	}
	if float64(time(best)) > gain*float64(time(1)) {
		return 1
	}
	return best
}

// splits returns in how many splits the keys of c, in launches of k, are computed on q: a number that depends on c, on the
// kernels and on the multiprocessors of the device alone.
func (c *Options) splits(q gpu.Launcher, k *gpuKernels) int {
	r := c.rowsOfHeads()
	keys := r.seenKeys(k.queries)
	if queries, _ := c.longest(); keys/minKeys < queries {
		return 1
	}
	rows, _ := r.longest()
	gain := 0.75
	if rows > 64 && hopperFor(q, &r, k) != nil {
		gain = 0.5 // its own kernels multiply twice as fast, and have no splits
	}
	heads := r.Batch * r.Heads
	if c.allHeads > 0 {
		heads = c.allHeads
	}
	tiles := heads * gpu.CeilDiv(rows, k.queries) * k.parts(r.DimV)
	most := maxRoom / max(1, heads*rows*rowBytes(r.DimV))
	return splitsOf(tiles, gpu.CeilDiv(keys, k.step), gpu.Multiprocessors(q), most, gain)
}

// seenKeys returns an upper bound of the keys that a tile of the given number of queries sees.
func (c *Options) seenKeys(tile int) int {
	most := 0
	for b := range c.Batch {
		s := c.sequence(b)
		n, tile := s.nk, min(tile, s.nq)
		switch {
		case s.nq == 0:
			n = 0
		case c.oneQuery:
			e, _ := c.extent(b)
			n = int(e.nk)
		case s.left < unlimited && s.right < unlimited:
			n = min(n, s.left+tile+s.right)
		}
		most = max(most, n)
		if !c.packed() && c.KLens == nil {
			break // all are alike
		}
	}
	return most
}

// rowsOfHeads returns Options that compute the same for one query of each sequence, with the query heads that read a
// key head as the queries of one head: then a tile has them all, and their keys are read once. Other Options, and
// features that tell heads apart but sinks, it returns as they are. c is resolved, for a forward pass on a device.
func (c *Options) rowsOfHeads() Options { return c.rowsOf(c.Heads / max(1, c.KVHeads)) }

// rowBytes returns the bytes that a split leaves of a row: sums, the greatest score and the sum of weights.
func rowBytes(dim int) int { return 4 * (dim + 2) }

// splitBytes returns the bytes that a split leaves.
func (c *Options) splitBytes() int { return c.queries() * rowBytes(c.DimV) }

// kernelsFor returns the kernels for j on q, and the Options that they are launched with.
func (j *forwardJob) kernelsFor(q gpu.Launcher) (Options, *gpuKernels) {
	c := j.c.rowsOfHeads()
	if c.featured() || !gpu.HasUnits(q) {
		return c, &gpuPlain
	}
	return c, gpuKernelsFor(&c, &j.out, &j.q, &j.k, &j.v)
}

// Borrows implements [driver.Borrower].
func (j *forwardJob) Borrows(d driver.Driver) int {
	q, ok := d.(gpu.Launcher)
	if !ok || j.c.checkKernels() != nil {
		return 0
	}
	_, k := j.kernelsFor(q)
	if n := j.c.splits(q, k); n > 1 {
		return n * j.c.splitBytes()
	}
	return 0
}

// Borrow implements [driver.Borrower].
func (j *forwardJob) Borrow(m driver.Mem) { *device.Mem(&j.room) = m }

// lent returns how many splits the memory that j borrowed is for, and its parts.
func (j *forwardJob) lent() (n int, sums, states driver.Mem) {
	room := *device.Mem(&j.room)
	if room.Size == 0 {
		return 1, sums, states
	}
	n = room.Size / j.c.splitBytes()
	at := 4 * n * j.c.queries() * j.c.DimV
	return n, room.Slice(0, at), room.Slice(at, room.Size-at)
}

// gpuSplit is the parameters of the kernels of splits on matrix units, Split in split.h.
type gpuSplit struct {
	shape     gpuShape
	splits, _ uint32
}

// launchSplits queues the launch of splits on matrix units.
func (j *forwardJob) launchSplits(q gpu.Launcher, k *gpuKernels, s gpuShape) error {
	c := &j.c
	n, sums, states := j.lent()
	tiles := c.Batch * c.Heads * gpu.CeilDiv(c.SeqQ, k.queries)
	p := gpuSplit{shape: s, splits: uint32(n)}
	p.shape.items = uint64(tiles * n)
	return kernels.Launch(q, k.split.Of(uint8(j.q.DType())), [3]int{min(tiles*n, maxBlocks), 1, 1}, gpuThreads, gpu.Params(&p),
		sums, states, *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v))
}

// gpuJoin is the parameters of the kernel that joins splits, Join in split.h.
type gpuJoin struct {
	items, all, heads, rows, seq uint64
	out                          gpuStrides
	dim, dtype, splits, wantLSE  uint32
}

// join queues the launch that makes out and lse of what splits left.
func (j *forwardJob) join(q gpu.Launcher) error {
	c := &j.c
	n, sums, states := j.lent()
	items := c.batches() * c.Heads * c.rows()
	p := gpuJoin{
		items: uint64(items), all: uint64(c.queries()), heads: uint64(c.Heads), rows: uint64(c.rows()), seq: uint64(c.SeqQ), out: c.Out.gpu(),
		dim: uint32(c.DimV), dtype: uint32(j.out.DType()), splits: uint32(n), wantLSE: flag(j.lse.Len() > 0),
	}
	return kernels.Launch(q, "attention_join", gpu.Grid(items, gpuThreads/32), gpuThreads, gpu.Params(&p),
		*device.Mem(&j.out), *device.Mem(&j.lse), sums, states)
}
