package main

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/limits"
)

// machine is what this machine can do at most with a number of workers.
type machine struct {
	tier    cpu.Tier
	threads int
	largest int                  // working set
	fma     map[cpu.Tier]float64 // float32 operations a second, of this tier and those below
	dot     float64              // with the bfloat16 dot product, 0 where the tier has none
	tile    float64              // with AMX on bfloat16, likewise
	copies  map[int]bandwidth
	reads   map[int]bandwidth
}

// bandwidth is a measured one.
type bandwidth struct {
	rate float64 // bytes a second
	at   time.Time
}

// stale is the age from which a bandwidth is measured again, since what else
// runs on a machine or on its neighbours changes. The best measurement counts.
const stale = 15 * time.Second

// newMachine measures the peaks of the tiers up to limit that the machine and
// this build have. Bandwidths are measured when they are first asked for, next
// to the kernels that they bind.
func newMachine(limit cpu.Tier, threads, largest int) *machine {
	m := &machine{
		threads: threads, largest: largest,
		fma: map[cpu.Tier]float64{}, copies: map[int]bandwidth{}, reads: map[int]bandwidth{},
	}
	for t := cpu.Go; t <= limit; t++ {
		if peak := limits.FMA(t, threads); peak > 0 {
			m.tier, m.fma[t] = t, peak
		}
	}
	if limit >= cpu.AVX512BF16 {
		m.dot = limits.BF16Dot(threads)
	}
	if limit >= cpu.AMX {
		m.tile = limits.BF16Tile(threads)
	}
	return m
}

// The working sets that bandwidth is measured for, in bytes: powers of 2, from
// what a core's cache holds to memory, or to less where time is short.
const (
	smallest     = 1 << 16
	largest      = 1 << 29
	largestShort = 1 << 25
)

// class returns the working set that is nearest to bytes, by ratio.
func (m *machine) class(bytes float64) int {
	return 1 << int(math.Round(math.Log2(min(max(bytes, smallest), float64(m.largest)))))
}

// bandwidth returns the bytes a second at which a working set of the given
// bytes is read or, when the kernel writes too, copied.
func (m *machine) bandwidth(bytes float64, writes bool) float64 {
	set := m.class(bytes)
	known, measure := m.reads, limits.Read
	if writes {
		known = m.copies
		measure = func(bytes, workers int) float64 { return limits.Copy(bytes/2, workers) }
	}
	k := known[set]
	if time.Since(k.at) > stale {
		k = bandwidth{max(k.rate, measure(set, m.threads)), time.Now()}
		known[set] = k
	}
	return k.rate
}

// peak returns the operations a second for float32, or for products of
// bfloat16, which may be widened where the processor has nothing faster for them.
func (m *machine) peak(bf16 bool) (best float64) {
	for _, rate := range m.fma {
		best = max(best, rate)
	}
	if bf16 {
		best = max(best, m.dot, m.tile)
	}
	return best
}

// least returns the seconds that w takes at least, and whether its bytes are
// the reason.
func (m *machine) least(w *work) (seconds float64, memory bool) {
	bytes := w.reads + w.writes
	var move float64
	if bytes > 0 {
		move = bytes / m.bandwidth(bytes, w.writes > 0)
	}
	do := w.products / m.peak(w.bf16)
	return max(move, do), move >= do
}

// print writes the limits.
func (m *machine) print(out io.Writer) {
	fmt.Fprintf(out, "limits with %d threads, tier %v\n", m.threads, m.tier)
	for t := cpu.Go; t <= m.tier; t++ {
		if m.fma[t] > 0 && t != cpu.AVX512BF16 && t != cpu.AMX { // the same as AVX512's
			fmt.Fprintf(out, "  FMA %-10v %s\n", t, rate(m.fma[t], "FLOP/s"))
		}
	}
	if m.dot > 0 {
		fmt.Fprintf(out, "  BF16 dot       %s\n", rate(m.dot, "FLOP/s"))
	}
	if m.tile > 0 {
		fmt.Fprintf(out, "  BF16 tiles     %s\n", rate(m.tile, "FLOP/s"))
	}
	for _, set := range []int{1 << 18, 1 << 22, m.largest} {
		fmt.Fprintf(out, "  copy %-9s %s   read %s\n", bytesText(int64(set)),
			rate(m.bandwidth(float64(set), true), "B/s"), rate(m.bandwidth(float64(set), false), "B/s"))
	}
	fmt.Fprintln(out)
}
