package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/snug-ml/snug/plan"
)

// componentColors tell the components apart, also in grey; residentColor is of what the
// system counts.
var componentColors = [components]string{"#1b4f72", "#5dade2", "#1e8449", "#b03a2e", "#f5b041", "#999999"}

const residentColor = "#d7dbdd"

// The layout of the chart, in points. Texts have room in the widest of the common fonts.
const (
	chartWidth  = 940
	chartLeft   = 100
	chartBars   = 430
	chartTop    = 116
	chartRow    = 34
	columnPitch = 95
)

// writeChart draws for every report the counted peak as stacked bars of components, and below
// it the peak of what was resident, with both in numbers, tokens/s and the loss.
func writeChart(file string, reports []*report) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	drawChart(b, reports)
	return errors.Join(b.Flush(), f.Close())
}

func drawChart(b io.Writer, reports []*report) {
	most := int64(1)
	for _, r := range reports {
		most = max(most, r.Measured, r.PeakRSS)
	}
	height := chartTop + chartRow*len(reports) + 10
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="12">`+"\n", chartWidth, height)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, height)
	fmt.Fprintf(b, `<text x="12" y="24" font-size="14">peak memory, %s: %d parameters, %d steps</text>`+"\n", reports[0].Preset, reports[0].Params, reports[0].Steps)
	for i := range int(components) + 1 { // the last is what is resident
		name, color := "resident (RSS)", residentColor
		if i < int(components) {
			name, color = plan.Component(i).String(), componentColors[i]
		}
		x, y := 12+180*(i%4), 40+18*(i/4)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", x, y, color, x+14, y+9, name)
	}
	column := func(i, y int, text string) {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", chartLeft+chartBars+columnPitch*(i+1), y, text)
	}
	for i, name := range []string{"counted", "resident", "tokens/s", "loss"} {
		column(i, chartTop-10, name)
	}
	scale := chartBars / float64(most)
	for i, r := range reports {
		y, x := chartTop+chartRow*i, float64(chartLeft)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", chartLeft-8, y+15, r.label())
		for c := range components {
			width := float64(r.measured[c]) * scale
			fmt.Fprintf(b, `<rect x="%.2f" y="%d" width="%.2f" height="14" fill="%s"><title>%v: %s</title></rect>`+"\n",
				x, y, width, componentColors[c], c, plan.FormatBytes(r.measured[c]))
			x += width
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.2f" height="8" fill="%s"/>`+"\n", chartLeft, y+15, float64(r.PeakRSS)*scale, residentColor)
		column(0, y+15, plan.FormatBytes(r.Measured))
		column(1, y+15, resident(r.PeakRSS))
		column(2, y+15, fmt.Sprintf("%.0f", r.TokensPerS))
		column(3, y+15, fmt.Sprintf("%.3f", r.LossLast))
	}
	fmt.Fprintln(b, "</svg>")
}

// resident formats the resident bytes of a process, which not every system tells.
func resident(n int64) string {
	if n == 0 {
		return "–"
	}
	return plan.FormatBytes(n)
}
