package meter

import (
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug/internal/picture"
)

// Measured is what a run took, a row of [WriteComparison].
type Measured struct {
	Name     string
	Peak     Bytes    // the peak of each component
	Total    int64    // the peak of their sum
	Resident int64    // the peak of the process's resident memory; 0: not known
	Columns  []string // further figures
}

// The layout of a comparison, in points. Texts have room in the widest of the common fonts.
const (
	comparisonLeft  = 100
	comparisonBars  = 430
	comparisonTop   = 116
	comparisonRow   = 34
	comparisonPitch = 95
)

// WriteComparison draws runs side by side, as SVG: the peak of each component as a stacked bar,
// below it the resident memory of the process, and both in numbers, with further columns by their
// names. The error wraps [snug.ErrConfig] for a nil writer, and for a run without a figure for
// each column.
func WriteComparison(w io.Writer, title string, columns []string, runs []Measured) error {
	if w == nil {
		return errNoWriter
	}
	for _, r := range runs {
		if len(r.Columns) != len(columns) {
			return invalid("comparison: run %.40q has %d columns, want %d", r.Name, len(r.Columns), len(columns))
		}
	}
	_, err := io.WriteString(w, comparison(title, columns, runs))
	return err
}

func comparison(title string, columns []string, runs []Measured) string {
	most := int64(1)
	for _, r := range runs {
		most = max(most, r.Total, r.Resident)
	}
	width := comparisonLeft + comparisonBars + comparisonPitch*(2+len(columns)) + 30
	height := comparisonTop + comparisonRow*len(runs) + 10
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+picture.Fonts+">\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="12" y="24" font-size="14">%s</text>`+"\n", picture.Heading(title))
	names := componentNames // the last, an allowance, is never measured: its place has what is resident
	names[Allowance] = "resident (RSS)"
	picture.Legend(&b, 40, names[:])
	row := func(y int, figures []string) {
		for i, text := range figures {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", comparisonLeft+comparisonBars+comparisonPitch*(i+1), y, picture.Text(text))
		}
	}
	row(comparisonTop-10, append([]string{"counted", "resident"}, columns...))
	scale := comparisonBars / float64(most)
	for i, r := range runs {
		y, x := comparisonTop+comparisonRow*i, float64(comparisonLeft)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", comparisonLeft-8, y+15, picture.Text(r.Name))
		for c, n := range r.Peak[:Allowance] {
			width := float64(n) * scale
			fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="14" fill="%s"><title>%v: %s</title></rect>`+"\n",
				x, y, width, picture.Colors[c], Component(c), FormatBytes(n))
			x += width
		}
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.2f" height="8" fill="%s"/>`+"\n", comparisonLeft, y+15, float64(r.Resident)*scale, picture.Colors[Allowance])
		row(y+15, append([]string{FormatBytes(r.Total), orDash(r.Resident)}, r.Columns...))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// orDash formats bytes, which not every system reports.
func orDash(n int64) string {
	if n == 0 {
		return "–"
	}
	return FormatBytes(n)
}
