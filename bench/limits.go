package main

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/limits"
)

// machine is where the kernels run, and what it can do at most. A limit of 0 is
// not known.
type machine struct {
	dev      *snug.Device
	emulated bool   // its times say nothing, and it has no limits
	tier     string // of the CPU's instructions; empty for other devices
	threads  int
	largest  int // working set

	peaks         []peak  // all that were measured
	f32, bf16     float64 // operations a second, in products of these types
	copies, reads map[int]bandwidth
	pinned        pinned
	measure       func(set int, writes bool) float64 // nil where bandwidths stay as they are
}

// peak is a measured rate of products.
type peak struct {
	name string
	rate float64 // operations a second
}

// bandwidth is a measured one.
type bandwidth struct {
	rate float64 // bytes a second
	at   time.Time
}

// stale is the age from which a bandwidth is measured again, since what else
// runs on a machine or on its neighbours changes. The best measurement counts.
const stale = 15 * time.Second

// newMachine measures the peaks of the CPU's tiers up to limit that the machine
// and this build have. Bandwidths are measured when they are first asked for,
// next to the kernels that they bind.
func newMachine(limit cpu.Tier, threads, largest int) *machine {
	m := &machine{
		dev: snug.CPU(), threads: threads, largest: largest,
		copies: map[int]bandwidth{}, reads: map[int]bandwidth{},
		measure: func(set int, writes bool) float64 {
			if writes {
				return limits.Copy(set/2, threads)
			}
			return limits.Read(set, threads)
		},
	}
	for t := cpu.Go; t <= limit; t++ {
		rate := limits.FMA(t, threads)
		if rate == 0 {
			continue
		}
		m.tier, m.f32 = t.String(), max(m.f32, rate)
		if t != cpu.AVX512BF16 && t != cpu.AMX { // the same as AVX512's
			m.peaks = append(m.peaks, peak{"FMA " + m.tier, rate})
		}
	}
	m.bf16 = m.f32 // widened where the processor has nothing faster
	if limit >= cpu.AVX512BF16 {
		m.addBF16(peak{"BF16 dot", limits.BF16Dot(threads)})
	}
	if limit >= cpu.AMX {
		m.addBF16(peak{"BF16 tiles", limits.BF16Tile(threads)})
	}
	return m
}

func (m *machine) addBF16(p peak) {
	if p.rate > 0 {
		m.peaks, m.bf16 = append(m.peaks, p), max(m.bf16, p.rate)
	}
}

// The working sets that bandwidth is measured for, in bytes: powers of 2, from
// what a core's cache holds to memory, or to less where time is short.
const (
	smallest = 1 << 16
	largest  = 1 << 29
)

// class returns the working set that is nearest to bytes, by ratio.
func (m *machine) class(bytes float64) int {
	return 1 << int(math.Round(math.Log2(min(max(bytes, smallest), float64(m.largest)))))
}

// bandwidth returns the bytes a second at which a working set of the given
// bytes is read or, when the kernel writes too, copied.
func (m *machine) bandwidth(bytes float64, writes bool) float64 {
	set, known := m.class(bytes), m.reads
	if writes {
		known = m.copies
	}
	k := known[set]
	if m.measure != nil && time.Since(k.at) > stale {
		k = bandwidth{max(k.rate, m.measure(set, writes)), time.Now()}
		known[set] = k
	}
	return k.rate
}

// peak returns the operations a second for products of float32 or of bfloat16.
func (m *machine) peak(bf16 bool) float64 {
	if bf16 {
		return m.bf16
	}
	return m.f32
}

// least returns the seconds that w takes at least, 0 if nothing is known that
// binds it, and whether its bytes are the reason.
func (m *machine) lowerBound(w *work) (seconds float64, memory bool) {
	if m.emulated {
		return 0, true
	}
	bytes := w.reads + w.writes
	move, do := 0., 0.
	if bytes > 0 {
		move = bytes / m.bandwidth(bytes, w.writes > 0)
	}
	if rate := m.peak(w.bf16); rate > 0 {
		do = w.products / rate
	}
	return max(move, do), move >= do
}

// print writes the limits.
func (m *machine) print(out io.Writer) error {
	if err := m.printName(out); err != nil || m.emulated {
		return err
	}
	for _, p := range m.peaks {
		fmt.Fprintf(out, "  %-14s %s\n", p.name, rate(p.rate, "FLOP/s"))
	}
	for _, set := range []int{1 << 18, 1 << 22, m.largest} {
		fmt.Fprintf(out, "  copy %-9s %s   read %s\n", bytesText(int64(set)),
			rate(m.bandwidth(float64(set), true), "B/s"), rate(m.bandwidth(float64(set), false), "B/s"))
	}
	if p := m.pinned; p.in > 0 {
		fmt.Fprintf(out, "  host, pinned   to the device %s   from it %s\n", rate(p.in, "B/s"), rate(p.out, "B/s"))
	}
	fmt.Fprintln(out)
	return nil
}

// printName writes where the limits are those of, and how they are known.
func (m *machine) printName(out io.Writer) error {
	if m.dev.IsCPU() {
		_, err := fmt.Fprintf(out, "limits with %d threads, tier %v\n", m.threads, m.tier)
		return err
	}
	_, total, err := m.dev.Memory()
	if err != nil {
		return err
	}
	note := "limits, measured by the matrix product and by copies, which stand for reads too"
	if m.emulated {
		note = "emulated: times say nothing\n"
	}
	_, err = fmt.Fprintf(out, "%v with %s of memory, %s\n", m.dev, bytesText(total), note)
	return err
}

// String names m as the title of a chart.
func (m *machine) String() string {
	if m.dev.IsCPU() {
		return fmt.Sprintf("%s, %d threads", m.tier, m.threads)
	}
	return m.dev.Name()
}
