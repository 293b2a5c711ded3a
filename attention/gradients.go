package attention

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/rowwise"
)

// gradients holds the tiles of one worker of the backward pass.
type gradients struct {
	qTile, doutTile, kTile, vTile tile // for operands that are not float32
	pTile, dsTile                 tile
	dqk, dv                       tile      // for the sums: dq or dk, and dv
	slopes                        []float32 // scratch for derivatives of a row of scores, if these bend
	scorerScratch                 arena
	sums                          products
	panels                        gradPanels

	q, dout, k, v factor    // the loaded queries and keys
	lse2, delta   []float32 // of the loaded queries: lse in units of log 2, dout_i · out_i
	seen          block     // of the loaded queries and keys
	p, ds         tile      // its weights and the gradients of its products, queries × keys
	scorer        scorer    // of the loaded queries
	mask          headMask
	k0            int // the first of the loaded keys
	of            dsKind
}

// dsKind selects the gradients that next computes in ds.
type dsKind int

const (
	inProducts dsKind = iota // gradients in the products
	inBias                   // gradients in the bias; p is not valid
	inWeights                // gradients in the weights, without delta; p holds the weights before dropout
)

func newGradients(scratch arena, c *Options, dt snug.DType) gradients {
	g := gradients{
		seen:  newBlock(&scratch, tileQ),
		qTile: scratch.tile(tileQ, c.Dim), doutTile: scratch.tile(tileQ, c.DimV),
		kTile: scratch.tile(tileK, c.Dim), vTile: scratch.tile(tileK, c.DimV),
		pTile: scratch.tile(tileQ, tileK), dsTile: scratch.tile(tileQ, tileK),
		dqk: scratch.tile(tileK, c.Dim), dv: scratch.tile(tileK, c.DimV),
		lse2: scratch.floats(tileQ), panels: newGradPanels(&scratch, c, dt), sums: newProducts(&scratch, max(c.Dim, c.DimV)),
	}
	if c.bends() {
		g.slopes = scratch.floats(tileK)
	}
	g.scorerScratch = scratch
	return g
}

// backwardScratch returns the float32 elements that newGradients carves up.
func (c *Options) backwardScratch() int {
	return (tileQ+2*tileK)*(c.Dim+c.DimV) + tileQ*(2*tileK+1) + productsScratch(max(c.Dim, c.DimV)) + tileK + scorerScratch + blockLen + c.gradPanelsLen()
}

// loadQueries loads queries q0 to q1-1 of a head and selects the head's mask.
func (g *gradients) loadQueries(j *backwardJob, s *sequence, h, q0, q1 int) {
	c := &j.c
	g.q = s.queryHead(j.q, c.Q, h, c.Dim).factor(g.qTile, q0, q1)
	g.dout = s.queryHead(j.dout, c.Out, h, c.DimV).factor(g.doutTile, q0, q1)
	at, scratch := c.row(s, h), g.scorerScratch
	g.scorer, g.mask = newScorer(&scratch, c, s, h), c.Mask.of(s.b, h)
	g.delta = j.delta.Float32s()[at+q0 : at+q1]
	for i, lse := range j.lse.Float32s()[at+q0 : at+q1] {
		g.lse2[i] = float32(float64(lse) * math.Log2E)
		if math.IsInf(float64(lse), -1) {
			g.lse2[i] = float32(math.Inf(1)) // a row of zeros
		}
	}
	g.packQueries()
}

func (g *gradients) loadKeys(j *backwardJob, s *sequence, kv, k0, k1 int) {
	c := &j.c
	g.k = s.keyHead(j.k, c.K, kv, c.Dim).factor(g.kTile, k0, k1)
	g.v = s.keyHead(j.v, c.V, kv, c.DimV).factor(g.vTile, k0, k1)
	g.k0 = k0
	g.packKeys()
}

// next recomputes p and ds of the next block of the loaded queries, from q0 to
// q1-1, and the loaded keys, and reports whether there was one.
func (g *gradients) next(s *sequence, q0, q1 int) bool {
	w := &g.seen
	if !w.next(s, g.mask, q1, g.k0, g.k0+g.k.rows) {
		return false
	}
	plain := g.scorer.plain() && g.of != inBias
	p := &g.panels
	if p.used = p.on && plain && !w.partial && g.of == inProducts && g.cover(q0); p.used {
		g.panelGrads(q0)
		return true
	}
	g.p, g.ds = g.pTile.top(w.hi-w.lo).left(w.keys()), g.dsTile.top(w.hi-w.lo).left(w.keys())
	productT(g.p, w.factor(g.q, q0), w.factorKeys(g.k, g.k0))
	productT(g.ds, w.factor(g.dout, q0), w.factorKeys(g.v, g.k0))
	k, c, from := rowwise.Registry.Best(), g.scorer.c, w.lo-q0
	if plain && g.of == inProducts {
		t := rowwise.Tile{X: g.p.x, Cols: w.keys(), Stride: g.p.stride, Sees: w.sees[:g.p.rows]}
		k.GradRows(g.ds.x, t, c.scale2(), g.lse2[from:], g.delta[from:], c.Scale)
		for i := range g.p.rows {
			w.hide(g.p.row(i), i, 0)
			w.hide(g.ds.row(i), i, 0)
		}
		return true
	}
	for i := range g.p.rows {
		p, ds := w.row(g.p.row(i), i), w.row(g.ds.row(i), i)
		if plain {
			k.Exp2Sum(p, c.scale2(), g.lse2[from+i])
		} else {
			g.row(p, ds, i, q0)
		}
		w.clear(g.p.row(i), i)
		w.clear(g.ds.row(i), i)
	}
	return true
}

// row computes p and ds of query number i of the block from the products in them.
func (g *gradients) row(p, ds []float32, i, q0 int) {
	w, c := &g.seen, g.scorer.c
	query, key := w.lo+i, w.from+w.sees[i].Lo
	slopes := g.slopes
	if g.of == inWeights {
		slopes = nil
	}
	if slopes != nil {
		slopes = slopes[:len(p)]
	}
	g.scorer.row(p, slopes, query, key, g.of == inBias)
	k := rowwise.Registry.Best()
	k.Exp2Sum(p, math.Log2E, g.lse2[query-q0])
	if c.Dropout.P > 0 {
		g.scorer.drop(ds, query, key)
	}
	if g.of == inWeights {
		return
	}
	scale := c.Scale
	if slopes != nil || g.of == inBias {
		scale = 1
	}
	k.ScoreGrad(ds, p, g.delta[query-q0], scale)
	for n, slope := range slopes {
		ds[n] *= slope
	}
	if c.Dropout.P > 0 {
		g.scorer.drop(p, query, key)
	}
}

// sumDelta sets delta of the loaded queries, q0 to q1-1 of head h, to the weighted means of
// the gradients in their weights. It divides by the sum of the weights: lse is rounded, so
// the weights do not sum to exactly 1, and a plain sum would be off by as much.
func (g *gradients) sumDelta(j *backwardJob, s *sequence, h, q0, q1 int) {
	k, sink := rowwise.Registry.Best(), float64(j.c.sink(h))*math.Log2E
	ones, totals := g.dqk.x[:tileK], g.dv.x[:len(g.delta)] // of no use before the sums
	fill(ones, 1)
	for i := range totals {
		g.delta[i], totals[i] = 0, float32(math.Exp2(sink-float64(g.lse2[i])))
	}
	g.of = inWeights
	lo, _ := s.keys(q0)
	_, end := s.keys(q1 - 1)
	for k0 := lo / tileK * tileK; k0 < end; k0 += tileK {
		g.loadKeys(j, s, j.c.kvHead(h), k0, min(k0+tileK, s.nk))
		g.seen.begin(q0)
		for g.next(s, q0, q1) {
			for i := range g.p.rows {
				p, at := g.p.row(i), g.seen.lo-q0+i
				g.delta[at] += k.Dot(p, g.ds.row(i))
				totals[at] += k.Dot(p, ones[:len(p)])
			}
		}
	}
	for i, sum := range totals {
		if sum != 0 { // the query sees something
			g.delta[i] /= sum
		}
	}
	g.of = inProducts
}

// addQuery adds the contribution of the block to dq, a tile that begins at query q0.
func (g *gradients) addQuery(dq tile, q0 int) {
	if g.panels.used {
		g.addQueryPanels(dq)
		return
	}
	g.sums.add(&g.seen, g.seen.of(dq, q0), g.ds, g.seen.factorKeys(g.k, g.k0))
}

// addKeys adds the contribution of the block to dk and dv. Its tile begins at query q0.
func (g *gradients) addKeys(dk, dv tile, q0 int) {
	if g.panels.used {
		g.addKeyPanels(dk, dv)
		return
	}
	g.sums.addT(&g.seen, g.seen.ofKeys(dv, g.k0), g.p, g.seen.factor(g.dout, q0))
	g.sums.addT(&g.seen, g.seen.ofKeys(dk, g.k0), g.ds, g.seen.factor(g.q, q0))
}

// rowDots sets dst[i] to the dot product of row i of a and row i of b.
func rowDots(dst []float32, a, b tile) {
	for i := range dst {
		dst[i] = rowwise.Registry.Best().Dot(a.row(i), b.row(i))
	}
}
