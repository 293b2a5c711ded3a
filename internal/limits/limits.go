// Package limits measures what this machine can do at most: arithmetic on
// registers alone and the bandwidth of memory. Kernels are judged as fractions
// of these rates.
//
// A rate is the best of many rounds of some milliseconds in which a given
// number of goroutines work at the same time, so that other load on the
// machine lowers it little. A call takes some tenths of a second. Clocks
// change: measure next to the kernel, in the same process.
package limits

import (
	"math"
	"sync"
	"time"

	"github.com/snug-ml/snug/internal/cpu"
)

// loops are the measuring loops of one tier; nil where it has none of its own.
// The last tier with loops on memory measures it: the fastest of them is what
// the machine can do.
type loops struct {
	fma, dot, tile arithmetic
	stream         stream
}

// arithmetic is a loop on registers and the operations of a step.
type arithmetic struct {
	loop  func(steps int)
	flops float64
}

var registry cpu.Registry[loops]

func init() {
	registry.Add(cpu.Go, loops{fma: arithmetic{fma, 16}, stream: streamGo})
}

// FMA returns the float32 operations a second of workers goroutines that do
// multiply-adds with the vectors of tier t, two operations each. It is 0 where
// there is no such tier. The loop of cpu.Go is scalar.
func FMA(t cpu.Tier, workers int) (flops float64) {
	for tier, l := range registry.All() {
		if tier == t {
			flops = l.fma.rate(workers)
		}
	}
	return flops
}

// BF16Dot returns the operations a second of workers goroutines that do the
// bfloat16 dot product VDPBF16PS: a multiplication and an addition for each
// product. It is 0 where there is no cpu.AVX512BF16.
func BF16Dot(workers int) (flops float64) {
	var dot arithmetic
	for _, l := range registry.All() {
		if l.dot.loop != nil {
			dot = l.dot
		}
	}
	return dot.rate(workers)
}

// BF16Tile is [BF16Dot] for products of tiles, TDPBF16PS. It is 0 where there is
// no cpu.AMX.
func BF16Tile(workers int) (flops float64) {
	for _, l := range registry.All() {
		if l.tile.loop != nil {
			flops = l.tile.rate(workers)
		}
	}
	return flops
}

func (a arithmetic) rate(workers int) (flops float64) {
	if a.loop == nil {
		return 0
	}
	const steps = 1 << 12
	return rate(workers, func(int) { a.loop(steps) }) * a.flops * steps * float64(workers)
}

// A measurement has rounds of at least this length, and lasts at least this
// long for each loop.
const (
	roundTime = 3 * time.Millisecond
	loopTime  = 70 * time.Millisecond
)

// rate returns how often a second each of the workers can do the fastest of
// loops, which take turns.
func rate(workers int, loops ...func(worker int)) float64 {
	var best float64
	repeat := 1
	total := time.Duration(len(loops)) * loopTime
	for start := time.Now(); best == 0 || time.Since(start) < total; {
		shortest := time.Duration(math.MaxInt64)
		for _, do := range loops {
			shortest = min(shortest, together(workers, repeat, do))
		}
		if shortest < roundTime {
			repeat *= 2
			continue
		}
		best = max(best, float64(repeat)/shortest.Seconds())
	}
	return best
}

// together has every worker do, repeat times, and returns the time that passes.
func together(workers, repeat int, do func(worker int)) time.Duration {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for w := range workers {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-start
			for range repeat {
				do(w)
			}
		})
	}
	ready.Wait()
	begin := time.Now()
	close(start)
	done.Wait()
	return time.Since(begin)
}
