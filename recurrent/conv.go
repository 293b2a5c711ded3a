package recurrent

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Conv is a causal depthwise convolution: of each channel, a row sees itself and the Taps-1 rows before it in its sequence,
//
//	u_t = x_t                     or, with Gates, b_t·x_t of rows [b_t, c_t, x_t]
//	z_t = bias + Σ_j w_j·u_(t−Taps+1+j)
//	y_t = z_t or silu(z_t)        or, with Gates, that times c_t
//
// for channels side by side in a row, where u before a sequence's first row is Initial, or 0. With SiLU it is the convolution of
// Gu and Dao, "Mamba" (2023), as torch's Conv1d with groups and padding on the left computes it; with Gates the short convolution of
// LFM2 (Liquid AI, 2025).
type Conv struct {
	Batch
	Channels, Taps int
	SiLU           bool
	Gates          bool // x and its gradient have rows of 3·Channels elements
	XRow           int  // elements from row to row of x and of its gradient; 0: rows lie side by side
	// Scales, unless nil, are a factor of each channel's u, of which Initial and Final have the u before it.
	Scales []float32
	// Initial and Final are the last Taps-1 u before and of each sequence, [sequences, Taps-1, Channels] of float32, and
	// of which an empty Initial is zeros and an empty Final is not written. GradInitial and GradFinal are their gradients in ConvBackward.
	Initial, Final, GradInitial, GradFinal snug.View
}

const (
	convCols = 128 // channels of an item
	convRows = 32  // rows of a tile
	mostTaps = 256
)

// StateLen returns the elements of Initial and Final, 0 for a Conv that is not valid.
func (c Conv) StateLen() int {
	if c.check() != nil {
		return 0
	}
	return c.count() * (c.Taps - 1) * c.Channels
}

// ScratchBytes returns the most bytes that a worker holds while it computes.
func (c Conv) ScratchBytes() int64 {
	if c.check() != nil {
		return 0
	}
	return 4 * int64(c.scratch())
}

func (c *Conv) scratch() int { return convCols * (4*convRows + 4*c.Taps + 8) }

// width returns the elements of a row of x.
func (c *Conv) width() int {
	if c.Gates {
		return 3 * c.Channels
	}
	return c.Channels
}

// row returns the elements from row to row of x.
func (c *Conv) row() int { return step(c.XRow, c.width()) }

func (c *Conv) check() error {
	if err := c.Batch.check(); err != nil {
		return err
	}
	if c.Taps < 1 || c.Taps > mostTaps {
		return fmt.Errorf("%d taps, want 1 to %d: %w", c.Taps, mostTaps, snug.ErrShape)
	}
	if _, err := product(c.Rows, c.Channels, 3*c.Taps); err != nil {
		return err
	}
	if c.Scales != nil && len(c.Scales) != c.Channels {
		return fmt.Errorf("%d Scales, want %d or nil: %w", len(c.Scales), c.Channels, snug.ErrShape)
	}
	if c.XRow != 0 && c.XRow < c.width() || c.XRow > math.MaxInt32 {
		return fmt.Errorf("XRow is %d, want %d or more: %w", c.XRow, c.width(), snug.ErrShape)
	}
	_, err := product(c.Rows, max(c.XRow, 1))
	return err
}

// ConvForward computes y from x. x has Rows·Channels elements, or three times as many with Gates, unless XRow says that rows lie further apart; y has Rows·Channels; w is
// [Channels, Taps], the last tap that of the row itself; bias has Channels elements, or none.
func ConvForward[V snug.Vector](y, x, w, bias V, c Conv) error {
	j := convJob{y: snug.ViewOf(y), x: snug.ViewOf(x), w: snug.ViewOf(w), bias: snug.ViewOf(bias), c: c}
	if err := j.check("ConvForward"); err != nil {
		return err
	}
	convForward.Run(c.count()*cpu.Chunks(c.Channels, convCols), j)
	return nil
}

// ConvBackward computes the gradients of x, w and bias from dy, that of y: dx is overwritten, and dw and db enter float32
// accumulators as into says. dw or db may be empty, which leaves it out. It computes z again from x, so nothing is kept.
func ConvBackward[V snug.Vector, G snug.Vector32](dx V, dw, db G, dy, x, w, bias V, c Conv, into snug.Into) error {
	alpha, beta, err := into.Factors()
	if err != nil {
		return fmt.Errorf("recurrent: ConvBackward: %w", err)
	}
	j := convJob{y: snug.ViewOf(dy), x: snug.ViewOf(x), w: snug.ViewOf(w), bias: snug.ViewOf(bias), c: c,
		back: true, dx: snug.ViewOf(dx), dw: snug.ViewOf(dw), db: snug.ViewOf(db), into: snug.Into{Alpha: alpha, Beta: beta}}
	if err := j.check("ConvBackward"); err != nil {
		return err
	}
	convBackward.Run(cpu.Chunks(c.Channels, convCols), j)
	return nil
}

type convJob struct {
	y, x, w, bias snug.View // y: its gradient in the backward pass
	back          bool
	dx, dw, db    snug.View
	into          snug.Into
	c             Conv
}

func (j *convJob) check(op string) error {
	c := &j.c
	if err := c.check(); err != nil {
		return fmt.Errorf("recurrent: %s: %w", op, err)
	}
	n, state := c.Rows*c.Channels, c.count()*(c.Taps-1)*c.Channels
	list := [5]operand{{name: "x", view: j.x, want: (c.Rows-1)*c.row() + c.width(), longer: c.XRow != 0}, {name: "y", view: j.y, want: n}, {name: "w", view: j.w, want: c.Channels * c.Taps},
		{name: "bias", view: j.bias, want: c.Channels, optional: true}}
	singles := [6]operand{{name: "Initial", view: c.Initial, want: state, optional: true}, {name: "Final", view: c.Final, want: state, optional: true}}
	if j.back {
		list[1].name = "dy"
		list[4] = operand{name: "dx", view: j.dx, want: (c.Rows-1)*c.row() + c.width(), longer: c.XRow != 0}
		singles[2], singles[3] = operand{name: "dw", view: j.dw, want: c.Channels * c.Taps, optional: true}, operand{name: "db", view: j.db, want: c.Channels, optional: true}
		singles[4], singles[5] = operand{name: "GradInitial", view: c.GradInitial, want: state, optional: true}, operand{name: "GradFinal", view: c.GradFinal, want: state, optional: true}
	}
	return check(op, list[:], singles[:])
}

var convScratch cpu.Scratch

// convTile is the memory of an item: n channels from col on.
type convTile struct {
	*convJob
	k       *rowwise.Kernels
	f       *rowwise.Layers[float32]
	col, n  int
	w       []float32 // [Taps, n]
	bias    []float32
	zero    []float32
	one     []float32
	u       []float32 // [Taps-1 + convRows, n]
	x, gate []float32 // a row each
	z       []float32 // a row
	rest    tiles
}

func (j *convJob) tile(buf []float32, block int) convTile {
	lo, hi := cpu.Chunk(j.c.Channels, convCols, block)
	t := convTile{convJob: j, k: rowwise.Registry.Best(), f: rowwise.F32.Best(), col: lo, n: hi - lo, rest: buf}
	n, taps := t.n, j.c.Taps
	t.w, t.bias, t.zero, t.one = t.rest.take(taps*n), t.rest.take(n), t.rest.take(n), t.rest.take(n)
	t.u, t.x, t.gate, t.z = t.rest.take((taps-1+convRows)*n), t.rest.take(n), t.rest.take(n), t.rest.take(n)
	clear(t.zero)
	for i := range t.one {
		t.one[i] = 1
	}
	lines := t.u // taps at most
	for i := 0; i < n; i += convRows {
		rows := min(convRows, n-i)
		block := lines[:min(rows*taps, len(lines))]
		if rows*taps > len(block) { // many taps in few channels
			for r := range rows {
				for tap := range taps {
					half.Load(t.w[tap*n+i+r:][:1], j.w, (lo+i+r)*taps+tap)
				}
			}
			continue
		}
		half.Load(block, j.w, (lo+i)*taps)
		for r := range rows {
			for tap := range taps {
				t.w[tap*n+i+r] = block[r*taps+tap]
			}
		}
	}
	for i := range j.c.Scales[min(lo, len(j.c.Scales)):min(hi, len(j.c.Scales))] {
		for tap := range taps {
			t.w[tap*n+i] *= j.c.Scales[lo+i]
		}
	}
	clear(t.bias)
	if j.bias.Len() > 0 {
		half.Load(t.bias, j.bias, lo)
	}
	return t
}

// row returns row i of x's n elements from the channel on, of its part 0, 1 or 2 with Gates.
func (t *convTile) row(dst []float32, row, part int) {
	half.Load(dst, t.convJob.x, row*t.c.row()+part*t.c.Channels+t.col)
}

// input sets u to that of a row.
func (t *convTile) input(u []float32, row int) {
	if !t.c.Gates {
		t.row(u, row, 0)
		return
	}
	t.row(u, row, 0)
	t.row(t.x, row, 2)
	t.k.ColumnAffine(u, u, t.zero, t.x, t.zero, false)
}

// sum sets z to the convolution where u's first row is at element at.
func (t *convTile) sum(z []float32, at int) {
	shift := t.bias
	for tap := range t.c.Taps {
		t.k.ColumnAffine(z, t.u[(at+tap)*t.n:][:t.n], t.zero, t.w[tap*t.n:][:t.n], shift, false)
		shift = z
	}
}

// before sets the first Taps-1 rows of u to those before row lo+at of sequence s, which begins with row lo.
func (t *convTile) before(s, lo, at int) {
	for i := range t.c.Taps - 1 {
		u, row := t.u[i*t.n:][:t.n], at-(t.c.Taps-1)+i
		if row >= 0 {
			t.input(u, lo+row)
			continue
		}
		if from := t.state(t.c.Initial, s, row+t.c.Taps-1); from != nil {
			copy(u, from)
		} else {
			clear(u)
		}
	}
}

// state returns row i of a state of sequence s.
func (t *convTile) state(v snug.View, s, i int) []float32 {
	return floats(v, (s*(t.c.Taps-1)+i)*t.c.Channels+t.col, t.n)
}

var convForward = cpu.NewTask(func(j *convJob, item int) {
	blocks := cpu.Chunks(j.c.Channels, convCols)
	buf := convScratch.Get(j.c.scratch())
	defer convScratch.Put(buf)
	t, s := j.tile(*buf, item%blocks), item/blocks
	c, n := &j.c, t.n
	lo, hi := c.rows(s)
	t.before(s, lo, 0)
	for row := lo; row < hi; row += convRows {
		rows := min(convRows, hi-row)
		for i := range rows {
			t.input(t.u[(c.Taps-1+i)*n:][:n], row+i)
			t.sum(t.z, i)
			gate := t.one
			if c.Gates {
				gate = t.gate
				t.row(gate, row+i, 1)
			}
			switch {
			case c.SiLU:
				t.f.SiLUMul(t.z, t.z, gate, false)
			case c.Gates:
				t.k.ColumnAffine(t.z, t.z, t.zero, gate, t.zero, false)
			}
			half.Store(j.y, (row+i)*c.Channels+t.col, t.z)
		}
		copy(t.u[:(c.Taps-1)*n], t.u[rows*n:])
	}
	for i := range c.Taps - 1 {
		copy(t.state(c.Final, s, i), t.u[i*n:][:n])
	}
})
