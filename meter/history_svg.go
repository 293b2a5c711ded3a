package meter

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug/internal/picture"
	"github.com/snug-ml/snug/internal/saturate"
)

// The layout of a picture of the peak, in points. Texts have room in the widest of the common fonts.
const (
	peakLeft, peakWidth = 120, 620
	peakRunTop          = 106 // of the whole run
	peakRunHeight       = 90
	peakStepTop         = 262 // of the events around the peak
	peakStepHeight      = 200
	peakPhases          = peakStepTop + peakStepHeight + 4 // of the row of phases
	peakTable           = peakPhases + 74
	peakRow             = 18
	peakRows            = 24
	peakColumns         = peakWidth / 2 // columns of the events around the peak
	peakNameLetters     = 42
)

// phaseColors tell the phases apart. Where nothing is known there is no bar.
var phaseColors = [Phases]string{"", "#aed6f1", "#f9e79f", "#f5b7b1", "#abebc6"}

// point is what a tier holds from one time to another.
type point struct {
	from, to int64 // nanoseconds
	held     Bytes // at its highest
	last     int64 // time of the last change
	after    Bytes // it
}

// WritePeakSVG writes to w a picture in SVG of the bytes that a tier holds over time. One chart shows the whole run,
// and another the events around the peak; both are stacked areas, one for each component. Each column of an area shows
// the highest use in its time. Below them is the table of [Monitor.WritePeak], whose sum is [Monitor.Peak]. title may
// be empty. Errors come from PeakHolders and from w.
func (m *Monitor) WritePeakSVG(w io.Writer, t Tier, title string) error {
	if err := m.writes(w); err != nil {
		return err
	}
	r, err := m.recorded(t)
	if err != nil {
		return err
	}
	peak := &r.peaks[t]
	list, others, sum := peak.lines(peakRows)
	height := peakTable + peakRow*(len(list)+2) + 16
	if others > 0 {
		height += peakRow
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+picture.Fonts+">\n", picture.Width, height)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/><text x="12" y="22" font-size="14">%s</text>`+"\n", picture.Width, height, picture.Heading(title))
	fmt.Fprintf(b, `<text x="12" y="42">%s</text>`+"\n", picture.Text(short(fmt.Sprintf("the most %v memory: %s, in %s", t, FormatBytes(peak.Bytes), peak.when()), 88)))
	picture.Legend(b, 54, componentNames[:])
	top := max(1, r.limits[t], peak.Bytes)
	from, to, points, spans := r.around(t)
	run := panel{w: b, y: peakRunTop, height: peakRunHeight, from: 0, to: max(1, r.end), top: top}
	run.draw(r.wholeRun(t), r.limits[t], int64(peak.Seconds*1e9))
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">the whole run, %s</text>`+"\n", peakLeft+peakWidth, peakRunTop+peakRunHeight+16, picture.Seconds(float64(r.end)/1e9))
	run.shade(from, to)
	step := panel{w: b, y: peakStepTop, height: peakStepHeight, from: from, to: max(from+1, to), top: top}
	fmt.Fprintf(b, `<text x="%d" y="%d">around the peak, which the line marks</text>`+"\n", peakLeft, peakStepTop-12)
	step.draw(points, r.limits[t], int64(peak.Seconds*1e9))
	for _, s := range spans {
		fmt.Fprintf(b, `<rect x="%.2f" y="%d" width="%.2f" height="8" fill="%s"/>`+"\n", step.x(s.from), peakPhases, step.x(s.to)-step.x(s.from), phaseColors[s.phase])
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", peakLeft+peakWidth, peakPhases+24, picture.Seconds(float64(to-from)/1e9))
	for p := Forward; p < Phases; p++ {
		x := peakLeft + 120*int(p-1)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">%v</text>`+"\n", x, peakPhases+15, phaseColors[p], x+14, peakPhases+24, p)
	}
	peakRowsOf(b, peak, list, others, sum)
	fmt.Fprintln(b, "</svg>")
	return b.Flush()
}

// peakRowsOf draws the table of the holders.
func peakRowsOf(b io.Writer, peak *Moment, list []peakLine, others int, sum int64) {
	y := peakTable
	row := func(c Component, component, name, bytes, share string) {
		if c < Components {
			fmt.Fprintf(b, `<rect x="12" y="%d" width="10" height="10" fill="%s"/>`, y-9, picture.Colors[c])
		}
		fmt.Fprintf(b, `<text x="26" y="%d">%s</text>`, y, component)
		if name != "" {
			fmt.Fprintf(b, `<text x="160" y="%d">%s</text>`, y, picture.Text(short(name, peakNameLetters)))
		}
		fmt.Fprintf(b, `<text x="650" y="%d" text-anchor="end">%s</text><text x="%d" y="%d" text-anchor="end">%s</text>`+"\n",
			y, bytes, peakLeft+peakWidth, y, share)
		y += peakRow
	}
	row(Components, "at the peak", "held by", "bytes", "share")
	for _, h := range list {
		row(h.component, h.component.String(), h.name, fmt.Sprint(h.bytes), shareOf(h.bytes, peak.Bytes))
	}
	if others > 0 {
		row(Components, "others", fmt.Sprintf("%d holders", others), fmt.Sprint(sum), shareOf(sum, peak.Bytes))
	}
	fmt.Fprintf(b, `<path stroke="black" d="M12 %dH%d"/>`+"\n", y-13, peakLeft+peakWidth)
	row(Components, "sum", "", fmt.Sprint(peak.Bytes), shareOf(peak.Bytes, peak.Bytes))
}

// short shortens a text to a number of letters.
func short(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}

// panel is a chart of areas.
type panel struct {
	w         io.Writer
	y, height int
	from, to  int64 // nanoseconds
	top       int64 // bytes
}

func (p *panel) x(at int64) float64 {
	at = min(max(at, p.from), p.to)
	return peakLeft + peakWidth*float64(at-p.from)/float64(p.to-p.from)
}

func (p *panel) at(bytes int64) float64 {
	return float64(p.y) + float64(p.height)*(1-float64(max(0, bytes))/float64(p.top))
}

// draw draws the areas, the limit, the time of the peak and the axes.
func (p *panel) draw(points []point, limit, peak int64) {
	below := make([]int64, len(points))
	for c := range Allowance {
		var upper, lower strings.Builder
		some := false
		for i, q := range points {
			n := max(0, q.held[c])
			some = some || n > 0
			fmt.Fprintf(&upper, "L%.2f %.2fH%.2f", p.x(q.from), p.at(below[i]+n), p.x(q.to))
		}
		for i := len(points) - 1; i >= 0; i-- {
			q := points[i]
			fmt.Fprintf(&lower, "L%.2f %.2fH%.2f", p.x(q.to), p.at(below[i]), p.x(q.from))
			below[i] = saturate.Add(below[i], max(0, q.held[c]))
		}
		if some {
			fmt.Fprintf(p.w, `<path fill="%s" d="M%sZ"/>`+"\n", picture.Colors[c], upper.String()[1:]+lower.String())
		}
	}
	if limit > 0 {
		fmt.Fprintf(p.w, `<path stroke="black" stroke-dasharray="4 3" d="M%d %.2fH%d"/>`+"\n", peakLeft, p.at(limit), peakLeft+peakWidth)
	}
	fmt.Fprintf(p.w, `<path stroke="black" d="M%.2f %dV%d"/>`+"\n", p.x(peak), p.y-6, p.y+p.height)
	fmt.Fprintf(p.w, `<path fill="none" stroke="black" d="M%d %dV%dH%d"/>`+"\n", peakLeft, p.y, p.y+p.height, peakLeft+peakWidth)
	fmt.Fprintf(p.w, `<text x="%d" y="%d" text-anchor="end">%s</text><text x="%d" y="%d" text-anchor="end">0</text>`+"\n",
		peakLeft-6, p.y+4, FormatBytes(p.top), peakLeft-6, p.y+p.height)
}

// shade marks a span of time below the axis.
func (p *panel) shade(from, to int64) {
	fmt.Fprintf(p.w, `<rect x="%.2f" y="%d" width="%.2f" height="4" fill="black"/>`+"\n", p.x(from), p.y+p.height+1, max(1, p.x(to)-p.x(from)))
}

// wholeRun returns what a tier holds over the whole run.
func (r *recording) wholeRun(t Tier) []point {
	list := make([]point, 0, len(r.bins))
	for _, b := range r.bins {
		list = append(list, point{from: b.from, to: b.to, held: b.held[t]})
	}
	return list
}

// spanOf is a span of time in one phase.
type spanOf struct {
	from, to int64
	phase    Phase
}

// around returns the time from the beginning to the end of the step in which a tier had its peak, as far as the history
// has events of it. If the run has no steps, the time is a part of those events. around also returns what the tier
// holds in that time, and the phases of the step.
func (r *recording) around(t Tier) (from, to int64, list []point, phases []spanOf) {
	at := len(r.parts) - 1
	for i, p := range r.parts {
		if r.peakSeq[t] >= p.seq && r.peakSeq[t] < p.seq+uint64(len(p.events)) {
			at = i
		}
	}
	p := &r.parts[at]
	if len(p.events) == 0 {
		return 0, 1, nil, nil
	}
	step := int32(r.peaks[t].Step)
	same := func(e event) bool { return step == 0 || e.step == step }
	from, to = -1, 0
	for _, e := range p.events {
		if same(e) {
			if to = e.at; from < 0 {
				from = e.at
			}
		}
	}
	if from < 0 { // the peak has left
		from, to = p.events[0].at, p.events[len(p.events)-1].at
	}
	to = max(to, from+1)
	held := p.held(r.names)
	for _, e := range p.events {
		if e.at > to {
			break
		}
		last := len(phases) - 1
		if e.isSpan {
			if last >= 0 && phases[last].to > e.at {
				phases[last].to = e.at
			}
			if Phase(e.phase) != Idle && e.at >= from {
				phases = append(phases, spanOf{e.at, to, Phase(e.phase)})
			}
			continue
		}
		n := r.names[e.id]
		held[n.tier][n.component] = saturate.Add(held[n.tier][n.component], e.bytes)
		if n.tier == t && e.at >= from {
			list = addPoint(list, from, to, e.at, held[t])
		}
	}
	for i := range list {
		if list[i].to = to; i+1 < len(list) {
			list[i].to = list[i+1].from
		}
	}
	return from, to, list, joinPhases(phases)
}

// addPoint adds what is held from a time on, or joins it with the point of the same column.
func addPoint(list []point, from, to, at int64, held Bytes) []point {
	column := func(at int64) int64 { return int64(float64(at-from) / float64(to-from) * peakColumns) }
	if n := len(list) - 1; n >= 0 {
		last := &list[n]
		if column(last.from) == column(at) {
			if last.last, last.after = at, held; held.Total() >= last.held.Total() {
				last.held = held
			}
			return list
		}
		if column(at)-column(last.from) > 1 && last.after != last.held {
			list = append(list, point{from: last.last, held: last.after})
		}
	}
	return append(list, point{from: at, held: held, last: at, after: held})
}

// joinPhases joins consecutive spans of the same phase.
func joinPhases(list []spanOf) (joined []spanOf) {
	for _, s := range list {
		if n := len(joined) - 1; n >= 0 && joined[n].phase == s.phase && joined[n].to == s.from {
			joined[n].to = s.to
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}
