package remat

import (
	"bufio"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/picture"
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

// WriteSVG draws the timeline of r as an SVG: the bytes held while each operation
// runs, forward and backward steps in two colours. title may be empty. Errors are the
// errors of [Report.WriteCSV].
func (r Report) WriteSVG(w io.Writer, p Plan, title string) error {
	if err := r.fits(p, w); err != nil {
		return err
	}
	const width, height, left, top, plotWidth, plotHeight = 720, 320, 80, 40, 620, 240 // in points
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+picture.Fonts+">\n", width, height)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	step := float64(plotWidth) / float64(max(1, len(r.Timeline)))
	for i, t := range r.Timeline {
		high, color := plotHeight*float64(t.Peak)/float64(max(1, r.Peak)), "#5dade2"
		if p.Ops[i].Kind == Backward {
			color = "#b03a2e"
		}
		fmt.Fprintf(b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"><title>%d %v: %d bytes</title></rect>`+"\n",
			left+float64(i)*step, top+plotHeight-high, max(step, 0.01), high, color, i, p.Ops[i], t.Peak)
	}
	const text = `<text x="%d" y="%d" text-anchor="%s">%s</text>` + "\n"
	fmt.Fprintf(b, text, left, 24, "start", picture.Heading(title))
	fmt.Fprintf(b, text, left-6, top+4, "end", size(r.Peak))
	fmt.Fprintf(b, text, left-6, top+plotHeight, "end", "0")
	fmt.Fprintf(b, text, left+plotWidth, height-14, "end", fmt.Sprintf("%d operations; forward steps in blue, backward steps in red", len(r.Timeline)))
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="black"/>`+"\n</svg>\n", left, top, top+plotHeight, left+plotWidth)
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
