package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

func TestFewAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	for i, s := range [][2]int{{fewDepth, 131}, {2*fewDepth - 1, 7}, {1000, 67}, {fewGrain + 3, 2}, {500, 1}} {
		k, n := s[0], s[1]
		for m := 1; m <= mostFew+1; m++ {
			for j, dt := range dtypes {
				if !kerneltest.Taken(i+m+j, len(dtypes)) {
					continue
				}
				a := random(rng, dtypes[(i+j)%3], m, k, 2, false)
				b := random(rng, dt, k, n, 5, true)
				checkTiers(t, m, n, k, 1, a, b, 0, random(rng, dtypes[(m+j)%3], m, n, 1, false))
				checkTiers(t, m, n, k, 0.5, a, b, -2, random(rng, dtypes[m%3], m, n, 1, false))
			}
		}
	}
}

// Few rows take the path for them in every tier that has it, and others do not.
func TestFewIsTaken(t *testing.T) {
	a, b, c := Matrix{Data: view(snug.BF16, make([]float32, 9*100)), Stride: 100}, Matrix{Data: view(snug.BF16, make([]float32, 100*11)), Stride: 100, Trans: true},
		Matrix{Data: view(snug.F32, make([]float32, 9*11)), Stride: 11}
	for _, kern := range Registry.All() {
		most := mostFew
		if kern.Pairs != nil {
			most = few
		}
		for m := 1; m <= mostFew+1; m++ {
			g := newArgs(kern, m, 11, 100, 1, a, b, 0, c)
			require.Equal(t, kern.Dots != nil && m <= most, g.few, "%d rows", m)
		}
		across := b
		across.Trans, across.Stride = false, 11
		for _, g := range []args{newArgs(kern, 1, 11, fewDepth-1, 1, a, b, 0, c), newArgs(kern, 1, 11, 100, 1, a, across, 0, c)} {
			require.False(t, g.few)
		}
	}
}

func TestFewAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	for _, k := range []int{fewDepth, fewDepth + 1, 2*fewDepth - 1, 1000} {
		for m := 1; m <= mostFew; m++ {
			for _, dt := range dtypes {
				a, b, c := random(rng, dt, m, k, 0, false), random(rng, dt, k, 40, 0, true), random(rng, dt, m, 40, 0, false)
				kerneltest.NoAllocs(t, func() { Mul(m, 40, k, 1, a, b, 0, c) })
			}
		}
	}
}

// NaN and infinity reach the elements they belong to and no others.
func TestFewSpecialValues(t *testing.T) {
	const m, n, k = 3, 5, 70
	for _, kern := range Registry.All() {
		x, y := make([]float32, m*k), make([]float32, n*k)
		for i := range x {
			x[i] = 1
		}
		y[2*k+69], y[3*k+1] = float32(math.NaN()), float32(math.Inf(1))
		for _, dt := range dtypes {
			c := Matrix{view(dt, guarded(m*n)), n, false}
			g := newArgs(kern, m, n, k, 1, Matrix{view(dt, x), k, false}, Matrix{view(dt, y), k, true}, 0, c)
			g.serial()
			for i := range m {
				row := floats(c.Data)[i*n : (i+1)*n]
				require.Equal(t, []float32{0, 0}, row[:2])
				require.True(t, row[2] != row[2])
				require.Equal(t, []float32{float32(math.Inf(1)), 0}, row[3:])
			}
		}
	}
}
