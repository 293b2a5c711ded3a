package report

import (
	"fmt"

	"github.com/snug-ml/snug/meter"
)

// maxRows is the largest number of rows of a table of steps.
const maxRows = 50

// rate returns the tokens per second of a point, which has none where the clock did not advance.
func (p Point) rate() (float64, bool) {
	if p.Seconds < 1e-9 || p.Tokens <= 0 {
		return 0, false
	}
	return p.Tokens / p.Seconds, true
}

// speedChart draws the tokens per second of a run.
func (h *History) speedChart(steps int) Chart {
	c := Chart{ID: "speed", Title: "Tokens per second", XName: "step"}
	most, tokens, seconds, last := 0.0, 0.0, 0.0, 0.0
	for _, p := range h.Points {
		if r, ok := p.rate(); ok {
			most, last, tokens, seconds = max(most, r), r, tokens+p.Tokens, seconds+p.Seconds
		}
	}
	if most == 0 {
		c.Empty = "No step is done yet."
		return c
	}
	x, y := h.stepsAxis(steps), numbersAxis(0, most)
	c.X, c.Y = x.labels(false), y.labels(true)
	c.Paths = []Path{{"line", h.line(x, y, Point.rate)}}
	c.Dots = h.alone(x, y, Point.rate)
	c.Legend = []Entry{{"line", "tokens/s"}}
	h.decorate(&c, x)
	c.Marks, c.Legend = nil, c.Legend[:1+min(1, len(c.Rules))]
	c.Titles = h.titles(x, func(p Point) string {
		r, _ := p.rate()
		return fmt.Sprintf("%s: %s tokens/s", p.name(), grouped(int64(r+0.5)))
	})
	c.Text = fmt.Sprintf("Tokens per second over the steps: %s on average, %s at the end.", grouped(int64(tokens/seconds+0.5)), grouped(int64(last+0.5)))
	c.Table = h.table("Tokens per second", []string{"steps", "tokens/s", "tokens", "seconds"}, func(p Point) []string {
		r, _ := p.rate()
		return []string{grouped(int64(r + 0.5)), grouped(int64(p.Tokens)), fmt.Sprintf("%.3g", p.Seconds)}
	})
	return c
}

// residentChart draws the resident bytes of the process.
func (h *History) residentChart(steps int, beside Resident) Chart {
	c := Chart{ID: "resident", Title: "Resident memory of the process", XName: "step"}
	most := int64(0)
	for _, p := range h.Points {
		most = max(most, p.Resident)
	}
	if most == 0 {
		c.Empty = "No step is done yet, or the system does not report it."
		return c
	}
	top := max(most, beside.Predicted)
	if beside.Limit <= 4*top {
		top = max(top, beside.Limit)
	}
	x, y := h.stepsAxis(steps), bytesAxis(top)
	value := func(p Point) (float64, bool) { return float64(p.Resident), p.Resident > 0 }
	c.X, c.Y = x.labels(false), y.labels(true)
	c.Paths = []Path{{"line", h.line(x, y, value)}}
	c.Dots = h.alone(x, y, value)
	c.Legend = []Entry{{"line", "measured after each step"}}
	h.decorate(&c, x)
	c.Marks, c.Legend = nil, c.Legend[:1+min(1, len(c.Rules))]
	c.Text = "Resident memory after each step, " + meter.FormatBytes(most) + " at most."
	rule := func(n int64, class, name string, end bool) {
		if n > 0 && n <= top {
			c.Rules = append(c.Rules, Rule{At: Share(100 * (1 - y.at(float64(n)))), Class: class, Text: name + " " + meter.FormatBytes(n), End: end})
			c.Text += fmt.Sprintf(" The %s is %s.", name, meter.FormatBytes(n))
		}
	}
	rule(beside.Limit, "limit", "limit", false)
	rule(beside.Predicted, "predicted", "predicted peak", true) // beside the text of a limit that is near
	c.Titles = h.titles(x, func(p Point) string { return p.name() + ": " + meter.FormatBytes(p.Resident) })
	c.Table = h.table("Resident memory", []string{"steps", "resident", "bytes"}, func(p Point) []string {
		return []string{meter.FormatBytes(p.Resident), grouped(p.Resident)}
	})
	return c
}

// table has the figures of all points, several together where there are many.
func (h *History) table(caption string, head []string, cells func(Point) []string) Table {
	t := Table{Caption: caption, Head: head}
	each := (len(h.Points)-1)/maxRows + 1
	for i := 0; i < len(h.Points); i += each {
		p := h.Points[i]
		for _, q := range h.Points[i+1 : min(i+each, len(h.Points))] {
			p.join(q)
		}
		name := grouped(int64(p.First))
		if p.Last > p.First {
			name += "–" + grouped(int64(p.Last))
		}
		t.Rows = append(t.Rows, append([]string{name}, cells(p)...))
	}
	return t
}

func (h *History) lossTable() Table {
	t := h.table("Losses", []string{"steps", "mean", "least", "most", "not finite", "skipped"}, func(p Point) []string {
		list := []string{"–", "–", "–"}
		if p.Finite > 0 {
			list = []string{fmt.Sprintf("%.4f", p.Mean), fmt.Sprintf("%.4f", p.Least), fmt.Sprintf("%.4f", p.Most)}
		}
		return append(list, fmt.Sprint(p.Losses-p.Finite), fmt.Sprint(p.Skipped))
	})
	for _, e := range h.HeldOut {
		loss := fmt.Sprintf("%.4f", e.Loss)
		t.Rows = append(t.Rows, []string{"held out, after " + grouped(int64(e.Step)), loss, loss, loss, "0", "0"})
	}
	return t
}
