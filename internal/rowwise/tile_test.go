package rowwise

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// randomTile returns a tile of random scores with ranges of all kinds, one row of which is special.
func randomTile(rng *rand.Rand) Tile {
	rows, at := 1+rng.IntN(5), rng.IntN(40)
	t := Tile{Cols: at + 1 + rng.IntN(100), At: at, Sees: make([]Range, rows)}
	t.Stride = (t.Cols/TileCols + 1 + rng.IntN(2)) * TileCols
	t.X = make([]float32, rows*t.Stride)
	for i := range t.X {
		t.X[i] = float32(8 * rng.NormFloat64())
		if rng.IntN(60) == 0 {
			t.X[i] = []float32{nan, -inf, 1e-40, -1e30}[rng.IntN(4)]
		}
	}
	n := t.Cols - at
	for i := range t.Sees {
		r := &t.Sees[i]
		switch rng.IntN(4) {
		case 0:
			r.Hi = n
		case 1:
			r.Lo = rng.IntN(n + 1)
			r.Hi = r.Lo
		case 2:
			r.Hi, r.Lo = rng.IntN(n+1), n
		default:
			r.Lo = rng.IntN(n + 1)
			r.Hi = r.Lo + rng.IntN(n-r.Lo+1)
		}
	}
	return t
}

func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(4 * rng.NormFloat64())
	}
	return x
}

// equalNearly fails unless got is want, apart from a relative error, and is NaN, infinite and 0 where want is.
func equalNearly(t *testing.T, want, got []float32, tolerance float64, name string) {
	t.Helper()
	for i, w := range want {
		g := got[i]
		if w != w && g != g || w == g {
			continue
		}
		require.InEpsilon(t, w, g, tolerance, "%s: element %d is %g, want %g", name, i, g, w)
	}
}

// The loops over tiles do what the loops over rows of Go do, and touch nothing else: their operands
// end where memory ends in TestTilesStayWithinOperands.
func TestTiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const scale, scaleGrad = 0.7, -1.25
	for range 400 {
		in := randomTile(rng)
		rows := len(in.Sees)
		base, delta, before, ds := random(rng, rows), random(rng, rows), random(rng, rows), random(rng, len(in.X))
		copied := func() Tile {
			out := in
			out.X = append([]float32(nil), in.X...)
			return out
		}
		// past sets what may be anything: elements beyond Cols.
		past := func(x []float32) []float32 {
			for i := range rows {
				clear(x[i*in.Stride+in.Cols : (i+1)*in.Stride])
			}
			return x
		}
		reference := func() (most, sums, p, pOfGrad, dsOut []float32) {
			g := Kernels{Max: maximum, Exp2Sum: exp2Sum, ScoreGrad: scoreGrad}.tileLoops()
			most, sums = append([]float32(nil), before...), make([]float32, rows)
			g.MaxRows(most, in, scale)
			w := copied()
			g.Exp2Rows(sums, w, scale, base)
			v, d := copied(), append([]float32(nil), ds...)
			g.GradRows(d, v, scale, base, delta, scaleGrad)
			return most, sums, past(w.X), past(v.X), past(d)
		}
		most, sums, p, pGrad, dsGrad := reference()
		for tier, k := range Registry.All() {
			got := append([]float32(nil), before...)
			k.MaxRows(got, in, scale)
			require.Equal(t, most, got, "%v", tier)
			w, got2 := copied(), make([]float32, rows)
			k.Exp2Rows(got2, w, scale, base)
			equalNearly(t, sums, got2, 1e-5, tier.String()+" sums")
			equalNearly(t, p, past(w.X), 1e-6, tier.String()+" Exp2Rows")
			v, d := copied(), append([]float32(nil), ds...)
			k.GradRows(d, v, scale, base, delta, scaleGrad)
			equalNearly(t, pGrad, past(v.X), 1e-6, tier.String()+" weights of GradRows")
			equalNearly(t, dsGrad, past(d), 1e-5, tier.String()+" GradRows")
		}
		for tier, k := range Pairs.All() {
			pieces, got := (in.Cols+TileCols-1)/TileCols, make([]float32, rows)
			next := rows*TileCols + 7
			dst := make([]uint16, pieces*next)
			k.Exp2Rows(got, dst, next, in, scale, base)
			equalNearly(t, sums, got, 1e-5, tier.String()+" sums of pairs")
			for i := range rows {
				for j := range pieces * TileCols {
					x, want := snug.BFloat16(dst[j/TileCols*next+i*TileCols+j%TileCols]).Float32(), float32(0)
					if j < in.Cols {
						want = p[i*in.Stride+j]
					}
					if want != want {
						require.True(t, x != x)
						continue
					}
					require.InDelta(t, want, x, math.Abs(float64(want))*(1.0/256+1e-6), "%v: element %d of row %d", tier, j, i)
				}
			}
		}
	}
}

// No rows is no work, in every tier.
func TestEmptyTiles(t *testing.T) {
	for _, k := range Registry.All() {
		k.MaxRows(nil, Tile{}, 1)
		k.Exp2Rows(nil, Tile{}, 1, nil)
		k.GradRows(nil, Tile{}, 1, nil, nil, 1)
	}
	for _, k := range Pairs.All() {
		k.Exp2Rows(nil, nil, 0, Tile{}, 1, nil)
	}
}

// GradRows of pairs gives what GradRows gives, rounded, once by rows and once by pairs of them.
func TestPairGrads(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const scale, scaleGrad, rows = 0.7, -1.25, 32
	for range 50 {
		pieces := 1 + rng.IntN(4)
		cols := pieces * TileCols
		in := Tile{Cols: cols, Stride: cols + TileCols, Sees: make([]Range, rows)}
		in.X = random(rng, rows*in.Stride)
		dp, base, delta := random(rng, len(in.X)), random(rng, rows), random(rng, rows)
		masks := make([]uint32, rows*pieces)
		for i := range in.Sees {
			r := Range{Lo: rng.IntN(cols + 1)}
			r.Hi = r.Lo + rng.IntN(cols-r.Lo+1)
			in.Sees[i] = r
			for j := r.Lo; j < r.Hi; j++ {
				masks[i*pieces+j/32] |= 1 << (j % 32)
			}
			if r.Lo > 0 { // what does not count has no effect
				in.X[i*in.Stride], dp[i*in.Stride] = nan, nan
			}
		}
		want, ds := in, append([]float32(nil), dp...)
		want.X = append([]float32(nil), in.X...)
		Registry.Best().GradRows(ds, want, scale, base, delta, scaleGrad)
		for tier, k := range Pairs.All() {
			g := PairGrads{
				Masks: masks, MaskRow: pieces, Next: 1024, NextAcross: 1024,
				DS: make([]uint16, pieces*1024), P: make([]uint16, pieces*1024), Across: make([]uint16, pieces*1024),
			}
			k.GradRows(g, in.X, dp, rows, cols, in.Stride, scale, base, delta, scaleGrad)
			for i := range rows {
				for j := range cols {
					at := j/32*1024 + j%32/16*512 + i/2*32 + 2*(j%16) + i%2
					for name, x := range map[string]struct {
						got  uint16
						want float32
					}{
						"p": {g.P[at], want.X[i*in.Stride+j]}, "across": {g.Across[at], ds[i*in.Stride+j]},
						"ds": {g.DS[j/32*1024+i*32+j%32], ds[i*in.Stride+j]},
					} {
						require.InDelta(t, x.want, snug.BFloat16(x.got).Float32(), math.Abs(float64(x.want))*(1.0/256+1e-5)+1e-37, "%v: %s of row %d, element %d", tier, name, i, j)
					}
				}
			}
		}
	}
}
