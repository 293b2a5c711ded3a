// Gemm generates the NEON micro-kernels and packing of internal/gemm.
package main

import . "github.com/snug-ml/snug/internal/_gen/neon"

// The largest tile of C. Its 24 registers, 4 of B and 2 of A's values leave 2
// unused.
const (
	maxRows    = 6
	maxVectors = 4
)

const (
	width     = 16                 // bytes of a vector
	panelCols = maxVectors * Lanes // columns of a panel
)

func main() {
	f := NewFile()
	mul(f)
	for _, e := range []Elem{Float32, Float16, BFloat16} {
		copyRows(f, e)
	}
	packLines(f)
	f.Generate()
}
