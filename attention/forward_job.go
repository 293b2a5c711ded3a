package attention

import (
	"runtime"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// forwardJob is the kernel of Forward.
type forwardJob struct {
	out, lse, q, k, v snug.View
	room              snug.View // what the device lends to splits of the keys, see gpu_split.go
	c                 Options   // resolved
	group             int       // tiles of queries an item; set by Run
}

func forward(j forwardJob) error {
	dev, err := j.check()
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

// check resolves j's Options and returns the device, or an error.
func (j *forwardJob) check() (*snug.Device, error) {
	var err error
	if j.c, err = j.c.resolve(); err != nil {
		return nil, err
	}
	like := j.c.operands()
	if j.c.cached() {
		if err := j.c.cache.check(&j.c, j.q.DType()); err != nil {
			return nil, err
		}
	}
	return checkOperands(&j.c, []tensor{
		{name: "q", view: j.q, like: like[0]}, {name: "k", view: j.k, like: like[1], cached: j.c.cached()},
		{name: "v", view: j.v, like: like[2], cached: j.c.cached()}, {name: "out", view: j.out, like: like[3]},
	}, []rowVector{{name: "lse", view: j.lse, optional: true}})
}

// Kernel implements [driver.Job].
func (j *forwardJob) Kernel() string { return "attention.forward" }

// Operands implements [driver.Job].
func (j *forwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.lse, &j.q, &j.k, &j.v, &j.room)
	extras := j.c.extras()
	device.Each(yield, extras[:]...)
}

// Run implements [driver.Job].
func (j forwardJob) Run() {
	j.c = j.c.together()
	heads := j.c.Batch * j.c.Heads
	longest, _ := j.c.longest()
	tiles := cpu.Chunks(longest, tileQ)
	for j.group = j.c.maxGroup(); j.group > 1 && heads*cpu.Chunks(tiles, j.group) < 4*runtime.GOMAXPROCS(0); {
		j.group /= 2
	}
	forwardTask.Run(heads*cpu.Chunks(tiles, j.group), j)
}

// The most tiles of queries for which a tile of keys is loaded at a time, and the most bytes of
// their operands, so that they stay in the second-level cache.
const (
	maxGroup   = 4
	groupBytes = 256 << 10
)

// maxGroup returns the most tiles of queries that one item of forwardTask may have. No result
// depends on their number.
func (c *Options) maxGroup() int {
	n := maxGroup
	for n > 1 && 4*n*tileQ*(c.Dim+c.DimV) > groupBytes {
		n /= 2
	}
	return n
}

// loadQueries loads the queries of t. With a cache it loads them as float32, like the cache's
// rows.
func (f *forwardTile) loadQueries(t *queryTile, scratch *arena) {
	c := f.c
	q := f.s.queryHead(f.job.q, c.Q, f.h, c.Dim)
	switch {
	case f.pairs:
		t.q = q.factor(tile{}, t.q0, t.q1)
		t.panels = scratch.panels(tileQ, c.Dim)
		t.panels.left(t.q)
	case c.cached():
		t.q = q.load(scratch.tile(tileQ, c.Dim), t.q0, t.q1).factor()
	default:
		t.q = q.factor(scratch.tile(tileQ, c.Dim), t.q0, t.q1)
	}
}

// loadKeys loads keys and values k0 to k1-1.
func (f *forwardTile) loadKeys(k0, k1 int) {
	c, j, kv := f.c, f.job, f.c.kvHead(f.h)
	if r := &c.cache; c.cached() {
		k, v := r.head(&f.s, j.k, r.kScale, c.K, c, kv, c.Dim), r.head(&f.s, j.v, r.vScale, c.V, c, kv, c.DimV)
		f.k, f.v = k.factor(f.keys, k0, k1, f.width == 0), v.factor(f.values, k0, k1, false)
	} else {
		f.k = f.s.keyHead(j.k, c.K, kv, c.Dim).factor(f.keys, k0, k1)
		f.v = f.s.keyHead(j.v, c.V, kv, c.DimV).factor(f.values, k0, k1)
	}
	f.load(f.k, f.v)
}

// sink returns the score of a head's sink, −Inf if there are no sinks.
func (c *Options) sink(h int) float32 {
	if c.Sinks.X.Len() == 0 {
		return negInf
	}
	return c.Sinks.X.Float32s()[h]
}

// forwardScratch returns the float32 elements that an item of forwardTask carves up for a group of tiles of
// queries.
func (c *Options) forwardScratch(group int) int {
	queries := max(tileQ*c.Dim, panelsLen(tileQ, c.Dim)) + softmaxLen(c.DimV)
	return group*queries + tileK*(c.Dim+c.DimV) + c.keyPanelsLen() + logitRows*tileK + productsScratch(c.DimV) + scorerScratch + blockLen
}
