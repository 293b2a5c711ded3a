package optim

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/snug-ml/snug/internal/rounding"
)

// MaxStates is the number of states of a rule at most.
const MaxStates = 3

// Scratch returns how many elements of scratch a step takes in tiles of so many
// elements: p, g and the states, or with two moments in 8 bits two states of two tiles.
func Scratch(tile int) int { return (2 + max(MaxStates, 4)) * tile }

// Operands are a parameter and its gradient, host views of any floating-point types
// that do not overlap.
type Operands struct {
	P, G snug.View
	// Random rounds a P of 16 bits by the Draws, instead of to nearest. Their First is
	// the number of P's first element in any case.
	Random bool
	Draws  rounding.Draws
	// Lost, unless nil, counts the updates that are lost when a P of 16 bits is rounded.
	Lost *measure.Lost
}

// Flush writes n elements of P, x, which [half.Floats] has returned, from lo on.
func (o *Operands) Flush(lo int, x []float32) {
	if o.Lost == nil || o.P.DType() == snug.F32 {
		o.store(lo, x)
		return
	}
	scratch := counted.Get(2 * countPiece)
	defer counted.Put(scratch)
	for len(x) > 0 {
		n := min(countPiece, len(x))
		before, after := (*scratch)[:n], (*scratch)[countPiece:][:n]
		half.Load(before, o.P, lo)
		o.store(lo, x[:n])
		half.Load(after, o.P, lo)
		o.Lost.Count(before, x[:n], after)
		lo, x = lo+n, x[n:]
	}
}

// countPiece is how many elements are counted at a time. counted is the scratch of running workers for the count.
const countPiece = 1 << 10

var counted cpu.Scratch

func (o *Operands) store(lo int, x []float32) {
	if o.Random && o.P.DType() != snug.F32 {
		o.Draws.Store(o.P, lo, x)
		return
	}
	half.Flush(o.P, lo, x)
}

// Step updates elements lo to hi-1 of the parameter, and the states, which it reads and
// writes once, tile by tile; a tile of states in blocks is a block. scratch has [Scratch]
// elements for a tile. It runs on the calling goroutine and allocates nothing.
func Step[S State](c *Coef, o Operands, lo, hi int, states []S, tile int, scratch []float32) {
	for t := 0; lo < hi; t++ {
		n := min(tile, hi-lo)
		s := Load(states, t, n, tile, scratch[2*tile:])
		c.tile(&o, lo, n, s, scratch[:2*tile])
		Store(states, t, s, tile)
		lo += n
	}
}

// Step8 is [Step] for states in 8-bit blocks.
func Step8(c *Coef, o Operands, lo, hi int, states []State8, block int, scratch []float32) {
	if k := Registry.Best(); k.Adam8 != nil && c.skip == 0 && c.Adam() {
		k.Adam8(c.Constants, o, lo, hi, states[0], states[1], block, scratch)
		return
	}
	Step(c, o, lo, hi, states, block, scratch)
}

// Step32 is [Step] for states in float32, in tiles of tile elements. Element 0 of a state
// belongs to element lo of the parameter.
func (c *Coef) Step32(o Operands, lo, hi int, states [MaxStates][]float32, tile int, scratch []float32) {
	for begin := lo; begin < hi; begin += tile {
		n := min(tile, hi-begin)
		c.tile(&o, begin, n, part(states, begin-lo, n), scratch[:2*tile])
	}
}

// Squares computes the sums of [Coef.Squares] over elements lo to hi-1. It takes the operands
// of [Step] and writes only scratch.
func Squares[S State](c *Coef, o Operands, lo, hi int, states []S, tile int, scratch []float32) (parameter, update float64) {
	for t := 0; lo < hi; t++ {
		n := min(tile, hi-lo)
		s := Load(states, t, n, tile, scratch[2*tile:])
		x, u := c.squaresOf(&o, lo, n, s, scratch[:2*tile])
		parameter, update = parameter+x, update+u
		lo += n
	}
	return parameter, update
}

// Squares32 is [Squares] for the operands of [Coef.Step32].
func (c *Coef) Squares32(o Operands, lo, hi int, states [MaxStates][]float32, tile int, scratch []float32) (parameter, update float64) {
	for begin := lo; begin < hi; begin += tile {
		n := min(tile, hi-begin)
		x, u := c.squaresOf(&o, begin, n, part(states, begin-lo, n), scratch[:2*tile])
		parameter, update = parameter+x, update+u
	}
	return parameter, update
}

// part returns n elements of all states from one on.
func part(states [MaxStates][]float32, lo, n int) (s [MaxStates][]float32) {
	for i, all := range states {
		if all != nil {
			s[i] = all[lo:][:n]
		}
	}
	return s
}

// tile updates n elements from lo on through scratch.
func (c *Coef) tile(o *Operands, lo, n int, s [MaxStates][]float32, scratch []float32) {
	half1, half2 := scratch[:n], scratch[len(scratch)/2:][:n]
	x := half.Floats(o.P, lo, half1)
	if g := c.gradients(o, lo, half2); c.shared != nil {
		c.updateShared(int(o.Draws.First)+lo, x, g, s)
	} else {
		c.Update(x, g, s)
	}
	o.Flush(lo, x)
}

// squaresOf is [Coef.Squares] of n elements from lo on.
func (c *Coef) squaresOf(o *Operands, lo, n int, s [MaxStates][]float32, scratch []float32) (parameter, update float64) {
	half1, half2 := scratch[:n], scratch[len(scratch)/2:][:n]
	return c.Squares(half.Floats(o.P, lo, half1), c.gradients(o, lo, half2), s)
}

// gradients returns n = len(scratch) elements of G from lo on, or with [Factors] those
// of u, in scratch if they do not lie in G. What is skipped is NaN in u.
func (c *Coef) gradients(o *Operands, lo int, scratch []float32) []float32 {
	x := half.Floats(o.G, lo, scratch)
	if c.factors == nil {
		return x
	}
	if c.skip != 0 {
		copy(scratch, x)
		x = scratch
		leave(x, c.gradScale, c.skip, float32(math.NaN()))
	}
	c.factors.apply(scratch, x, int(o.Draws.First)+lo, c.gradScale)
	return scratch
}
