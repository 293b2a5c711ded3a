package meter

import (
	"cmp"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/saturate"
)

// Options configures a [Monitor]. A zero field means its default.
type Options struct {
	// Limits are the limits of the tiers for [Monitor.Check], in bytes; 0 means no limit.
	Limits [Tiers]int64
	// Warn is the share of a limit at which Warning is called, in (0,1]; default 0.9.
	Warn float64
	// Warning, unless nil, is called when the bytes of a tier reach the share Warn of its
	// limit, and again each time they reach it from below. The goroutine that counted
	// calls it, after the Monitor has counted and is unlocked. It may panic.
	Warning func(Warning)
	// Device is the device whose memory Sample records; nil or the CPU: no device.
	Device *snug.Device
	// Samples is the maximum number of samples in the timeline, from 2 to 2^20; default
	// 1024. A sample takes about 230 bytes. When the timeline is full, every second
	// sample is dropped, and from then on every second new sample.
	Samples int
	// History is the number of events that the history of allocations keeps, from 64 to 2^24. With 0 there is no
	// history, and it costs nothing. An event is an allocation, its end, or the beginning of a phase. An event takes 48
	// bytes, the name of a [Holder] about 300 bytes, and the rest of the history 140 KiB. All of it is allocated before
	// the run. An allocation and its end together take about 0.6 µs more.
	//
	// However long a run is, the history knows exactly what each holder held at the peak of each tier, see
	// [Monitor.PeakHolders]. It also has the peak of each of up to 512 parts of the run. It keeps the latest events,
	// and the events around the peak of the device.
	History int
}

// Warning says that a limit is near.
type Warning struct {
	Tier         Tier
	Bytes, Limit int64
}

// String says how much of the limit is held.
func (w Warning) String() string {
	return fmt.Sprintf("%v memory: %s of %s, %.1f %%", w.Tier, FormatBytes(w.Bytes), FormatBytes(w.Limit), 100*float64(w.Bytes)/float64(w.Limit))
}

// Monitor counts the bytes that a run holds, by component and tier, and keeps a timeline
// of them with the memory of the process and the device. A program reports to it what it
// allocates and frees; Sample adds a line. With Options.History it also knows what
// each holder held at the peak, see [Monitor.WritePeak], [Monitor.WritePeakSVG] and
// [Monitor.WriteTrace]. It is safe for concurrent use, and none of the
// methods that a training loop calls allocates. A nil Monitor and one that was not made
// by [New] count nothing, and their methods return errors that wrap
// [snug.ErrConfig] where they return one.
type Monitor struct {
	options Options
	start   time.Time

	mu        sync.Mutex
	now, peak Usage
	unnamed   Usage        // the part of now that Add and Set count
	named     Usage        // the part of it that holders count
	total     [Tiers]int64 // bytes now
	most      [Tiers]int64 // maximum of total so far
	recent    [Tiers]int64 // maximum of total since the last sample
	marked    int64        // maximum of the device's total since the last Mark
	warned    [Tiers]bool
	process   *rss
	samples   []Sample
	every     int // calls of Sample for each kept sample
	skipped   int // calls since the last kept sample
	history   *history
}

// Sample is one line of a timeline.
type Sample struct {
	Seconds    float64      // time since the Monitor was made
	Held       Usage        // bytes held at this time
	Peak       [Tiers]int64 // maximum bytes of each tier since the sample before
	RSS        int64        // resident memory of the process, 0 if the system does not report it
	DeviceUsed int64        // memory of the device that all programs use, 0 if the device does not report it
}

// New returns a Monitor that has counted nothing. The error wraps
// [snug.ErrConfig].
func New(o Options) (*Monitor, error) {
	o.Warn = cmp.Or(o.Warn, 0.9)
	o.Samples = cmp.Or(o.Samples, 1024)
	if !(o.Warn > 0 && o.Warn <= 1) {
		return nil, invalid("Warn is %v, want more than 0, up to 1", o.Warn)
	}
	if o.Samples < 2 || o.Samples > 1<<20 {
		return nil, invalid("Samples is %d, want 2 to 2^20", o.Samples)
	}
	if o.History != 0 && (o.History < minHistory || o.History > maxHistory) {
		return nil, invalid("History is %d, want 0, or %d to 2^24", o.History, minHistory)
	}
	for tier, limit := range o.Limits {
		if limit < 0 {
			return nil, invalid("a limit of %d bytes for the %v, want 0 or more", limit, Tier(tier))
		}
	}
	return &Monitor{
		options: o, start: time.Now(), process: openRSS(), samples: make([]Sample, 0, o.Samples), every: 1, history: newHistory(o.History),
	}, nil
}

// made returns an error for a Monitor that was not made by New.
func (m *Monitor) made() error {
	if m == nil || m.start.IsZero() {
		return errNotMade
	}
	return nil
}

// invalid returns an error that wraps [snug.ErrConfig]. [fmt.Errorf] makes the text.
func invalid(format string, args ...any) error {
	return fault.New("meter", snug.ErrConfig, format, args...)
}

var (
	errNotMade  = invalid("the monitor was not made by New")
	errNoPages  = invalid("pages: there is no Storage: make Pages by a Monitor")
	errNoWriter = invalid("a writer is wanted, not nil")
)

// Close closes the files of the Monitor. The Monitor still counts afterwards, but samples
// without the memory of the process.
func (m *Monitor) Close() error {
	if err := m.made(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.process
	m.process = new(rss)
	return old.close()
}

// Add counts n more bytes, or fewer when n is negative. Components and tiers that do not
// exist are not counted.
func (m *Monitor) Add(t Tier, c Component, n int64) { m.count(t, c, n, math.MinInt64, true) }

// Set sets the bytes that a component holds now and its maximum so far, for parts that
// count themselves, such as a store of pages. The bytes of Holders are added to these bytes.
func (m *Monitor) Set(t Tier, c Component, now, peak int64) { m.count(t, c, now, peak, false) }

// count sets the bytes that no holder counts to n, or counts n more, and notes a peak.
func (m *Monitor) count(t Tier, c Component, n, peak int64, more bool) {
	if !counted(t, c) || m.made() != nil {
		return
	}
	m.mu.Lock()
	if more {
		n = saturate.Add(m.unnamed[t][c], n)
	}
	m.peak[t][c] = max(m.peak[t][c], peak)
	change := saturate.Add(n, -m.unnamed[t][c])
	m.unnamed[t][c] = n
	warning := m.hold(t, c, unnamedID(t, c), change)
	m.mu.Unlock()
	m.warn(warning)
}

func counted(t Tier, c Component) bool { return t >= 0 && t < Tiers && c >= 0 && c < Components }

// hold notes that the bytes of a holder have changed. If there is no reason to warn, the Limit of the returned Warning
// is 0.
func (m *Monitor) hold(t Tier, c Component, id int32, change int64) (w Warning) {
	n := saturate.Add(m.unnamed[t][c], m.named[t][c])
	m.now[t][c] = n
	m.total[t] = m.now[t].Total()
	if m.history != nil && change != 0 {
		m.history.record(time.Since(m.start), t, id, change, &m.now, m.total[t])
	}
	m.peak[t][c] = max(m.peak[t][c], n)
	m.most[t], m.recent[t] = max(m.most[t], m.total[t]), max(m.recent[t], m.total[t])
	m.marked = max(m.marked, m.total[OnDevice])
	limit := m.options.Limits[t]
	if limit == 0 {
		return w
	}
	near := float64(m.total[t]) >= m.options.Warn*float64(limit)
	if near && !m.warned[t] {
		w = Warning{t, m.total[t], limit}
	}
	m.warned[t] = near
	return w
}

func (m *Monitor) warn(w Warning) {
	if w.Limit > 0 && m.options.Warning != nil {
		m.options.Warning(w)
	}
}

// Held returns the bytes that are held now, and the peak of each component.
func (m *Monitor) Held() (now, peak Usage) {
	if m.made() != nil {
		return now, peak
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.peak
}

// Peak returns the maximum number of bytes that a tier has held at one time, 0 for a tier
// that does not exist.
func (m *Monitor) Peak(t Tier) int64 {
	if !counted(t, 0) || m.made() != nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most[t]
}

// Mark returns the bytes that the device's tier holds now, and the most that it has held since the last Mark. With it
// a run of package remat measures the transient bytes of its stages.
func (m *Monitor) Mark() (held, peak int64) {
	if m.made() != nil {
		return 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	held, peak = m.total[OnDevice], m.marked
	m.marked = held
	return held, peak
}

// Check returns an error that wraps [snug.ErrNoMemory] when a tier has held more than its
// limit.
func (m *Monitor) Check() error {
	if err := m.made(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, limit := range m.options.Limits {
		if limit > 0 && m.most[t] > limit {
			return noRoom(m.most[t], Tier(t), limit)
		}
	}
	return nil
}

func noRoom(need int64, t Tier, limit int64) error {
	return fault.New("meter", snug.ErrNoMemory, "needs at least %s of %v memory; the limit is %s", FormatBytesUp(need), t, FormatBytes(limit))
}

// Fits returns an error that wraps [snug.ErrNoMemory] if n more bytes in tier t would exceed the tier's limit. It counts nothing, so that
// the caller may try less memory after an error. Without a limit, and for a nil monitor, it returns nil.
func (m *Monitor) Fits(t Tier, n int64) error {
	if !counted(t, 0) || m.made() != nil || m.options.Limits[t] == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if need := saturate.Add(m.total[t], n); need > m.options.Limits[t] {
		return noRoom(need, t, m.options.Limits[t])
	}
	return nil
}

// Sample adds a line to the timeline. It returns errors of the device.
func (m *Monitor) Sample() error {
	if err := m.made(); err != nil {
		return err
	}
	used, err := deviceUsed(m.options.Device)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.skipped++; m.skipped < m.every {
		return err
	}
	m.skipped = 0
	if len(m.samples) == cap(m.samples) {
		m.thin()
	}
	resident, _ := m.process.read()
	m.samples = append(m.samples, Sample{
		Seconds: time.Since(m.start).Seconds(), Held: m.now, Peak: m.recent, RSS: resident, DeviceUsed: used,
	})
	m.recent = m.total
	return err
}

// thin joins every two samples, with the later time and the higher peak.
func (m *Monitor) thin() {
	half := m.samples[:0]
	for i := 0; i < len(m.samples); i += 2 {
		s := m.samples[i]
		if i+1 < len(m.samples) {
			later := m.samples[i+1]
			for t := range later.Peak {
				later.Peak[t] = max(later.Peak[t], s.Peak[t])
			}
			s = later
		}
		half = append(half, s)
	}
	m.samples = half
	m.every = min(2*m.every, math.MaxInt32)
}

// deviceUsed returns the used bytes of a device's memory.
func deviceUsed(d *snug.Device) (int64, error) {
	if d == nil {
		return 0, nil
	}
	free, total, err := d.Memory()
	return total - free, err
}

// Resident returns the resident memory of the process now, and its maximum so far, in bytes. A
// value that the system does not report is 0.
func Resident() (now, peak int64) {
	r := openRSS()
	now, peak = r.read()
	if err := r.close(); err != nil {
		return 0, 0
	}
	return now, peak
}

// Timeline returns a copy of the samples.
func (m *Monitor) Timeline() []Sample {
	if m.made() != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Sample(nil), m.samples...)
}

var errNoSamples = invalid("a timeline needs two samples, of a tier that exists")
