package recurrent

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// The backward step has two parts. The first walks along each head from a sequence's last chunk to its first, and keeps dS, the gradient of the state,
// in the workspace before every segment but the first:
//
//	dS ← exp(Γ_last)·dS + Cᵀ(exp(Γ)·dY)
//
// With both states of a segment known, all segments are independent. The second part computes in each, for the heads of a group, the states
// before the chunks again, and then walks over the chunks from the last to the first. With P = (C Bᵀ)∘L and dS of the state behind a chunk,
//
//	dX = Pᵀ dY + exp(Γ_last − Γ)·(B dS)
//	dM = Σ_heads (dY Xᵀ)∘L
//	dC = dM B + Σ_heads exp(Γ)·dY Sᵀ
//	dB = dMᵀ C + Σ_heads exp(Γ_last − Γ)·X dSᵀ
//	dx = Δ·dX + D·dY,  dΔ = Σ dX·x − exp(A_log)·da,  dA_log = Σ a·da,  dD = Σ dY·x
//
// where da is the sum of dΓ from a row on, and dΓ is what each product with an exponential gives, times its sign.
type ssdSegment struct {
	ssdTile
	row, end       int       // its rows
	b, c, db, dc   []float32 // [SegmentRows, StateDim]
	cb, dm         []float32 // [segment, chunkRows, chunkRows]
	states         []float32 // [segment, StateDim, Dim]: before each chunk
	ds             []float32 // [StateDim, Dim]
	yn             []float32 // [chunkRows, StateDim]
	dx             []float32 // [chunkRows, Dim]
	m              []float32 // [chunkRows, chunkRows]
	dgamma, ddelta []float32
}

var ssdStates = cpu.NewTask(func(j *ssdJob, item int) {
	buf := ssdScratch.Get(j.d.scratch(true))
	defer ssdScratch.Put(buf)
	s, group, first, last := j.d.item(item)
	t := j.tile(*buf, s, group)
	d, size := &t.d, t.n*t.p
	c, states := t.rest.take(chunkRows*t.n), t.rest.take((last-first)*size)
	for head := first; head < last; head++ {
		t.begin(states[(head-first)*size:][:size], d.GradFinal, head)
	}
	for chunk := (t.hi - t.lo - 1) / chunkRows; chunk >= 0; chunk-- {
		if chunk < segment && d.GradInitial.Len() == 0 {
			break
		}
		row := t.lo + chunk*chunkRows
		n := min(chunkRows, t.hi-row)
		t.loadGroup(c, j.c, d.CRow, row, n)
		for head := first; head < last; head++ {
			ds := states[(head-first)*size:][:size]
			t.loadHead(head)
			t.loadSteps(row, n, head)
			t.retreat(ds, c, row, n, head)
			if chunk > 0 && chunk%segment == 0 {
				copy(t.kept(j.ws, head, chunk/segment), ds)
			}
		}
	}
	for head := first; head < last; head++ {
		copy(t.state(d.GradInitial, head), states[(head-first)*size:][:size])
	}
})

// retreat moves the gradient of a state before a chunk, and leaves exp(Γ)·dY in y.
func (t *ssdTile) retreat(ds, c []float32, row, n, head int) {
	t.loadHeadRows(t.y, t.ssdJob.y, 0, row, n, head)
	for i := range n {
		t.r.Scale(t.y[i*t.p:][:t.p], t.y[i*t.p:][:t.p], t.grow[i])
	}
	multiply(t.n, t.p, n, 1, transposed(c, t.n), matrix(t.y, t.p), t.grow[n-1], matrix(ds, t.p))
}

// segment returns the sequence of a segment of the batch, and its number there.
func (d *SSD) segment(at int) (s, i int) {
	if d.Starts == nil {
		n := d.segments(1)
		return at / n, at % n
	}
	for {
		lo, hi := d.rows(s)
		if n := (hi-lo-1)/SegmentRows + 1; at >= n {
			at, s = at-n, s+1
			continue
		}
		return s, at
	}
}

// sums returns the gradients of A_log, of D and of the bias of a head that a segment of the batch gives.
func (j *ssdJob) sums(at, head int) []float32 {
	d := &j.d
	return floats(j.ws, d.kept(d.count())*d.Heads*d.stateLen()+(at*d.Heads+head)*3, 3)
}

var ssdBackward = cpu.NewTask(func(j *ssdJob, item int) {
	buf := ssdScratch.Get(j.d.scratch(true))
	defer ssdScratch.Put(buf)
	at, group := item/j.d.Groups, item%j.d.Groups
	s, number := j.d.segment(at)
	t := ssdSegment{ssdTile: j.tile(*buf, s, group)}
	d := &t.d
	t.row, t.end = t.lo+number*SegmentRows, min(t.hi, t.lo+(number+1)*SegmentRows)
	chunks := cpu.Chunks(t.end-t.row, chunkRows)
	rows := chunks * chunkRows
	for _, x := range [...]struct {
		x *[]float32
		n int
	}{{&t.b, rows * t.n}, {&t.c, rows * t.n}, {&t.db, rows * t.n}, {&t.dc, rows * t.n}, {&t.cb, rows * chunkRows}, {&t.dm, rows * chunkRows},
		{&t.states, chunks * t.n * t.p}, {&t.ds, t.n * t.p}, {&t.yn, chunkRows * t.n}, {&t.dx, chunkRows * t.p},
		{&t.m, chunkRows * chunkRows}, {&t.dgamma, chunkRows}, {&t.ddelta, chunkRows}} {
		*x.x = t.rest.take(x.n)
	}
	t.loadGroup(t.b, j.b, d.BRow, t.row, t.end-t.row)
	t.loadGroup(t.c, j.c, d.CRow, t.row, t.end-t.row)
	clear(t.db)
	clear(t.dc)
	clear(t.dm)
	for k := range chunks {
		n, keys := min(chunkRows, t.end-t.row-k*chunkRows), k*chunkRows*t.n
		multiply(n, n, t.n, 1, matrix(t.c[keys:], t.n), transposed(t.b[keys:], t.n), 0, matrix(t.cb[k*chunkRows*chunkRows:], chunkRows))
	}
	heads := d.Heads / d.Groups
	for head := group * heads; head < (group+1)*heads; head++ {
		t.loadHead(head)
		t.again(number, head)
		if t.end < t.hi {
			copy(t.ds, t.kept(j.ws, head, number+1))
		} else {
			t.begin(t.ds, d.GradFinal, head)
		}
		sums := j.sums(at, head)
		clear(sums)
		for k := chunks - 1; k >= 0; k-- {
			t.chunk(k, head, sums)
		}
	}
	for k := range chunks {
		n, keys := min(chunkRows, t.end-t.row-k*chunkRows), k*chunkRows*t.n
		dm := t.dm[k*chunkRows*chunkRows:]
		multiply(n, t.n, n, 1, matrix(dm, chunkRows), matrix(t.b[keys:], t.n), 1, matrix(t.dc[keys:], t.n))
		multiply(n, t.n, n, 1, transposed(dm, chunkRows), matrix(t.c[keys:], t.n), 1, matrix(t.db[keys:], t.n))
	}
	for i := range t.end - t.row {
		at := group * t.n
		half.Store(j.g.B, (t.row+i)*step(d.BRow, d.Groups*t.n)+at, t.db[i*t.n:][:t.n])
		half.Store(j.g.C, (t.row+i)*step(d.CRow, d.Groups*t.n)+at, t.dc[i*t.n:][:t.n])
	}
})

// again computes the states before the chunks of a segment.
func (t *ssdSegment) again(number, head int) {
	size := t.n * t.p
	if number == 0 {
		t.begin(t.states[:size], t.d.Initial, head)
	} else {
		copy(t.states[:size], t.kept(t.ssdJob.states, head, number))
	}
	for k := 1; k < cpu.Chunks(t.end-t.row, chunkRows); k++ {
		row, next := t.row+(k-1)*chunkRows, t.states[k*size:][:size]
		copy(next, t.states[(k-1)*size:][:size])
		t.loadSteps(row, chunkRows, head)
		t.inputs(row, chunkRows, head)
		t.advance(next, t.b[(k-1)*chunkRows*t.n:], chunkRows)
	}
}

// chunk is the backward step of chunk k of the segment, and turns ds into the gradient of the state before it.
func (t *ssdSegment) chunk(k, head int, sums []float32) {
	row, keys, square := t.row+k*chunkRows, k*chunkRows*t.n, k*chunkRows*chunkRows
	rows := min(chunkRows, t.end-row)
	state, b, c := t.states[k*t.n*t.p:][:t.n*t.p], t.b[keys:], t.c[keys:]
	t.loadSteps(row, rows, head)
	t.inputs(row, rows, head)
	t.decays(rows)
	t.product(t.cb[square:], rows)
	t.loadHeadRows(t.y, t.ssdJob.y, 0, row, rows, head)
	clear(t.dgamma)
	last := &t.dgamma[rows-1]

	*last += t.grow[rows-1] * t.r.Dot(t.ds, state)
	multiply(rows, t.p, t.n, 1, matrix(b, t.n), matrix(t.ds, t.p), 0, matrix(t.dx, t.p))
	for i := range rows {
		t.r.Scale(t.dx[i*t.p:][:t.p], t.dx[i*t.p:][:t.p], t.tail[i])
	}
	multiply(rows, t.p, rows, 1, transposed(t.scores, chunkRows), matrix(t.y, t.p), 1, matrix(t.dx, t.p))
	multiply(rows, t.n, t.p, 1, matrix(t.xd, t.p), transposed(t.ds, t.p), 0, matrix(t.yn, t.n))
	for i := range rows {
		y := t.yn[i*t.n:][:t.n]
		if i < rows-1 { // the last row has no decay behind it
			s := t.tail[i] * t.r.Dot(y, b[i*t.n:][:t.n])
			t.dgamma[i] -= s
			*last += s
		}
		t.f.AddScaled(t.db[keys+i*t.n:][:t.n], y, t.tail[i], nil, nil)
	}
	multiply(rows, rows, t.p, 1, matrix(t.y, t.p), transposed(t.xd, t.p), 0, matrix(t.m, chunkRows))
	t.pairs(t.dm[square:], rows)

	skip := float32(0)
	for i := range rows {
		dx, dy, x := t.dx[i*t.p:][:t.p], t.y[i*t.p:][:t.p], t.x[i*t.p:][:t.p]
		t.ddelta[i] = t.r.Dot(dx, x)
		t.r.Scale(dx, dx, t.delta[i])
		if t.ssdJob.skip.Len() > 0 {
			skip += t.r.Dot(dy, x)
			t.f.AddScaled(dx, dy, t.skip, nil, nil)
		}
		half.Store(t.g.X, (row+i)*step(t.d.XRow, t.d.Heads*t.p)+head*t.p, dx)
		t.r.Scale(dy, dy, t.grow[i])
	}
	sums[1] += skip
	multiply(rows, t.n, t.p, 1, matrix(t.y, t.p), transposed(state, t.p), 0, matrix(t.yn, t.n))
	for i := range rows {
		y := t.yn[i*t.n:][:t.n]
		t.dgamma[i] += t.r.Dot(y, c[i*t.n:][:t.n])
		t.f.Add(t.dc[keys+i*t.n:][:t.n], t.dc[keys+i*t.n:][:t.n], y, false)
	}
	multiply(t.n, t.p, rows, 1, transposed(c, t.n), matrix(t.y, t.p), t.grow[rows-1], matrix(t.ds, t.p))
	t.leaveSteps(row, rows, head, sums)
}

// pairs adds (dY Xᵀ)∘L to dm, of which m has the product, and what it gives to the gradients of Γ.
func (t *ssdSegment) pairs(dm []float32, n int) {
	for i := range n {
		at := i * chunkRows
		mi, li, pi, di := t.m[at:][:i], t.l[at:][:i], t.scores[at:][:i], dm[at:][:i]
		sum, dgamma := float32(0), t.dgamma[:i]
		for j, m := range mi {
			di[j] += m * li[j]
			w := m * pi[j]
			sum += w
			dgamma[j] -= w
		}
		dm[at+i] += t.m[at+i] // a row with itself has no decay
		t.dgamma[i] += sum
	}
}

// leaveSteps writes the gradients of dt, and adds to those of A_log and of the bias.
func (t *ssdSegment) leaveSteps(row, n, head int, sums []float32) {
	d, da := &t.d, float32(0)
	a, bias := float32(0), float32(0)
	for i := n - 1; i >= 0; i-- {
		da += t.dgamma[i]
		a += t.a * t.delta[i] * da
		grad := t.ddelta[i] + t.a*da
		// Δ is softplus(z), whose derivative is 1 − exp(−softplus(z)), unless a limit holds
		slope, u := float32(1), t.exp[i]
		if u <= math.MaxFloat32 {
			slope = u / (1 + u)
		}
		if soft := float32(math.Log1p(float64(u))); soft < d.Min || d.Max > 0 && soft > d.Max {
			slope = 0
		}
		grad *= slope
		bias += grad
		t.sums[0] = grad * d.factor()
		half.Store(t.g.Dt, (row+i)*step(d.DtRow, d.Heads)+head, t.sums[:1])
	}
	sums[0] += a
	sums[2] += bias
}

// enter adds the gradients that the segments gave to the accumulators.
func (j *ssdJob) enter() {
	d := &j.d
	for k, to := range [...][]float32{floats(j.g.ALog, 0, j.g.ALog.Len()), floats(j.g.Skip, 0, j.g.Skip.Len()), floats(j.g.Bias, 0, j.g.Bias.Len())} {
		for head := range to {
			sum := float32(0)
			for at := range d.segments(d.count()) {
				sum += j.sums(at, head)[k]
			}
			to[head] = enter(j.g.Into, to[head], sum)
		}
	}
}
