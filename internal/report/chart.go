package report

import (
	"fmt"
	"strconv"
	"strings"
)

// side is the width and the height of the coordinates of paths, which are stretched to the size of a chart.
const side = 1000

// most hover titles of a chart; a title covers several points if there are more.
const maxTitles = 200

// Chart is a picture with two axes.
type Chart struct {
	ID, Title string
	Text      string // what the picture shows, in a sentence
	Empty     string // why there is nothing to draw; otherwise empty
	X, Y      []Tick
	XName     string
	Paths     []Path // in the coordinates 0 to side
	Dots      []Dot
	Rules     []Rule
	Marks     []Mark
	Titles    []Title
	Legend    []Entry
	Strip     []Mark // a row of colours below the picture
	Table     Table
}

// Path is a line or an area.
type Path struct{ Class, D string }

// Dot is a point that is drawn as a square.
type Dot struct {
	X, Y        Share
	Class, Text string
}

// Rule is a line through the picture, across it or upright.
type Rule struct {
	At    Share
	Class string
	Text  string
	Up    bool
	End   bool // the text is to the left of an upright line, or ends at the end of another
}

// Mark is a span below the picture.
type Mark struct {
	At, Width   Share
	Class, Text string
}

// Title is a text for the pointer over a span of the picture.
type Title struct {
	At, Width Share
	Text      string
}

// Entry is a line of a legend.
type Entry struct{ Class, Name string }

// pen draws a path.
type pen struct {
	b    strings.Builder
	down bool
}

func coordinate(x float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(x*side, 'f', 1, 64), ".0")
}

// to draws a line to a position, or begins there. Positions are shares of the width and, from the bottom, of the height.
func (p *pen) to(x, y float64) {
	command := byte('M')
	if p.down {
		command = 'L'
	}
	p.down = true
	p.b.WriteByte(command)
	p.b.WriteString(coordinate(x))
	p.b.WriteByte(' ')
	p.b.WriteString(coordinate(1 - y))
}

// up ends a line.
func (p *pen) up() { p.down = false }

func (p *pen) String() string { return p.b.String() }

// lossChart draws the losses of a run.
func (h *History) lossChart(steps int) Chart {
	c := Chart{ID: "loss", Title: "Loss", XName: "step"}
	least, most, any := h.losses(true)
	if !any {
		c.Empty = "No step has had a finite loss yet."
		if len(h.Points) == 0 {
			c.Empty = "No step is done yet."
		}
		c.Table = h.lossTable()
		return c
	}
	x, y := h.stepsAxis(steps), numbersAxis(least, most)
	c.X, c.Y = x.labels(false), y.labels(true)
	c.Paths = append(c.Paths, Path{"band", h.band(x, y)}, Path{"line", h.line(x, y, func(p Point) (float64, bool) { return p.Mean, p.Finite > 0 })})
	if c.Paths[0].D == "" {
		c.Paths = c.Paths[1:]
	}
	c.Dots = h.alone(x, y, func(p Point) (float64, bool) { return p.Mean, p.Finite > 0 })
	c.Legend = []Entry{{"line", "training"}}
	if h.Every > 1 {
		c.Legend[0].Name = fmt.Sprintf("training, mean of %d steps, and their range", h.Every)
	}
	if len(h.HeldOut) > 0 {
		var p pen
		for _, e := range h.HeldOut {
			at, up := x.at(float64(e.Step)), y.at(e.Loss)
			p.to(at, up)
			c.Dots = append(c.Dots, Dot{Share(100 * at), Share(100 * (1 - up)), "held", fmt.Sprintf("held-out loss after step %s: %.4f", grouped(int64(e.Step)), e.Loss)})
		}
		c.Paths = append(c.Paths, Path{"held", p.String()})
		c.Legend = append(c.Legend, Entry{"held", "held-out samples"})
	}
	h.decorate(&c, x)
	c.Titles = h.titles(x, func(p Point) string {
		text := p.name() + ": "
		switch {
		case p.Finite == 0:
			text += "loss not finite"
		case p.Finite == 1:
			text += fmt.Sprintf("loss %.4f", p.Mean)
		default:
			text += fmt.Sprintf("loss %.4f on average, %.4f to %.4f", p.Mean, p.Least, p.Most)
		}
		if n := p.Losses - p.Finite; n > 0 && p.Finite > 0 {
			text += fmt.Sprintf(", %d not finite", n)
		}
		if p.Skipped > 0 {
			text += fmt.Sprintf(", %d skipped", p.Skipped)
		}
		return text
	})
	c.Text = h.lossText()
	c.Table = h.lossTable()
	return c
}

// losses returns the range of the losses that are finite, of the steps and, if asked, on held-out data.
func (h *History) losses(heldOut bool) (least, most float64, any bool) {
	take := func(lo, hi float64) {
		if !any {
			least, most, any = lo, hi, true
		}
		least, most = min(least, lo), max(most, hi)
	}
	for _, p := range h.Points {
		if p.Finite > 0 {
			take(p.Least, p.Most)
		}
	}
	for _, e := range h.HeldOut {
		if heldOut {
			take(e.Loss, e.Loss)
		}
	}
	return least, most, any
}

func (h *History) lossText() string {
	text := "No step has had a finite loss yet."
	if least, most, any := h.losses(false); any {
		last := 0.0
		for _, p := range h.Points {
			if p.Finite > 0 {
				last = p.Mean
			}
		}
		text = fmt.Sprintf("Training loss over the steps, between %.4f and %.4f; the last is %.4f.", least, most, last)
	}
	if n := len(h.HeldOut); n > 0 {
		text += fmt.Sprintf(" Held-out loss after step %d: %.4f.", h.HeldOut[n-1].Step, h.HeldOut[n-1].Loss)
	}
	skipped, bad := 0, 0
	for _, p := range h.Points {
		skipped, bad = skipped+p.Skipped, bad+p.Losses-p.Finite
	}
	if skipped > 0 {
		text += fmt.Sprintf(" Steps that changed nothing: %d.", skipped)
	}
	if bad > 0 {
		text += fmt.Sprintf(" Losses that are not finite: %d.", bad)
	}
	return text
}

// stepsAxis is the axis of all steps.
func (h *History) stepsAxis(steps int) axis {
	first, last := 1, max(steps, 1)
	if n := len(h.Points); n > 0 {
		last = max(last, h.Points[n-1].Last)
	}
	if len(h.HeldOut) > 0 {
		first = min(first, h.HeldOut[0].Step)
	}
	return stepsAxis(first, last)
}

// middle is the position of a point on the axis of steps.
func (p Point) middle() float64 { return float64(p.First+p.Last) / 2 }

// name names the steps of a point.
func (p Point) name() string {
	if p.First == p.Last {
		return "step " + grouped(int64(p.First))
	}
	return "steps " + grouped(int64(p.First)) + " to " + grouped(int64(p.Last))
}

// follows reports whether no steps lie between a point and the one before it.
func (h *History) follows(i int) bool { return i > 0 && h.Points[i-1].Last+1 == h.Points[i].First }

// line draws a value of the points, with gaps where a point has none or steps are missing.
func (h *History) line(x, y axis, value func(Point) (float64, bool)) string {
	var p pen
	for i, q := range h.Points {
		v, known := value(q)
		if !h.follows(i) || !known {
			p.up()
		}
		if known {
			p.to(x.at(q.middle()), y.at(v))
		}
	}
	return p.String()
}

// alone returns the points that no line joins with another.
func (h *History) alone(x, y axis, value func(Point) (float64, bool)) (list []Dot) {
	known := func(i int) bool {
		if i < 0 || i >= len(h.Points) {
			return false
		}
		_, ok := value(h.Points[i])
		return ok
	}
	for i, q := range h.Points {
		if before, after := known(i-1) && h.follows(i), known(i+1) && h.follows(i+1); !known(i) || before || after {
			continue
		}
		v, _ := value(q)
		list = append(list, Dot{Share(100 * x.at(q.middle())), Share(100 * (1 - y.at(v))), "line", ""})
	}
	return list
}

// band draws the area between the smallest and the largest loss of each point.
func (h *History) band(x, y axis) string {
	if h.Every == 1 {
		return ""
	}
	var all strings.Builder
	for i := 0; i < len(h.Points); {
		from := i
		for i < len(h.Points) && h.Points[i].Finite > 0 && (i == from || h.follows(i)) {
			i++
		}
		if i == from {
			i++
			continue
		}
		var p pen
		for _, q := range h.Points[from:i] {
			p.to(x.at(q.middle()), y.at(q.Most))
		}
		for j := i - 1; j >= from; j-- {
			p.to(x.at(h.Points[j].middle()), y.at(h.Points[j].Least))
		}
		all.WriteString(p.String() + "Z")
	}
	return all.String()
}

// decorate adds what the charts over steps share: where the run was resumed, and steps that changed nothing or whose
// loss was not finite.
func (h *History) decorate(c *Chart, x axis) {
	for _, step := range h.Resumed {
		if at := x.at(float64(step) + 0.5); at > 0.001 {
			c.Rules = append(c.Rules, Rule{At: Share(100 * at), Class: "resumed", Up: true, Text: fmt.Sprintf("resumed after step %s", grouped(int64(step)))})
		}
	}
	if len(c.Rules) > 0 {
		c.Legend = append(c.Legend, Entry{"resumed", "resumed"})
	}
	skipped, bad := false, false
	for _, p := range h.Points {
		mark := Mark{At: Share(100 * x.at(p.middle()))}
		switch {
		case p.Finite < p.Losses:
			mark.Class, mark.Text, bad = "bad", p.name()+": loss not finite", true
		case p.Skipped > 0:
			mark.Class, mark.Text, skipped = "skipped", p.name()+": skipped", true
		default:
			continue
		}
		c.Marks = append(c.Marks, mark)
	}
	if bad {
		c.Legend = append(c.Legend, Entry{"bad", "loss not finite"})
	}
	if skipped {
		c.Legend = append(c.Legend, Entry{"skipped", "step that changed nothing"})
	}
}

// titles returns texts for the pointer.
func (h *History) titles(x axis, text func(Point) string) (list []Title) {
	each := (len(h.Points)-1)/maxTitles + 1
	var ends []float64
	for i := 0; i < len(h.Points); i += each {
		p := h.Points[i]
		for _, q := range h.Points[i+1 : min(i+each, len(h.Points))] {
			p.join(q)
		}
		from, to := x.at(float64(p.First)-0.5), x.at(float64(p.Last)+0.5)
		list, ends = append(list, Title{At: Share(100 * from), Text: text(p)}), append(ends, to)
	}
	for i := range list {
		list[i].Width = Share(max(100*ends[i]-float64(list[i].At), 0.01))
	}
	return list
}
