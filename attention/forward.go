package attention

import (
	"math"
	"runtime"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
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
	for _, v := range [...]*snug.View{&j.out, &j.lse, &j.q, &j.k, &j.v, &j.room} {
		yield(device.Mem(v))
	}
	for _, v := range j.c.extras() {
		yield(device.Mem(v))
	}
}

// Run implements [driver.Job].
func (j forwardJob) Run() {
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

// forwardTask computes out and lse for a group of tiles of queries an item.
var forwardTask = cpu.NewTask(func(j *forwardJob, item int) {
	c := &j.c
	seq, h, q0, q1, ok := c.queryTiles(item, j.group)
	if !ok {
		return
	}
	buf := scratch.Get(c.forwardScratch(j.group))
	defer scratch.Put(buf)
	scratch := arena(*buf)
	f := forwardTile{job: j, seen: newBlock(&scratch, blockQ)}
	f.scorer = newScorer(&scratch, c, &seq, h)
	f.keyPanels = newKeyPanels(&scratch, c, j.q.DType(), seq.nq) // not by the item: its queries depend on GOMAXPROCS
	f.keys, f.values = scratch.tile(tileK, c.Dim), scratch.tile(tileK, c.DimV)
	f.scoreTile = scratch.tile(scoreRows, tileK)
	var tiles [maxGroup]queryTile
	n := 0
	for lo := q0; lo < q1; lo += tileQ {
		hi := min(lo+tileQ, q1)
		tiles[n] = queryTile{softmax: newSoftmax(&scratch, hi-lo, c.DimV, c.sink(h)), q0: lo, q1: hi}
		f.loadQueries(&tiles[n], &scratch)
		n++
	}
	f.sums = newProducts(&scratch, c.DimV)

	mask := c.Mask.of(seq.b, h)
	lo, _ := seq.keys(q0)
	_, end := seq.keys(q1 - 1)
	for k0 := lo / tileK * tileK; k0 < end; k0 += tileK {
		k1 := min(k0+tileK, end)
		loaded := false
		for i := range tiles[:n] {
			t := &tiles[i]
			f.seen.begin(t.q0)
			for f.seen.next(&seq, mask, t.q1, k0, k1) {
				if !loaded {
					f.loadKeys(k0, k1)
					loaded = true
				}
				f.add(t, k0)
			}
		}
	}
	for i := range tiles[:n] {
		f.store(&tiles[i])
	}
})

// scoreRows are the rows of a tile of scores: a block and what panels have before and after it.
const scoreRows = blockQ + panel

// forwardTile is a tile of keys of forwardTask.
type forwardTile struct {
	job *forwardJob
	scorer
	keys, values tile // scratch for k and v
	k, v         factor
	keyPanels
	scoreTile tile
	sums      products
	seen      block
}

// queryTile is a tile of queries of forwardTask.
type queryTile struct {
	softmax
	q0, q1 int
	q      factor
	panels panels // of q, for products of bfloat16
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

// store stores the results of a tile of queries.
func (f *forwardTile) store(t *queryTile) {
	c, j := f.c, f.job
	var lse []float32
	if j.lse.Len() > 0 {
		lse = j.lse.Float32s()[c.row(&f.s, f.h):][t.q0:t.q1]
	}
	o := f.s.queryHead(j.out, c.Out, f.h, c.DimV)
	out := o.target(t.acc, t.q0, t.q1)
	t.finish(out, lse)
	o.store(out, t.q0)
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

// add adds the contribution of the block of queries of t; its tile of keys begins at k0.
func (f *forwardTile) add(t *queryTile, k0 int) {
	w, c := &f.seen, f.c
	row, rows, from, to := w.lo-t.q0, w.hi-w.lo, w.from-k0, w.to-k0
	before, above := f.align(from), 0 // columns before the block's and rows above them, which the products have too
	if f.pairs {
		above = row % panel
		f.scorePairs(f.scoreTile, t.panels, row-above, above+rows, from-before, to)
	} else {
		f.scores(f.scoreTile.top(rows).left(before+to-from), w.factor(t.q, t.q0), f.k, from-before, to)
	}
	scores := f.scoreTile.from(above).top(rows)
	p, scale := scores, c.scale2()
	p.x, p.cols = p.x[before:], to-from
	if c.scores() || w.partial {
		scale = math.Log2E
		for i := range rows {
			f.row(w.row(p.row(i), i), nil, w.lo+i, w.from+w.sees[i].Lo, false)
			w.hide(p.row(i), i, negInf)
		}
	}
	tile := rowwise.Tile{X: scores.x, Cols: before + to - from, Stride: scores.stride, Sees: w.sees[:rows], At: before}
	base, sums := t.rescale(row, tile, scale), t.blockSums(rows)
	if f.pairs && c.Dropout.P == 0 && f.finite(w, row, rows, t.q1-t.q0, from, to) {
		f.addWeights(t, tile, row, above, from-before, to, scale, base, sums)
	} else {
		rowwise.Registry.Best().Exp2Rows(sums, tile, scale, base)
		if c.Dropout.P > 0 {
			for i := range rows {
				f.drop(w.row(p.row(i), i), w.lo+i, w.from+w.sees[i].Lo)
			}
		}
		f.sums.add(w, w.of(t.acc, t.q0), p, w.factorKeys(f.v, k0))
	}
	t.addSums(row, sums)
}

// finite reports whether values of keys that a query does not see, but whose weights of 0 it multiplies, are
// neither NaN nor infinite: 0·NaN is NaN.
func (f *forwardTile) finite(w *block, row, rows, all, from, to int) bool {
	first, end := from/panel*panel, min(up(to), f.v.rows)
	whole := row%panel == 0 && (rows%panel == 0 || row+rows == all)
	if w.full && whole && first == from && end == to {
		return true
	}
	common := keyRange{}
	if whole {
		common = w.common()
		common.Lo, common.Hi = common.Lo+from-first, common.Hi+from-first
	}
	return f.sums.finite(common, f.v.from(first).top(end-first))
}

// addWeights adds the weighted values of a block in products of bfloat16. Before its first query, number row
// of the tile, are above rows in a panel.
func (f *forwardTile) addWeights(t *queryTile, scores rowwise.Tile, row, above, from, to int, scale float32, base, sums []float32) {
	weights, rows := words(f.sums.low), len(scores.Sees)
	depth := up(to - from)
	for i := -above; i < rows; i += panel {
		lo, hi := max(i, 0), min(i+panel, rows)
		if hi-lo < panel {
			clear(weights[:panel*depth])
		}
		part := scores
		part.X, part.Sees = scores.X[lo*scores.Stride:], scores.Sees[lo:hi]
		rowwise.Pairs.Best().Exp2Rows(sums[lo:hi], weights[(lo-i)*panel:], panel*panel, part, scale, base[lo:hi])
		f.addPairs(t.acc.from(row+i), weights, from, to)
	}
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
	return group*queries + tileK*(c.Dim+c.DimV) + c.keyPanelsLen() + scoreRows*tileK + productsScratch(c.DimV) + scorerScratch + blockLen
}
