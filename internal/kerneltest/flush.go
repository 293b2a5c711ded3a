package kerneltest

import (
	"math"
	"os"
	"slices"

	"github.com/snug-ml/snug/internal/driver"
)

// Flushed reports whether got may stand for want: want is a subnormal number, got is 0, and this
// build tests a device that has no subnormal numbers. Apple's GPUs have none, whatever the
// compiler is told, nor has the emulated Metal device with SNUG_FLUSH=1.
func Flushed(want, got float32) bool {
	if want == 0 || got != 0 || math.Abs(float64(want)) >= 0x1p-126 {
		return false
	}
	return os.Getenv("SNUG_FLUSH") == "1" || slices.Contains(driver.Kinds(), "metal")
}
