package plan

import (
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug/internal/picture"
	"github.com/snug-ml/snug/meter"
)

// The layout of a chart, in points.
const (
	barsLeft    = 220
	barsWidth   = 420
	barsTop     = 112
	barHeight   = 20
	barDistance = 28
)

// bar is one row of a chart.
type bar struct {
	name  string
	bytes meter.Bytes
}

// WriteSVG draws the device's bytes by component as bars, with the limit: a bar for the
// plan, a bar for each choice that saves bytes, with this choice alone undone, and a bar
// for training without techniques. Bars longer than four times the limit are cut off.
func (p Plan) WriteSVG(w io.Writer) error {
	if w == nil {
		return errNoWriter
	}
	bars := []bar{{"the plan", p.Peak[meter.OnDevice]}}
	for _, c := range p.Choices {
		if c.Saves > 0 {
			bars = append(bars, bar{c.Undone, c.Without.Peak[meter.OnDevice]})
		}
	}
	bars = append(bars, bar{"no technique", p.Without.Peak[meter.OnDevice]})
	title := fmt.Sprintf("%s on %s", p.Task.Model.Name, p.Task.Device.Name)
	_, err := io.WriteString(w, chart(title, bars, p.Limit))
	return err
}

func chart(title string, bars []bar, limit int64) string {
	longest := int64(1)
	for _, b := range bars {
		longest = max(longest, b.bytes.Total())
	}
	scale := barsWidth / float64(max(1, limit, min(longest, 4*max(limit, bars[0].bytes.Total()))))
	var b strings.Builder
	height := barsTop + barDistance*len(bars) + 24
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+picture.Fonts+">\n", picture.Width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", picture.Width, height)
	fmt.Fprintf(&b, `<text x="12" y="22" font-size="14">%s</text><text x="12" y="40">peak of the device, limit %s</text>`+"\n",
		picture.Heading(title), meter.FormatBytes(limit))
	names := make([]string, meter.Components)
	for c := range names {
		names[c] = meter.Component(c).String()
	}
	picture.Legend(&b, 54, names)
	at := barsLeft + float64(limit)*scale
	for i, row := range bars {
		y, x := barsTop+barDistance*i, float64(barsLeft)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", barsLeft-8, y+14, picture.Text(row.name))
		for c, n := range row.bytes {
			width := min(float64(n)*scale, barsLeft+barsWidth-x)
			if width < 0.005 {
				continue
			}
			fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>%v: %s</title></rect>`+"\n",
				x, y, width, barHeight, picture.Colors[c], meter.Component(c), meter.FormatBytes(n))
			x += width
		}
		cut := ""
		if float64(row.bytes.Total())*scale > barsWidth+0.5 {
			cut = "… "
		}
		text := cut + meter.FormatBytes(row.bytes.Total())
		if x <= at && at < x+6+float64(8*len(text)) { // the line would go through it
			x = at
		}
		fmt.Fprintf(&b, `<text x="%.2f" y="%d">%s</text>`+"\n", x+6, y+14, text)
	}
	fmt.Fprintf(&b, `<path d="M%.2f %dV%d" stroke="black" stroke-dasharray="4 3"/><text x="%.2f" y="%d" text-anchor="middle">limit</text>`+"\n",
		at, barsTop-6, height-18, at, height-6)
	b.WriteString("</svg>\n")
	return b.String()
}
