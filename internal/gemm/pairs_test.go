package gemm

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// pairShapes have whole and ragged panels, several strips, groups and parts of
// the depth, and each operand as the shared one.
var pairShapes = [][3]int{
	{32, 32, 32}, {33, 70, 65}, {16, 300, 520}, {300, 20, 1500}, {64, 64, 4}, {100, 90, 31}, {260, 250, 2100}, {520, 300, 100},
}

func TestPairsAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range pairShapes {
		m, n, k := s[0], s[1], s[2]
		for i := range rounds(4) {
			a := random(rng, snug.BF16, m, k, rng.IntN(3), i&1 != 0)
			b := random(rng, snug.BF16, k, n, rng.IntN(3), i&2 != 0)
			c := random(rng, dtypes[rng.IntN(3)], m, n, rng.IntN(3), false)
			alpha, beta := float32(rng.NormFloat64()), float32(rng.IntN(3)-1)
			if rng.IntN(2) == 0 { // sums in place
				alpha, beta, c = 1, float32(rng.IntN(2)), random(rng, snug.F32, m, n, 1, false)
			}
			checkTiers(t, m, n, k, alpha, a, b, beta, c)
		}
	}
}

// A depth that is too great to be summed in one part for a C of 16 bits goes
// another way, a block of C at a time.
func TestPairsOfGreatDepth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	const k = wholeDepth + 1
	for _, s := range [][2]int{{deepOwn + 1, deepShared + 1}, {3, deepOwn + 33}, {deepShared + 70, 10}} {
		m, n := s[0], s[1]
		for i := range rounds(4) {
			a, b := random(rng, snug.BF16, m, k, 1, i&1 != 0), random(rng, snug.BF16, k, n, 1, i&2 != 0)
			checkTiers(t, m, n, k, 0.5, a, b, 2, random(rng, dtypes[1+i%2], m, n, 1, false))
		}
	}
}

// The bits of a row do not depend on how many rows there are beyond few.
func TestPairsRowsAreIndependent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	const m, n, k = 130, 70, partDepth + 100
	a, b, c := random(rng, snug.BF16, m, k, 0, false), random(rng, snug.BF16, k, n, 0, true), random(rng, snug.F32, m, n, 0, false)
	for _, beta := range []float32{0, 1, 0.5} {
		whole := c.clone()
		MulSerial(m, n, k, 1, a, b, beta, whole)
		for _, rows := range []int{few + 1, 31, 32, 100} {
			part := c.clone()
			MulSerial(rows, n, k, 1, a, b, beta, part)
			require.Equal(t, floats(whole.Data)[:rows*n], floats(part.Data)[:rows*n], "%d rows, beta %v", rows, beta)
		}
	}
}

// NaN and infinity reach the elements they belong to and no others, also from
// beside what a panel lacks.
func TestPairsSpecialValues(t *testing.T) {
	const n = 37
	for tier, kern := range Registry.All() {
		for _, trans := range []bool{false, true} {
			x, y := make([]float32, n*n), make([]float32, n*n)
			for i := range n {
				x[i*n+i], y[i*n+i] = 1, 1
			}
			y[n*n-1] = float32(math.Inf(-1))
			y[2*n+2] = float32(math.NaN())
			a, b := Matrix{view(snug.BF16, x), n, trans}, Matrix{view(snug.BF16, y), n, trans}
			for _, dt := range dtypes {
				c := Matrix{view(dt, guarded(n*n)), n, false}
				g := newArgs(kern, n, n, n, 1, a, b, 0, c)
				g.serial()
				z := floats(c.Data)
				require.Equal(t, float32(math.Inf(-1)), z[n*n-1], tier)
				for i, v := range z {
					switch row, col := i/n, i%n; {
					case col == 2 || col == n-1 && row != n-1: // NaN, and 0·Inf
						require.True(t, v != v, "%v: element %d,%d", tier, row, col)
					case row == col && row != n-1:
						require.Equal(t, float32(1), v, "%v: element %d,%d", tier, row, col)
					case row != col:
						require.Zero(t, v, "%v: element %d,%d", tier, row, col)
					}
				}
			}
		}
	}
}

func TestPairsForAnyWorkerCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, s := range pairShapes {
		m, n, k := s[0], s[1], s[2]
		a, b := random(rng, snug.BF16, m, k, 0, true), random(rng, snug.BF16, k, n, 1, true)
		c := random(rng, snug.F32, m, n, 0, false)
		want := c.clone()
		MulSerial(m, n, k, 1, a, b, 1, want)
		for _, procs := range []int{1, 2, 5} {
			old := runtime.GOMAXPROCS(procs)
			got := c.clone()
			Mul(m, n, k, 1, a, b, 1, got)
			runtime.GOMAXPROCS(old)
			require.Equal(t, floats(want.Data), floats(got.Data))
		}
		kerneltest.NoAllocs(t, func() { Mul(m, n, k, 1, a, b, 0, c) })
		kerneltest.NoAllocs(t, func() { MulSerial(m, n, k, 1, a, b, 0, c) })
	}
}

// The rounding to C's type is that of half, for every value.
func TestPairsFinish(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for tier, kern := range Registry.All() {
		if kern.Pairs == nil {
			continue
		}
		for _, dt := range dtypes {
			for cols := 1; cols <= panelLines; cols++ {
				sums := make([]float32, stepLen)
				for i := range sums {
					if sums[i] = math.Float32frombits(rng.Uint32()); sums[i] != sums[i] {
						sums[i] = float32(math.NaN()) // a quiet one
					}
				}
				const rows, stride = 5, 40
				got, want := Matrix{view(dt, guarded(rows*stride)), stride, false}, Matrix{view(dt, guarded(rows*stride)), stride, false}
				kern.Pairs.Finish(got, 0, 3, rows, cols, 1, sums, 0)
				for i := range rows {
					half.Store(want.Data, i*stride+3, sums[i*panelLines:][:cols])
				}
				require.True(t, sameBits(got.Data, want.Data), "%v %v, %d columns", tier, dt, cols)
			}
		}
	}
}

// sameBits compares vectors in which NaNs may stand.
func sameBits(a, b snug.View) bool {
	x, y := floats(a), floats(b)
	for i := range x {
		if math.Float32bits(x[i]) != math.Float32bits(y[i]) {
			return false
		}
	}
	return true
}
