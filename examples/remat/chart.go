package main

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

var colors = []color.Color{
	color.RGBA{0x99, 0x99, 0x99, 0xff}, color.RGBA{0xf5, 0xb0, 0x41, 0xff}, color.RGBA{0x5d, 0xad, 0xe2, 0xff},
	color.RGBA{0xb0, 0x3a, 0x2e, 0xff}, color.RGBA{0x1e, 0x84, 0x49, 0xff},
}

// draw writes peak against time: predicted as a line, measured as dots.
func draw(file string, points []point) error {
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
			return err
		}
		dots, err := plotter.NewScatter(measured)
		if err != nil {
			return err
		}
		line.Color, dots.Color, dots.Radius = colors[i], colors[i], vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(m.name, line, dots)
	}
	return p.Save(vg.Points(640), vg.Points(420), file)
}
