package recurrent

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// The backward step walks over segments from the last to the first, and in each over its heads. It computes the states before the segment's
// chunks, with their A, E = V − exp(Γ)·(K S) and X, again from the state that is kept, and then walks over the chunks from the last to the
// first. With dS the gradient of the state behind a chunk and P = (Q Kᵀ)∘D,
//
//	dX = Pᵀ dO + exp(Γ_last − Γ)·(K dS)
//	dR = (I + A)⁻ᵀ dX               R = β·E
//	dV = β·dR,  dβ = Σ dR·E
//	dP = dO Xᵀ,  dA = −dR Xᵀ
//	dQ = (dP∘D) K + exp(Γ)·dO Sᵀ
//	dK = (dP∘D)ᵀ Q + (M + Mᵀ) K + exp(Γ_last − Γ)·X dSᵀ − (β·exp(Γ)·dR) Sᵀ     M = β·dA∘D
//	dS ← exp(Γ_last)·dS + Qᵀ(exp(Γ)·dO) − Kᵀ(β·exp(Γ)·dR)
//
// and dΓ is what each product with an exponential gives, times its sign.
type deltaSegment struct {
	deltaTile
	q, k, dq, dk []float32 // [SegmentRows, KeyDim]
	rq, rk       []float32 // factors of q and k
	kk, qk, a    []float32 // [segment, chunkRows, chunkRows]
	e, x         []float32 // [SegmentRows, Dim]
	states       []float32 // [segment + 1, KeyDim, Dim]: before each chunk
	ds           []float32 // [heads that share the keys, KeyDim, Dim]
	do, dr, z    []float32 // [chunkRows, Dim]
	y            []float32 // [chunkRows, KeyDim]
	n, m, dot    []float32 // [chunkRows, chunkRows]
	dgamma       []float32
	dbeta        []float32
}

func newSegment(j *deltaJob, buf []float32, item int) deltaSegment {
	g := deltaSegment{deltaTile: j.tile(buf, item)}
	t := &g.deltaTile
	rows := cpu.Chunks(t.d.longest(SegmentRows), chunkRows) * chunkRows
	first, last := t.heads()
	size := t.kd * t.vd
	for _, b := range [...]struct {
		x *[]float32
		n int
	}{{&g.q, rows * t.kd}, {&g.k, rows * t.kd}, {&g.dq, rows * t.kd}, {&g.dk, rows * t.kd}, {&g.rq, rows}, {&g.rk, rows},
		{&g.kk, rows * chunkRows}, {&g.qk, rows * chunkRows}, {&g.a, rows * chunkRows}, {&g.e, rows * t.vd}, {&g.x, rows * t.vd},
		{&g.states, (rows/chunkRows + 1) * t.kd * t.vd}, {&g.do, chunkRows * t.vd}, {&g.dr, chunkRows * t.vd}, {&g.z, chunkRows * t.vd},
		{&g.y, chunkRows * t.kd}, {&g.n, chunkRows * chunkRows}, {&g.m, chunkRows * chunkRows}, {&g.dot, chunkRows * chunkRows},
		{&g.dgamma, chunkRows}, {&g.dbeta, chunkRows}, {&g.ds, (last - first) * size}} {
		*b.x = t.rest.take(b.n)
	}
	for head := first; head < last; head++ {
		ds := g.ds[(head-first)*size:][:size]
		if from := t.state(t.d.GradFinal, head); from != nil {
			copy(ds, from)
		} else {
			clear(ds)
		}
	}
	return g
}

var deltaBackward = cpu.NewTask(func(j *deltaJob, item int) {
	buf := deltaScratch.Get(j.d.scratch(true))
	defer deltaScratch.Put(buf)
	t := newSegment(j, *buf, item)
	first, last := t.heads()
	size := t.kd * t.vd
	for i := (t.hi - t.lo - 1) / SegmentRows; i >= 0; i-- {
		lo, hi := t.lo+i*SegmentRows, min(t.hi, t.lo+(i+1)*SegmentRows)
		t.loadKeys(t.q, t.k, t.rq, t.rk, lo, hi-lo)
		clear(t.dq)
		clear(t.dk)
		for c := range cpu.Chunks(hi-lo, chunkRows) {
			n, keys, square := min(chunkRows, hi-lo-c*chunkRows), c*chunkRows*t.kd, c*chunkRows*chunkRows
			t.squares(t.kk[square:], t.qk[square:], t.q[keys:], t.k[keys:], n)
		}
		for head := first; head < last; head++ {
			t.again(i, lo, hi, head)
			for c := cpu.Chunks(hi-lo, chunkRows) - 1; c >= 0; c-- {
				t.chunk(c, lo+c*chunkRows, min(chunkRows, hi-lo-c*chunkRows), head, t.ds[(head-first)*size:][:size])
			}
		}
		t.leave(lo, hi-lo)
	}
	for head := first; head < last; head++ {
		copy(t.state(t.d.GradInitial, head), t.ds[(head-first)*size:][:size])
	}
})

// again computes what the forward pass had in the chunks of segment i, rows lo to hi-1.
func (t *deltaSegment) again(i, lo, hi, head int) {
	size := t.kd * t.vd
	if state := t.states[:size]; i == 0 {
		t.begin(state, head)
	} else {
		copy(state, t.kept(head, i))
	}
	for c := range cpu.Chunks(hi-lo, chunkRows) {
		row, n := lo+c*chunkRows, min(chunkRows, hi-lo-c*chunkRows)
		keys, values, square := c*chunkRows*t.kd, c*chunkRows*t.vd, c*chunkRows*chunkRows
		state := t.states[c*size:][:size]
		t.loadGates(row, n, head)
		t.corrections(t.a[square:], t.e[values:], t.x[values:], t.kk[square:], t.k[keys:], state, row, n, head)
		if row+n < hi {
			next := t.states[(c+1)*size:][:size]
			copy(next, state)
			t.advance(next, t.k[keys:], t.x[values:], n)
		}
	}
}

// chunk is the backward step of chunk c of the segment, n rows from row on, and turns ds into the gradient of the state before it.
func (t *deltaSegment) chunk(c, row, n, head int, ds []float32) {
	kd, vd := t.kd, t.vd
	size, keys, values, square := kd*vd, c*chunkRows*kd, c*chunkRows*vd, c*chunkRows*chunkRows
	q, k, dq, dk := t.q[keys:], t.k[keys:], t.dq[keys:], t.dk[keys:]
	kk, qk, a, e, x := t.kk[square:], t.qk[square:], t.a[square:], t.e[values:], t.x[values:]
	state := t.states[c*size:][:size]
	t.loadGates(row, n, head)
	t.scores(qk, n)
	clear(t.dgamma)
	for i := range n {
		half.Load(t.do[i*vd:][:vd], t.out, ((row+i)*t.d.Heads+head)*vd)
	}
	last := &t.dgamma[n-1]

	// dX, from the state behind the chunk and from the rows
	*last += t.grow[n-1] * t.r.Dot(ds, state)
	multiply(n, vd, kd, 1, matrix(k, kd), matrix(ds, vd), 0, matrix(t.dr, vd))
	multiply(n, kd, vd, 1, matrix(x, vd), transposed(ds, vd), 0, matrix(t.y, kd))
	for i := range n {
		y := t.y[i*kd:][:kd]
		s := t.tail[i] * t.r.Dot(y, k[i*kd:][:kd])
		t.dgamma[i] -= s
		*last += s
		t.f.AddScaled(dk[i*kd:][:kd], y, t.tail[i], nil, nil)
		t.r.Scale(t.dr[i*vd:][:vd], t.dr[i*vd:][:vd], t.tail[i])
	}
	multiply(n, vd, n, 1, transposed(t.p, chunkRows), matrix(t.do, vd), 1, matrix(t.dr, vd))
	multiply(n, n, vd, 1, matrix(t.do, vd), transposed(x, vd), 0, matrix(t.n, chunkRows))

	t.solveTransposed(a, t.dr, n)
	multiply(n, n, vd, -1, matrix(t.dr, vd), transposed(x, vd), 0, matrix(t.dot, chunkRows))
	t.pairs(kk, qk, n)
	multiply(n, kd, n, 1, matrix(t.n, chunkRows), matrix(k, kd), 1, matrix(dq, kd))
	multiply(n, kd, n, 1, transposed(t.n, chunkRows), matrix(q, kd), 1, matrix(dk, kd))
	multiply(n, kd, n, 1, matrix(t.m, chunkRows), matrix(k, kd), 1, matrix(dk, kd))

	for i := range n {
		dr, do := t.dr[i*vd:][:vd], t.do[i*vd:][:vd]
		t.dbeta[i] += t.r.Dot(dr, e[i*vd:][:vd])
		t.r.Scale(t.z[i*vd:][:vd], dr, t.beta[i])
		half.Store(t.dv, (row+i)*step(t.d.VRow, t.d.Heads*vd)+head*vd, t.z[i*vd:][:vd])
		t.r.Scale(t.z[i*vd:][:vd], t.z[i*vd:][:vd], -t.grow[i])
		t.r.Scale(do, do, t.grow[i])
	}
	t.reads(dk, k, t.z, state, n)
	t.reads(dq, q, t.do, state, n)
	multiply(kd, vd, n, 1, transposed(k, kd), matrix(t.z, vd), t.grow[n-1], matrix(ds, vd))
	multiply(kd, vd, n, 1, transposed(q, kd), matrix(t.do, vd), 1, matrix(ds, vd))

	sum := float32(0)
	for i := n - 1; i >= 0; i-- {
		sum += t.dgamma[i]
		at := (row+i)*t.d.Heads + head
		floats(t.dg, at, 1)[0], floats(t.deltaJob.dbeta, at, 1)[0] = sum, t.dbeta[i]
	}
}

// reads adds to dx the gradient of the rows x that read a state, from the gradient of exp(Γ)·(x S), times exp(Γ).
func (t *deltaSegment) reads(dx, x, dy, state []float32, n int) {
	multiply(n, t.kd, t.vd, 1, matrix(dy, t.vd), transposed(state, t.vd), 0, matrix(t.y, t.kd))
	for i := range n {
		y := t.y[i*t.kd:][:t.kd]
		t.dgamma[i] += t.r.Dot(y, x[i*t.kd:][:t.kd])
		t.f.Add(dx[i*t.kd:][:t.kd], dx[i*t.kd:][:t.kd], y, false)
	}
}

// pairs replaces n = dP by dP∘D, sets m to M + Mᵀ from dot = dA, and adds what both give to the gradients of Γ and β.
func (t *deltaSegment) pairs(kk, qk []float32, n int) {
	for i := range n {
		at := i * chunkRows
		di, ni, ai, ki, qi, mi := t.decay[at:][:n], t.n[at:][:n], t.dot[at:][:n], kk[at:][:n], qk[at:][:n], t.m[at:][:n]
		beta, gamma, sum := t.beta[i], float32(0), float32(0)
		for j := range di[:i] {
			p, m := ni[j]*di[j], ai[j]*di[j]
			ni[j] = p
			grad := m * ki[j]
			sum += grad
			m *= beta
			mi[j], t.m[j*chunkRows+i] = m, m
			w := p*qi[j] + beta*grad
			gamma += w
			t.dgamma[j] -= w
		}
		mi[i] = 0
		ni[i] *= di[i]
		clear(ni[i+1:])
		t.dgamma[i] += gamma
		t.dbeta[i] = sum
	}
}

// leave writes the gradients of q and k of rows of the segment.
func (t *deltaSegment) leave(row, n int) {
	d := &t.d
	for i := range n {
		for _, x := range [...]struct {
			grad, x []float32
			r       float32
			to      snug.View
			step    int
			scale   float32
		}{{t.dq, t.q, t.rq[i], t.deltaJob.dq, step(d.QRow, d.KeyHeads*t.kd), t.scale}, {t.dk, t.k, t.rk[i], t.deltaJob.dk, step(d.KRow, d.KeyHeads*t.kd), 1}} {
			grad, y := x.grad[i*t.kd:][:t.kd], x.x[i*t.kd:][:t.kd]
			if d.Normalize { // y = r·x, and r = scale/√(Σx² + ε)
				t.f.AddScaled(grad, y, -t.r.Dot(grad, y)/(x.scale*x.scale), nil, nil)
			}
			if x.r != 1 {
				t.r.Scale(grad, grad, x.r)
			}
			half.Store(x.to, (row+i)*x.step+t.key*t.kd, grad)
		}
	}
}
