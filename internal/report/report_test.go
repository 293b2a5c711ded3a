package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/meter"
)

// nasty is a name with all that HTML, SVG and JSON give a meaning.
const nasty = `a<b>&"c'</title></script>` + "\u2028{{.}}" + `<script>alert(1)</script>`

// document returns a report with all of its parts.
func document(h *History, steps int) Document {
	b := meter.Bytes{meter.Weights: 900 << 20, meter.Gradients: 100 << 20, meter.State: 200 << 20, meter.Activations: 700 << 20, meter.Workspace: 30 << 20}
	d := Document{
		Title: nasty, Status: Running, State: "3 of 4 " + nasty, History: h, Steps: steps, Written: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC),
		Facts: []Fact{{"technique", "LoRA of rank 16"}, {nasty, nasty}}, Settings: []Fact{{"-o", strings.Repeat("/very/long/path", 20)}},
		Bars: []Bar{{Name: "device, predicted", Bytes: b, Limit: 2 << 30}, {Name: "device, measured", Bytes: b, Limit: 2 << 30}, {Name: "disk", Bytes: b, Limit: 1 << 50},
			{Name: "process", Whole: 3 << 30, Limit: 7 << 29}, {Name: "nothing yet"}},
		Memory:   Table{Caption: "memory", Head: []string{"component", "predicted", "measured"}, Rows: [][]string{{"weights", "900 MiB", "900 MiB"}, {nasty, nasty, nasty}}},
		Resident: Resident{Predicted: 3 << 30, Limit: 7 << 29},
		Schedule: Schedule{Peak: b, Limit: 2 << 30, Micros: 4},
		Layers:   Table{Caption: "layers", Head: []string{"stages", "kept"}, Rows: [][]string{{"0–3", nasty}}, Text: true},
		Choices:  Table{Caption: "choices", Head: []string{"choice", "value", "saves", "reason"}, Rows: [][]string{{"rematerialization", "every(6)", "1 GiB", "it does not fit without it; a step would be 11.9 % slower without it"}}, Text: true},
	}
	for i := range 12 {
		op := Operation{Forward, fmt.Sprintf("forward of stage %d, %s", i, nasty), int64(i+1) * 50 << 20}
		if i > 5 {
			op.Phase, op.Bytes = Phase(i%4+1), int64(700-50*(i-6))<<20
		}
		d.Schedule.Operations = append(d.Schedule.Operations, op)
	}
	return d
}

// cases are histories that are hard to draw, with the steps of their runs.
func cases() map[string]Document {
	one, bad, mixed, flat := run(1), NewHistory(""), NewHistory(""), NewHistory("")
	for n := 1; n <= 9; n++ {
		bad.Add(Step{Number: n, Loss: math.NaN(), Skipped: true})
		loss := 3 - float64(n)/5
		if n == 3 || n == 5 {
			loss = math.Inf(n - 4)
		}
		mixed.Add(Step{Number: n, Loss: loss, Tokens: 1000, Seconds: 0.1, Resident: 5 << 28, Skipped: n == 7})
		flat.Add(Step{Number: n, Loss: 2, Tokens: 1, Seconds: 1e-9, Resident: 1})
	}
	mixed.Evaluate(0, 3.1)
	mixed.Resume(8)
	mixed.Add(Step{Number: 9, Loss: 1e-3, Tokens: 1000, Seconds: 0.1, Resident: 6 << 28})
	mixed.Evaluate(9, 1)
	late := NewHistory("")
	late.Resume(90)
	late.Add(Step{Number: 91, Loss: 1e9, Tokens: 5, Seconds: 2, Resident: 1 << 40})
	all := map[string]Document{
		"empty": document(NewHistory(""), 10), "one step": document(one, 1), "one of many": document(run(1), 1000), "not finite": document(bad, 9), "mixed": document(mixed, 9),
		"flat": document(flat, 20), "late": document(late, 100), "long": document(run(100_000), 100_000), "plan": document(nil, 0),
	}
	many := document(run(50), 60)
	for i := range 5000 {
		many.Schedule.Operations = append(many.Schedule.Operations, Operation{Phase(i % 5), "operation", int64(i*7919%700) << 20})
	}
	all["many operations"] = many
	bare := Document{Title: "x"}
	all["bare"] = bare
	return all
}

var data = regexp.MustCompile(`(?s)<script type="application/json".*</script>`)

// TestWrite: the page is well-formed, all its numbers are, nothing but its own style is loaded or runs, and names are texts.
func TestWrite(t *testing.T) {
	for name, d := range cases() {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, d.Write(&b))
			require.Less(t, b.Len(), 2<<20)
			text := b.String()
			require.Equal(t, 1, strings.Count(text, "</script>"))
			require.NotContains(t, text, "ZgotmplZ")
			require.Contains(t, text[:1024], mark)
			page := data.ReplaceAllString(text, "")
			page = regexp.MustCompile(`(?s)<style>.*</style>`).ReplaceAllString(page, "")
			page = strings.Replace(page, "<!DOCTYPE html>", "", 1)
			page = regexp.MustCompile(`<meta [^>]*>`).ReplaceAllString(page, "")
			decoder := xml.NewDecoder(strings.NewReader(page))
			decoder.Entity = xml.HTMLEntity
			for {
				token, err := decoder.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				e, is := token.(xml.StartElement)
				if !is {
					continue
				}
				require.NotContains(t, []string{"script", "link", "img", "iframe", "object", "use", "image", "foreignObject"}, e.Name.Local)
				for _, a := range e.Attr {
					require.NotContains(t, []string{"src", "href", "style", "onload"}, a.Name.Local)
					if share, is := strings.CutSuffix(a.Value, "%"); is && a.Name.Local != "data-head" && e.Name.Local != "svg" {
						n, err := strconv.ParseFloat(share, 64)
						require.NoError(t, err)
						require.True(t, n >= -0.01 && n <= 110, a)
					}
					if a.Name.Local == "d" {
						require.Regexp(t, `^[MLZzhl0-9.\- ]+$`, a.Value)
					}
				}
			}
			if d.Title == nasty {
				require.Contains(t, page, "a&lt;b&gt;&amp;&#34;c&#39;&lt;/title&gt;")
			}
		})
	}
}

// TestSummaries: the sentences and tables have the figures.
func TestSummaries(t *testing.T) {
	c := cases()
	loss := c["mixed"].History.lossChart(9)
	require.Equal(t, "Training loss over the steps, between 0.0010 and 2.8000; the last is 0.0010. Held-out loss after step 9: 1.0000. Steps that changed nothing: 1. Losses that are not finite: 2.", loss.Text)
	require.Len(t, loss.Marks, 3)
	require.Len(t, loss.Table.Rows, 9+2)
	require.Equal(t, []string{"3", "–", "–", "–", "1", "0"}, loss.Table.Rows[2])
	require.Equal(t, []string{"held out, after 9", "1.0000", "1.0000", "1.0000", "0", "0"}, loss.Table.Rows[10])
	require.Equal(t, "step 3: loss not finite", loss.Titles[2].Text)
	require.Equal(t, 3, strings.Count(loss.Paths[0].D, "M"), "gaps at the steps without a loss, none at the resume")
	require.Len(t, loss.Dots, 1+2, "the step between two gaps, and two losses on held-out data")
	speed := c["mixed"].History.speedChart(9)
	require.Equal(t, "Tokens per second over the steps: 10,000 on average, 10,000 at the end.", speed.Text)
	require.Empty(t, speed.Marks)
	long := c["long"].History.lossChart(100_000)
	require.Equal(t, "training, mean of 64 steps, and their range", long.Legend[0].Name)
	require.LessOrEqual(t, len(long.Titles), maxTitles)
	require.LessOrEqual(t, len(long.Table.Rows), maxRows)
	require.Equal(t, "No step is done yet.", c["empty"].History.lossChart(10).Empty)
	require.Equal(t, "No step has had a finite loss yet.", c["not finite"].History.lossChart(9).Empty)
	resident := c["mixed"].History.residentChart(9, Resident{Predicted: 3 << 30, Limit: 7 << 29})
	require.Equal(t, "Resident memory after each step, 1.50 GiB at most. The limit is 3.50 GiB. The predicted peak is 3.00 GiB.", resident.Text)

	s := c["plan"].Schedule
	chart := s.chart()
	require.Contains(t, chart.Text, "The peak is 1.88 GiB, in operation 7, ")
	require.Len(t, chart.Table.Rows, 12)
	require.Equal(t, "2,023,751,680", strings.TrimSpace(chart.Table.Rows[6][3]))
	many := c["many operations"].Schedule.chart()
	require.LessOrEqual(t, len(many.Titles), maxColumns)
	require.Contains(t, many.Text, "5,012 operations")
}

// TestBars: bars end where their bytes do, on a scale with the limit unless that is far away.
func TestBars(t *testing.T) {
	views := bars(cases()["plan"].Bars)
	require.Len(t, views, 5)
	require.Len(t, views[0].Parts, 5)
	last := views[0].Parts[4]
	require.InDelta(t, 99*1930./2048, float64(last.At+last.Width), 1e-9)
	require.InDelta(t, 99, float64(*views[0].Limit), 1e-9)
	require.Equal(t, "1.88 GiB of 2.00 GiB", views[0].Text)
	require.Contains(t, views[0].Label, "device, predicted: 1.88 GiB, limit 2.00 GiB; weights 900.00 MiB")
	require.Nil(t, views[2].Limit, "a limit that is far away")
	require.Equal(t, "process: 3.00 GiB (3,221,225,472 bytes)", views[3].Parts[0].Text)
	require.Empty(t, views[4].Parts)
	require.Equal(t, "?", Phases.String())
	require.Equal(t, "?", Phase(-1).String())
}

// TestAxes: ticks are round, few and within the axis, for all ranges.
func TestAxes(t *testing.T) {
	labels := func(a axis) (list []string) {
		for _, tick := range a.labels(false) {
			require.True(t, tick.At >= -1e-9 && tick.At <= 100+1e-9, tick)
			list = append(list, tick.Text)
		}
		return list
	}
	require.Equal(t, []string{"1"}, labels(stepsAxis(1, 1)))
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, labels(stepsAxis(1, 5)))
	require.Equal(t, []string{"0", "20,000", "40,000", "60,000", "80,000", "100,000"}, labels(stepsAxis(0, 100_000)))
	require.Equal(t, []string{"0.5M", "1M", "1.5M"}, labels(stepsAxis(1, 1_700_000)))
	require.Equal(t, []string{"1.0", "1.5", "2.0", "2.5", "3.0", "3.5"}, labels(numbersAxis(1.2, 3.3)))
	require.Equal(t, []string{"−200", "0", "200", "400", "600", "800"}, labels(numbersAxis(-130, 700)))
	require.Equal(t, []string{"0 B", "1 GiB", "2 GiB", "3 GiB"}, labels(bytesAxis(7<<29)))
	require.Equal(t, []string{"0 B", "1 B"}, labels(bytesAxis(0)))
	require.Equal(t, "−1,234,567", grouped(-1234567))
	for exponent := -12; exponent < 15; exponent++ {
		for _, digits := range []float64{1, 1.3, 2.7, 9.99} {
			x := digits * math.Pow(10, float64(exponent))
			for _, a := range []axis{numbersAxis(0, x), numbersAxis(x, x), numbersAxis(-x, 2*x), numbersAxis(x, x*1.0001), bytesAxis(int64(x)), stepsAxis(1, int(min(x, 1<<30)))} {
				list := labels(a)
				require.NotEmpty(t, list)
				require.LessOrEqual(t, len(list), maxTicks+1, list)
				for i, text := range list {
					require.LessOrEqual(t, len([]rune(text)), 13)
					require.True(t, i == 0 || text != list[i-1], "%v", list)
				}
			}
		}
	}
}
