package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
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

	peaks      []peak // all that were measured
	bandwidths map[traffic]measured
	pinned     pinned
	measure    func(t traffic) float64 // nil where bandwidths stay as they are
}

// peak is a rate of products: operations a second.
type peak struct {
	name  string
	bf16  bool // of bfloat16; the others are of float32
	again func() float64
	measured
}

// traffic is what goes between memory and a kernel.
type traffic struct {
	limits.Mix
	set int // bytes of the working set
}

// measured is a rate, the best of all measurements, and the time of the last.
type measured struct {
	rate float64
	at   time.Time
}

// stale is the age from which a limit is measured again, since what else
// runs on a machine or on its neighbours changes.
const stale = 15 * time.Second

// refresh measures again, if it is time.
func (m *measured) refresh(measure func() float64) {
	if measure != nil && time.Since(m.at) > stale {
		*m = measured{max(m.rate, measure()), time.Now()}
	}
}

// newMachine measures the peaks of the CPU's tiers up to limit that the machine
// and this build have. Bandwidths are measured when they are first asked for,
// next to the kernels that they bind. No peer may run meanwhile.
func newMachine(limit cpu.Tier, threads, largest int) *machine {
	m := &machine{
		dev: snug.CPU(), threads: threads, largest: largest, bandwidths: map[traffic]measured{},
		measure: func(t traffic) float64 { return limits.Bandwidth(t.Mix, t.set, threads) },
	}
	for t := cpu.Go; t <= limit; t++ {
		fma := func() float64 { return limits.FMA(t, threads) }
		if rate := fma(); rate > 0 {
			m.tier = t.String()
			if t != cpu.AVX512BF16 && t != cpu.AMX { // the same as AVX512's
				m.peaks = append(m.peaks, peak{"FMA " + m.tier, false, fma, measured{rate, time.Now()}})
			}
		}
	}
	if limit >= cpu.AVX512BF16 {
		m.addBF16("BF16 dot", func() float64 { return limits.BF16Dot(threads) })
	}
	if limit >= cpu.AMX {
		m.addBF16("BF16 tiles", func() float64 { return limits.BF16Tile(threads) })
	}
	return m
}

func (m *machine) addBF16(name string, measure func() float64) {
	if rate := measure(); rate > 0 {
		m.peaks = append(m.peaks, peak{name, true, measure, measured{rate, time.Now()}})
	}
}

// The working sets that bandwidth is measured for, in bytes: from what a core's
// cache holds to memory, or to less where time is short.
const (
	smallest = 1 << 16
	largest  = 1 << 29
)

// bandwidth returns the bytes a second at which a working set of the given
// bytes is read and written.
func (m *machine) bandwidth(mix limits.Mix, bytes float64) float64 {
	return m.known(m.traffic(mix, bytes)).rate
}

// known returns what is known of t, after a measurement if it is time for one.
func (m *machine) known(t traffic) measured {
	k := m.bandwidths[t]
	if m.measure != nil {
		k.refresh(func() float64 { return m.measure(t) })
		m.bandwidths[t] = k
	}
	return k
}

// traffic returns that for which a bandwidth is known: on a device other than the CPU copies of a power of 2.
func (m *machine) traffic(mix limits.Mix, bytes float64) traffic {
	bytes = min(max(bytes, smallest), float64(m.largest))
	if m.measure == nil {
		return traffic{limits.Copy, 1 << int(math.Round(math.Log2(bytes)))}
	}
	return traffic{mix, int(bytes)}
}

// peak returns the best of the peaks for products of float32 or of bfloat16, which are widened where the
// processor has nothing faster, and nil if none is known.
func (m *machine) peak(bf16 bool) (best *peak) {
	for i := range m.peaks {
		if p := &m.peaks[i]; (bf16 || !p.bf16) && (best == nil || p.rate > best.rate) {
			best = p
		}
	}
	return best
}

// peakRate returns the operations a second of the peak, or 0.
func (m *machine) peakRate(bf16 bool) float64 {
	if p := m.peak(bf16); p != nil {
		return p.rate
	}
	return 0
}

// traffic returns the mix that is nearest to w's, and its working set.
func (w *work) traffic() (mix limits.Mix, bytes float64) {
	moved := w.reads + w.writes
	if w.writes == 0 {
		return limits.Read, moved
	}
	if bytes = moved; w.inPlace {
		bytes = w.reads
	}
	share := func(m limits.Mix) float64 { return float64(m.In) / float64(m.In+m.Out) }
	distance := math.Inf(1)
	for _, m := range limits.Mixes {
		if d := math.Abs(share(m) - w.reads/moved); m.Out > 0 && m.InPlace == w.inPlace && d < distance {
			mix, distance = m, d
		}
	}
	return mix, bytes
}

// lowerBound returns the seconds that w takes at least, 0 if nothing is known that
// binds it, and whether its bytes are the reason.
func (m *machine) lowerBound(w *work) (seconds float64, memory bool) {
	if m.emulated {
		return 0, true
	}
	moved, move, do := w.reads+w.writes, 0., 0.
	if moved > 0 {
		move = moved / m.bandwidth(w.traffic())
	}
	if w.products > 0 {
		if p := m.peak(w.bf16); p != nil {
			p.refresh(p.again)
			do = w.products / p.rate
		}
	}
	return max(move, do), move >= do
}

// learn takes a rate that w reached for its limit, where the loops that measure limits reached less.
func (m *machine) learn(w *work, memory bool, rate float64) {
	if memory {
		t := m.traffic(w.traffic())
		m.bandwidths[t] = measured{max(m.bandwidths[t].rate, rate), time.Now()}
		return
	}
	p := m.peak(w.bf16)
	p.rate = max(p.rate, rate)
}

// print writes the limits.
func (m *machine) print(out io.Writer) error {
	if err := m.printName(out); err != nil || m.emulated {
		return err
	}
	m.printPeaks(out)
	for _, set := range []int{1 << 18, 1 << 22, m.largest} {
		fmt.Fprintf(out, "  copy %-9s %s   read %s\n", bytesText(int64(set)),
			rate(m.bandwidth(limits.Copy, float64(set)), "B/s"), rate(m.bandwidth(limits.Read, float64(set)), "B/s"))
	}
	if p := m.pinned; p.in > 0 {
		fmt.Fprintf(out, "  host, pinned   to the device %s   from it %s\n", rate(p.in, "B/s"), rate(p.out, "B/s"))
	}
	fmt.Fprintln(out)
	return nil
}

// printPeaks writes the rates of products.
func (m *machine) printPeaks(out io.Writer) {
	for _, p := range m.peaks {
		fmt.Fprintf(out, "  %-14s %s\n", p.name, rate(p.rate, "FLOP/s"))
	}
}

// printAgain measures the peaks once more, when the peers are gone, and writes the bests of all measurements.
func (m *machine) printAgain(out io.Writer) {
	if m.measure == nil {
		return
	}
	for i := range m.peaks {
		p := &m.peaks[i]
		p.rate = max(p.rate, p.again())
	}
	fmt.Fprintln(out, "\nthe best of the limits, measured until the end; mixes are bytes read : written")
	m.printPeaks(out)
	for _, t := range slices.SortedFunc(maps.Keys(m.bandwidths), compareTraffic) {
		fmt.Fprintf(out, "  %-14s %-9s %s\n", mixText(t.Mix), bytesText(int64(t.set)), rate(m.bandwidths[t].rate, "B/s"))
	}
}

func compareTraffic(a, b traffic) int {
	return cmp.Or(cmp.Compare(mixText(a.Mix), mixText(b.Mix)), cmp.Compare(a.set, b.set))
}

func mixText(m limits.Mix) string {
	text := fmt.Sprintf("%d:%d", m.In, m.Out)
	if m.InPlace {
		text += " in place"
	}
	return text
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
