package lowrank

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
)

// shapes are those of matrices in one part and in several, with odd sides.
var shapes = [][2]int{{2, 3}, {3, 2}, {5, 5}, {1, 70}, {70, 1}, {33, 65}, {65, 33}, {130, 700}, {700, 131}, {3, 140_001}, {140_001, 3}, {2100, 300}}

// quantileSum is the checksum of the quantiles.
const quantileSum uint32 = 0xc1a9b250

var stream = philox.Stream{Seed: 3, Tensor: 5}

// explicit returns the directions of a stream as one matrix.
func explicit(rank, short int) []float32 {
	all := make([]float32, rank*short)
	for i := range rank {
		Normal(all[i*short:][:short], stream, uint64(i*short))
	}
	return all
}

// projected is the definition of [Project] in float64, with the sum of the magnitudes of the products.
func projected(g []float32, rows, cols int, d []float32, rank int) (x, magnitudes []float64) {
	short, long := min(rows, cols), max(rows, cols)
	x, magnitudes = make([]float64, long*rank), make([]float64, long*rank)
	for c := range long {
		for k := range rank {
			for i := range short {
				at := c*cols + i
				if rows < cols {
					at = i*cols + c
				}
				p := float64(g[at]) * float64(d[k*short+i])
				x[c*rank+k] += p
				magnitudes[c*rank+k] += math.Abs(p)
			}
		}
	}
	return x, magnitudes
}

// TestProject has random directions and given ones, all types, and elements that are skipped.
func TestProject(t *testing.T) {
	for n, s := range shapes {
		rows, cols := s[0], s[1]
		short := min(rows, cols)
		for _, rank := range []int{1, 2, 17} {
			if rank > short {
				continue
			}
			for i, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
				if !kerneltest.Taken(n+rank+i, 3) {
					continue
				}
				g := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, kerneltest.Normal(1, rows*cols))
				values := g.Get()
				m := Matrix{Data: g.View, Rows: rows, Cols: cols}
				if i == 1 {
					m.Skip = func(x []float32) {
						for k, v := range x {
							if v > 1 {
								x[k] = 0
							}
						}
					}
					m.Skip(values)
				}
				all := explicit(rank, short)
				want, magnitudes := projected(values, rows, cols, all, rank)
				for _, d := range []Directions{{Rank: rank, Values: all}, {Rank: rank, Stream: stream}} {
					got := make([]float32, len(want)+1)
					work := make([]float32, ProjectWork(rows, cols, rank)+1)
					got[len(want)], work[len(work)-1] = 7, 7
					Project(got[:len(want)], 0.5, m, d, work[:len(work)-1])
					for k, w := range want {
						bound := 0.5 * float64(short+3) * 0x1p-24 * magnitudes[k]
						require.InDelta(t, w/2, got[k], bound+1e-30, "%d×%d, rank %d, %v, element %d", rows, cols, rank, dt, k)
					}
					require.Equal(t, []float32{7, 7}, []float32{got[len(want)], work[len(work)-1]})
				}
			}
		}
	}
}

// TestNormal: a part of the stream has the same numbers as the whole at that place, their moments are those of the normal
// distribution, and every processor gets the same bits.
func TestNormal(t *testing.T) {
	const n = 1 << 16
	whole := make([]float32, n)
	Normal(whole, stream, 0)
	for _, c := range [][2]int{{0, 1}, {1, 2}, {1, 5000}, {7, 4103}, {2048, 9001}, {n - 3, n}} {
		part := make([]float32, c[1]-c[0])
		Normal(part, stream, uint64(c[0]))
		require.Equal(t, whole[c[0]:c[1]], part)
	}
	var moments [5]float64
	for _, x := range whole {
		for k := 1; k < len(moments); k++ {
			moments[k] += math.Pow(float64(x), float64(k)) / n
		}
	}
	for k, want := range []float64{0, 0, 1, 0, 3} {
		require.InDelta(t, want, moments[k], 0.15, "moment %d", k)
	}
	next := make([]float32, n)
	Normal(next, philox.Stream{Seed: 3, Tensor: 6}, 0)
	both := 0.0
	for i, x := range whole {
		both += float64(x) * float64(next[i]) / n
	}
	require.InDelta(t, 0, both, 0.02)

	table, sum := quantiles(), crc32.NewIEEE()
	squares := 0.0
	for i, x := range table {
		exact := math.Sqrt2 * math.Erfinv((float64(i)+0.5)/float64(len(table)))
		require.InEpsilon(t, exact, x, 3e-4)
		squares += float64(x) * float64(x) / float64(len(table))
		fmt.Fprintf(sum, "%08x", math.Float32bits(x))
	}
	require.InDelta(t, 1, squares, 1e-7)
	require.Equal(t, quantileSum, sum.Sum32())
}

// TestQuantilesAreFarFromMidpoints: float64 rounded otherwise gives the same float32.
func TestQuantilesAreFarFromMidpoints(t *testing.T) {
	for i, x := range exactQuantiles() {
		down, up := float32(x*(1-1e-13)), float32(x*(1+1e-13))
		require.Equal(t, down, up, "quantile %d", i)
	}
}

// decaying returns a matrix whose singular values fall by a factor, with noise.
func decaying(rows, cols int, factor float64) []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	k := min(rows, cols, 40)
	left, right := mat.NewDense(rows, k, nil), mat.NewDense(k, cols, nil)
	for i := range rows {
		for j := range k {
			left.Set(i, j, r.NormFloat64()*math.Pow(factor, float64(j)))
		}
	}
	for i := range k {
		for j := range cols {
			right.Set(i, j, r.NormFloat64())
		}
	}
	var p mat.Dense
	p.Mul(left, right)
	x := make([]float32, rows*cols)
	for i, v := range p.RawMatrix().Data {
		x[i] = float32(v + 1e-3*r.NormFloat64())
	}
	return x
}

func basis(m Matrix, rank int) []float32 {
	floats, doubles := BasisWork(m.Rows, m.Cols, rank)
	dst := make([]float32, rank*m.Short())
	Basis(dst, m, rank, stream, make([]float32, floats), make([]float64, doubles))
	return dst
}

// TestBasis: directions are orthonormal, and those of gonum's decomposition in float64 up to signs, where singular
// values are apart.
func TestBasis(t *testing.T) {
	for _, c := range []struct {
		rows, cols, rank int
		scale            float32
	}{
		{6, 11, 3, 1}, {11, 6, 5, 1}, {9, 9, 9, 1}, {1, 7, 1, 1}, {100, 128, 20, 1}, {128, 100, 20, 1e-25}, {300, 200, 10, 1},
		{200, 300, 10, 1}, {600, 257, 20, 1}, {257, 600, 20, 1e-25}, {300, 400, 3, 1e17}, {150, 150, 140, 1},
	} {
		g := decaying(c.rows, c.cols, 0.8)
		for i := range g {
			g[i] *= c.scale
		}
		m := Matrix{Data: snug.ViewOf(g), Rows: c.rows, Cols: c.cols}
		a := mat.NewDense(c.rows, c.cols, nil)
		for i, v := range g {
			a.Set(i/c.cols, i%c.cols, float64(v/c.scale))
		}
		if !m.Tall() {
			a = mat.DenseCopyOf(a.T())
		}
		var d mat.SVD
		require.True(t, d.Factorize(a, mat.SVDThin))
		var v mat.Dense
		d.VTo(&v)
		values, got, short := d.Values(nil), basis(m, c.rank), m.Short()
		for i := range min(c.rank, 20) {
			for j := range i + 1 {
				want := 0.0
				if i == j {
					want = 1
				}
				require.InDelta(t, want, dot(got[i*short:][:short], got[j*short:][:short]), 3e-6, "%+v", c)
			}
			along := 0.0
			for k := range short {
				along += v.At(k, i) * float64(got[i*short+k])
			}
			if i+1 < len(values) && values[i+1] > 0.95*values[i] || i > 0 && values[i] > 0.95*values[i-1] {
				continue
			}
			require.InDelta(t, 1, math.Abs(along), 1e-4, "%+v, direction %d, values %v", c, i, values)
		}
	}
}

// TestBasisOfNoise: of a matrix without structure, the directions hold nearly as much as the best.
func TestBasisOfNoise(t *testing.T) {
	const rows, cols, rank = 300, 260, 40
	g := kerneltest.Normal(1, rows*cols)
	a := mat.NewDense(rows, cols, nil)
	for i, v := range g {
		a.Set(i/cols, i%cols, float64(v))
	}
	var d mat.SVD
	require.True(t, d.Factorize(a, mat.SVDNone))
	best, held := 0.0, 0.0
	for _, s := range d.Values(nil)[:rank] {
		best += s * s
	}
	x, _ := projected(g, rows, cols, basis(Matrix{Data: snug.ViewOf(g), Rows: rows, Cols: cols}, rank), rank)
	for _, v := range x {
		held += v * v
	}
	require.Greater(t, held, 0.95*best)
}

// TestBasisOfFewDirections: directions that the matrix lacks are orthogonal to the others, and have the norm 1.
func TestBasisOfFewDirections(t *testing.T) {
	for _, s := range [][2]int{{5, 8}, {2, 3}, {300, 200}, {200, 300}} {
		rows, cols := s[0], s[1]
		short := min(rows, cols)
		rank := min(4, short-1)
		g := make([]float32, rows*cols)
		for range 2 { // zeros, then a matrix of rank 1
			got := basis(Matrix{Data: snug.ViewOf(g), Rows: rows, Cols: cols}, rank)
			for i := range rank {
				for j := range i {
					require.InDelta(t, 0, dot(got[i*short:][:short], got[j*short:][:short]), 1e-5)
				}
				require.InDelta(t, 1, dot(got[i*short:][:short], got[i*short:][:short]), 1e-5)
			}
			for i := range g {
				g[i] = float32(i/cols%3+1) * float32(i%cols%5+1)
			}
		}
	}
}

//check:in race
func TestWorkersDoNotMatter(t *testing.T) {
	for _, s := range [][2]int{{300, 500}, {500, 300}, {90, 1000}} {
		rows, cols := s[0], s[1]
		do := func(workers int) []float32 {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
			m := Matrix{Data: snug.ViewOf(kerneltest.Normal(2, rows*cols)), Rows: rows, Cols: cols}
			x := make([]float32, 9*m.Long())
			Project(x, 1, m, Directions{Rank: 9, Stream: stream}, make([]float32, ProjectWork(rows, cols, 9)))
			return append(x, basis(m, 9)...)
		}
		require.Equal(t, do(1), do(2))
	}
}

//check:not arm64
func TestNoAllocations(t *testing.T) {
	for _, s := range [][2]int{{300, 200}, {90, 300}} {
		m := Matrix{Data: snug.ViewOf(kerneltest.Normal(2, s[0]*s[1])), Rows: s[0], Cols: s[1]}
		floats, sums := BasisWork(m.Rows, m.Cols, 8)
		x, work, doubles := make([]float32, 8*m.Long()), make([]float32, max(floats, ProjectWork(m.Rows, m.Cols, 8))), make([]float64, sums)
		kerneltest.NoAllocs(t, func() {
			Project(x, 1, m, Directions{Rank: 8, Stream: stream}, work)
			Basis(x, m, 8, stream, work, doubles)
		})
	}
}

func BenchmarkProject(b *testing.B) {
	for _, rank := range []int{1, 16, 128, 256} {
		for _, s := range [][2]int{{4096, 4096}, {11008, 4096}, {4096, 11008}} {
			m := Matrix{Data: snug.ViewOf(kerneltest.Normal(2, s[0]*s[1])), Rows: s[0], Cols: s[1]}
			x, work := make([]float32, rank*m.Long()), make([]float32, ProjectWork(m.Rows, m.Cols, rank))
			b.Run(fmt.Sprintf("%dx%d/%d", s[0], s[1], rank), func(b *testing.B) {
				for b.Loop() {
					Project(x, 1, m, Directions{Rank: rank, Stream: stream}, work)
				}
				b.ReportMetric(2*float64(rank*m.Rows*m.Cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

func BenchmarkNormal(b *testing.B) {
	x := make([]float32, 4096)
	b.SetBytes(4 * 4096)
	for b.Loop() {
		Normal(x, stream, 0)
	}
}

func BenchmarkBasis(b *testing.B) {
	for _, c := range [][3]int{{512, 128, 32}, {1024, 1024, 128}, {4096, 4096, 128}} {
		m := Matrix{Data: snug.ViewOf(kerneltest.Normal(2, c[0]*c[1])), Rows: c[0], Cols: c[1]}
		b.Run(fmt.Sprint(c), func(b *testing.B) {
			for b.Loop() {
				basis(m, c[2])
			}
		})
	}
}
