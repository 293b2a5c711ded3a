// Package picture has what the pictures of memory share, predicted and measured: sizes, colors, the legend and texts.
package picture

import (
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Colors tell the components of memory apart, also in grey.
var Colors = [...]string{"#1b4f72", "#5dade2", "#1e8449", "#b03a2e", "#f5b041", "#999999", "#d7dbdd"}

// Width is the width of a chart, in points.
const Width = 760

// Fonts are fonts that most systems have. Nothing in a chart depends on the widths of a font: texts fit in the widest.
const Fonts = `font-family="Helvetica, Arial, sans-serif" font-size="12"`

// Legend writes the names of the components next to their colors, in rows that begin at y.
func Legend(b io.Writer, y int, names []string) {
	const columns, pitch, line = 4, 180, 18
	for c, name := range names {
		x, y := 12+pitch*(c%columns), y+line*(c/columns)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", x, y, Colors[c], x+14, y+9, name)
	}
}

// Heading returns a title that fits, also in SVG.
func Heading(title string) string {
	const most = 76
	if letters := []rune(title); len(letters) > most {
		title = string(letters[:most]) + "…"
	}
	return Text(title)
}

// Text returns text for SVG. XML has no place for some characters, not even escaped.
func Text(text string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff {
			return utf8.RuneError
		}
		return r
	}, text))
}

// Seconds writes a time with three digits.
func Seconds(s float64) string {
	switch {
	case s < 1e-3:
		return strconv.FormatFloat(s*1e6, 'g', 3, 64) + " µs"
	case s < 1:
		return strconv.FormatFloat(s*1e3, 'g', 3, 64) + " ms"
	case s < 1000:
		return strconv.FormatFloat(s, 'g', 3, 64) + " s"
	}
	return strconv.FormatFloat(s, 'f', 0, 64) + " s"
}
