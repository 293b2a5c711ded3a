package plan

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/snug-ml/snug"
)

// MonitorOptions configures a [Monitor]. A zero field means its default.
type MonitorOptions struct {
	// Limits are the bytes of the tiers that [Monitor.Check] compares with; 0 is none.
	Limits [Tiers]int64
	// Warn is the share of a limit from which on Warning is called, in (0,1]; default 0.9.
	Warn float64
	// Warning, unless nil, is called when what a tier holds gets to that share, and again
	// after it was below. It is called by the goroutine that counted, after the Monitor is
	// unlocked and has counted, and may panic.
	Warning func(Warning)
	// Device is asked for its memory by Sample; nil or the CPU: none is.
	Device *snug.Device
	// Samples is how many the timeline has at most, from 2 to 2^20; default 1024, of about
	// 230 bytes. When it is full every second one is dropped, and so is every second of the
	// coming ones.
	Samples int
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

// Monitor counts the bytes that a run holds, by component and tier, and keeps a timeline of
// them with the memory of the process and the device. A program tells it what it allocates
// and frees; Sample adds a line. It is safe for concurrent use, and none of the methods that
// a training loop calls allocates. A nil Monitor and one that was not made by [NewMonitor] count
// nothing, and their methods return errors that wrap [snug.ErrConfig] where they return one.
type Monitor struct {
	options MonitorOptions
	start   time.Time

	mu        sync.Mutex
	now, peak Usage
	total     [Tiers]int64 // of now
	most      [Tiers]int64 // of total, ever
	recent    [Tiers]int64 // of total, since the last sample
	warned    [Tiers]bool
	process   *rss
	samples   []Sample
	every     int // calls of Sample for one that is kept
	skipped   int // since that
}

// Sample is one line of a timeline.
type Sample struct {
	Seconds    float64      // since the Monitor was made
	Held       Usage        // at that time
	Peak       [Tiers]int64 // the most that a tier has held since the sample before
	RSS        int64        // of the process, 0 where the system does not tell
	DeviceUsed int64        // of the device by all programs, 0 where it does not tell
}

// NewMonitor returns a Monitor that has counted nothing. The error wraps
// [snug.ErrConfig].
func NewMonitor(o MonitorOptions) (*Monitor, error) {
	if o.Warn == 0 {
		o.Warn = 0.9
	}
	if o.Samples == 0 {
		o.Samples = 1024
	}
	if !(o.Warn > 0 && o.Warn <= 1) {
		return nil, invalid("monitor: Warn is %v, want more than 0, up to 1", o.Warn)
	}
	if o.Samples < 2 || o.Samples > 1<<20 {
		return nil, invalid("monitor: Samples is %d, want 2 to 2^20", o.Samples)
	}
	for tier, limit := range o.Limits {
		if limit < 0 {
			return nil, invalid("monitor: a limit of %d bytes for the %v, want 0 or more", limit, Tier(tier))
		}
	}
	return &Monitor{options: o, start: time.Now(), process: openRSS(), samples: make([]Sample, 0, o.Samples), every: 1}, nil
}

// made returns an error for a Monitor that was not made by NewMonitor.
func (m *Monitor) made() error {
	if m == nil || m.start.IsZero() {
		return errNotMade
	}
	return nil
}

var (
	errNotMade  = invalid("the monitor was not made by NewMonitor")
	errNoWriter = invalid("a writer is wanted, not nil")
)

// Close releases what the Monitor has open. It still counts after that, and samples
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
func (m *Monitor) Add(t Tier, c Component, n int64) {
	if !counted(t, c) || m.made() != nil {
		return
	}
	m.mu.Lock()
	warning := m.hold(t, c, plus(m.now[t][c], n))
	m.mu.Unlock()
	m.warn(warning)
}

// Set says how many bytes a component holds and the most that it has held, for parts that
// count themselves, such as a store of pages.
func (m *Monitor) Set(t Tier, c Component, now, peak int64) {
	if !counted(t, c) || m.made() != nil {
		return
	}
	m.mu.Lock()
	m.peak[t][c] = max(m.peak[t][c], peak)
	warning := m.hold(t, c, now)
	m.mu.Unlock()
	m.warn(warning)
}

func counted(t Tier, c Component) bool { return t >= 0 && t < Tiers && c >= 0 && c < Components }

// hold notes what a component holds. The warning that it returns has no limit if there is
// nothing to warn of.
func (m *Monitor) hold(t Tier, c Component, n int64) (w Warning) {
	m.now[t][c] = n
	m.total[t] = m.now[t].Total()
	m.peak[t][c] = max(m.peak[t][c], n)
	m.most[t], m.recent[t] = max(m.most[t], m.total[t]), max(m.recent[t], m.total[t])
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

// Held returns what is held now, and the peak of each component.
func (m *Monitor) Held() (now, peak Usage) {
	if m.made() != nil {
		return now, peak
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.peak
}

// Peak returns the most bytes that a tier has held at one time, 0 for one that does not
// exist.
func (m *Monitor) Peak(t Tier) int64 {
	if !counted(t, 0) || m.made() != nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most[t]
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
			return &fault{fmt.Errorf("needs at least %s of %v memory; the limit is %s", FormatBytesUp(m.most[t]), Tier(t), FormatBytes(limit)), snug.ErrNoMemory}
		}
	}
	return nil
}

// Sample adds a line to the timeline. Errors are those of the device.
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

// deviceUsed returns the bytes of a device's memory that are taken.
func deviceUsed(d *snug.Device) (int64, error) {
	if d == nil {
		return 0, nil
	}
	free, total, err := d.Memory()
	return total - free, err
}

// RSS returns the bytes of the process that are resident in memory now, and the most that
// ever were; 0 for what the system does not tell.
func RSS() (now, peak int64) {
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

var errNoSamples = invalid("monitor: a timeline needs two samples, of a tier that exists")
