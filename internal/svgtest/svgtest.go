// Package svgtest checks that the texts of a chart have room in whatever font a viewer has.
package svgtest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// em is the largest average width of a character over a text, in font sizes: the width in
// the widest common fonts, DejaVu Sans and Verdana.
const em = 0.66

// text is a text element and where it lies.
type text struct {
	words          string
	left, right, y float64
	size           float64
}

// TextsFit fails t unless the chart names a generic family as its last font, all texts are
// within the view, and none of those on a line touches another, even in a wide font.
func TextsFit(t testing.TB, svg []byte) {
	t.Helper()
	var texts []text
	var width, height float64
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		e, isElement := token.(xml.StartElement)
		switch {
		case !isElement:
		case e.Name.Local == "svg":
			box := strings.Fields(attribute(e, "viewBox"))
			require.Len(t, box, 4)
			width, height = number(t, box[2]), number(t, box[3])
			family := attribute(e, "font-family")
			require.True(t, strings.HasSuffix(family, "sans-serif"), "font-family is %q", family)
		case e.Name.Local == "text":
			var words string
			require.NoError(t, d.DecodeElement(&words, &e))
			texts = append(texts, layOut(t, e, words))
		}
	}
	require.NotEmpty(t, texts)
	for i, a := range texts {
		require.True(t, a.left >= 0 && a.right <= width && a.y <= height && a.y >= a.size, "%q is not within %v×%v: %+v", a.words, width, height, a)
		for _, b := range texts[:i] {
			apart := a.y-b.y >= a.size || b.y-a.y >= b.size || a.left >= b.right || b.left >= a.right
			require.True(t, apart, fmt.Sprintf("%q touches %q: %+v %+v", a.words, b.words, a, b))
		}
	}
}

func layOut(t testing.TB, e xml.StartElement, words string) text {
	p := text{words: words, y: number(t, attribute(e, "y")), size: 12}
	if size := attribute(e, "font-size"); size != "" {
		p.size = number(t, size)
	}
	x, wide := number(t, attribute(e, "x")), em*p.size*float64(utf8.RuneCountInString(words))
	if fitted := attribute(e, "textLength"); fitted != "" {
		wide = number(t, fitted)
	}
	switch attribute(e, "text-anchor") {
	case "end":
		p.left = x - wide
	case "middle":
		p.left = x - wide/2
	default:
		p.left = x
	}
	p.right = p.left + wide
	return p
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func number(t testing.TB, s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err)
	return x
}
