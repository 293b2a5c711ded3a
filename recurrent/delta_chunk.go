package recurrent

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// deltaTile is the memory of an item: a key head of a sequence.
type deltaTile struct {
	*deltaJob
	r          *rowwise.Kernels
	f          *rowwise.Layers[float32]
	kd, vd     int
	s, key     int // the sequence, and the head of keys
	lo, hi     int // its rows
	scale      float32
	gamma      []float32 // Γ, its negative, exp(Γ), exp(Γ_last − Γ), beta
	negative   []float32
	grow, tail []float32
	beta       []float32
	decay      []float32 // D
	p          []float32 // (Q Kᵀ)∘D
	kt         []float32 // rows of keys, scaled
	rest       tiles
}

func (j *deltaJob) tile(buf []float32, item int) deltaTile {
	d := &j.d
	t := deltaTile{deltaJob: j, r: rowwise.Registry.Best(), f: rowwise.F32.Best(), kd: d.KeyDim, vd: d.Dim, s: item / d.KeyHeads, key: item % d.KeyHeads, scale: d.scale(), rest: buf}
	t.lo, t.hi = d.rows(t.s)
	for _, x := range []*[]float32{&t.gamma, &t.negative, &t.grow, &t.tail, &t.beta} {
		*x = t.rest.take(chunkRows)
	}
	t.decay, t.p = t.rest.take(chunkRows*chunkRows), t.rest.take(chunkRows*chunkRows)
	t.kt = t.rest.take(chunkRows * t.kd)
	return t
}

// heads returns the heads that share the item's keys.
func (t *deltaTile) heads() (lo, hi int) {
	n := t.d.Heads / t.d.KeyHeads
	return t.key * n, (t.key + 1) * n
}

// state returns a head's state of the sequence.
func (t *deltaTile) state(v snug.View, head int) []float32 {
	n := t.kd * t.vd
	return floats(v, (t.s*t.d.Heads+head)*n, n)
}

// kept returns a head's state before segment i, which is not the first.
func (t *deltaTile) kept(head, i int) []float32 {
	n := t.kd * t.vd
	return floats(t.states, ((t.d.kept(t.s)+i-1)*t.d.Heads+head)*n, n)
}

// begin sets a head's state to what it is before the sequence.
func (t *deltaTile) begin(state []float32, head int) {
	if from := t.state(t.d.Initial, head); from != nil {
		copy(state, from)
	} else {
		clear(state)
	}
}

// step returns the elements from row to row of q, k or v.
func step(row, width int) int {
	if row != 0 {
		return row
	}
	return width
}

// loadKeys loads rows of q and k, n of them, normalized and scaled, and what the norms divided by.
func (t *deltaTile) loadKeys(q, k, rq, rk []float32, row, n int) {
	d := &t.d
	for i := range n {
		for _, x := range [...]struct {
			to, norm []float32
			from     snug.View
			step     int
			scale    float32
		}{{q, rq, t.q, step(d.QRow, d.KeyHeads*t.kd), t.scale}, {k, rk, t.k, step(d.KRow, d.KeyHeads*t.kd), 1}} {
			to := x.to[i*t.kd:][:t.kd]
			half.Load(to, x.from, (row+i)*x.step+t.key*t.kd)
			r := float32(1)
			if d.Normalize {
				r = 1 / float32(math.Sqrt(float64(t.r.Dot(to, to)+normEps)))
			}
			if r *= x.scale; r != 1 {
				t.r.Scale(to, to, r)
			}
			if x.norm != nil {
				x.norm[i] = r
			}
		}
	}
}

// loadGates loads beta and computes what the decays of a chunk's rows are.
func (t *deltaTile) loadGates(row, n, head int) {
	sum := float32(0)
	for i := range n {
		at := (row+i)*t.d.Heads + head
		half.Load(t.beta[i:i+1], t.deltaJob.beta, at)
		half.Load(t.tail[i:i+1], t.g, at)
		sum += t.tail[i]
		t.gamma[i], t.negative[i] = sum, -sum
	}
	t.r.ExpSum(t.grow[:n], t.gamma[:n], 0)
	t.r.ExpSum(t.tail[:n], t.negative[:n], -sum)
	for i := range n {
		t.r.ExpSum(t.decay[i*chunkRows:][:i+1], t.negative[:i+1], -t.gamma[i])
	}
}

// multiply is c = alpha·a·b + beta·c.
func multiply(m, n, k int, alpha float32, a gemm.Matrix, b gemm.Matrix, beta float32, c gemm.Matrix) {
	gemm.MulSerial(m, n, k, alpha, a, b, beta, c)
}

func matrix(x []float32, cols int) gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(x), Stride: cols}
}

func transposed(x []float32, cols int) gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(x), Stride: cols, Trans: true}
}

// squares computes K Kᵀ and Q Kᵀ of a chunk.
func (t *deltaTile) squares(kk, qk, q, k []float32, n int) {
	multiply(n, n, t.kd, 1, matrix(k, t.kd), transposed(k, t.kd), 0, matrix(kk, chunkRows))
	multiply(n, n, t.kd, 1, matrix(q, t.kd), transposed(k, t.kd), 0, matrix(qk, chunkRows))
}

// corrections computes a = A, e = V − exp(Γ)·(K S) and x = X of a chunk, with its gates loaded.
func (t *deltaTile) corrections(a, e, x, kk, k, state []float32, row, n, head int) {
	multiply(n, t.vd, t.kd, 1, matrix(k, t.kd), matrix(state, t.vd), 0, matrix(e, t.vd))
	for i := range n {
		v, ei := x[i*t.vd:][:t.vd], e[i*t.vd:][:t.vd]
		half.Load(v, t.v, (row+i)*step(t.d.VRow, t.d.Heads*t.vd)+head*t.vd)
		t.r.Axpby(ei, v, 1, -t.grow[i])
		t.r.Scale(v, ei, t.beta[i])
		ai, ki, di := a[i*chunkRows:][:n], kk[i*chunkRows:][:n], t.decay[i*chunkRows:][:n]
		b := t.beta[i]
		for j := range ai[:i] {
			ai[j] = b * ki[j] * di[j]
		}
	}
	t.solve(a, x, n)
}

const solveRows = 16 // rows that substitution takes at a time; what is left and above enters by a product

// solve replaces x by (I + A)⁻¹ x, of which it reads the strictly lower part.
func (t *deltaTile) solve(a, x []float32, n int) {
	for lo := 0; lo < n; lo += solveRows {
		hi := min(lo+solveRows, n)
		if lo > 0 {
			multiply(hi-lo, t.vd, lo, -1, matrix(a[lo*chunkRows:], chunkRows), matrix(x, t.vd), 1, matrix(x[lo*t.vd:], t.vd))
		}
		for i := lo + 1; i < hi; i++ {
			xi := x[i*t.vd:][:t.vd]
			for j := lo; j < i; j++ {
				t.f.AddScaled(xi, x[j*t.vd:][:t.vd], -a[i*chunkRows+j], nil, nil)
			}
		}
	}
}

// solveTransposed replaces x by (I + A)⁻ᵀ x.
func (t *deltaTile) solveTransposed(a, x []float32, n int) {
	for lo := (n - 1) / solveRows * solveRows; lo >= 0; lo -= solveRows {
		hi := min(lo+solveRows, n)
		if hi < n {
			multiply(hi-lo, t.vd, n-hi, -1, transposed(a[hi*chunkRows+lo:], chunkRows), matrix(x[hi*t.vd:], t.vd), 1, matrix(x[lo*t.vd:], t.vd))
		}
		for i := hi - 2; i >= lo; i-- {
			xi := x[i*t.vd:][:t.vd]
			for j := i + 1; j < hi; j++ {
				t.f.AddScaled(xi, x[j*t.vd:][:t.vd], -a[j*chunkRows+i], nil, nil)
			}
		}
	}
}

// scores sets p to (Q Kᵀ)∘D.
func (t *deltaTile) scores(qk []float32, n int) {
	for i := range n {
		pi, qi, di := t.p[i*chunkRows:][:n], qk[i*chunkRows:][:n], t.decay[i*chunkRows:][:n]
		for j := range pi[:i+1] {
			pi[j] = qi[j] * di[j]
		}
		clear(pi[i+1:])
	}
}

// advance moves a state behind a chunk.
func (t *deltaTile) advance(state, k, x []float32, n int) {
	for i := range n {
		t.r.Scale(t.kt[i*t.kd:][:t.kd], k[i*t.kd:][:t.kd], t.tail[i])
	}
	multiply(t.kd, t.vd, n, 1, transposed(t.kt, t.kd), matrix(x, t.vd), t.grow[n-1], matrix(state, t.vd))
}

// recur is a chunk of one row: it moves the state, and sets out to what the row reads.
func (t *deltaTile) recur(out, e, q, k, state []float32, row, head int) {
	half.Load(e, t.v, row*step(t.d.VRow, t.d.Heads*t.vd)+head*t.vd)
	decay := t.grow[0]
	for i, ki := range k[:t.kd] {
		t.f.AddScaled(e, state[i*t.vd:][:t.vd], -decay*ki, nil, nil)
	}
	t.r.Scale(e, e, t.beta[0])
	clear(out)
	for i, ki := range k[:t.kd] {
		si := state[i*t.vd:][:t.vd]
		t.r.Axpby(si, e, ki, decay)
		t.f.AddScaled(out, si, q[i], nil, nil)
	}
}

var deltaForward = cpu.NewTask(func(j *deltaJob, item int) {
	buf := deltaScratch.Get(j.d.scratch(false))
	defer deltaScratch.Put(buf)
	t := j.tile(*buf, item)
	d, square := &t.d, chunkRows*chunkRows
	q, k := t.rest.take(chunkRows*t.kd), t.rest.take(chunkRows*t.kd)
	kk, a := t.rest.take(square), t.rest.take(square)
	e, x := t.rest.take(chunkRows*t.vd), t.rest.take(chunkRows*t.vd)
	state := t.rest.take(t.kd * t.vd)
	first, last := t.heads()
	for head := first; head < last; head++ {
		t.begin(state, head)
		for row := t.lo; row < t.hi; row += chunkRows {
			if n := row - t.lo; n > 0 && n%SegmentRows == 0 {
				copy(t.kept(head, n/SegmentRows), state)
			}
			n := min(chunkRows, t.hi-row)
			t.loadKeys(q, k, nil, nil, row, n)
			t.loadGates(row, n, head)
			if n == 1 {
				t.recur(x[:t.vd], e[:t.vd], q, k, state, row, head)
				half.Store(j.out, row*d.Heads*t.vd+head*t.vd, x[:t.vd])
				continue
			}
			t.squares(kk, t.p, q, k, n)
			t.corrections(a, e, x, kk, k, state, row, n, head)
			t.scores(t.p, n)
			out := e
			multiply(n, t.vd, t.kd, 1, matrix(q, t.kd), matrix(state, t.vd), 0, matrix(out, t.vd))
			for i := range n {
				t.r.Scale(out[i*t.vd:][:t.vd], out[i*t.vd:][:t.vd], t.grow[i])
			}
			multiply(n, t.vd, n, 1, matrix(t.p, chunkRows), matrix(x, t.vd), 1, matrix(out, t.vd))
			for i := range n {
				half.Store(j.out, ((row+i)*d.Heads+head)*t.vd, out[i*t.vd:][:t.vd])
			}
			t.advance(state, k, x, n)
		}
		copy(t.state(d.Final, head), state)
	}
})
