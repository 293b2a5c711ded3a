package pack_test

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat/pack"
)

// TestZeroValues calls everything that is exported with nil and zero values.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		pack.BitsLen, pack.Int8Scales, pack.Signs[[]uint8, []float32], pack.Bits[[]uint8, []bool], pack.UnpackBits[[]bool, []uint8],
		pack.ApplyBits[[]float32, []uint8], pack.Int8[[]uint8, []float32], pack.UnpackInt8[[]float32, []uint8],
		pack.Bits[snug.View, snug.View], pack.Signs[snug.View, snug.View],
	)
}
