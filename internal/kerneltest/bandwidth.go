package kerneltest

import (
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/snug-ml/snug/internal/limits"
)

// copyBytes is the size of the vector whose copy is the limit: far more than
// caches hold.
const copyBytes = 256 << 20

// OfCopy repeats do, which moves the given bytes, read plus written, and
// reports its best time as a fraction of the bandwidth at which as many
// workers copy memory, measured before and after it.
func OfCopy(b *testing.B, bytes int, do func()) {
	b.Helper()
	limit := limits.Copy(copyBytes, runtime.GOMAXPROCS(0))
	best := time.Duration(math.MaxInt64)
	for b.Loop() {
		start := time.Now()
		do()
		best = min(best, time.Since(start))
	}
	limit = max(limit, limits.Copy(copyBytes, runtime.GOMAXPROCS(0)))
	rate := float64(bytes) / best.Seconds()
	b.ReportMetric(rate/limit, "of-copy")
	b.ReportMetric(rate/1e9, "GB/s")
}
