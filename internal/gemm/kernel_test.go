package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// guard stands where nothing may be written.
const guard = 12345

func guarded(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = guard
	}
	return x
}

func uniform(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = rng.Float32() - 0.5
	}
	return x
}

// Every tile of the micro-kernels, with A by rows and by columns.
func TestMicroKernels(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const maxDepth, rowB, rowC = 130, 40, 37
	x, y := uniform(rng, 64*64), uniform(rng, maxDepth*rowB)
	for tier, kern := range Registry.All() {
		for rows := 1; rows <= kern.MR; rows++ {
			for cols := 1; cols <= kern.NR; cols++ {
				depth := []int{1, 2, 3, 97, maxDepth}[rng.IntN(5)]
				beta := []float32{0, 1, -0.5}[rng.IntN(3)]
				a, b := strided{x, depth + 3, 1}, strided{y, rowB, 1}
				if rng.IntN(2) == 0 {
					a = strided{x, 1, rows + 2}
				}
				got := guarded(rows * rowC)
				for i := range rows {
					copy(got[i*rowC:], uniform(rng, cols))
				}
				before := append([]float32(nil), got...)
				kern.Mul(1, rows, cols, depth, 1.5, a, 0, b, beta, strided{got, rowC, 1})
				for i, v := range got {
					if i%rowC >= cols {
						require.Equal(t, float32(guard), v, "%v %dx%d: element %d", tier, rows, cols, i)
						continue
					}
					want := float64(beta * before[i])
					size := math.Abs(want)
					for k := range depth {
						p := 1.5 * float64(a.at(i/rowC, k).x[0]) * float64(b.at(k, i%rowC).x[0])
						want, size = want+p, size+math.Abs(p)
					}
					require.InDelta(t, want, v, float64(depth+3)*0x1p-24*size, "%v %dx%d: element %d", tier, rows, cols, i)
				}
			}
		}
	}
}

func TestMicroKernelsIgnoreNaNWithBetaZero(t *testing.T) {
	x := make([]float32, 64)
	for tier, kern := range Registry.All() {
		for cols := 1; cols <= kern.NR; cols++ {
			for _, zero := range []float32{0, float32(math.Copysign(0, -1))} {
				c := []float32(nil)
				for range cols {
					c = append(c, float32(math.NaN()))
				}
				kern.Mul(1, 1, cols, 1, 1, strided{x, 1, 1}, 0, strided{x, 1, 1}, zero, strided{c, cols, 1})
				require.Equal(t, make([]float32, cols), c, tier)
			}
		}
	}
}

// Every width and type, exactly; NaNs stay NaN.
func TestCopyRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const rows, stride = 11, 137
	for tier, kern := range Registry.All() {
		for _, dt := range dtypes {
			vals := uniform(rng, rows*stride)
			vals[3], vals[stride], vals[7] = float32(math.Inf(1)), float32(math.NaN()), 0x1p-130
			src := view(dt, vals)
			want := floats(src)
			for cols := 1; cols <= 130; cols++ {
				at := cols % 5
				pieces := (cols + kern.NR - 1) / kern.NR
				dst := guarded(pieces * rows * kern.NR)
				kern.CopyRows(dst, src, at, rows, cols, stride, kern.NR, rows*kern.NR)
				for i := range rows {
					for j := range cols {
						w, v := want[at+i*stride+j], dst[j/kern.NR*rows*kern.NR+i*kern.NR+j%kern.NR]
						if math.Float32bits(w) != math.Float32bits(v) {
							t.Fatalf("%v %v: element %d,%d of %d: %v, want %v", tier, dt, i, j, cols, v, w)
						}
					}
				}
			}
		}
	}
}

func TestPackLines(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const stride = 75
	for tier, kern := range Registry.All() {
		src := uniform(rng, kern.NR*stride)
		for lines := 1; lines <= kern.NR; lines++ {
			for depth := 1; depth <= 70; depth += 1 + rng.IntN(4) {
				const beyond = 15
				dst := guarded((depth + beyond + 1) * kern.NR)
				kern.PackLines(dst, src, lines, depth, stride, kern.NR)
				for k := range depth {
					for j := range lines {
						if src[j*stride+k] != dst[k*kern.NR+j] {
							t.Fatalf("%v: line %d of %d, %d of depth %d", tier, j, lines, k, depth)
						}
					}
				}
				for _, v := range dst[(depth+beyond)*kern.NR:] {
					require.Equal(t, float32(guard), v, "%v: depth %d", tier, depth)
				}
			}
		}
	}
}

// The room of the scratch suffices for every tier's strips and panels.
func TestScratchHoldsBlocks(t *testing.T) {
	for tier, kern := range Registry.All() {
		require.Zero(t, kern.NR%kern.Lanes, tier)
		require.Zero(t, maxCols%kern.NR, tier)
		require.LessOrEqual(t, 15*kern.NR, sizeB-maxDepth*maxCols, tier)
		require.Zero(t, sharedCols%kern.NR, tier)
		require.LessOrEqual(t, 15*kern.NR, sizeB-sharedDepth*sharedCols, tier)
		rows := kern.strip() * kern.MR
		require.LessOrEqual(t, rows*(sharedDepth+rowGap)+kern.NR, sizeWork, tier)
		require.LessOrEqual(t, (sharedDepth+15)*kern.NR, sizeWork, tier)
		pitch := (kern.MR + kern.Lanes - 1) / kern.Lanes * kern.Lanes
		beside := 15 * pitch
		if kern.Columns { // the lines of a panel lie beside the panels that are made of them
			beside = max(beside, kern.MR*(sharedDepth+rowGap)+kern.NR)
		}
		require.LessOrEqual(t, kern.strip()*sharedDepth*pitch+beside, sizeWork, tier)
	}
}

// A large product has tiles for many workers, whatever its form, and tiles
// cover it.
func TestLayout(t *testing.T) {
	for tier, kern := range Registry.All() {
		for _, s := range [][3]int{{1024, 1024, 1024}, {1000, 1000, 1000}, {4096, 64, 1024}, {64, 4096, 1024}, {3000, 3000, 100}} {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				l := newLayout(kern, s[0], s[1], s[2], false, dt)
				require.GreaterOrEqual(t, l.tiles(), 8, "%v %v", tier, s)
				require.LessOrEqual(t, l.cols, maxCols)
				require.Zero(t, l.cols%kern.NR)
				require.GreaterOrEqual(t, l.cols*l.tilesN, s[1])
				require.Less(t, l.cols*(l.tilesN-1), s[1])
			}
		}
		small := newLayout(kern, 64, 128, 64, false, snug.F32)
		require.Equal(t, 1, small.tiles(), tier)
	}
	for n := range 40 {
		for parts := 1; parts < 9; parts++ {
			at := 0
			for i := range parts {
				lo, hi := part(n, parts, i)
				require.Equal(t, at, lo)
				require.LessOrEqual(t, hi-lo, n/parts+1)
				at = hi
			}
			require.Equal(t, n, at)
		}
	}
}
