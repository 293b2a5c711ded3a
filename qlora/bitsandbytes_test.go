package qlora

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/quant8"
)

// TestBlocksOfBitsandbytes has vectors that bitsandbytes 0.50.2 has quantized:
// codes, absmax and values are the same, bit for bit, also those in 16 bits, except the sign of
// FP4's code 8: its kernels in 16 bits decode that to -0 where blocks are whole.
//
//check:in tiers arm64 arm64-go ordered
//check:not checked
func TestBlocksOfBitsandbytes(t *testing.T) {
	type row struct {
		Type, DType                 string
		Block                       int
		Src, Packed, Absmax, Values encoded
	}
	for i, r := range golden[row](t, "blocks.json") {
		format, dt := parse(t, r.Type, r.DType)
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			t.Run(fmt.Sprintf("%d/%v/%v/%d", i, format, dt, r.Block), func(t *testing.T) {
				x := r.Src.floats(t, dt)
				src, dst := kerneltest.PutFloats(t, backend, dt, x), kerneltest.PutFloats(t, backend, dt, make([]float32, len(x)))
				packed := kerneltest.Put(t, backend, make([]uint8, PackedBytes(len(x))))
				absmax := kerneltest.Put(t, backend, make([]float32, Blocks(len(x), r.Block)))
				require.NoError(t, Quantize(packed.View, absmax.View, src.View, format, r.Block))
				require.NoError(t, Dequantize(dst.View, packed.View, absmax.View, format, r.Block))
				require.Equal(t, r.Packed.bytes(t), packed.Get())
				sameBits(t, r.Absmax.floats(t, snug.F32), absmax.Get())
				want := r.Values.floats(t, dt)
				for i := range want {
					if r.Type == "fp4" && want[i] == 0 {
						want[i] = 0
					}
				}
				sameBits(t, want, dst.Get())
			})
		})
	}
}

// TestDoubleOfBitsandbytes has absmax that bitsandbytes 0.50.2 has quantized,
// given its offset. Where the codes differ, that of its table of quotients is not
// the nearest; a block of zeros has any.
//
//check:in tiers arm64 arm64-go
func TestDoubleOfBitsandbytes(t *testing.T) {
	type row struct{ Absmax, Codes, Nested, Offset, Values, Map encoded }
	rows := golden[row](t, "double.json")
	m := quant8.Map(rows[0].Map.floats(t, snug.F32))
	for c := range m {
		require.InDelta(t, signed[c], m[c], 6e-8, "entry %d, in whose last bit torch may differ", c)
	}
	for _, r := range rows {
		absmax, offset := r.Absmax.floats(t, snug.F32), r.Offset.floats(t, snug.F32)[0]
		codes, nested := make([]uint8, len(absmax)), make([]float32, Blocks(len(absmax), 256))
		got, err := DoubleQuantize(codes, nested, absmax)
		require.NoError(t, err)
		require.InEpsilon(t, offset, got, 0x1p-22)

		require.NoError(t, nest(codes, nested, absmax, offset))
		sameBits(t, r.Nested.floats(t, snug.F32), nested)
		want, differ := r.Codes.bytes(t), 0
		for i, c := range codes {
			if c != want[i] && nested[i/256] != 0 {
				differ++
				away := func(c uint8) float64 {
					return math.Abs(float64(signed[c]) - float64((absmax[i]-offset)/nested[i/256]))
				}
				require.Less(t, away(c), away(want[i]), "code %d of %d", i, len(codes))
			}
		}
		require.LessOrEqual(t, differ, len(codes)/50, "codes that differ")

		back := make([]float32, len(absmax))
		unnest(back, want, nested, offset, &m, 0)
		sameBits(t, r.Values.floats(t, snug.F32), back)
	}
}
