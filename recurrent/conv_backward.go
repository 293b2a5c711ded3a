package recurrent

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// The backward step walks over the tiles of a sequence from the last to the first. With dz_t the gradient of z_t,
//
//	dw_j  = Σ_t dz_t·u_(t−Taps+1+j)
//	dbias = Σ_t dz_t
//	du_t  = Σ_j w_j·dz_(t+Taps−1−j) + the gradient of Final where it is u_t
//
// so that a tile needs the dz of the Taps−1 rows behind it, which the tile before has left.
var convBackward = cpu.NewTask(func(j *convJob, item int) {
	buf := convScratch.Get(j.c.scratch())
	defer convScratch.Put(buf)
	t := j.tile(*buf, item)
	c, n, halo := &j.c, t.n, j.c.Taps-1
	dw, db, spare := t.rest.take(c.Taps*n), t.rest.take(n), t.rest.take(n)
	dz := t.rest.take((convRows + halo) * n) // of the tile's rows and the halo behind them
	clear(dw)
	clear(db)
	for s := range c.count() {
		lo, hi := c.rows(s)
		first := (hi - lo - 1) / convRows * convRows
		clear(dz[(hi-lo-first)*n:])
		for at := first; at >= 0; at -= convRows {
			rows := min(convRows, hi-lo-at)
			if at < first {
				copy(dz[convRows*n:], dz[:halo*n])
			}
			t.before(s, lo, at)
			for i := range rows {
				row, d := lo+at+i, dz[i*n:][:n]
				t.input(t.u[(halo+i)*n:][:n], row)
				t.gradZ(d, row, i, spare)
				for tap := range c.Taps {
					sum := spare
					if tap == 0 {
						sum = db
					}
					t.k.ColumnDots(sum, dw[tap*n:][:n], d, t.u[(i+tap)*n:][:n], t.zero)
				}
			}
			for i := range rows {
				t.gradU(t.z, dz, i)
				if k := at + i - (hi - lo - halo); k >= 0 && c.GradFinal.Len() > 0 {
					t.f.Add(t.z, t.z, t.state(c.GradFinal, s, k), false)
				}
				t.leave(lo+at+i, t.z)
			}
		}
		if c.GradInitial.Len() > 0 {
			t.gradInitial(s, hi-lo, dz)
		}
	}
	if j.dw.Len() > 0 {
		out := floats(j.dw, t.col*c.Taps, n*c.Taps)
		for i := range n {
			for tap := range c.Taps {
				x := dw[tap*n+i]
				if c.Scales != nil {
					x *= c.Scales[t.col+i]
				}
				out[i*c.Taps+tap] = enter(j.into, out[i*c.Taps+tap], x)
			}
		}
	}
	if j.db.Len() > 0 {
		out := floats(j.db, t.col, n)
		for i := range out {
			out[i] = enter(j.into, out[i], db[i])
		}
	}
})

// enter returns what an accumulator becomes by a gradient x.
func enter(into snug.Into, acc, x float32) float32 {
	if into.Beta == 0 {
		return into.Alpha * x
	}
	return float32(into.Beta*acc) + into.Alpha*x
}

// gradZ sets d to the gradient of z of a row, which is row i of the tile, and writes the gradient of the row's gate c.
func (t *convTile) gradZ(d []float32, row, i int, spare []float32) {
	c := &t.c
	half.Load(d, t.y, row*c.Channels+t.col)
	if !c.SiLU && !c.Gates {
		return
	}
	t.sum(t.z, i)
	gate := t.one
	if c.Gates {
		gate = t.gate
		t.row(gate, row, 1)
	}
	switch {
	case c.SiLU: // d(silu(z)·gate)
		t.f.SiLUMulGrad(d, spare, d, t.z, gate, false)
	default:
		t.k.ColumnAffine(spare, t.z, t.zero, d, t.zero, false)
		t.k.ColumnAffine(d, d, t.zero, gate, t.zero, false)
	}
	if c.Gates {
		half.Store(t.dx, row*c.row()+c.Channels+t.col, spare)
	}
}

// gradU sets du to the gradient of u of row i of a tile.
func (t *convTile) gradU(du, dz []float32, i int) {
	shift := t.zero
	for tap := range t.c.Taps {
		t.k.ColumnAffine(du, dz[(i+t.c.Taps-1-tap)*t.n:][:t.n], t.zero, t.w[tap*t.n:][:t.n], shift, false)
		shift = du
	}
}

// leave writes the gradient of x of a row from that of u.
func (t *convTile) leave(row int, du []float32) {
	c := &t.c
	if !c.Gates {
		half.Store(t.dx, row*c.row()+t.col, du)
		return
	}
	for _, part := range [...]int{2, 0} { // du·x is the gradient of b, and du·b that of x
		t.row(t.x, row, part)
		t.k.ColumnAffine(t.x, t.x, t.zero, du, t.zero, false)
		half.Store(t.dx, row*c.row()+(2-part)*c.Channels+t.col, t.x)
	}
}

// gradInitial sets the gradient of a sequence's first state. dz has the sequence's first rows.
func (t *convTile) gradInitial(s, rows int, dz []float32) {
	c := &t.c
	for i := range c.Taps - 1 {
		du := t.state(c.GradInitial, s, i)
		clear(du)
		for tap := range i + 1 {
			t.k.ColumnAffine(du, dz[(i-tap)*t.n:][:t.n], t.zero, t.w[tap*t.n:][:t.n], du, false)
		}
		if k := i - rows; k >= 0 && c.GradFinal.Len() > 0 { // the sequence is shorter than the state
			t.f.Add(du, du, t.state(c.GradFinal, s, k), false)
		}
	}
}
