package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug/internal/picture"
)

// The layout of the chart, in points.
const (
	chartLeft, chartWidth = 72, 660
	chartTop, chartHeight = 64, 320
	chartTicks            = 4
)

var colors = [len(methods)]string{"#999999", "#f5b041", "#5dade2", "#b03a2e", "#1e8449"}

// draw writes time against peak as SVG: predicted as a line, measured as dots.
func draw(file string, points []point) error {
	if filepath.Ext(file) != ".svg" {
		return fmt.Errorf("the chart %s: want a file .svg", file)
	}
	var right, top float64 // of the axes
	for _, p := range points {
		right, top = max(right, kib(p.predicted.Peak), kib(p.measured.Peak)), max(top, p.predicted.Time, p.measured.Time)
	}
	place := func(peak int64, time float64) string {
		return fmt.Sprintf("%.1f %.1f", chartLeft+chartWidth*kib(peak)/right, chartTop+chartHeight*(1-time/top))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+picture.Fonts+">\n", picture.Width, chartTop+chartHeight+50)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="12" y="22" font-size="14">%s</text>`+"\n",
		"Time against peak memory: lines are predicted, dots measured")
	fmt.Fprintf(&b, `<path fill="none" stroke="black" d="M%d %dv%dh%d"/>`+"\n", chartLeft, chartTop, chartHeight, chartWidth)
	for i := range chartTicks + 1 {
		part := float64(i) / chartTicks
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", chartLeft-6, chartTop+4+chartHeight*(1-part), picture.Seconds(part*top))
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f</text>`+"\n", chartLeft+chartWidth*part, chartTop+chartHeight+18, part*right)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">peak, KiB</text>`+"\n", chartLeft+chartWidth/2, chartTop+chartHeight+40)
	for i, m := range methods {
		x := chartLeft + 120*i
		fmt.Fprintf(&b, `<rect x="%d" y="38" width="10" height="10" fill="%s"/><text x="%d" y="47">%s</text>`+"\n", x, colors[i], x+14, picture.Text(m.name))
		var line, dots bytes.Buffer
		for _, p := range points {
			if p.method == m.name {
				fmt.Fprintf(&line, "L%s", place(p.predicted.Peak, p.predicted.Time))
				fmt.Fprintf(&dots, "M%sh0", place(p.measured.Peak, p.measured.Time))
			}
		}
		if line.Len() > 0 {
			fmt.Fprintf(&b, `<path fill="none" stroke="%s" d="M%s"/><path stroke="%s" stroke-width="6" stroke-linecap="round" d="%s"/>`+"\n",
				colors[i], line.Bytes()[1:], colors[i], dots.Bytes())
		}
	}
	b.WriteString("</svg>\n")
	return os.WriteFile(file, b.Bytes(), 0o666)
}
