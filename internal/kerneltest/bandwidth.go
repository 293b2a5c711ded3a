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

// OfCopy calls do for one part after the other. Each part moves the given bytes, read plus
// written. OfCopy reports the best time as a fraction of the bandwidth at which as many
// workers copy memory, measured before and after. When the parts together are far larger
// than the caches, each comes from memory, yet is short enough to escape other load.
func OfCopy(b *testing.B, parts, bytes int, do func(part int)) {
	b.Helper()
	limit := limits.Bandwidth(limits.Copy, 2*copyBytes, runtime.GOMAXPROCS(0))
	best, part := time.Duration(math.MaxInt64), 0
	for b.Loop() {
		start := time.Now()
		do(part)
		best = min(best, time.Since(start))
		part = (part + 1) % parts
	}
	limit = max(limit, limits.Bandwidth(limits.Copy, 2*copyBytes, runtime.GOMAXPROCS(0)))
	rate := float64(bytes) / best.Seconds()
	b.ReportMetric(rate/limit, "of-copy")
	b.ReportMetric(rate/1e9, "GB/s")
}
