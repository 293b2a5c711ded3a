package mx

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// definition codes a block in float64, as the documentation says.
func definition(x []float32) (codes []uint8, scale uint8) {
	codes = make([]uint8, Block)
	largest := 0.0
	for _, v := range x {
		if v-v != 0 {
			return codes, NaN
		}
		largest = max(largest, math.Abs(float64(v)))
	}
	scale = minScale
	if largest >= 0x1p-120 {
		scale = uint8(math.Floor(math.Log2(largest)) + 127)
	}
	step := math.Ldexp(1, int(scale)-bias)
	for i, v := range x {
		codes[i] = uint8(int8(max(-127, min(127, math.RoundToEven(float64(v)/step)))))
	}
	return codes, scale
}

func tiersAgree(t require.TestingT, x []float32) {
	n := len(x) / Block
	for tier, k := range Registry.All() {
		codes, scales := make([]uint8, len(x)+1), make([]uint8, n+1)
		codes[len(x)], scales[n] = 99, 99
		k.Encode(codes[:len(x)], scales[:n], x)
		require.Equal(t, []uint8{99, 99}, []uint8{codes[len(x)], scales[n]})
		got := make([]float32, len(x)+1)
		got[len(x)] = 7
		k.Decode(got[:len(x)], codes[:len(x)], scales[:n])
		require.Equal(t, float32(7), got[len(x)])
		for b := range n {
			block := x[b*Block:][:Block]
			wantCodes, wantScale := definition(block)
			require.Equal(t, wantScale, scales[b], "%v", tier)
			require.Equal(t, wantCodes, codes[b*Block:][:Block], "%v: %v", tier, block)
			step := math.Ldexp(1, int(wantScale)-bias)
			for i, v := range block {
				y := got[b*Block+i]
				if wantScale == NaN {
					require.True(t, y != y)
					continue
				}
				require.Equal(t, float32(float64(int8(wantCodes[i]))*step), y)
				bound := step / 2
				if math.Abs(float64(v)) > 127.5*step {
					bound = step
				}
				require.LessOrEqual(t, math.Abs(float64(v)-float64(y)), bound)
			}
		}
	}
}

func TestTiersAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 200*Block)
	for i := range x {
		scale := math.Exp2(float64(i/Block*2%250 - 126))
		x[i] = float32(rng.NormFloat64() * scale)
		switch rng.IntN(400) {
		case 0:
			x[i] = float32(math.Inf(1 - 2*(i%2)))
		case 1:
			x[i] = float32(math.NaN())
		case 2:
			x[i] = math.MaxFloat32
		case 3:
			x[i] = 0x1p-149
		}
	}
	clear(x[:Block])
	for i := range Block { // ties and the edge of the range
		x[Block+i] = float32(i) + 0.5
		x[2*Block+i] = -127.75 + float32(i)/8
	}
	tiersAgree(t, x)
}

func tiersProperty(t *rapid.T) {
	x := make([]float32, Block*rapid.IntRange(0, 4).Draw(t, "blocks"))
	for i := range x {
		x[i] = math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
	}
	tiersAgree(t, x)
}

func TestTiersProperty(t *testing.T) { rapid.Check(t, tiersProperty) }
func FuzzTiers(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(tiersProperty)) }

func TestPad(t *testing.T) {
	for _, k := range Registry.All() {
		for n := range Block + 1 {
			x, scale := make([]float32, n), make([]uint8, 1)
			for i := range x {
				x[i] = float32(i) - 5
			}
			codes, got := make([]uint8, n), make([]float32, n)
			k.Pad(codes, scale, x)
			k.Unpad(got, codes, scale)
			for i := range x {
				require.InDelta(t, x[i], got[i], 0.13)
			}
		}
	}
}

func BenchmarkMX(b *testing.B) {
	const n = 1 << 20
	x, codes, scales := make([]float32, n), make([]uint8, n), make([]uint8, n/Block)
	for i := range x {
		x[i] = float32(i%1000) - 500
	}
	for tier, k := range Registry.All() {
		b.Run("encode/"+tier.String(), func(b *testing.B) {
			b.SetBytes(5 * n)
			for range b.N {
				k.Encode(codes, scales, x)
			}
		})
		b.Run("decode/"+tier.String(), func(b *testing.B) {
			b.SetBytes(5 * n)
			for range b.N {
				k.Decode(x, codes, scales)
			}
		})
	}
}
