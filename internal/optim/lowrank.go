package optim

import (
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// Channels are factors of the rows of a matrix, or of its columns.
type Channels struct {
	Factors []float32
	Rows    bool // whether they are those of the rows
	Cols    int  // columns of the matrix
}

// ApplyChannels subtracts the gradient, which it does not scale, times the factor of its channel from elements lo to
// hi-1 of the parameter p, a whole matrix, after these have decayed: p ← p·(1-lr·wd) - f·g. scratch has two tiles.
func (c *Coef) ApplyChannels(o Operands, lo, hi int, f Channels, scratch []float32) {
	tile := len(scratch) / 2
	for ; lo < hi; lo += tile {
		n := min(tile, hi-lo)
		x := half.Floats(o.P, lo, scratch[:n])
		for at := 0; at < n; {
			row, col := (lo+at)/f.Cols, (lo+at)%f.Cols
			end := min(n, at+f.Cols-col)
			switch {
			case f.Rows && c.skip == 0:
				sweep.Accumulate(x[at:end], o.G, lo+at, -f.Factors[row], c.pre)
			case f.Rows:
				c.subtract(x[at:end], half.Floats(o.G, lo+at, scratch[tile:][:end-at]), f.Factors[row])
			default:
				c.subtractEach(x[at:end], half.Floats(o.G, lo+at, scratch[tile:][:end-at]), f.Factors[col:])
			}
			at = end
		}
		o.Flush(lo, x)
	}
}

// subtract is for elements of one channel, and skips some.
func (c *Coef) subtract(x, g []float32, f float32) {
	g = g[:len(x)]
	for i, v := range x {
		if !skipped(float32(g[i]*c.gradScale), c.skip) {
			x[i] = float32(v*c.pre) - float32(f*g[i])
		}
	}
}

// subtractEach is for one element of each channel.
func (c *Coef) subtractEach(x, g, f []float32) {
	g, f = g[:len(x)], f[:len(x)]
	for i, v := range x {
		if c.skip == 0 || !skipped(float32(g[i]*c.gradScale), c.skip) {
			x[i] = float32(v*c.pre) - float32(f[i]*g[i])
		}
	}
}

// Leave sets the elements of g that are skipped, by [Hyper.Skip], to 0.
func Leave(g []float32, scale float32, skip uint32) { leave(g, scale, skip, 0) }
