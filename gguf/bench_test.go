package gguf_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/gguf"
)

// BenchmarkDecode and BenchmarkEncode report bytes of float32 a second, in one goroutine.
func BenchmarkDecode(b *testing.B) { benchmark(b, decoded, gguf.Type.Decode) }

func BenchmarkEncode(b *testing.B) {
	benchmark(b, encoded, func(t gguf.Type, x []float32, blocks []byte) error { return t.Encode(blocks, x) })
}

func benchmark(b *testing.B, types []gguf.Type, do func(t gguf.Type, x []float32, blocks []byte) error) {
	for _, typ := range types {
		b.Run(typ.String(), func(b *testing.B) {
			x := gaussian(1<<14, 1)
			n, err := typ.Bytes(len(x))
			require.NoError(b, err)
			blocks := make([]byte, n)
			require.NoError(b, typ.Encode(blocks, x))
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				if err := do(typ, x, blocks); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// gaussian returns elements of a deviation of 0.02.
func gaussian(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(0.02 * rng.NormFloat64())
	}
	return x
}
