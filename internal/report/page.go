package report

import (
	_ "embed"
	"html/template"
	"sync"
	"time"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

// page is the template, which is parsed when the first report is written.
var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("report").Parse(pageText))
})

// view is what the template draws.
type view struct {
	Document
	Style   template.CSS // the package's own
	Charts  []Chart      // over steps
	Process *Chart       // resident memory over steps
	Bars    []BarView
	Legend  []Entry
	Plan    Chart
	Data    any
	Time    string
	Machine string
	// DataOnly says that nothing is planned and nothing has run.
	DataOnly bool
}

func (d Document) view() view {
	v := view{Document: d, Style: template.CSS(pageStyle), Bars: bars(d.Bars), Legend: componentLegend(d.Bars), Plan: d.Schedule.chart(), Data: d.History.data()}
	if d.History != nil {
		v.Charts = []Chart{d.History.lossChart(d.Steps), d.History.speedChart(d.Steps)}
		chart := d.History.residentChart(d.Steps, d.Resident)
		v.Process = &chart
	}
	v.DataOnly = d.History == nil && len(d.Samples) > 0 && len(d.Bars)+len(d.Memory.Rows)+len(d.Layers.Rows) == 0
	v.Time, v.Machine = d.Written.Format("2 January 2006, 15:04:05 MST"), d.Written.Format(time.RFC3339)
	return v
}
