package remat

import (
	"bufio"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// WriteCSV writes the timeline of r for its plan p, one line for every operation: its number,
// the operation in the notation of [Op.String], its stage, the bytes held while it runs and
// after it, and the bytes of copies in host memory and on disk. The error wraps
// [snug.ErrShape] when the plan has another number of operations and [snug.ErrConfig] when w
// is nil. Otherwise it is the error of w.
func (r Report) WriteCSV(w io.Writer, p Plan) error {
	if err := r.fits(p, w); err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "number,operation,stage,peak_bytes,held_bytes,host_bytes,disk_bytes")
	for i, t := range r.Timeline {
		fmt.Fprintf(b, "%d,%v,%d,%d,%d,%d,%d\n", i, p.Ops[i], p.Ops[i].Stage, t.Peak, t.Held, t.Host, t.Disk)
	}
	return b.Flush()
}

func (r Report) fits(p Plan, w io.Writer) error {
	if w == nil {
		return fmt.Errorf("remat: a timeline without a writer: %w", snug.ErrConfig)
	}
	if len(r.Timeline) != len(p.Ops) {
		return fmt.Errorf("remat: a timeline of %d operations, the plan has %d: %w", len(r.Timeline), len(p.Ops), snug.ErrShape)
	}
	return nil
}

// The size of a chart, and the margins of the plot, in points.
const (
	chartWidth, chartHeight = 720, 320
	marginLeft, marginTop   = 80, 40
	marginRight             = 20
	marginBottom            = 40
)

// chartFont is the size of the font in points. fontWidth is the average width of a character
// in font sizes, in the widest common fonts. The viewer fits a text that is too wide.
const (
	chartFont = 12
	fontWidth = 0.66
)

// WriteSVG draws the timeline of r as an SVG: the bytes held while each operation
// runs, forward and backward steps in two colours. title may be empty. Errors are the
// errors of [Report.WriteCSV].
func (r Report) WriteSVG(w io.Writer, p Plan, title string) error {
	if err := r.fits(p, w); err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="%d">`+"\n", chartWidth, chartHeight, chartFont)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, chartHeight)
	const plotWidth, plotHeight = chartWidth - marginLeft - marginRight, chartHeight - marginTop - marginBottom
	step := float64(plotWidth) / float64(max(1, len(r.Timeline)))
	for i, t := range r.Timeline {
		height := plotHeight * float64(t.Peak) / float64(max(1, r.Peak))
		color := "#5dade2"
		if p.Ops[i].Kind == Backward {
			color = "#b03a2e"
		}
		fmt.Fprintf(b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"><title>%d %v: %d bytes</title></rect>`+"\n",
			marginLeft+float64(i)*step, marginTop+plotHeight-height, max(step, 0.01), height, color, i, p.Ops[i], t.Peak)
	}
	write := func(x, y, width int, anchor, text string) {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s"`, x, y, anchor)
		if wide := fontWidth * chartFont * float64(utf8.RuneCountInString(text)); wide > float64(width) {
			fmt.Fprintf(b, ` textLength="%d" lengthAdjust="spacingAndGlyphs"`, width)
		}
		b.WriteByte('>')
		escape(b, text)
		fmt.Fprintln(b, "</text>")
	}
	write(marginLeft, 24, plotWidth, "start", title)
	write(marginLeft-6, marginTop+4, marginLeft-8, "end", size(r.Peak))
	write(marginLeft-6, marginTop+plotHeight, marginLeft-8, "end", "0")
	write(chartWidth-marginRight, chartHeight-14, plotWidth, "end", fmt.Sprintf("%d operations; bytes held, forward steps in blue, backward steps in red", len(r.Timeline)))
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="black"/>`+"\n</svg>\n", marginLeft, marginTop, marginTop+plotHeight, chartWidth-marginRight)
	return b.Flush()
}

// size formats bytes: all digits, or four and a unit where these are many.
func size(bytes int64) string {
	if bytes < 1e9 {
		return fmt.Sprint(bytes)
	}
	unit := 0
	x := float64(bytes)
	for ; x >= 1024; x /= 1024 {
		unit++
	}
	return fmt.Sprintf("%.4g %ciB", x, " KMGTPE"[unit])
}

// escape writes text for XML, which has no characters for control.
func escape(b *bufio.Writer, text string) {
	for _, r := range text {
		switch r {
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '&':
			b.WriteString("&amp;")
		default:
			if r < ' ' || r == 0xfffe || r == 0xffff {
				r = utf8.RuneError
			}
			b.WriteRune(r)
		}
	}
}
