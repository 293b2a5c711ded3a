package recurrent

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// ssdTile is the memory of an item: a group of a sequence, with some of its heads.
type ssdTile struct {
	*ssdJob
	r        *rowwise.Kernels
	f        *rowwise.Layers[float32]
	n, p     int // StateDim and Dim
	s, group int // the sequence, and the group of B and C
	lo, hi   int // its rows
	a, skip  float32
	bias     float32
	exp      []float32 // exp(dt + bias)
	delta    []float32 // Δ
	decay    []float32 // exp(a)
	grow     []float32 // exp(Γ)
	tail     []float32 // exp(Γ_last − Γ)
	sums     []float32
	l        []float32 // L
	scores   []float32 // (C Bᵀ)∘L
	bt       []float32 // rows of B, scaled
	x, xd, y []float32 // rows of x, of Δ·x, and of y or its gradient
	rest     tiles
}

func (j *ssdJob) tile(buf []float32, s, group int) ssdTile {
	d := &j.d
	t := ssdTile{ssdJob: j, r: rowwise.Registry.Best(), f: rowwise.F32.Best(), n: d.StateDim, p: d.Dim, s: s, group: group, rest: buf}
	t.lo, t.hi = d.rows(s)
	for _, x := range []*[]float32{&t.exp, &t.delta, &t.decay, &t.grow, &t.tail, &t.sums} {
		*x = t.rest.take(chunkRows)
	}
	t.l, t.scores = t.rest.take(chunkRows*chunkRows), t.rest.take(chunkRows*chunkRows)
	t.bt = t.rest.take(chunkRows * t.n)
	t.x, t.xd, t.y = t.rest.take(chunkRows*t.p), t.rest.take(chunkRows*t.p), t.rest.take(chunkRows*t.p)
	return t
}

// state returns a head's state of the sequence.
func (t *ssdTile) state(v snug.View, head int) []float32 {
	n := t.n * t.p
	return floats(v, (t.s*t.d.Heads+head)*n, n)
}

// kept returns a head's state before segment i, which is not the first, in what has one for each.
func (t *ssdTile) kept(v snug.View, head, i int) []float32 {
	n := t.n * t.p
	return floats(v, ((t.d.kept(t.s)+i-1)*t.d.Heads+head)*n, n)
}

// begin sets a head's state to that of a View, or to 0.
func (t *ssdTile) begin(state []float32, v snug.View, head int) {
	if from := t.state(v, head); from != nil {
		copy(state, from)
	} else {
		clear(state)
	}
}

// loadHead loads the numbers of a head.
func (t *ssdTile) loadHead(head int) {
	load := func(v snug.View) float32 {
		if v.Len() == 0 {
			return 0
		}
		half.Load(t.sums[:1], v, head)
		return t.sums[0]
	}
	t.a, t.skip, t.bias = -float32(min(math.Exp(float64(load(t.aLog))), 1e30)), load(t.ssdJob.skip), load(t.ssdJob.bias)
}

// loadGroup loads n rows of B or C.
func (t *ssdTile) loadGroup(to []float32, from snug.View, width, row, n int) {
	for i := range n {
		half.Load(to[i*t.n:][:t.n], from, (row+i)*step(width, t.d.Groups*t.n)+t.group*t.n)
	}
}

// loadHeadRows loads n rows of a head of x or of dy.
func (t *ssdTile) loadHeadRows(to []float32, from snug.View, width, row, n, head int) {
	for i := range n {
		half.Load(to[i*t.p:][:t.p], from, (row+i)*step(width, t.d.Heads*t.p)+head*t.p)
	}
}

// factor returns the factor of dt.
func (d *SSD) factor() float32 {
	if d.Factor == 0 {
		return 1
	}
	return d.Factor
}

// small is the least decay that is not counted as 0: below it products are subnormal soon, with which processors are slow.
const small = 1e-30

// loadSteps computes Δ and the decays of a chunk's n rows.
func (t *ssdTile) loadSteps(row, n, head int) {
	d := &t.d
	for i := range n {
		half.Load(t.sums[i:i+1], t.dt, (row+i)*step(d.DtRow, d.Heads)+head)
		t.sums[i] = float32(t.sums[i]*d.factor()) + t.bias
	}
	t.r.ExpSum(t.exp[:n], t.sums[:n], 0)
	sum := 0.0
	for i, z := range t.sums[:n] {
		delta := z
		if z <= 20 {
			delta = float32(math.Log1p(float64(t.exp[i])))
		}
		if delta = max(delta, d.Min); d.Max > 0 {
			delta = min(delta, d.Max)
		}
		t.delta[i] = delta
		a := float64(t.a) * float64(delta)
		sum += a
		t.decay[i], t.grow[i] = float32(a), float32(sum)
	}
	// exp(Γ_last − Γ), whose exponents are summed from the last row on, so that none is a difference of large numbers
	sum = 0
	for i := n - 1; i >= 0; i-- {
		t.tail[i] = float32(sum)
		sum += float64(t.a) * float64(t.delta[i])
	}
	for _, x := range [...][]float32{t.decay[:n], t.grow[:n], t.tail[:n]} {
		t.r.ExpSum(x, x, 0)
		for i, v := range x {
			if v < small {
				x[i] = 0
			}
		}
	}
}

// decays computes L of n rows, each from the one above.
func (t *ssdTile) decays(n int) {
	lo := 0 // columns before it have decayed
	for i := range n {
		row := t.l[i*chunkRows:][:chunkRows]
		if i > 0 {
			above := t.l[(i-1)*chunkRows:]
			t.r.Scale(row[lo:i], above[lo:i], t.decay[i])
			for lo < i && row[lo] < small {
				row[lo] = 0
				lo++
			}
			clear(row[:lo])
		}
		row[i] = 1
		clear(row[i+1:])
	}
}

// inputs loads x and computes Δ·x of n rows of a head.
func (t *ssdTile) inputs(row, n, head int) {
	t.loadHeadRows(t.x, t.ssdJob.x, t.d.XRow, row, n, head)
	for i := range n {
		t.r.Scale(t.xd[i*t.p:][:t.p], t.x[i*t.p:][:t.p], t.delta[i])
	}
}

// product sets scores to (C Bᵀ)∘L.
func (t *ssdTile) product(cb []float32, n int) {
	zero := t.sums[:n]
	clear(zero)
	for i := range n {
		t.r.ColumnAffine(t.scores[i*chunkRows:][:n], cb[i*chunkRows:][:n], zero, t.l[i*chunkRows:][:n], zero, false)
	}
}

// advance moves a state behind a chunk.
func (t *ssdTile) advance(state, b []float32, n int) {
	for i := range n {
		t.r.Scale(t.bt[i*t.n:][:t.n], b[i*t.n:][:t.n], t.tail[i])
	}
	multiply(t.n, t.p, n, 1, transposed(t.bt, t.n), matrix(t.xd, t.p), t.grow[n-1], matrix(state, t.p))
}

// recur is a chunk of one row: it moves the state, and sets y to what the row reads.
func (t *ssdTile) recur(y, b, c, state []float32) {
	clear(y)
	for i, bi := range b[:t.n] {
		si := state[i*t.p:][:t.p]
		t.r.Axpby(si, t.xd[:t.p], bi, t.grow[0])
		t.f.AddScaled(y, si, c[i], nil, nil)
	}
}

// item returns the sequence, the group and the heads of an item of the forward pass.
func (d *SSD) item(item int) (s, group, first, last int) {
	blocks, heads := d.blocks(), d.Heads/d.Groups
	s, group = item/blocks/d.Groups, item/blocks%d.Groups
	lo, hi := cpu.Chunk(heads, ssdHeads, item%blocks)
	return s, group, group*heads + lo, group*heads + hi
}

var ssdForward = cpu.NewTask(func(j *ssdJob, item int) {
	buf := ssdScratch.Get(j.d.scratch(false))
	defer ssdScratch.Put(buf)
	s, group, first, last := j.d.item(item)
	t := j.tile(*buf, s, group)
	d, size := &t.d, t.n*t.p
	b, c, cb := t.rest.take(chunkRows*t.n), t.rest.take(chunkRows*t.n), t.rest.take(chunkRows*chunkRows)
	states := t.rest.take((last - first) * size)
	for head := first; head < last; head++ {
		t.begin(states[(head-first)*size:][:size], d.Initial, head)
	}
	for row := t.lo; row < t.hi; row += chunkRows {
		n := min(chunkRows, t.hi-row)
		t.loadGroup(b, j.b, d.BRow, row, n)
		t.loadGroup(c, j.c, d.CRow, row, n)
		if n > 1 {
			multiply(n, n, t.n, 1, matrix(c, t.n), transposed(b, t.n), 0, matrix(cb, chunkRows))
		}
		for head := first; head < last; head++ {
			state := states[(head-first)*size:][:size]
			if at := row - t.lo; at > 0 && at%SegmentRows == 0 {
				copy(t.kept(j.states, head, at/SegmentRows), state)
			}
			t.loadHead(head)
			t.loadSteps(row, n, head)
			t.inputs(row, n, head)
			if n == 1 {
				t.recur(t.y[:t.p], b, c, state)
			} else {
				t.decays(n)
				t.product(cb, n)
				multiply(n, t.p, t.n, 1, matrix(c, t.n), matrix(state, t.p), 0, matrix(t.y, t.p))
				for i := range n {
					t.r.Scale(t.y[i*t.p:][:t.p], t.y[i*t.p:][:t.p], t.grow[i])
				}
				multiply(n, t.p, n, 1, matrix(t.scores, chunkRows), matrix(t.xd, t.p), 1, matrix(t.y, t.p))
				t.advance(state, b, n)
			}
			for i := range n {
				y := t.y[i*t.p:][:t.p]
				t.f.AddScaled(y, t.x[i*t.p:][:t.p], t.skip, nil, nil)
				half.Store(j.y, ((row+i)*d.Heads+head)*t.p, y)
			}
		}
	}
	for head := first; head < last; head++ {
		copy(t.state(d.Final, head), states[(head-first)*size:][:size])
	}
})
