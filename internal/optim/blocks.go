package optim

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/half"
)

// MaxStates is the number of states of a rule at most.
const MaxStates = 3

// State8 is one state of a run of elements in 8-bit blocks: element i is the value of
// Codes[i] in the map of the encoder, times Absmax[i/block]. The last block may be
// partial.
type State8 struct {
	Codes   []uint8
	Absmax  []float32
	Encoder *blockq.Encoder
}

// Scratch returns how many elements of scratch a step takes in tiles of so many
// elements: p, g and the states.
func Scratch(tile int) int { return (2 + MaxStates) * tile }

// Step8 updates elements lo to hi-1 of p by those of g, both host views of any
// floating-point types that do not overlap, and the states, which it reads and writes
// once, block by block. scratch has [Scratch] elements for a block. It runs on the
// calling goroutine and allocates nothing.
func (c *Coef) Step8(p, g snug.View, lo, hi int, states []State8, block int, scratch []float32) {
	k := blockq.Registry.Best()
	for b := 0; lo < hi; b++ {
		n := min(block, hi-lo)
		var s [MaxStates][]float32
		for i, q := range states {
			s[i] = scratch[(2+i)*block:][:n]
			k.Decode(s[i], q.Codes[b*block:][:n], q.Encoder.Map(), q.Absmax[b:b+1], block)
		}
		c.tile(p, g, lo, n, s, scratch[:2*block])
		for i, q := range states {
			q.Absmax[b] = k.AbsMax(s[i])
			q.Encoder.Encode(q.Codes[b*block:][:n], s[i], q.Absmax[b])
		}
		lo += n
	}
}

// Step32 is Step8 for states in float32, of which element 0 is that of element lo of
// p, in tiles of so many elements.
func (c *Coef) Step32(p, g snug.View, lo, hi int, states [MaxStates][]float32, tile int, scratch []float32) {
	for begin := lo; begin < hi; begin += tile {
		n := min(tile, hi-begin)
		c.tile(p, g, begin, n, part(states, begin-lo, n), scratch[:2*tile])
	}
}

// Squares8 sums what [Coef.Squares] does over elements lo to hi-1, with the operands of
// [Coef.Step8], of which it writes scratch only.
func (c *Coef) Squares8(p, g snug.View, lo, hi int, states []State8, block int, scratch []float32) (parameter, update float64) {
	k := blockq.Registry.Best()
	for b := 0; lo < hi; b++ {
		n := min(block, hi-lo)
		var s [MaxStates][]float32
		for i, q := range states {
			s[i] = scratch[(2+i)*block:][:n]
			k.Decode(s[i], q.Codes[b*block:][:n], q.Encoder.Map(), q.Absmax[b:b+1], block)
		}
		x, u := c.Squares(half.Floats(p, lo, scratch[:n]), c.gradients(g, lo, scratch[block:][:n]), s)
		parameter, update = parameter+x, update+u
		lo += n
	}
	return parameter, update
}

// Squares32 is Squares8 for the operands of [Coef.Step32].
func (c *Coef) Squares32(p, g snug.View, lo, hi int, states [MaxStates][]float32, tile int, scratch []float32) (parameter, update float64) {
	for begin := lo; begin < hi; begin += tile {
		n := min(tile, hi-begin)
		x, u := c.Squares(half.Floats(p, begin, scratch[:n]), c.gradients(g, begin, scratch[tile:][:n]), part(states, begin-lo, n))
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
func (c *Coef) tile(p, g snug.View, lo, n int, s [MaxStates][]float32, scratch []float32) {
	half1, half2 := scratch[:n], scratch[len(scratch)/2:][:n]
	x := half.Floats(p, lo, half1)
	c.Update(x, c.gradients(g, lo, half2), s)
	half.Flush(p, lo, x)
}

// gradients returns n = len(scratch) elements of g from lo on, or with [Factors] those
// of u, in scratch if they do not lie in g.
func (c *Coef) gradients(g snug.View, lo int, scratch []float32) []float32 {
	x := half.Floats(g, lo, scratch)
	if c.factors == nil {
		return x
	}
	c.factors.apply(scratch, x, c.First+lo, c.gradScale)
	return scratch
}
