package rowwise

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/philox"
)

// DropoutDrawn is Dropout with the words of a stream, and touches nothing beyond its operands.
func TestDropoutDrawn(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	dropoutDrawn(t, &F32, func() float32 {
		return []float32{
			float32(rng.NormFloat64()), math.Float32frombits(rng.Uint32()), float32(math.NaN()), float32(math.Inf(-1)),
			math.SmallestNonzeroFloat32, float32(math.Copysign(0, -1)),
		}[rng.IntN(6)]
	}, math.Float32bits)
	dropoutDrawn(t, &BF16, func() uint16 {
		return []uint16{uint16(snug.ToBFloat16(float32(rng.NormFloat64()))), uint16(rng.Uint32())}[rng.IntN(2)]
	}, func(x uint16) uint32 { return uint32(x) })
}

func dropoutDrawn[T float32 | uint16](t *testing.T, layers *cpu.Registry[Layers[T]], number func() T, bits func(T) uint32) {
	for tier, k := range layers.All() {
		if k.DropoutDrawn == nil {
			continue
		}
		for _, n := range []int{0, DrawnLen, 2 * DrawnLen, 17 * DrawnLen} {
			for _, threshold := range []uint32{0, 1 << 29, 3 << 30, math.MaxUint32} {
				s, first := philox.Stream{Seed: 1<<40 + uint64(n), Tensor: 1<<63 + uint64(threshold)}, uint64(1<<32-3)
				words, src := make([]uint32, n), make([]T, n)
				s.Words(words, philox.PerBlock*first)
				for i := range src {
					src[i] = number()
				}
				want := make([]T, n)
				k.Dropout(want, src, words, threshold, 1.25, false)
				for _, stream := range []bool{false, true} {
					for _, off := range []int{0, 1} { // from the end of memory
						got, in := atEnd(t, make([]T, n+off)), atEnd(t, append(src, make([]T, off)...))
						k.DropoutDrawn(got[:n], in[:n], s.Seed, s.Tensor, first, threshold, 1.25, stream)
						k.DropoutDrawn(in[:n], in[:n], s.Seed, s.Tensor, first, threshold, 1.25, stream)
						Registry.Best().Fence()
						for i := range want {
							require.Equal(t, bits(want[i]), bits(got[i]), "%v: element %d of %d", tier, i, n)
							require.Equal(t, bits(want[i]), bits(in[i]), "%v: in place, element %d of %d", tier, i, n)
						}
					}
				}
			}
		}
	}
}
