package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// componentColors tell the components apart, also in grey.
var componentColors = [components]color.Color{
	color.RGBA{0x1b, 0x4f, 0x72, 0xff}, color.RGBA{0x5d, 0xad, 0xe2, 0xff}, color.RGBA{0x1e, 0x84, 0x49, 0xff},
	color.RGBA{0xb0, 0x3a, 0x2e, 0xff}, color.RGBA{0xf5, 0xb0, 0x41, 0xff}, color.RGBA{0x99, 0x99, 0x99, 0xff},
}

// writeChart draws the peak of every report as stacked bars of components,
// with tokens/s and the loss below each.
func writeChart(file string, reports []*report) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("Peak memory, %s: %d parameters, %d steps", reports[0].Preset, reports[0].Params, reports[0].Steps)
	p.Y.Label.Text = "MiB"
	p.Y.Min = 0
	p.Legend.Top = true
	var labels []string
	for _, r := range reports {
		labels = append(labels, fmt.Sprintf("%s\n%.1f MiB\n%.0f tokens/s\nloss %.3f", r.label(), float64(r.Measured)/(1<<20), r.TokensPerS, r.LossLast))
	}
	p.NominalX(labels...)
	var below *plotter.BarChart
	for c := range components {
		values := make(plotter.Values, len(reports))
		for i, r := range reports {
			values[i] = float64(r.measured[c]) / (1 << 20)
		}
		bars, err := plotter.NewBarChart(values, vg.Points(48))
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = componentColors[c], 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(c.String(), bars)
	}
	return p.Save(vg.Points(float64(110*len(reports)+120)), vg.Points(420), file)
}
