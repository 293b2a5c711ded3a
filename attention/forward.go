package attention

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/rowwise"
)

// The forward pass on the CPU is the online softmax of Milakov and Gimelshein (2018, arXiv:1805.02867) in the order of Dao,
// "FlashAttention-2" (2023). Each query i starts with max_i = −Inf, or its sink, sumExp_i = 0, or 1 with a sink, and acc_i = 0.
// Each tile of keys j that it sees takes one step:
//
//	logits_ij = Scale·(q_i·k_j)                                then Softcap, Slopes, Bias, Score and Mask
//	max'_i    = max(max_i, max_j logits_ij)
//	p_ij      = exp(logits_ij − max'_i)
//	sumExp'_i = exp(max_i − max'_i)·sumExp_i + sum_j p_ij
//	acc'_i    = exp(max_i − max'_i)·acc_i + sum_j keep_ij·p_ij·v_j
//
// and at the end out_i = acc_i/sumExp_i and lse_i = max_i + log sumExp_i. Exponentials are powers of 2: max is in units of
// log 2, and scale2 = Scale·log2(e) converts logits. The methods step, raise and finish are these lines.

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
	f.logitTile = scratch.tile(logitRows, tileK)
	var tiles [maxGroup]queryTile
	n := 0
	for lo := q0; lo < q1; lo += tileQ {
		hi := min(lo+tileQ, q1)
		tiles[n] = queryTile{softmax: newSoftmax(&scratch, hi-lo, c.DimV, c.sink(h)), q0: lo, q1: hi}
		f.loadQueries(&tiles[n], &scratch)
		n++
	}
	f.products = newProducts(&scratch, c.DimV)

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
				f.step(t, k0)
			}
		}
	}
	for i := range tiles[:n] {
		f.store(&tiles[i])
	}
})

// logitRows are the rows of a tile of logits: a block and what panels have before and after it.
const logitRows = blockQ + panel

// forwardTile is a tile of keys of forwardTask.
type forwardTile struct {
	job *forwardJob
	scorer
	keys, values tile // scratch for k and v
	k, v         factor
	keyPanels
	logitTile tile
	products  products
	seen      block // of queries and keys
}

// queryTile is a tile of queries of forwardTask.
type queryTile struct {
	softmax
	q0, q1 int
	q      factor
	panels panels // of q, for products of bfloat16
}

// logits are the logits of a block, and then its weights p: a row for each query. Products in panels have more: columns
// before the block's keys and rows above its queries.
type logits struct {
	tile                       // the block's
	wide          rowwise.Tile // with the columns before it
	row, from, to int          // the first query and the keys, as numbers in their tiles
	before, above int          // columns and rows
	scale         float32      // to units of log 2
}

// step takes the step of the recurrence for the queries and keys of the block. The tile of keys begins at k0.
func (f *forwardTile) step(t *queryTile, k0 int) {
	p := f.logits(t, k0)
	max := t.raise(p.row, p.wide, p.scale)
	sums := t.scratch[2*tileQ:][:p.rows]
	if !f.addPanels(t, &p, max, sums) {
		rowwise.Registry.Best().Exp2Rows(sums, p.wide, p.scale, max)
		f.dropout(&p)
		f.products.add(&f.seen, f.seen.of(t.acc, t.q0), p.tile, f.seen.factorKeys(f.v, k0))
	}
	for i, sum := range sums {
		t.sumExp[p.row+i] += sum
	}
}

// logits computes the logits of the block.
func (f *forwardTile) logits(t *queryTile, k0 int) logits {
	w, c := &f.seen, f.c
	p := logits{row: w.lo - t.q0, from: w.from - k0, to: w.to - k0, scale: c.scale2()}
	rows := w.hi - w.lo
	p.before = f.align(p.from)
	if f.pairs {
		p.above = p.row % panel
		f.logitPairs(f.logitTile, t.panels, p.row-p.above, p.above+rows, p.from-p.before, p.to)
	} else {
		f.multiply(f.logitTile.top(rows).left(p.before+p.to-p.from), w.factor(t.q, t.q0), f.k, p.from-p.before, p.to)
	}
	p.tile = f.logitTile.from(p.above).top(rows)
	p.wide = rowwise.Tile{X: p.x, Cols: p.before + p.to - p.from, Stride: p.stride, Sees: w.sees[:rows], At: p.before}
	p.x, p.cols = p.x[p.before:], p.to-p.from
	if c.scores() || w.partial {
		p.scale = math.Log2E
		for i := range rows {
			f.row(w.row(p.tile.row(i), i), nil, w.lo+i, w.from+w.sees[i].Lo, false)
			w.hide(p.tile.row(i), i, negInf)
		}
	}
	return p
}

// dropout multiplies weights by keep.
func (f *forwardTile) dropout(p *logits) {
	for i := 0; i < p.rows && f.c.Dropout.P > 0; i++ {
		f.drop(f.seen.row(p.tile.row(i), i), f.seen.lo+i, f.seen.from+f.seen.sees[i].Lo)
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

// softmax is the state of the recurrence for a tile of queries.
type softmax struct {
	max, sumExp []float32 // of every query; max in units of log 2
	acc         tile
	scratch     []float32 // for the maxima, the factors and the sums of a block
}

// newSoftmax starts with a sink: a logit without a value, −Inf if there is none.
func newSoftmax(scratch *arena, rows, dim int, sink float32) softmax {
	s := softmax{
		max: scratch.floats(tileQ)[:rows], sumExp: scratch.floats(tileQ)[:rows],
		acc: scratch.tile(tileQ, up(dim)).top(rows).left(dim), scratch: scratch.floats(3 * tileQ),
	}
	max, sumExp := negInf, float32(0)
	switch {
	case sink < math.MaxFloat32 && sink > negInf:
		max, sumExp = float32(float64(sink)*math.Log2E), 1
	case sink != negInf: // NaN for all
		sumExp = float32(math.NaN())
	}
	fill(s.max, max)
	fill(s.sumExp, sumExp)
	clear(s.acc.x)
	return s
}

// softmaxLen returns the float32 elements that newSoftmax takes.
func softmaxLen(dim int) int { return tileQ * (up(dim) + 5) }

// raise takes a tile of logits, with a row for each query from number lo on, into the maxima of these queries: max' is the
// larger of max and the row's maximum. It multiplies sumExp and acc by exp(max − max'), and returns max', or 0 where max' is
// −Inf. scale converts logits to units of log 2. The maxima of all rows are computed first, so that no row waits for its own.
func (s *softmax) raise(lo int, t rowwise.Tile, scale float32) (finite []float32) {
	k, n := rowwise.Registry.Best(), len(t.Sees)
	max, sumExp := s.max[lo:][:n], s.sumExp[lo:][:n]
	finite, factors := s.scratch[:n], s.scratch[tileQ:][:n]
	copy(factors, max)
	k.MaxRows(max, t, scale)
	for i, m := range max {
		finite[i] = m
		if math.IsInf(float64(m), -1) {
			finite[i] = 0 // −Inf − −Inf would be NaN
		}
		factors[i] -= finite[i]
	}
	k.Exp2Sum(factors, 1, 0)
	for i, a := range factors {
		if a != 1 && sumExp[i] != 0 {
			k.Scale(s.acc.row(lo+i), s.acc.row(lo+i), a)
		}
		sumExp[i] *= a
	}
	return finite
}

// finish sets out, which may be acc, to acc/sumExp and stores max + log sumExp in lse, unless it is nil.
func (s *softmax) finish(out tile, lse []float32) {
	k := rowwise.Registry.Best()
	for i, sumExp := range s.sumExp {
		if sumExp == 0 { // nothing seen, or only logits of −Inf
			clear(out.row(i))
		} else {
			k.Scale(out.row(i), s.acc.row(i), 1/sumExp)
		}
		if lse != nil {
			lse[i] = float32((float64(s.max[i]) + math.Log2(float64(sumExp))) * math.Ln2)
		}
	}
}

// The fast path below is for bfloat16 where the processor multiplies pairs.

// addPanels adds the weighted values of a block to acc in products of bfloat16, and sets sums to the sums of its weights. It
// returns false, and does nothing, where these products cannot: without panels, with Dropout, and where a panel has
// values that no weight may meet.
func (f *forwardTile) addPanels(t *queryTile, p *logits, base, sums []float32) bool {
	if !f.pairs || f.c.Dropout.P > 0 || !f.finite(t, p) {
		return false
	}
	weights, from := words(f.products.low), p.from-p.before
	depth := up(p.to - from)
	for i := -p.above; i < p.rows; i += panel {
		lo, hi := max(i, 0), min(i+panel, p.rows)
		if hi-lo < panel {
			clear(weights[:panel*depth])
		}
		part := p.wide
		part.X, part.Sees = part.X[lo*part.Stride:], part.Sees[lo:hi]
		rowwise.Pairs.Best().Exp2Rows(sums[lo:hi], weights[(lo-i)*panel:], panel*panel, part, p.scale, base[lo:hi])
		f.addPairs(t.acc.from(p.row+i), weights, from, p.to)
	}
	return true
}

// finite reports whether values of keys that a query does not see, but whose weights of 0 it multiplies, are
// neither NaN nor infinite: 0·NaN is NaN.
func (f *forwardTile) finite(t *queryTile, p *logits) bool {
	first, end := p.from/panel*panel, min(up(p.to), f.v.rows)
	whole := p.row%panel == 0 && (p.rows%panel == 0 || p.row+p.rows == t.q1-t.q0)
	if f.seen.full && whole && first == p.from && end == p.to {
		return true
	}
	common := keyRange{}
	if whole {
		common = f.seen.common()
		common.Lo, common.Hi = common.Lo+p.from-first, common.Hi+p.from-first
	}
	return f.products.finite(common, f.v.from(first).top(end-first))
}
