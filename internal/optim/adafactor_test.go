package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/rounding"
)

// TestPower: β of Adafactor is 0 at first, and 1 - t^τ.
func TestPower(t *testing.T) {
	for _, tau := range []float64{-0.8, -0.5, -1} {
		for _, step := range []int{1, 2, 3, 10, 1000, math.MaxInt32} {
			require.InEpsilon(t, math.Pow(float64(step), tau), Hyper{Tau: tau, Step: step}.power(), 1e-12)
		}
		require.Equal(t, 1.0, Hyper{Tau: tau, Step: 1}.power())
	}
}

// TestSize has both branches of every maximum and minimum.
func TestSize(t *testing.T) {
	h := Hyper{Rule: Adafactor, LR: 0.1, Eps2: 1e-3, Clip: 2, Step: 4}
	require.InEpsilon(t, 0.1*3, h.Sized(90, 10, 10).Size, 1e-15)
	require.InEpsilon(t, 0.1*3*2/4, h.Sized(90, 160, 10).Size, 1e-15)
	require.InEpsilon(t, 0.1*1e-3, h.Sized(0, 10, 10).Size, 1e-15)
	h.LR = 3
	require.InEpsilon(t, 0.5*3, h.Sized(90, 10, 10).Size, 1e-15)
	require.Equal(t, h.LR, h.Sized(90, 10, 10).LR, "that of the decay")
}

// factorsAreDefinition updates a part of a matrix, in tiles and in blocks, and compares
// u with float64.
func factorsAreDefinition(t *rapid.T) {
	rows, cols := rapid.IntRange(1, 12).Draw(t, "rows"), rapid.IntRange(1, 80).Draw(t, "cols")
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	first := rapid.IntRange(0, rows*cols-1).Draw(t, "first")
	n := rapid.IntRange(1, rows*cols-first).Draw(t, "elements")
	both := randomVector(r, rows+cols)
	for i, x := range both {
		both[i] = x * x
		if r.IntN(8) == 0 {
			both[i] = 0
		}
	}
	h := Hyper{Rule: Adafactor, Eps: rapid.SampledFrom([]float64{1e-3, 0x1p-23, 1e-40}).Draw(t, "eps"), Step: 3, Size: 0.5, GradScale: 0.25}
	roots := make([]float32, len(both))
	h.Roots(roots, both, rows)
	f := NewFactors(roots, rows, h.RootLimit())
	h.Factors = &f
	c := h.Coef()
	operands := func(p, g []float32) Operands {
		return Operands{P: snug.ViewOf(p), G: snug.ViewOf(g), Draws: rounding.Draws{First: uint64(first)}}
	}

	mean := 0.0
	for _, x := range both[:rows] {
		mean += float64(x) / float64(rows)
	}
	g, p := randomVector(r, n), make([]float32, n)
	want := make([]float64, n)
	for k := range g {
		if h.Eps < 1e-30 && both[(first+k)/cols]*both[rows+(first+k)%cols] == 0 {
			g[k] = 0 // else u is near the end of float32
		}
		v := float64(both[(first+k)/cols]) * float64(both[rows+(first+k)%cols]) / max(mean, h.Eps)
		want[k] = -0.5 * 0.25 * float64(g[k]) / max(math.Sqrt(v), h.Eps)
	}
	before, squares := slices.Clone(g), 0.0
	c.Step32(operands(p, g), 0, n, [MaxStates][]float32{}, 64, make([]float32, Scratch(64)))
	for k, w := range want {
		require.InDelta(t, w, p[k], 1e-6*math.Abs(w), "element %d", k)
		squares += 4 * w * w
	}
	require.Equal(t, before, g)
	again := make([]float32, n)
	Step(&c, operands(again, g), 0, n, []State8(nil), 32, make([]float32, Scratch(32)))
	require.Equal(t, p, again)
	parameter, update := c.Squares32(operands(p, g), 0, n, [MaxStates][]float32{}, 64, make([]float32, Scratch(64)))
	require.InDelta(t, squares/4, parameter, 1e-5*squares)
	require.InDelta(t, squares, update, 1e-5*squares)
}

func TestFactorsAreDefinition(t *testing.T) { rapid.Check(t, factorsAreDefinition) }
func FuzzFactors(f *testing.F)              { f.Fuzz(rapid.MakeFuzz(factorsAreDefinition)) }

// TestRowsAndColumns sums a part of a matrix, in tiles that do not fit a row.
func TestRowsAndColumns(t *testing.T) {
	const rows, cols, top, bottom, left, right = 7, 150, 2, 6, 5, 149
	g := randomVector(rand.New(rand.NewPCG(1, 2)), rows*cols)
	wantRows, wantCols := make([]float64, bottom-top), make([]float64, right-left)
	for i := top; i < bottom; i++ {
		var lanes [Lanes]float64
		for j := left; j < right; j++ {
			x := float64(float32(g[i*cols+j] * 0.3))
			lanes[(j-left)%Lanes] += x * x
			wantCols[j-left] += x * x
		}
		for n := Lanes / 2; n > 0; n /= 2 {
			for l := range n {
				lanes[l] += lanes[l+n]
			}
		}
		wantRows[i-top] = lanes[0]
	}
	gotRows, gotCols := make([]float64, len(wantRows)), make([]float64, len(wantCols))
	RowsAndColumns(snug.ViewOf(g), top*cols+left, cols, 0.3, 0, gotRows, gotCols, make([]float32, Lanes))
	require.Equal(t, wantRows, gotRows)
	require.Equal(t, wantCols, gotCols)
}
