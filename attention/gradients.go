package attention

import "math"

// gradients holds the tiles of one worker of the backward pass.
type gradients struct {
	qRoom, doutRoom, kRoom, vRoom tile // for operands that are not float32
	pRoom, dsRoom                 tile
	dqk, dv                       tile // for the sums: dq or dk, and dv

	q, dout, k, v tile      // the loaded queries and keys
	lse2, delta   []float32 // of the loaded queries: lse in units of log 2, dout_i · out_i
	seen          window    // what the loaded queries see of the loaded keys
	p, ds         tile      // weights and gradients of the scores, queries × keys
}

func newGradients(room arena, c *Config) gradients {
	return gradients{
		qRoom: room.tile(tileQ, c.Dim), doutRoom: room.tile(tileQ, c.DimV),
		kRoom: room.tile(tileK, c.Dim), vRoom: room.tile(tileK, c.DimV),
		pRoom: room.tile(tileQ, tileK), dsRoom: room.tile(tileQ, tileK),
		dqk: room.tile(tileK, c.Dim), dv: room.tile(tileK, c.DimV),
		lse2: room.floats(tileQ),
	}
}

// backwardScratch returns the float32 elements that newGradients carves up.
func (c *Config) backwardScratch() int {
	return (tileQ+2*tileK)*(c.Dim+c.DimV) + tileQ*(2*tileK+1)
}

func (g *gradients) loadQueries(j *backwardJob, b, h, q0, q1 int) {
	c := &j.c
	g.q = headOf(j.q, c.Q, b, h, c.Dim).load(g.qRoom, q0, q1)
	g.dout = headOf(j.dout, c.Out, b, h, c.DimV).load(g.doutRoom, q0, q1)
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
	g.k = headOf(j.k, c.K, b, kv, c.Dim).load(g.kRoom, k0, k1)
	g.v = headOf(j.v, c.V, b, kv, c.DimV).load(g.vRoom, k0, k1)
}

// recompute sets p and ds for the loaded queries, q0 to q1-1, and those of the
// loaded keys, from k0 on, that one of them sees.
func (g *gradients) recompute(c *Config, q0, q1, k0 int) {
	n := min(g.k.rows, c.visible(q1-1)-k0)
	g.seen.look(c, q0, q1, k0, k0+n)
	g.p, g.ds = g.pRoom.top(q1-q0).left(n), g.dsRoom.top(q1-q0).left(n)
	productT(g.p, g.q, g.k.top(n), c.scale2())
	productT(g.ds, g.dout, g.v.top(n), 1)
	for i := range g.p.rows {
		p, ds, n := g.p.row(i), g.ds.row(i), g.seen.sees[i]
		clear(p[n:])
		clear(ds[n:])
		exp2Row(p[:n], g.lse2[i])
		scoreGradient(ds[:n], p[:n], g.delta[i])
	}
}

// addQuery adds what the loaded keys contribute to dq.
func (g *gradients) addQuery(dq tile, scale float32) {
	g.seen.add(dq, g.ds, g.k.top(g.ds.cols), scale)
}

// addKeys adds what the loaded queries contribute to dk and dv.
func (g *gradients) addKeys(dk, dv tile, scale float32) {
	g.seen.addT(dv.top(g.p.cols), g.p, g.dout, 1)
	g.seen.addT(dk.top(g.ds.cols), g.ds, g.q, scale)
}

// scoreGradient turns ds, which holds dout_i · v_j, into the gradient in the
// scores.
func scoreGradient(ds, p []float32, delta float32) {
	p = p[:len(ds)]
	for i, x := range ds {
		ds[i] = p[i] * (x - delta)
	}
}

// rowDots sets dst[i] to the dot product of row i of a and row i of b, summed in
// float64.
func rowDots(dst []float32, a, b tile) {
	for i := range dst {
		x, y := a.row(i), b.row(i)
		sum := 0.0
		for k := range x {
			sum += float64(x[k]) * float64(y[k])
		}
		dst[i] = float32(sum)
	}
}
