package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	draw2d "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var colors = []color.Color{
	color.RGBA{0x99, 0x99, 0x99, 0xff}, color.RGBA{0xf5, 0xb0, 0x41, 0xff}, color.RGBA{0x5d, 0xad, 0xe2, 0xff},
	color.RGBA{0xb0, 0x3a, 0x2e, 0xff}, color.RGBA{0x1e, 0x84, 0x49, 0xff},
}

// draw writes peak against time: predicted as a line, measured as dots.
func draw(file string, points []point) error {
	p, err := chartOf(points)
	if err != nil {
		return err
	}
	if filepath.Ext(file) != ".svg" {
		return p.Save(chartWidth, chartHeight, file)
	}
	var text bytes.Buffer
	if err := writeSVG(&text, p); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o666)
}

const chartWidth, chartHeight = vg.Length(640), vg.Length(420) // points

// chartOf returns the chart.
func chartOf(points []point) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "Time against peak memory; lines are predicted, dots measured"
	p.X.Label.Text, p.Y.Label.Text = "peak, KiB", "time, ms"
	p.Legend.Top = true
	for i, m := range methods {
		var predicted, measured plotter.XYs
		for _, v := range points {
			if v.method == m.name {
				predicted = append(predicted, plotter.XY{X: kib(v.predicted.Peak), Y: 1e3 * v.predicted.Time})
				measured = append(measured, plotter.XY{X: kib(v.measured.Peak), Y: 1e3 * v.measured.Time})
			}
		}
		line, err := plotter.NewLine(predicted)
		if err != nil {
			return nil, err
		}
		dots, err := plotter.NewScatter(measured)
		if err != nil {
			return nil, err
		}
		line.Color, dots.Color, dots.Radius = colors[i], colors[i], vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(m.name, line, dots)
	}
	return p, nil
}

// families are what a viewer takes the first known one of.
const families = "'Liberation Serif','Times New Roman',Times,serif"

// writeSVG writes a plot whose texts have the widths that the layout was made with, in
// whatever font a viewer has.
func writeSVG(out io.Writer, p *plot.Plot) error {
	c := &canvas{Canvas: vgsvg.New(chartWidth, chartHeight)}
	p.Draw(draw2d.New(c))
	var text bytes.Buffer
	if _, err := c.WriteTo(&text); err != nil {
		return err
	}
	parts := strings.Split(text.String(), "<text ")
	if len(parts) != len(c.widths)+1 {
		return fmt.Errorf("a chart of %d texts, %d were drawn", len(parts)-1, len(c.widths))
	}
	for i, w := range c.widths {
		parts[i+1] = fmt.Sprintf(`<text textLength="%.2f" lengthAdjust="spacingAndGlyphs" %s`, w.Points(), parts[i+1])
	}
	_, err := io.WriteString(out, strings.ReplaceAll(strings.Join(parts, ""), "font-family:Liberation Serif;", "font-family:"+families+";"))
	return err
}

// canvas notes the widths of texts in the order in which they are drawn.
type canvas struct {
	*vgsvg.Canvas
	widths []vg.Length
}

// FillString draws a text.
func (c *canvas) FillString(f font.Face, at vg.Point, text string) {
	c.widths = append(c.widths, f.Width(text))
	c.Canvas.FillString(f, at, text)
}
