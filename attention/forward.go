package attention

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// forwardJob is the kernel of Forward.
type forwardJob struct {
	out, lse, q, k, v snug.View
	c                 Options // resolved
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
	tensors := [...]tensor{{name: "q", view: j.q, like: like[0]}, {name: "k", view: j.k, like: like[1]}, {name: "v", view: j.v, like: like[2]}, {name: "out", view: j.out, like: like[3]}}
	vectors := [...]rowVector{{name: "lse", view: j.lse}}
	typed := tensors
	if j.c.cached() {
		if err := j.c.cache.check(&j.c, j.q.DType()); err != nil {
			return nil, err
		}
		typed[1], typed[2] = tensors[0], tensors[3] // the types of k and v are right
		tensors[1].more, tensors[2].more = true, true
	}
	if err := checkDTypes(typed[:], vectors[:]); err != nil {
		return nil, err
	}
	given := vectors[:]
	if j.lse.Len() == 0 {
		given = nil
	}
	if err := checkLengths(tensors[:], given, j.c.queries()); err != nil {
		return nil, err
	}
	return commonDevice(&j.c, j.out, j.lse, j.q, j.k, j.v)
}

// Kernel implements [driver.Job].
func (j *forwardJob) Kernel() string { return "attention.forward" }

// Operands implements [driver.Job].
func (j *forwardJob) Operands(yield func(*driver.Mem)) {
	for _, v := range [...]*snug.View{&j.out, &j.lse, &j.q, &j.k, &j.v} {
		yield(device.Mem(v))
	}
	for _, v := range j.c.extras() {
		yield(device.Mem(v))
	}
}

// Run implements [driver.Job].
func (j forwardJob) Run() { forwardTask.Run(j.c.queryTiles(), j) }

// forwardTask computes out and lse for one tile of queries an item.
var forwardTask = cpu.NewTask(func(j *forwardJob, item int) {
	c := &j.c
	seq, h, q0, q1, ok := c.queryTile(item)
	if !ok {
		return
	}
	buf := scratch.Get(c.forwardScratch())
	defer scratch.Put(buf)
	scratch := arena(*buf)
	f := forwardTile{job: j, scorer: newScorer(&scratch, c, &seq, h), q0: q0}
	f.keys, f.values = scratch.tile(tileK, c.Dim), scratch.tile(tileK, c.DimV)
	f.loadQueries(seq.queryHead(j.q, c.Q, h, c.Dim), scratch.tile(tileQ, c.Dim), q0, q1)
	f.scores = scratch.tile(tileQ, tileK)
	f.softmax = newSoftmax(&scratch, q1-q0, c.DimV, c.sink(h))
	f.sums = newProducts(&scratch, c.DimV)

	mask := c.Mask.of(seq.b, h)
	lo, _ := seq.keys(q0)
	_, end := seq.keys(q1 - 1)
	for k0 := lo / tileK * tileK; k0 < end; k0 += tileK {
		k1 := min(k0+tileK, end)
		f.seen.begin(q0)
		loaded := false
		for f.seen.next(&seq, mask, q1, k0, k1) {
			if !loaded {
				f.loadKeys(k0, k1)
				loaded = true
			}
			f.add(k0)
		}
	}
	var lse []float32
	if j.lse.Len() > 0 {
		lse = j.lse.Float32s()[c.row(&seq, h):][q0:q1]
	}
	o := seq.queryHead(j.out, c.Out, h, c.DimV)
	out := o.target(f.acc, q0, q1)
	f.finish(out, lse)
	o.store(out, q0)
})

// forwardTile is a tile of queries of forwardTask, with a tile of keys.
type forwardTile struct {
	job *forwardJob
	scorer
	softmax
	q0           int
	keys, values tile // scratch for k and v
	q, k, v      factor
	scores       tile
	sums         products
	seen         block
}

// loadQueries loads queries q0 to q1-1. With a cache it loads them as float32, like the
// cache's rows.
func (f *forwardTile) loadQueries(q head, scratch tile, q0, q1 int) {
	if f.c.cached() {
		f.q = q.load(scratch, q0, q1).factor()
		return
	}
	f.q = q.factor(scratch, q0, q1)
}

// loadKeys loads keys and values k0 to k1-1.
func (f *forwardTile) loadKeys(k0, k1 int) {
	c, j, kv := f.c, f.job, f.c.kvHead(f.h)
	if r := &c.cache; c.cached() {
		k, v := r.head(&f.s, j.k, r.kScale, c.K, c, kv, c.Dim), r.head(&f.s, j.v, r.vScale, c.V, c, kv, c.DimV)
		f.k, f.v = k.factor(f.keys, k0, k1), v.factor(f.values, k0, k1)
		return
	}
	f.k = f.s.keyHead(j.k, c.K, kv, c.Dim).factor(f.keys, k0, k1)
	f.v = f.s.keyHead(j.v, c.V, kv, c.DimV).factor(f.values, k0, k1)
}

// add adds the contribution of the block; its tile of keys begins at k0.
func (f *forwardTile) add(k0 int) {
	w, c := &f.seen, f.c
	p, scale := f.scores.top(w.hi-w.lo).left(w.keys()), c.scale2()
	productT(p, w.factor(f.q, f.q0), w.factorKeys(f.k, k0))
	if c.scores() || w.partial {
		scale = math.Log2E
		for i := range p.rows {
			f.row(w.row(p.row(i), i), nil, w.lo+i, w.from+w.sees[i].lo, false)
			w.hide(p.row(i), i, negInf)
		}
	}
	f.step(w, f.q0, p, scale)
	if c.Dropout.P > 0 {
		for i := range p.rows {
			f.drop(w.row(p.row(i), i), w.lo+i, w.from+w.sees[i].lo)
		}
	}
	f.sums.add(w, w.of(f.acc, f.q0), p, w.factorKeys(f.v, k0))
}

// sink returns the score of a head's sink, −Inf if there are no sinks.
func (c *Options) sink(h int) float32 {
	if c.Sinks.X.Len() == 0 {
		return negInf
	}
	return c.Sinks.X.Float32s()[h]
}

// forwardScratch returns the float32 elements that a worker of forwardTask
// carves up.
func (c *Options) forwardScratch() int {
	return (tileQ+tileK)*(c.Dim+c.DimV) + tileQ*(tileK+4) + productsScratch(c.DimV) + scorerScratch
}
