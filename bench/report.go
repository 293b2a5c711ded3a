package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// result is one kernel at one shape, against one peer if there is one.
type result struct {
	Kernel   string  `json:"kernel"`
	DType    string  `json:"dtype"`
	Shape    string  `json:"shape"`
	Device   string  `json:"device"`
	Emulated bool    `json:"emulated,omitempty"` // the times say nothing
	Tier     string  `json:"tier"`               // empty on a device other than the CPU
	Threads  int     `json:"threads"`
	Median   float64 `json:"median_s"`
	Spread   float64 `json:"spread"`                   // between the quartiles, over the median
	Unit     string  `json:"unit"`                     // of rate and limit: B/s or FLOP/s
	Rate     float64 `json:"rate"`                     // in what binds the kernel
	Limit    float64 `json:"limit"`                    // the most that the machine can do of it, 0 if not known
	Fraction float64 `json:"fraction"`                 // rate / limit, or 0
	Measured float64 `json:"measured_limit,omitempty"` // where rate is the limit: the loops for limits reached less
	Allocs   *int64  `json:"allocs"`                   // a run; null for a whole program

	Peer       *string   `json:"peer"`
	PeerMedian *float64  `json:"peer_median_s"`   // null when the peer is missing
	Ratio      *float64  `json:"ratio"`           // the median of the pairs; above 1 snug is faster
	Pairs      int       `json:"pairs"`           // that ran one just after the other
	Quartiles  []float64 `json:"ratio_quartiles"` // of the pairs

	Plan *planned `json:"plan,omitempty"` // of a chain under a budget of memory
	Tune *tuned   `json:"tune,omitempty"` // of fine-tuning

	RSS     int64 `json:"peak_rss_bytes,omitempty"` // of a whole program
	PeerRSS int64 `json:"peer_peak_rss_bytes,omitempty"`

	missing error   // why the peer is
	ops     float64 // operations a byte, for the chart
	perS    float64 // operations a second
}

// results makes a row for each of the sides after the first, or one if there
// is no other.
func (w *work) results(m *machine, sides []*side, allocs *int64) []result {
	own := sides[0].samples
	r := result{
		Kernel: w.kernel, DType: w.dtype, Shape: w.shape,
		Device: m.dev.Name(), Emulated: m.emulated, Tier: m.tier, Threads: m.threads,
		Median: median(own), Spread: spread(own), Allocs: allocs,
	}
	lowerBound, memory := m.lowerBound(w)
	amount := w.products
	r.Unit = "FLOP/s"
	if memory {
		amount, r.Unit = w.reads+w.writes, "B/s"
	}
	r.Rate = amount / r.Median
	if lowerBound > 0 {
		r.Limit, r.Fraction = amount/lowerBound, lowerBound/r.Median
	}
	if r.Fraction > 1 {
		m.learn(w, memory, r.Rate)
		r.Measured, r.Limit, r.Fraction = r.Limit, r.Rate, 1
	}
	if bytes := w.reads + w.writes; bytes > 0 {
		r.ops, r.perS = w.ops/bytes, w.ops/r.Median
	}
	if len(sides) == 1 {
		return []result{r}
	}
	var rows []result
	for _, s := range sides[1:] {
		row := r
		row.Peer, row.missing = &s.name, s.missing
		if s.missing == nil {
			t, ratios := median(s.samples), s.ratios()
			ratio := median(ratios)
			row.PeerMedian, row.Ratio, row.Pairs = &t, &ratio, len(ratios)
			row.Quartiles = []float64{quantile(ratios, 0.25), quantile(ratios, 0.75)}
		}
		rows = append(rows, row)
	}
	return rows
}

// table prints results as they come.
type table struct {
	out    io.Writer
	before string // kernel of the row above
}

func newTable(out io.Writer) *table { return &table{out: out} }

const columns = "%-22s %-9s %-36s %10s %5s %14s %16s %7s"

func (t *table) add(rows []result) {
	for i, r := range rows {
		t.head(r.Kernel)
		if r.Plan != nil && i > 0 {
			t.line(r.Plan.line())
			continue
		}
		line := strings.Repeat(" ", 126)
		if i == 0 {
			line = fmt.Sprintf(columns, r.Kernel, r.DType, r.Shape, seconds(r.Median), fmt.Sprintf("%.0f%%", 100*r.Spread),
				r.speed(), r.ofLimit(), r.allocations())
		}
		t.line(line + "  " + r.against())
		if r.Plan != nil {
			t.line(r.Plan.head())
		}
		if r.Tune != nil {
			for _, line := range r.Tune.lines() {
				t.line(line)
			}
		}
	}
}

// note prints why a kernel has no result.
func (t *table) note(w work, why string) {
	t.head(w.kernel)
	t.line(fmt.Sprintf(columns, w.kernel, w.dtype, w.shape, "–", "", "", "", "") + "  " + why)
}

// head prints what comes before a row of a kernel.
func (t *table) head(kernel string) {
	if t.before == "" {
		t.line(fmt.Sprintf(columns, "kernel", "dtype", "shape", "median", "±", "rate", "of the limit", "allocs") + "  peer")
	} else if t.before != kernel {
		fmt.Fprintln(t.out)
	}
	t.before = kernel
}

func (t *table) line(s string) { fmt.Fprintln(t.out, strings.TrimRight(s, " ")) }

// speed formats the rate.
func (r *result) speed() string {
	if r.Emulated || r.Rate == 0 {
		return "–"
	}
	return rate(r.Rate, r.Unit)
}

// ofLimit formats the fraction.
func (r *result) ofLimit() string {
	switch {
	case r.Emulated:
		return "emulated"
	case r.Limit == 0:
		return "–"
	}
	if r.Measured > 0 {
		return fmt.Sprintf("above %s", bare(r.Measured))
	}
	return fmt.Sprintf("%.0f%% of %s", 100*r.Fraction, bare(r.Limit))
}

// allocations formats the number of them.
func (r *result) allocations() string {
	if r.Allocs == nil {
		return "–"
	}
	return fmt.Sprint(*r.Allocs)
}

// against is the part of a row that is about the peer.
func (r *result) against() string {
	var memory string
	if r.RSS > 0 {
		memory = "peak RSS " + bytesText(r.RSS)
	}
	switch {
	case r.Peer == nil:
		return memory
	case r.missing != nil:
		return fmt.Sprintf("%s missing: %v", *r.Peer, r.missing)
	}
	if r.PeerRSS > 0 {
		memory += fmt.Sprintf(" against %s", bytesText(r.PeerRSS))
	}
	quartiles := fmt.Sprintf("(%.2f–%.2f of %d)", r.Quartiles[0], r.Quartiles[1], r.Pairs)
	return strings.TrimSpace(fmt.Sprintf("%-14s %10s %8.2f× %-22s %s", *r.Peer, seconds(*r.PeerMedian), *r.Ratio, quartiles, memory))
}

// progress shows on a terminal how far the measurements are.
type progress struct {
	bar *progressbar.ProgressBar // nil without a terminal
}

func newProgress(stderr io.Writer, n int) *progress {
	f, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	return &progress{progressbar.NewOptions(n, progressbar.OptionSetWriter(f), progressbar.OptionSetPredictTime(true),
		progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish())}
}

// at says what is measured now. A bar that cannot be drawn does not stop the
// measurements.
func (p *progress) at(name string) {
	if p.bar != nil {
		p.bar.Describe(name)
		_ = p.bar.Add(1)
	}
}

// clear makes room for a line of the table.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// seconds formats a time with three digits.
func seconds(s float64) string {
	switch {
	case s < 1e-3:
		return fmt.Sprintf("%.3g µs", s*1e6)
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}

// rate formats a rate in billions of its unit.
func rate(r float64, unit string) string { return bare(r) + " G" + unit }

func bare(r float64) string {
	if r < 1e11 {
		return fmt.Sprintf("%.3g", r/1e9)
	}
	return fmt.Sprintf("%.0f", r/1e9)
}

// bytesText formats a number of bytes.
func bytesText(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
