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

//check:not arm64
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
//
//check:not arm64
func TestPairsOfGreatDepth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	const k = kcWhole + 1
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
	const m, n, k = 130, 70, kc + 100
	a, b := random(rng, snug.BF16, m, k, 0, false), random(rng, snug.BF16, k, n, 0, true)
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		c := random(rng, dt, m, n, 0, false)
		for _, beta := range []float32{0, 1, 0.5} {
			whole := c.clone()
			MulSerial(m, n, k, 1, a, b, beta, whole)
			for _, rows := range []int{few + 1, mostFew, mostFew + 1, 16, 31, 32, 100} {
				if Registry.Best().Pairs == nil && rows <= mostFew {
					continue
				}
				part := c.clone()
				MulSerial(rows, n, k, 1, a, b, beta, part)
				require.Equal(t, floats(whole.Data)[:rows*n], floats(part.Data)[:rows*n], "%d rows, beta %v", rows, beta)
			}
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

//check:in race
//check:not arm64
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
			for cols := 1; cols <= mr; cols++ {
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
					half.Store(want.Data, i*stride+3, sums[i*mr:][:cols])
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

// Panels hold what the layout says, with zeros where a step lacks some of the depth.
func TestPairsPacking(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for tier, kern := range Registry.All() {
		p := kern.Pairs
		if p == nil {
			continue
		}
		for range rounds(60) {
			lines, depth, gap := 1+rng.IntN(100), 1+rng.IntN(300), rng.IntN(3)
			steps := (depth + kr - 1) / kr
			panels, next := (lines+mr-1)/mr, steps*stepLen+rng.IntN(2)*stepLen
			for way, pack := range []packing{p.LinesA, p.LinesB, p.AcrossA, p.AcrossB} {
				isB, across := way%2 == 1, way > 1
				rows, stride := lines, depth+gap
				if across {
					rows, stride = depth, lines+gap
				}
				src := make([]uint16, rows*stride-gap)
				for i := range src {
					src[i] = uint16(rng.Uint32())
				}
				dst := make([]uint16, (panels-1)*next+steps*stepLen)
				pack(dst, src, lines, depth, stride, next)
				for line := range lines {
					for k := range steps * kr {
						at, in := line/mr*next+k/kr*stepLen, line%mr
						if isB {
							at += in/16*(stepLen/2) + k%kr/2*32 + in%16*2 + k%2
						} else {
							at += in*kr + k%kr
						}
						var want uint16
						switch {
						case k < depth && across:
							want = src[k*stride+line]
						case k < depth:
							want = src[line*stride+k]
						}
						if want != dst[at] {
							require.Failf(t, "wrong", "%v, way %d, line %d of %d, depth %d of %d", tier, way, line, lines, k, depth)
						}
					}
				}
			}
		}
	}
}

// Sums that are rounded in registers have the bits that half.Store gives sums in memory, for numbers of all sizes,
// NaNs and infinities, and nothing beside them is written.
func TestPairsMulBF16(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for tier, kern := range Registry.All() {
		if kern.Pairs == nil || kern.Pairs.MulBF16 == nil {
			continue
		}
		p := kern.Pairs
		const panels, steps, stride = 3, 2, 3*mr + 5
		a, b := make([]uint16, steps*stepLen), make([]uint16, panels*steps*stepLen)
		for round := range 20 {
			for i := range a {
				a[i] = uint16(rng.Uint32()>>16) & 0xbfff // up to 2
			}
			for i := range b {
				b[i] = uint16(rng.Uint32())
				if b[i]&0x7f80 == 0x7f80 && round > 0 {
					b[i] &= 0xbfff
				}
			}
			for rows := p.Rows; rows <= mr; rows += p.Rows {
				sums := make([]float32, mr*stride)
				got := guarded(mr * stride)
				c, want := Matrix{view(snug.BF16, got), stride, false}, Matrix{view(snug.BF16, got), stride, false}
				product := PanelProduct{A: a, B: b, C: sums, Rows: rows, Count: panels, Steps: steps, NextB: steps * stepLen, NextC: mr, StrideC: stride}
				p.Mul(product)
				p.MulBF16(product, words(c.Data))
				for i := range rows {
					half.Store(want.Data, i*stride, sums[i*stride:][:panels*mr])
				}
				require.True(t, sameBits(c.Data, want.Data), "%v, %d rows", tier, rows)
			}
		}
	}
}
