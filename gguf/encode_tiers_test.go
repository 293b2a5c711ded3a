package gguf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/ggml"
)

// TestEncodeTiers: the encoders of all tiers have the bytes of those in Go, also for halves and their neighbors, zeros, subnormal and
// largest elements, at any address, and write nothing else.
//
//check:in tiers
func TestEncodeTiers(t *testing.T) {
	inGo := map[ggml.Format]func([]byte, []float32){ggml.Q8_0: encodeQ8_0}
	rng := rand.New(rand.NewPCG(1, 2))
	blocks := map[string]func(x []float32){
		"zeros":  func([]float32) {},
		"normal": func(x []float32) { each(x, func(int) float64 { return rng.NormFloat64() }) },
		"halves": func(x []float32) {
			each(x, func(i int) float64 {
				v := float32(rng.IntN(253)-126) + 0.5
				return float64(math.Nextafter32(v, []float32{v, 200, -200}[i%3]))
			})
			x[7] = 127
		},
		"subnormal":        func(x []float32) { each(x, func(i int) float64 { return float64(i-16) * 0x1p-149 }) },
		"no inverse":       func(x []float32) { each(x, func(i int) float64 { return float64(i-16) * 0x1p-128 }) },
		"smallest inverse": func(x []float32) { each(x, func(i int) float64 { return float64(i-16) * 0x1p-124 }) },
		"largest":          func(x []float32) { each(x, func(i int) float64 { return maxScaled * float64(1-i%3) }) },
		"one":              func(x []float32) { x[31] = -3e-5 },
		"negative zero":    func(x []float32) { x[0], x[1] = float32(math.Copysign(0, -1)), 1 },
	}
	for f, slow := range inGo {
		for name, fill := range blocks {
			for _, n := range []int{1, 2, 7} {
				x := make([]float32, n*f.Elements()+1)[1:]
				for block := range slices.Chunk(x, f.Elements()) {
					fill(block)
				}
				want := make([]byte, n*f.Bytes())
				slow(want, x)
				for tier, k := range ggml.Registry.All() {
					if k.Encode[f] == nil {
						continue
					}
					got := slices.Repeat([]byte{77}, n*f.Bytes()+9)
					k.Encode[f](got[3:3+len(want)], x)
					require.Equal(t, want, got[3:3+len(want)], "%v: %s", tier, name)
					require.Equal(t, slices.Repeat([]byte{77}, 9), append(got[:3:3], got[3+len(want):]...))
				}
			}
		}
	}
}

func each(x []float32, value func(i int) float64) {
	for i := range x {
		x[i] = float32(value(i))
	}
}
