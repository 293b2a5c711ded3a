package meter

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/snug-ml/snug/internal/saturate"
)

// traceEvent is an event of the Trace Event Format. Times are microseconds.
type traceEvent struct {
	Name     string   `json:"name"`
	Category string   `json:"cat,omitempty"`
	Phase    string   `json:"ph"`
	Time     float64  `json:"ts"`
	Duration *float64 `json:"dur,omitempty"` // of a slice
	Process  int      `json:"pid"`
	Thread   int      `json:"tid"`
	Scope    string   `json:"s,omitempty"`
	Args     any      `json:"args,omitempty"`
}

// The process and thread numbers of the rows of a trace. The counters of each tier have a process number of their own.
const (
	traceRun    = 1 // the process of the slices
	traceSlices = 1 // its thread
	traceTier   = 2 // the process of the first tier
)

// WriteTrace writes the history to w as JSON in the Trace Event Format, which ui.perfetto.dev and chrome://tracing
// show. The trace has
//
//   - for each tier, a counter of the bytes held, stacked by component;
//   - steps, phases and stages as nested slices; a stage has as arguments the bytes that it allocates, the bytes that it
//     frees, and the most that the device held during the stage;
//   - for each tier, an instant at its peak, whose arguments are the holders and their bytes; the sum is the peak.
//
// The trace has the last Options.History events, and up to half as many events around the peak of the device,
// which stay however long the run goes on. An instant says how many events are left out. An event that changes bytes
// takes about 200 bytes of JSON. The error wraps [snug.ErrConfig] if there is no history or w is nil, or it comes from
// w.
//
// The format is described in "Trace Event Format" by the Chromium project.
func (m *Monitor) WriteTrace(w io.Writer) error {
	if err := m.writes(w); err != nil {
		return err
	}
	r, err := m.recorded(OnDevice)
	if err != nil {
		return err
	}
	t := &tracer{recording: r, w: bufio.NewWriter(w)}
	fmt.Fprint(t.w, `{"displayTimeUnit":"ms","otherData":`)
	t.value(map[string]any{"peak_bytes": r.peakBytes(), "events_left_out": r.left})
	fmt.Fprint(t.w, `,"traceEvents":[`)
	t.meta()
	for i := range r.parts {
		t.part(i)
	}
	for tier := range Tiers {
		t.peak(tier)
	}
	fmt.Fprintln(t.w, "\n]}")
	if t.err != nil {
		return t.err
	}
	return t.w.Flush()
}

// peakBytes returns the peaks of the tiers by their names.
func (r *recording) peakBytes() map[string]int64 {
	peaks := map[string]int64{}
	for t := range Tiers {
		peaks[t.String()] = r.peaks[t].Bytes
	}
	return peaks
}

// tracer writes the events of a trace.
type tracer struct {
	*recording
	w     *bufio.Writer
	begun bool
	err   error
	open  [3]slice // step, phase and stage
	held  Usage
}

// slice is a span of time that has begun.
type slice struct {
	traceEvent
	key             int32
	begun           bool
	gets, puts, top int64
}

func (t *tracer) value(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		t.err = err
		return
	}
	_, _ = t.w.Write(text) // Flush returns its error
}

func (t *tracer) event(e traceEvent) {
	if t.begun {
		fmt.Fprint(t.w, ",")
	}
	t.begun = true
	fmt.Fprint(t.w, "\n")
	t.value(e)
}

func micros(nanoseconds int64) float64 { return float64(nanoseconds) / 1000 }

// meta names the rows.
func (t *tracer) meta() {
	name := func(kind string, process, thread int, name string) {
		t.event(traceEvent{Name: kind, Phase: "M", Process: process, Thread: thread, Args: map[string]string{"name": name}})
	}
	name("process_name", traceRun, 0, "run")
	name("thread_name", traceRun, traceSlices, "steps, phases, stages")
	for tier := range Tiers {
		if t.peaks[tier].Bytes > 0 {
			name("process_name", traceTier+int(tier), 0, tier.String()+" memory")
		}
	}
}

// part writes the events of a part. A span that runs when the part begins gets a slice that begins there.
func (t *tracer) part(i int) {
	p := &t.parts[i]
	t.held = p.held(t.names)
	if len(p.events) == 0 {
		return
	}
	begin := p.events[0].at
	if i > 0 || t.left > 0 && len(t.parts) == 1 {
		missing := p.seq
		if i > 0 {
			missing -= t.parts[i-1].seq + uint64(len(t.parts[i-1].events))
		}
		if missing > 0 {
			t.event(traceEvent{Name: fmt.Sprintf("%d events before this are left out", missing), Phase: "i", Scope: "g", Time: micros(begin), Process: traceRun, Thread: traceSlices})
		}
	}
	for tier := range Tiers {
		if t.held[tier].Total() != 0 {
			t.counter(tier, begin)
		}
	}
	if span := p.span; span.isSpan {
		span.at = begin
		t.enter(span)
	}
	for _, e := range p.events {
		if e.isSpan {
			t.enter(e)
			continue
		}
		n := t.names[e.id]
		t.held[n.tier][n.component] = saturate.Add(t.held[n.tier][n.component], e.bytes)
		t.counter(n.tier, e.at)
		for i := range t.open {
			s := &t.open[i]
			if e.bytes > 0 {
				s.gets = saturate.Add(s.gets, e.bytes)
			} else {
				s.puts = saturate.Add(s.puts, -e.bytes)
			}
			s.top = max(s.top, t.held[OnDevice].Total())
		}
	}
	t.leave(0, p.events[len(p.events)-1].at)
}

// held returns what is held before the events of a part.
func (p *part) held(names []holderName) (u Usage) {
	for id, n := range names {
		u[n.tier][n.component] = saturate.Add(u[n.tier][n.component], p.base[id])
	}
	return u
}

func (t *tracer) counter(tier Tier, at int64) {
	args := map[string]int64{}
	for c := range Allowance {
		args[c.String()] = t.held[tier][c]
	}
	t.event(traceEvent{Name: tier.String() + " bytes", Phase: "C", Time: micros(at), Process: traceTier + int(tier), Args: args})
}

// enter ends the slices that end where a new span begins, and begins the slices of the new span.
func (t *tracer) enter(e event) {
	keys, names := [...]int32{e.step, int32(e.phase), e.id}, [...]string{fmt.Sprintf("step %d", e.step), Phase(e.phase).String(), t.stages[e.id]}
	categories := [...]string{"step", "phase", "stage"}
	level := 0
	for level < 2 && t.open[level].begun && t.open[level].key == keys[level] {
		level++
	}
	t.leave(level, e.at)
	for ; level < len(keys); level++ {
		if level == 1 && Phase(e.phase) == Idle || names[level] == "" {
			return
		}
		t.open[level] = slice{key: keys[level], begun: true, top: t.held[OnDevice].Total(), traceEvent: traceEvent{
			Name: names[level], Category: categories[level], Phase: "X", Time: micros(e.at), Process: traceRun, Thread: traceSlices}}
	}
}

// leave ends slices, inner ones first.
func (t *tracer) leave(level int, at int64) {
	for i := len(t.open) - 1; i >= level; i-- {
		s := &t.open[i]
		if !s.begun {
			continue
		}
		s.begun = false
		lasts := max(0, micros(at)-s.Time)
		s.Duration = &lasts
		s.Args = map[string]int64{"allocated_bytes": s.gets, "freed_bytes": s.puts, "device_peak_bytes": s.top}
		t.event(s.traceEvent)
	}
}

// peak writes the instant of a peak.
func (t *tracer) peak(tier Tier) {
	p := &t.peaks[tier]
	if p.Bytes == 0 {
		return
	}
	type holder struct {
		Component string `json:"component"`
		Name      string `json:"held_by"`
		Bytes     int64  `json:"bytes"`
	}
	args := struct {
		Bytes   int64    `json:"bytes"`
		Step    int      `json:"step"`
		Phase   string   `json:"phase"`
		Stage   string   `json:"stage"`
		Holders []holder `json:"holders"`
	}{p.Bytes, p.Step, p.Phase.String(), p.Stage, nil}
	for _, h := range p.Holders {
		args.Holders = append(args.Holders, holder{h.Component.String(), h.Name, h.Bytes})
	}
	t.event(traceEvent{Name: fmt.Sprintf("peak of the %v: %s", tier, FormatBytes(p.Bytes)), Category: "peak", Phase: "i", Scope: "p",
		Time: p.Seconds * 1e6, Process: traceTier + int(tier), Args: args})
}
