package meter

import (
	"math"
	"time"

	"github.com/snug-ml/snug/internal/saturate"
)

// Phase is a part of a training step.
type Phase int

// The phases.
const (
	Idle      Phase = iota // between steps, or not known
	Forward                // the forward pass
	Recompute              // the parts of the forward pass that the backward pass computes again
	Backward               // the backward pass
	Update                 // the optimizer's update
	Phases                 // number of phases
)

var phaseNames = [Phases]string{"idle", "forward", "recompute", "backward", "update"}

// String returns "idle", "forward", "recompute", "backward" or "update".
func (p Phase) String() string {
	if p < 0 || p >= Phases {
		return "Phase(?)"
	}
	return phaseNames[p]
}

// Limits of a history.
const (
	minHistory    = 64
	maxHistory    = 1 << 24
	maxHolders    = 1 << 16
	maxStageNames = 1 << 16
	maxBins       = 512 // of the whole run
)

// Holder counts bytes of a component under a name, such as the name of a layer. The Monitor's figures are the sum of
// the bytes of all Holders and of the bytes that the Monitor's own methods Add and Set count. The methods of a Holder
// are safe for concurrent use and allocate nothing. On a nil Holder they do nothing.
type Holder struct {
	monitor   *Monitor
	tier      Tier
	component Component
	id        int32 // in the history
	bytes     int64 // of this Holder
}

// Holder returns a Holder with a count of 0. In a history, the bytes of all Holders with the same tier, component and
// name add up. The history has room for 65536 names; further Holders count without a name. Holder returns nil if the
// Monitor is nil, or if the tier or the component does not exist. The call allocates: make Holders before a run.
func (m *Monitor) Holder(t Tier, c Component, name string) *Holder {
	if m.made() != nil || !counted(t, c) {
		return nil
	}
	h := &Holder{monitor: m, tier: t, component: c}
	if m.history != nil {
		m.mu.Lock()
		h.id = m.history.holder(t, c, name)
		m.mu.Unlock()
	}
	return h
}

// Add counts n more bytes, or fewer when n is negative.
func (h *Holder) Add(n int64) { h.count(n, true) }

// Set sets the bytes that the Holder counts.
func (h *Holder) Set(n int64) { h.count(n, false) }

// count sets the bytes to n, or counts n more.
func (h *Holder) count(n int64, more bool) {
	if h == nil || h.monitor == nil {
		return
	}
	m := h.monitor
	m.mu.Lock()
	if more {
		n = saturate.Add(h.bytes, n)
	}
	change := saturate.Add(n, -h.bytes)
	h.bytes = n
	m.named[h.tier][h.component] = saturate.Add(m.named[h.tier][h.component], change)
	warning := m.hold(h.tier, h.component, h.id, change)
	m.mu.Unlock()
	m.warn(warning)
}

// Step tells the history that step n of a run begins. An event has the step, phase and stage of the last calls of Step
// and Enter, whichever goroutine causes the event. Without a history Step does nothing.
func (m *Monitor) Step(n int) {
	if m.made() != nil || m.history == nil {
		return
	}
	m.mu.Lock()
	m.history.step = int32(min(max(0, n), 1<<31-1))
	m.mu.Unlock()
}

// Enter tells the history that a phase of a stage begins and that the last one ends. stage names the part of the model
// that computes, such as "layers.3.mlp"; it may be empty. Enter allocates at the first use of a name. Without a history
// it does nothing.
func (m *Monitor) Enter(p Phase, stage string) {
	if m.made() != nil || m.history == nil || p < 0 || p >= Phases {
		return
	}
	m.mu.Lock()
	h := m.history
	h.span = event{at: int64(time.Since(m.start)), id: h.stage(stage), step: h.step, phase: uint8(p), isSpan: true}
	h.push(h.span)
	m.mu.Unlock()
}

// event is a change of the bytes of a holder, or the beginning of a span.
type event struct {
	at     int64 // nanoseconds since the Monitor was made
	bytes  int64 // change
	id     int32 // of the holder, or of the stage that begins
	step   int32
	phase  uint8
	isSpan bool
}

// holderName is a holder's key.
type holderName struct {
	tier      Tier
	component Component
	name      string
}

// bin is the highest use of each tier in a part of the run.
type bin struct {
	from, to int64 // nanoseconds
	most     [Tiers]int64
	held     Usage // of each tier at its highest
}

// moment is the latest time at which a tier held its maximum.
type moment struct {
	total   int64
	at      int64
	seq     uint64
	span    event
	step    int32
	pending bool    // nothing has changed since: history.bytes has the bytes of the holders
	bytes   []int64 // the bytes of each holder, unless pending
}

// history is the bounded record of what a Monitor counts. Three parts of it are exact for the whole run, however long:
// the bytes that each holder has now; the bytes that each holder had at the peak of each tier; and the peak of each
// bin, where a bin is a part of the run. The ring has the latest events. Before the peak of the device leaves the ring,
// the half of the ring around the peak is copied.
type history struct {
	names    []holderName
	ids      map[holderName]int32
	bytes    []int64 // of each holder now
	stages   []string
	stageIDs map[string]int32

	step int32
	span event // the current span

	ring        []event
	first, next uint64  // numbers of the oldest event in the ring, and of the next one
	base        []int64 // bytes of each holder before the oldest event
	baseSpan    event   // the span before the oldest event

	around     []event // around the peak, empty as long as the ring has it
	aroundSeq  uint64  // number of the first
	aroundPeak uint64  // number of the peak's event
	aroundBase []int64
	aroundSpan event

	peaks  [Tiers]moment
	bins   []bin
	inBin  int // events in the last bin
	perBin int
}

// unnamedID returns the holder of the bytes of a component that Add and Set count.
func unnamedID(t Tier, c Component) int32 { return int32(t)*int32(Components) + int32(c) }

func newHistory(events int) *history {
	if events == 0 {
		return nil
	}
	const some = 1 << 8
	h := &history{
		ids: make(map[holderName]int32, some), stageIDs: make(map[string]int32, some),
		ring: make([]event, events), around: make([]event, 0, events/2), aroundPeak: math.MaxUint64, bins: make([]bin, 1, maxBins), perBin: 1,
	}
	clear(h.ring) // the memory becomes resident now, and not in the steps
	clear(h.around[:cap(h.around)])
	h.stage("")
	for t := range Tiers {
		for c := range Components {
			h.holder(t, c, "")
		}
	}
	return h
}

// holder returns the number of a name.
func (h *history) holder(t Tier, c Component, name string) int32 {
	key := holderName{t, c, name}
	if id, known := h.ids[key]; known {
		return id
	}
	if len(h.names) >= maxHolders {
		return unnamedID(t, c)
	}
	id := int32(len(h.names))
	h.ids[key], h.names = id, append(h.names, key)
	h.bytes, h.base, h.aroundBase = append(h.bytes, 0), append(h.base, 0), append(h.aroundBase, 0)
	for t := range h.peaks {
		h.peaks[t].bytes = append(h.peaks[t].bytes, 0)
	}
	return id
}

// stage returns the number of a stage, 0 for one beyond the limit.
func (h *history) stage(name string) int32 {
	id, known := h.stageIDs[name]
	if !known && len(h.stages) < maxStageNames {
		id = int32(len(h.stages))
		h.stageIDs[name], h.stages = id, append(h.stages, name)
	}
	return id
}

// record notes that the bytes of a holder have changed, and with them the total of its tier.
func (h *history) record(at time.Duration, t Tier, id int32, change int64, now *Usage, total int64) {
	p := &h.peaks[t]
	if p.pending && total < p.total { // before the change the tier was at its peak
		copy(p.bytes, h.bytes)
		p.pending = false
	}
	h.bytes[id] = saturate.Add(h.bytes[id], change)
	if total >= p.total && total > 0 {
		p.total, p.at, p.seq, p.span, p.step, p.pending = total, int64(at), h.next, h.span, h.step, true
	}
	h.push(event{at: int64(at), bytes: change, id: id, step: h.step, phase: h.span.phase})
	h.fill(int64(at), t, now, total)
}

// push adds an event to the ring.
func (h *history) push(e event) {
	n := uint64(len(h.ring))
	if h.next-h.first == n {
		if p := &h.peaks[OnDevice]; p.total > 0 && p.seq != h.aroundPeak && h.first+n/4 >= p.seq {
			h.keepAround(p.seq)
		}
		if old := h.ring[h.first%n]; old.isSpan {
			h.baseSpan = old
		} else {
			h.base[old.id] = saturate.Add(h.base[old.id], old.bytes)
		}
		h.first++
	}
	h.ring[h.next%n] = e
	h.next++
}

// keepAround copies the older half of the ring, which has the peak in its middle or nearer to its begin.
func (h *history) keepAround(peak uint64) {
	h.aroundPeak, h.aroundSeq, h.aroundSpan = peak, h.first, h.baseSpan
	copy(h.aroundBase, h.base)
	h.around = h.around[:0]
	for i := range uint64(cap(h.around)) {
		h.around = append(h.around, h.ring[(h.first+i)%uint64(len(h.ring))])
	}
}

// fill adds an event to the last bin.
func (h *history) fill(at int64, t Tier, now *Usage, total int64) {
	if h.inBin == h.perBin {
		if len(h.bins) == cap(h.bins) {
			h.joinBins()
		}
		b := bin{from: h.bins[len(h.bins)-1].to, held: *now}
		for t := range b.most {
			b.most[t] = now[t].Total()
		}
		h.bins, h.inBin = append(h.bins, b), 0
	}
	h.inBin++
	b := &h.bins[len(h.bins)-1]
	if b.to = at; total >= b.most[t] {
		b.most[t], b.held[t] = total, now[t]
	}
}

// joinBins makes one bin of every two.
func (h *history) joinBins() {
	half := h.bins[:0]
	for i := 0; i < len(h.bins); i += 2 {
		b := h.bins[i]
		if i+1 < len(h.bins) {
			later := h.bins[i+1]
			b.to = later.to
			for t := range later.most {
				if later.most[t] >= b.most[t] {
					b.most[t], b.held[t] = later.most[t], later.held[t]
				}
			}
		}
		half = append(half, b)
	}
	h.bins, h.perBin = half, 2*h.perBin
}
