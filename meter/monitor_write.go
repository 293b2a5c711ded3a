package meter

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug/internal/picture"
)

// WriteCSV writes the timeline, a line for each sample: the seconds, the bytes of each
// component on each tier, the maximum bytes of each tier since the line before, the
// resident memory of the process and the device's used memory.
func (m *Monitor) WriteCSV(w io.Writer) error {
	if err := m.writes(w); err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	fmt.Fprint(b, "seconds")
	for t := range Tiers {
		for c := range Components {
			fmt.Fprintf(b, ",%v_%s_bytes", t, strings.ReplaceAll(c.String(), " ", "_"))
		}
		fmt.Fprintf(b, ",%v_peak_bytes", t)
	}
	fmt.Fprintln(b, ",rss_bytes,device_used_bytes")
	for _, s := range m.Timeline() {
		fmt.Fprintf(b, "%.6f", s.Seconds)
		for t := range Tiers {
			for _, n := range s.Held[t] {
				fmt.Fprintf(b, ",%d", n)
			}
			fmt.Fprintf(b, ",%d", s.Peak[t])
		}
		fmt.Fprintf(b, ",%d,%d\n", s.RSS, s.DeviceUsed)
	}
	return b.Flush()
}

// WritePrometheus writes the bytes that are held now, the peaks and the limits in the
// text format of Prometheus, version 0.0.4.
func (m *Monitor) WritePrometheus(w io.Writer) error {
	if err := m.writes(w); err != nil {
		return err
	}
	used, err := deviceUsed(m.options.Device)
	if err != nil {
		return err
	}
	m.mu.Lock()
	now, peak, most := m.now, m.peak, m.most
	resident, residentPeak := m.process.read()
	m.mu.Unlock()
	b := bufio.NewWriter(w)
	family := func(name, help string) {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	}
	components := func(name, help string, u Usage) {
		family(name, help)
		for t := range Tiers {
			for c := range Components {
				fmt.Fprintf(b, "%s{tier=%q,component=%q} %d\n", name, t, c, u[t][c])
			}
		}
	}
	tiers := func(name, help string, bytes [Tiers]int64) {
		family(name, help)
		for t := range Tiers {
			fmt.Fprintf(b, "%s{tier=%q} %d\n", name, t, bytes[t])
		}
	}
	components("snug_memory_bytes", "Bytes held, by component and tier.", now)
	components("snug_memory_component_peak_bytes", "The most bytes that a component has held.", peak)
	tiers("snug_memory_peak_bytes", "The most bytes that a tier has held.", most)
	tiers("snug_memory_limit_bytes", "The limit of a tier, 0 for none.", m.options.Limits)
	for _, g := range []struct {
		name, help string
		n          int64
	}{
		{"snug_process_resident_bytes", "Resident memory of the process.", resident},
		{"snug_process_resident_peak_bytes", "The most that was resident.", residentPeak},
		{"snug_device_used_bytes", "Memory of the device that is in use, by all programs.", used},
	} {
		if g.n > 0 { // 0: the system does not report it
			family(g.name, g.help)
			fmt.Fprintf(b, "%s %d\n", g.name, g.n)
		}
	}
	return b.Flush()
}

// writes reports whether there is a monitor and something to write to.
func (m *Monitor) writes(w io.Writer) error {
	if w == nil {
		return errNoWriter
	}
	return m.made()
}

// The layout of a timeline, in points.
const (
	plotLeft, plotTop     = 110, 84
	plotWidth, plotHeight = 620, 260
)

// WriteSVG draws the bytes of a tier over time as areas of components, with the maximum
// between samples as a line, and the limit. title may be empty. With fewer than two
// samples it returns an error.
func (m *Monitor) WriteSVG(w io.Writer, t Tier, title string) error {
	if err := m.writes(w); err != nil {
		return err
	}
	samples := m.Timeline()
	if len(samples) < 2 || !counted(t, 0) {
		return errNoSamples
	}
	top, end := max(1, m.options.Limits[t]), max(1e-9, samples[len(samples)-1].Seconds)
	for _, s := range samples {
		top = max(top, s.Peak[t], s.Held[t].Total())
	}
	x := func(s Sample) float64 { return plotLeft + plotWidth*s.Seconds/end }
	y := func(n int64) float64 { return plotTop + plotHeight*(1-float64(n)/float64(top)) }
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+picture.Fonts+">\n", picture.Width, plotTop+plotHeight+40)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/><text x="12" y="22" font-size="14">%s</text>`+"\n", picture.Width, plotTop+plotHeight+40, picture.Heading(title))
	picture.Legend(b, 34, componentNames[:])
	below := make([]int64, len(samples))
	for c := range Components {
		fmt.Fprintf(b, `<path fill="%s" d="M`, picture.Colors[c])
		for i, s := range samples {
			fmt.Fprintf(b, "%.2f %.2f ", x(s), y(below[i]+s.Held[t][c]))
		}
		for i := len(samples) - 1; i >= 0; i-- {
			fmt.Fprintf(b, "L%.2f %.2f ", x(samples[i]), y(below[i]))
			below[i] += samples[i].Held[t][c]
		}
		fmt.Fprintln(b, `Z"/>`)
	}
	fmt.Fprint(b, `<path fill="none" stroke="black" d="M`)
	for _, s := range samples {
		fmt.Fprintf(b, "%.2f %.2f ", x(s), y(s.Peak[t]))
	}
	fmt.Fprintln(b, `"/>`)
	if limit := m.options.Limits[t]; limit > 0 {
		fmt.Fprintf(b, `<path stroke="black" stroke-dasharray="4 3" d="M%d %.2fH%d"/>`+"\n", plotLeft, y(limit), plotLeft+plotWidth)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLeft-6, plotTop+4, FormatBytes(top))
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">0</text>`+"\n", plotLeft-6, plotTop+plotHeight)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%.3g s; %v memory, the line is the peak between samples</text>`+"\n",
		plotLeft+plotWidth, plotTop+plotHeight+20, end, t)
	fmt.Fprintf(b, `<path fill="none" stroke="black" d="M%d %dV%dH%d"/>`+"\n</svg>\n", plotLeft, plotTop, plotTop+plotHeight, plotLeft+plotWidth)
	return b.Flush()
}
