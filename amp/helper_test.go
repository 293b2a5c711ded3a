package amp

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var floats = []snug.DType{snug.F32, snug.F16, snug.BF16}

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

// special holds values at which conversions change their behaviour.
var special = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, nan, inf, -inf, 1e-40, -1e-45, 0x1p-24, 0x1p-25, 0x1.8p-25, 65504, 65519, 65520,
	-65520, 1e38, math.MaxFloat32, 0x1.01p0, 0x1.03p0, 0x1.002p0, 0x1.006p0, 1.0 / 3,
}

// skips are how many elements of a buffer come before the vector under test:
// with the guard words of kerneltest, it starts at an odd element, at a multiple
// of 16 bytes, or three elements after one.
var skips = []int{0, 9, 12}

// requireSame compares bits, except of NaNs, and of subnormal numbers on devices without them.
func requireSame(t require.TestingT, want, got []float32, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for i := range want {
		if want[i] != want[i] && got[i] != got[i] || kerneltest.Flushed(want[i], got[i]) {
			continue
		}
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "values differ", "element %d: want %v, got %v %v", i, want[i], got[i], msg)
		}
	}
}
