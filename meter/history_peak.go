package meter

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/snug-ml/snug/internal/picture"
)

// Holding is what one holder holds.
type Holding struct {
	Component Component
	Name      string // of the [Holder]; empty for the bytes that the Monitor's Add and Set count
	Bytes     int64
}

// Moment says what a tier held at one time.
type Moment struct {
	Tier    Tier
	Bytes   int64   // the sum over all holders
	Seconds float64 // time since the Monitor was made
	Step    int
	Phase   Phase
	Stage   string
	Holders []Holding // the holders whose bytes are not 0, the largest first
}

var errNoHistory = invalid("there is no history of this tier: set Options.History")

// PeakHolders returns the bytes of each holder at the peak of a tier: at the time at which the tier held the most, or
// the latest such time. Moment.Bytes and the sum of the holders both equal [Monitor.Peak], to the byte, however long
// the run was. The error wraps [snug.ErrConfig] if there is no history or the tier does not exist. For a tier that has
// never held anything, the Moment has no holders.
func (m *Monitor) PeakHolders(t Tier) (Moment, error) {
	r, err := m.recorded(t)
	if err != nil {
		return Moment{}, err
	}
	return r.peaks[t], nil
}

// recording is a copy of a history.
type recording struct {
	names   []holderName
	stages  []string
	parts   []part // in the order of time
	left    uint64 // number of events that are in none of the parts
	peaks   [Tiers]Moment
	peakSeq [Tiers]uint64
	bins    []bin
	end     int64
	limits  [Tiers]int64
}

// part is a sequence of events without gaps.
type part struct {
	seq    uint64  // number of the first event
	base   []int64 // bytes of each holder before it
	span   event   // that runs before it
	events []event
}

// recorded copies the history.
func (m *Monitor) recorded(t Tier) (*recording, error) {
	if err := m.made(); err != nil {
		return nil, err
	}
	if m.history == nil || !counted(t, 0) {
		return nil, errNoHistory
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.history
	r := &recording{
		names: slices.Clone(h.names), stages: slices.Clone(h.stages), bins: slices.Clone(h.bins), limits: m.options.Limits, left: h.first,
	}
	r.end = r.bins[len(r.bins)-1].to
	if h.aroundPeak == h.peaks[OnDevice].seq && h.first > h.aroundSeq {
		events := h.around[:min(uint64(len(h.around)), h.first-h.aroundSeq)]
		r.parts = append(r.parts, part{h.aroundSeq, slices.Clone(h.aroundBase), h.aroundSpan, slices.Clone(events)})
		r.left -= uint64(len(events))
	}
	last := part{h.first, slices.Clone(h.base), h.baseSpan, make([]event, 0, h.next-h.first)}
	for i := h.first; i < h.next; i++ {
		last.events = append(last.events, h.ring[i%uint64(len(h.ring))])
	}
	if r.parts = append(r.parts, last); len(last.events) > 0 {
		r.end = max(r.end, last.events[len(last.events)-1].at)
	}
	for t := range Tiers {
		r.peaks[t], r.peakSeq[t] = h.peak(t), h.peaks[t].seq
	}
	return r, nil
}

// peak returns who held what at the peak of a tier.
func (h *history) peak(t Tier) Moment {
	p := &h.peaks[t]
	r := Moment{Tier: t, Bytes: p.total, Seconds: float64(p.at) / 1e9, Step: int(p.step), Phase: Phase(p.span.phase), Stage: h.stages[p.span.id]}
	bytes := p.bytes
	if p.pending {
		bytes = h.bytes
	}
	for id, name := range h.names {
		if name.tier == t && bytes[id] != 0 && p.total > 0 {
			r.Holders = append(r.Holders, Holding{name.component, name.name, bytes[id]})
		}
	}
	slices.SortStableFunc(r.Holders, func(a, b Holding) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return r
}

// when says when the peak was.
func (p *Moment) when() string {
	var b strings.Builder
	if p.Step > 0 {
		fmt.Fprintf(&b, "step %d, ", p.Step)
	}
	if p.Phase != Idle {
		fmt.Fprintf(&b, "%v", p.Phase)
		if p.Stage != "" {
			fmt.Fprintf(&b, " of %s", p.Stage)
		}
		b.WriteString(", ")
	}
	fmt.Fprintf(&b, "after %s", picture.Seconds(p.Seconds))
	return b.String()
}

func shareOf(n, of int64) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(1, of))) }

// WritePeak writes to w a table of the holders at the peak of a tier, see [Monitor.PeakHolders], the largest first. The
// table has at most the given number of rows, or all of them if rows is 0 or less. Then follow a row for all other
// holders together, and the sum, which is [Monitor.Peak]. Holders of one component share a row if they hold the same
// number of bytes and their names differ only in the first number, as in "layers.0–7 (8 × 512)". Errors come from
// PeakHolders and from w.
func (m *Monitor) WritePeak(w io.Writer, t Tier, rows int) error {
	if err := m.writes(w); err != nil {
		return err
	}
	p, err := m.PeakHolders(t)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the most %v memory held at one time: %s, in %s\n", t, FormatBytes(p.Bytes), p.when())
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "component\theld by\tbytes\tshare\t")
	list, others, sum := p.lines(rows)
	for _, h := range list {
		fmt.Fprintf(tw, "%v\t%s\t%d\t%s\t\n", h.component, cmp.Or(h.name, "–"), h.bytes, shareOf(h.bytes, p.Bytes))
	}
	if others > 0 {
		fmt.Fprintf(tw, "others\t%d holders\t%d\t%s\t\n", others, sum, shareOf(sum, p.Bytes))
	}
	fmt.Fprintf(tw, "sum\t\t%d\t%s\t\n", p.Bytes, shareOf(p.Bytes, p.Bytes))
	tw.Flush() // to a Builder, which does not fail
	_, err = io.WriteString(w, b.String())
	return err
}
