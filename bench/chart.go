package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"

	"github.com/snug-ml/snug/internal/limits"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// drawRoofline writes the chart as SVG.
func drawRoofline(out io.Writer, all []result, m *machine) error {
	p, err := roofline(all, m)
	if err != nil {
		return err
	}
	w, err := p.WriterTo(vg.Points(900), vg.Points(640), "svg")
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if _, err = w.WriteTo(&text); err != nil {
		return err
	}
	// The layout is made with the widths of Liberation Serif, which few systems have. Those of
	// Times are the same.
	_, err = out.Write(bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Serif;"), []byte("font-family:"+fonts+";")))
	return err
}

const fonts = "'Liberation Serif','Times New Roman',Times,serif"

// roofline draws every result as a point, operations a second over operations
// a byte, under the limits of the machine (Williams, Waterman and Patterson,
// "Roofline", CACM 2009). Operations are those on elements, so that kernels
// without a product, such as casts, have a place.
func roofline(all []result, m *machine) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("snug, %v", m)
	p.X.Label.Text, p.Y.Label.Text = "operations a byte", "billion operations a second"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.TextStyle.Font.Size = vg.Points(9)

	points := map[string]plotter.XYs{}
	low, high := math.Inf(1), 10.0
	for _, r := range all {
		if r.ops > 0 && (len(points[r.Kernel]) == 0 || points[r.Kernel][len(points[r.Kernel])-1] != plotter.XY{X: r.ops, Y: r.perS / 1e9}) {
			points[r.Kernel] = append(points[r.Kernel], plotter.XY{X: r.ops, Y: r.perS / 1e9})
			low, high = min(low, r.ops), max(high, r.ops)
		}
	}
	low = min(low, 0.1) // also where no result has a place
	roofs := []roof{{"memory", m.bandwidth(limits.Copy, float64(m.largest)), m.peakRate(false)}, {"cache", m.bandwidth(limits.Copy, 1<<20), m.peakRate(false)}}
	if m.peakRate(true) > m.peakRate(false) {
		roofs = append(roofs, roof{"memory, products of BF16", m.bandwidth(limits.Copy, float64(m.largest)), m.peakRate(true)})
	}
	for i, r := range roofs {
		if r.peak == 0 { // a device without matrix products
			continue
		}
		line, err := plotter.NewLine(r.line(low, 2*high))
		if err != nil {
			return nil, err
		}
		line.Width, line.Dashes = vg.Points(1.5), plotutil.Dashes(i)
		p.Add(line)
		p.Legend.Add(r.name, line)
	}
	for i, kernel := range sortedKeys(points) {
		s, err := plotter.NewScatter(points[kernel])
		if err != nil {
			return nil, err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: hue(i, len(points)), Radius: vg.Points(2.5), Shape: plotutil.Shape(i)}
		p.Add(s)
		p.Legend.Add(kernel, s)
	}
	return p, nil
}

// roof is a limit: bytes a second, then operations a second.
type roof struct {
	name            string
	bandwidth, peak float64
}

// line returns the roof from x = low to high.
func (r roof) line(low, high float64) plotter.XYs {
	xys := plotter.XYs{{X: low}, {X: high}}
	if knee := r.peak / r.bandwidth; knee > low && knee < high {
		xys = slices.Insert(xys, 1, plotter.XY{X: knee})
	}
	for i := range xys {
		xys[i].Y = min(r.bandwidth*xys[i].X, r.peak) / 1e9
	}
	return xys
}

// hue returns color i of n that differ most.
func hue(i, n int) color.Color {
	third := func(shift float64) uint8 {
		return uint8(110 + 100*math.Cos(2*math.Pi*(float64(i)/float64(n)+shift)))
	}
	return color.RGBA{third(0), third(1. / 3), third(2. / 3), 0xff}
}
