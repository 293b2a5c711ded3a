package rowwise

import "github.com/snug-ml/snug/internal/cpu"

// Range is elements Lo to Hi-1 of a row.
type Range struct{ Lo, Hi int }

// Tile is a tile of scores. Row i has Cols elements from X[i·Stride] on, of which those of
// Sees[i], moved on by At, count: they lie in the row, unless the range is empty. Stride is
// at least Cols, which is 1 or more, rounded up to a multiple of TileCols, and X has whole rows.
type Tile struct {
	X            []float32
	Cols, Stride int
	Sees         []Range // one for every row
	At           int
}

// TileCols divides the distance between rows of a [Tile].
const TileCols = 32

// row returns the part of row i that counts, and where in x it begins.
func (t *Tile) row(i int) (x []float32, at int) {
	r := t.Sees[i]
	if r.Hi <= r.Lo {
		return nil, i * t.Stride
	}
	at = i*t.Stride + t.At + r.Lo
	return t.X[at:][:r.Hi-r.Lo], at
}

// clear sets what does not count of row i of x, which lies like t.X, to 0.
func (t *Tile) clear(x []float32, i int) {
	row := x[i*t.Stride:][:t.Cols]
	r := t.Sees[i]
	if r.Hi <= r.Lo {
		clear(row)
		return
	}
	clear(row[:t.At+r.Lo])
	clear(row[t.At+r.Hi:])
}

// tileLoops sets the loops over tiles to those that call k's loops over rows.
func (k Kernels) tileLoops() Kernels {
	max, exp2Sum, scoreGrad := k.Max, k.Exp2Sum, k.ScoreGrad
	k.MaxRows = func(most []float32, t Tile, scale float32) {
		for i := range t.Sees {
			x, _ := t.row(i)
			most[i] = max(x, scale, most[i])
		}
	}
	k.Exp2Rows = func(sums []float32, t Tile, scale float32, base []float32) {
		for i := range t.Sees {
			x, _ := t.row(i)
			sums[i] = exp2Sum(x, scale, base[i])
			t.clear(t.X, i)
		}
	}
	k.GradRows = func(ds []float32, t Tile, scale float32, base, delta []float32, scaleGrad float32) {
		for i := range t.Sees {
			x, at := t.row(i)
			exp2Sum(x, scale, base[i])
			scoreGrad(ds[at:][:len(x)], x, delta[i], scaleGrad)
			t.clear(t.X, i)
			t.clear(ds, i)
		}
	}
	return k
}

// PairKernels are loops over tiles for processors that multiply bfloat16.
type PairKernels struct {
	// Exp2Rows is [Kernels].Exp2Rows, but leaves the tile as it is and writes bfloat16, rounded to
	// nearest even: row i to pieces of TileCols elements, the first of which is dst[i·TileCols],
	// next apart. Powers that bfloat16 holds as subnormal numbers do not occur.
	Exp2Rows func(sums []float32, dst []uint16, next int, t Tile, scale float32, base []float32)

	// GradRows is [Kernels].GradRows for an even number of rows, but leaves the tiles as they are and
	// writes bfloat16.
	GradRows func(g PairGrads, x, dp []float32, rows, cols, stride int, scale float32, base, delta []float32, scaleGrad float32)
}

// PairGrads is what GradRows takes and gives beside tiles of floats.
type PairGrads struct {
	// Masks has a bit for each element that counts: cols/32 words for a row, whose rows are MaskRow apart.
	Masks   []uint32
	MaskRow int
	// DS is as dst of Exp2Rows: pieces of TileCols elements, next apart.
	DS   []uint16
	Next int
	// P and Across are the powers and, again, the gradients, by pairs of rows: first the pairs of
	// elements 0 to 15 of each two rows, 512 words later those of elements 16 to 31, and NextAcross
	// words on the next 32.
	P, Across  []uint16
	NextAcross int
}

// Pairs holds the PairKernels; most tiers have none.
var Pairs cpu.Registry[PairKernels]
