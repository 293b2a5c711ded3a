package quant8

import (
	"math"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestTinyAbsmax: quotients are exact below 1e-38 too, where bitsandbytes' are not.
func TestTinyAbsmax(t *testing.T) {
	for _, m := range []*Map{DynamicMap(true), LinearMap(true)} {
		for _, scale := range []float32{1, 1e-37, 1.1e-38, 1e-38, 0.9e-38, 1e-39, 1e-41} {
			x := kerneltest.Normal(5, 3*64+20)
			for i := range x {
				x[i] *= scale
			}
			clear(x[128:192])
			codes, absmax, back := make([]uint8, len(x)), make([]float32, 4), make([]float32, len(x))
			require.NoError(t, Quantize(codes, absmax, x, m, 64))
			require.NoError(t, Dequantize(back, codes, absmax, m, 64))
			wantCodes, wantAbsmax := quantizeReference(x, m, 64)
			require.Equal(t, wantCodes, codes)
			require.Equal(t, wantAbsmax, absmax)
			require.Zero(t, absmax[2], "a block of zeros")
			for i := range x {
				half := 0.0071 * float64(absmax[i/64]) // of the widest distance of two entries
				require.InDelta(t, x[i], back[i], half+0x1p-149, "%g times %g", scale, x[i])
			}
		}
	}
}

// TestGoldenTinyAbsmax: of blocks whose absmax is below 2.9e-39, bitsandbytes 0.50.2 on the
// CPU keeps the absmax and the signs, since its reciprocal is infinite.
//
//check:in tiers arm64 arm64-go
func TestGoldenTinyAbsmax(t *testing.T) {
	g := openGolden(t, "rules")
	x := g.floats("tiny.x")
	codes, absmax, back := make([]uint8, len(x)), make([]float32, 3), make([]float32, len(x))
	require.NoError(t, Quantize(codes, absmax, x, DynamicMap(true), 64))
	require.NoError(t, Dequantize(back, codes, absmax, DynamicMap(true), 64))
	require.Equal(t, g.floats("tiny.absmax"), absmax)
	for i, theirs := range g.bytes("tiny.codes") {
		switch {
		case x[i] > 0:
			require.EqualValues(t, 255, theirs)
		default:
			require.EqualValues(t, 0, theirs)
		}
		error := math.Abs(float64(back[i]) - float64(x[i]))
		require.LessOrEqual(t, error, math.Abs(float64(g.floats("tiny.values")[i])-float64(x[i]))+0x1p-149)
	}
}
