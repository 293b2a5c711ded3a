package report

import (
	"fmt"

	"github.com/snug-ml/snug/meter"
)

// maxColumns is the largest number of columns of a schedule.
const maxColumns = 400

// BarView is a drawn Bar.
type BarView struct {
	Name, Text, Label string
	Parts             []Mark
	Limit             *Share
	LimitText         string
}

// top returns the number of bytes that the longest bar stands for: the most that a bar has, or its limit, unless that is
// far more. Bars with components have a scale, and bars of whole processes another.
func top(list []Bar, whole bool) int64 {
	longest := int64(1)
	for _, b := range list {
		if (b.Whole > 0) == whole {
			longest = max(longest, b.Total())
		}
	}
	top := longest
	for _, b := range list {
		if (b.Whole > 0) == whole && b.Limit <= 4*longest {
			top = max(top, b.Limit)
		}
	}
	return top
}

// bars draws the bars.
func bars(list []Bar) (views []BarView) {
	for _, b := range list {
		top := top(list, b.Whole > 0)
		share := func(n int64) float64 { return 99 * float64(n) / float64(top) }
		v := BarView{Name: b.Name, Text: meter.FormatBytes(b.Total())}
		v.Label = fmt.Sprintf("%s: %s", b.Name, v.Text)
		if b.Limit > 0 {
			v.Text += " of " + meter.FormatBytes(b.Limit)
			v.Label += ", limit " + meter.FormatBytes(b.Limit)
			v.LimitText = "limit " + meter.FormatBytes(b.Limit)
			if b.Limit <= top {
				at := Share(share(b.Limit))
				v.Limit = &at
			}
		}
		at := 0.0
		add := func(class, name string, n int64) {
			if n <= 0 {
				return
			}
			v.Parts = append(v.Parts, Mark{Share(at), Share(share(n)), class, fmt.Sprintf("%s: %s (%s bytes)", name, meter.FormatBytes(n), grouped(n))})
			v.Label += fmt.Sprintf("; %s %s", name, meter.FormatBytes(n))
			at += share(n)
		}
		for c, n := range b.Bytes {
			add(componentClass(meter.Component(c)), meter.Component(c).String(), n)
		}
		add("process", b.Name, b.Whole)
		views = append(views, v)
	}
	return views
}

func componentClass(c meter.Component) string { return fmt.Sprintf("c%d", int(c)) }

// componentLegend names the components that some bars have.
func componentLegend(list []Bar) (legend []Entry) {
	for c := range meter.Components {
		for _, b := range list {
			if b.Bytes[c] > 0 {
				legend = append(legend, Entry{componentClass(c), c.String()})
				break
			}
		}
	}
	return legend
}

// column is one or more operations of a schedule, with the one that holds the most.
type column struct {
	Operation
	first, last int
}

// columns joins operations where there are many.
func (s Schedule) columns() (list []column) {
	each := (len(s.Operations)-1)/maxColumns + 1
	for i := 0; i < len(s.Operations); i += each {
		c := column{s.Operations[i], i, min(i+each, len(s.Operations)) - 1}
		for _, op := range s.Operations[i : c.last+1] {
			if op.Bytes > c.Bytes {
				c.Operation = op
			}
		}
		list = append(list, c)
	}
	return list
}

// chart draws the schedule.
func (s Schedule) chart() Chart {
	c := Chart{ID: "schedule", Title: "Memory during a micro-batch, predicted", XName: "operation"}
	if s.Micros > 1 {
		c.Title += fmt.Sprintf(" (a step has %d)", s.Micros)
	}
	if len(s.Operations) == 0 {
		c.Empty = "There is no schedule."
		return c
	}
	constant := s.Peak
	constant[meter.Activations] = 0
	under, peak := constant.Total(), 0
	for i, op := range s.Operations {
		if op.Bytes > s.Operations[peak].Bytes {
			peak = i
		}
	}
	total := under + s.Operations[peak].Bytes
	top := total
	if s.Limit <= 4*total {
		top = max(top, s.Limit)
	}
	list := s.columns()
	x := axis{from: 0, to: float64(len(s.Operations))}
	steps, y := stepsAxis(1, len(s.Operations)), bytesAxis(top)
	for _, n := range steps.ticks {
		c.X = append(c.X, Tick{Share(100 * x.at(n-0.5)), steps.format(n)})
	}
	c.Y = y.labels(true)
	below := int64(0)
	for component, n := range constant {
		if n > 0 {
			var p pen
			p.to(0, y.at(float64(below)))
			p.to(0, y.at(float64(below+n)))
			p.to(1, y.at(float64(below+n)))
			p.to(1, y.at(float64(below)))
			c.Paths = append(c.Paths, Path{"area " + componentClass(meter.Component(component)), p.String() + "Z"})
			below += n
		}
	}
	var p pen
	p.to(0, y.at(float64(under)))
	for _, q := range list {
		from, to := x.at(float64(q.first)), x.at(float64(q.last+1))
		p.to(from, y.at(float64(under+q.Bytes)))
		p.to(to, y.at(float64(under+q.Bytes)))
		text := fmt.Sprintf("operation %d of %d", q.first+1, len(s.Operations))
		if q.last > q.first {
			text = fmt.Sprintf("operations %d to %d of %d, the most in", q.first+1, q.last+1, len(s.Operations))
		}
		text = fmt.Sprintf("%s, %s: %s, of them activations %s", text, q.Name, meter.FormatBytes(under+q.Bytes), meter.FormatBytes(q.Bytes))
		c.Titles = append(c.Titles, Title{Share(100 * from), Share(100 * (to - from)), text})
		class := fmt.Sprintf("p%d", int(q.Phase))
		if n := len(c.Strip) - 1; n >= 0 && c.Strip[n].Class == class {
			c.Strip[n].Width = Share(100*to) - c.Strip[n].At
		} else {
			c.Strip = append(c.Strip, Mark{Share(100 * from), Share(100 * (to - from)), class, q.Phase.String()})
		}
	}
	p.to(1, y.at(float64(under)))
	c.Paths = append(c.Paths, Path{"area " + componentClass(meter.Activations), p.String() + "Z"})
	at := x.at(float64(peak) + 0.5)
	c.Rules = append(c.Rules, Rule{At: Share(100 * at), Class: "peak", Up: true, Text: "peak " + meter.FormatBytes(total), End: at > 0.5})
	if s.Limit > 0 && s.Limit <= top {
		c.Rules = append(c.Rules, Rule{At: Share(100 * (1 - y.at(float64(s.Limit)))), Class: "limit", Text: "limit " + meter.FormatBytes(s.Limit), End: at <= 0.5})
	}
	c.Legend = componentLegend([]Bar{{Bytes: s.Peak}})
	var used [Phases]bool
	for _, op := range s.Operations {
		used[op.Phase] = true
	}
	for phase, is := range used {
		if is {
			c.Legend = append(c.Legend, Entry{fmt.Sprintf("p%d", phase), Phase(phase).String()})
		}
	}
	c.Text = fmt.Sprintf("Bytes held by the device during the %s operations of a micro-batch. The peak is %s, in operation %d, %s.",
		grouped(int64(len(s.Operations))), meter.FormatBytes(total), peak+1, s.Operations[peak].Name)
	c.Table = Table{Caption: c.Title, Head: []string{"operations", "activations", "in all", "bytes"}}
	each := (len(list)-1)/maxRows + 1
	for i := 0; i < len(list); i += each {
		last := min(i+each, len(list)) - 1
		q := list[i]
		for _, r := range list[i : last+1] {
			if r.Bytes > q.Bytes {
				q.Operation = r.Operation
			}
		}
		name := fmt.Sprintf("%d: %s", list[i].first+1, q.Name)
		if list[last].last > list[i].first {
			name = fmt.Sprintf("%d–%d, most in %s", list[i].first+1, list[last].last+1, q.Name)
		}
		c.Table.Rows = append(c.Table.Rows, []string{name, meter.FormatBytes(q.Bytes), meter.FormatBytes(under + q.Bytes), grouped(under + q.Bytes)})
	}
	return c
}
