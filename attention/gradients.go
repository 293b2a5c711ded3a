package attention

import (
	"math"

	"github.com/snug-ml/snug/internal/vexp"
)

// gradients holds the tiles of one worker of the backward pass.
type gradients struct {
	qRoom, doutRoom, kRoom, vRoom tile // for operands that are not float32
	pRoom, dsRoom                 tile
	dqk, dv                       tile // for the sums: dq or dk, and dv
	sums                          products

	q, dout, k, v factor    // the loaded queries and keys
	lse2, delta   []float32 // of the loaded queries: lse in units of log 2, dout_i · out_i
	seen          window    // a block of the loaded queries, and what it sees
	p, ds         tile      // its weights and the gradients of its products, queries × keys
}

func newGradients(room arena, c *Config) gradients {
	return gradients{
		qRoom: room.tile(tileQ, c.Dim), doutRoom: room.tile(tileQ, c.DimV),
		kRoom: room.tile(tileK, c.Dim), vRoom: room.tile(tileK, c.DimV),
		pRoom: room.tile(tileQ, tileK), dsRoom: room.tile(tileQ, tileK),
		dqk: room.tile(tileK, c.Dim), dv: room.tile(tileK, c.DimV),
		lse2: room.floats(tileQ), sums: newProducts(&room, max(c.Dim, c.DimV)),
	}
}

// backwardScratch returns the float32 elements that newGradients carves up.
func (c *Config) backwardScratch() int {
	return (tileQ+2*tileK)*(c.Dim+c.DimV) + tileQ*(2*tileK+1) + productsScratch(max(c.Dim, c.DimV))
}

func (g *gradients) loadQueries(j *backwardJob, b, h, q0, q1 int) {
	c := &j.c
	g.q = headOf(j.q, c.Q, b, h, c.Dim).factor(g.qRoom, q0, q1)
	g.dout = headOf(j.dout, c.Out, b, h, c.DimV).factor(g.doutRoom, q0, q1)
	at := (b*c.Heads + h) * c.SeqQ
	g.delta = j.delta.Float32s()[at+q0 : at+q1]
	for i, lse := range j.lse.Float32s()[at+q0 : at+q1] {
		g.lse2[i] = float32(float64(lse) * math.Log2E)
		if math.IsInf(float64(lse), -1) {
			g.lse2[i] = float32(math.Inf(1)) // a row of zeros
		}
	}
}

func (g *gradients) loadKeys(j *backwardJob, b, kv, k0, k1 int) {
	c := &j.c
	g.k = headOf(j.k, c.K, b, kv, c.Dim).factor(g.kRoom, k0, k1)
	g.v = headOf(j.v, c.V, b, kv, c.DimV).factor(g.vRoom, k0, k1)
}

// next recomputes p and ds of the next block of the loaded queries, from q0 to
// q1-1, and the loaded keys, from k0 on, and reports whether there was one.
func (g *gradients) next(c *Config, q0, q1, k0 int) bool {
	w := &g.seen
	if !w.next(c, q1, k0, k0+g.k.rows) {
		return false
	}
	g.p, g.ds = g.pRoom.top(w.hi-w.lo).left(w.cols), g.dsRoom.top(w.hi-w.lo).left(w.cols)
	productT(g.p, w.factor(g.q, q0), g.k.top(w.cols))
	productT(g.ds, w.factor(g.dout, q0), g.v.top(w.cols))
	k := vexp.Registry.Best()
	for i := range g.p.rows {
		p, pUnseen := w.split(g.p.row(i), i)
		ds, dsUnseen := w.split(g.ds.row(i), i)
		clear(pUnseen)
		clear(dsUnseen)
		k.Exp2Sum(p, c.scale2(), g.lse2[w.lo-q0+i])
		k.ScoreGrad(ds, p, g.delta[w.lo-q0+i], c.Scale)
	}
	return true
}

// addQuery adds what the block contributes to dq, a tile from q0 on.
func (g *gradients) addQuery(dq tile, q0 int) {
	g.sums.add(&g.seen, g.seen.of(dq, q0), g.ds, g.k.top(g.ds.cols))
}

// addKeys adds what the block, of a tile from q0 on, contributes to dk and dv.
func (g *gradients) addKeys(dk, dv tile, q0 int) {
	g.sums.addT(&g.seen, dv.top(g.p.cols), g.p, g.seen.factor(g.dout, q0))
	g.sums.addT(&g.seen, dk.top(g.ds.cols), g.ds, g.seen.factor(g.q, q0))
}

// rowDots sets dst[i] to the dot product of row i of a and row i of b.
func rowDots(dst []float32, a, b tile) {
	for i := range dst {
		dst[i] = vexp.Registry.Best().Dot(a.row(i), b.row(i))
	}
}
