package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Rows are rows of A that a caller packed: element (i, k) is at X[i·Row + k·Col], or, if they lie in panels that are
// Panel elements apart, element (i, k) of panel [Kernel.PanelOf] is at X[p·Panel + i·Row + k·Col].
type Rows struct {
	X        []float32
	Row, Col int
	Panel    int // 0: one after the other, in no panels
}

// StripRows is the most rows that [Kernel.MulRows] should get at a time, so that they stay in the second-level cache
// with a depth of some hundreds.
func (k *Kernel) StripRows() int { return stripPanels * k.MR }

// Pitch returns the floats from step to step of the depth of a packed panel of A.
func (k *Kernel) Pitch() int { return cpu.Chunks(k.MR, k.Lanes) * k.Lanes }

// Panels returns how many panels rows of A make.
func (k *Kernel) Panels(rows int) int { return cpu.Chunks(rows, k.MR) }

// PanelOf returns the rows of panel i of rows of A.
func (k *Kernel) PanelOf(rows, i int) (lo, hi int) { return part(rows, k.Panels(rows), i) }

// MulRows sets rows of C, strideC apart, to alpha·A·B + beta·C. B has cols columns, in panels of NR columns and depth
// rows. It does not read C if beta is 0.
func (k *Kernel) MulRows(rows, cols, depth int, alpha float32, a Rows, b []float32, beta float32, c []float32, strideC int) {
	x, to := rowsOfA{strided{a.X, a.Row, a.Col}, a.Panel}, strided{c, strideC, 1}
	panels := k.Panels(rows)
	size, higher := rows/panels, rows%panels // the first have a row more
	for q := 0; q < cols; q += k.NR {
		panel := strided{b[q*depth:], k.NR, 1}
		n := min(k.NR, cols-q)
		if higher > 0 {
			from, next := x.from(0, size+1, 0)
			k.Mul(higher, size+1, n, depth, alpha, from, next, panel, beta, to.at(0, q))
		}
		if higher < panels {
			i := higher * (size + 1)
			from, next := x.from(higher, size, i)
			k.Mul(panels-higher, size, n, depth, alpha, from, next, panel, beta, to.at(i, q))
		}
	}
}

// PairLines is how many lines a panel of [Pairs] has, and PairDepth the depth of its steps.
const (
	PairLines = mr
	PairDepth = kr
)

// Words returns the bits of a vector of bfloat16, and AlignedWords memory from its first line of the cache on, as words.
func Words(v snug.View) []uint16 { return words(v) }

// AlignedWords is documented with [Words].
func AlignedWords(buf []float32) []uint16 { return alignedWords(buf) }
