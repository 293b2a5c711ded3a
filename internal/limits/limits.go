// Package limits measures what this machine can do at most: arithmetic on
// registers alone and the bandwidth of memory. Kernels are judged as fractions
// of these rates.
//
// A rate is the best of many rounds of some milliseconds in which a given
// number of goroutines work at the same time, so that other load on the
// machine lowers it little. A call takes about a tenth of a second. Clocks
// change: measure next to the kernel, in the same process.
package limits

import (
	"sync"
	"time"

	"github.com/snug-ml/snug/internal/cpu"
)

// loops are the measuring loops of one tier; nil where it has none of its own.
// Those on memory take slices aligned to align, of a multiple of block bytes.
type loops struct {
	fma, dot func(steps int)
	flops    float64 // of a step, for float32; the dot product does twice as many
	copy     func(dst, src []byte)
	read     func(src []byte)
}

var registry cpu.Registry[loops]

func init() {
	registry.Add(cpu.Go, loops{
		fma: fma, flops: 16,
		copy: func(dst, src []byte) { copy(dst, src) },
		read: read,
	})
}

// FMA returns the float32 operations a second of workers goroutines that do
// multiply-adds with the vectors of tier t, two operations each. It is 0 where
// there is no such tier. The loop of cpu.Go is scalar.
func FMA(t cpu.Tier, workers int) (flops float64) {
	for tier, l := range registry.All() {
		if tier == t {
			flops = arithmetic(l.fma, l.flops, workers)
		}
	}
	return flops
}

// BF16Dot returns the operations a second of workers goroutines that do the
// bfloat16 dot product VDPBF16PS: a multiplication and an addition for each
// product. It is 0 where there is no cpu.AVX512BF16.
func BF16Dot(workers int) (flops float64) {
	for _, l := range registry.All() {
		if l.dot != nil {
			flops = arithmetic(l.dot, 2*l.flops, workers)
		}
	}
	return flops
}

// Copy returns the bytes a second, read plus written, at which workers
// goroutines copy a vector of the given bytes, a part each: the faster of Go's
// copy and of stores around the caches. A size well beyond the last cache gives
// the bandwidth of memory. It allocates twice the bytes.
func Copy(bytes, workers int) (bytesPerSecond float64) {
	src, dst := split(bytes, workers), split(bytes, workers)
	for _, l := range registry.All() {
		if l.copy != nil {
			r := rate(workers, func(w int) { l.copy(dst[w], src[w]) })
			bytesPerSecond = max(bytesPerSecond, r*2*float64(workers*len(src[0])))
		}
	}
	return bytesPerSecond
}

// Read returns the bytes a second at which workers goroutines read a vector of
// the given bytes, a part each. It allocates as many.
func Read(bytes, workers int) (bytesPerSecond float64) {
	src := split(bytes, workers)
	for _, l := range registry.All() {
		if l.read != nil {
			r := rate(workers, func(w int) { l.read(src[w]) })
			bytesPerSecond = max(bytesPerSecond, r*float64(workers*len(src[0])))
		}
	}
	return bytesPerSecond
}

// The sizes that the memory loops rely on.
const (
	align = 64
	block = 512
)

// split allocates a part of bytes for each worker and writes it, so that it is
// backed by memory.
func split(bytes, workers int) [][]byte {
	n := max(cpu.Chunks(bytes, workers*block), 1) * block
	parts := make([][]byte, workers)
	for w := range parts {
		parts[w] = aligned(n)
		for i := range parts[w] {
			parts[w][i] = byte(i)
		}
	}
	return parts
}

func arithmetic(loop func(steps int), flops float64, workers int) float64 {
	const steps = 1 << 12
	return rate(workers, func(int) { loop(steps) }) * flops * steps * float64(workers)
}

// A measurement has rounds of at least this length, for at least this time.
const (
	roundTime = 3 * time.Millisecond
	totalTime = 100 * time.Millisecond
)

// rate returns how often a second each of the workers can do.
func rate(workers int, do func(worker int)) float64 {
	var best float64
	repeat := 1
	for start := time.Now(); best == 0 || time.Since(start) < totalTime; {
		t := together(workers, repeat, do)
		if t < roundTime {
			repeat *= 2
			continue
		}
		best = max(best, float64(repeat)/t.Seconds())
	}
	return best
}

// together has every worker do, repeat times, and returns the time that passes.
func together(workers, repeat int, do func(worker int)) time.Duration {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for w := range workers {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-start
			for range repeat {
				do(w)
			}
		}()
	}
	ready.Wait()
	begin := time.Now()
	close(start)
	done.Wait()
	return time.Since(begin)
}
