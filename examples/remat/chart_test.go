package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// TestChart: every text has a width that does not depend on a font, and generic fonts.
func TestChart(t *testing.T) {
	var points []point
	for i, m := range methods {
		for k := range 3 {
			r := remat.Report{Peak: int64(100+50*k) << 10, Time: float64(i+1) / float64(k+1) / 1e3}
			points = append(points, point{m.name, r, r})
		}
	}
	file := filepath.Join(t.TempDir(), "out.svg")
	require.NoError(t, draw(file, points))
	svg, err := os.ReadFile(file)
	require.NoError(t, err)

	texts := map[string]bool{}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "well-formed")
		e, ok := token.(xml.StartElement)
		if !ok || e.Name.Local != "text" {
			continue
		}
		attributes := map[string]string{}
		for _, a := range e.Attr {
			attributes[a.Name.Local] = a.Value
		}
		wide, err := strconv.ParseFloat(attributes["textLength"], 64)
		require.NoError(t, err)
		require.True(t, wide > 0 && wide < float64(chartWidth), "%v", attributes)
		require.Equal(t, "spacingAndGlyphs", attributes["lengthAdjust"])
		require.True(t, strings.HasPrefix(attributes["style"], "font-family:"+families+";"), attributes["style"])
		var text string
		require.NoError(t, d.DecodeElement(&text, &e))
		texts[text] = true
	}
	for _, m := range methods {
		require.True(t, texts[m.name], m.name)
	}
	require.True(t, texts["peak, KiB"])

	require.NoError(t, draw(filepath.Join(t.TempDir(), "out.png"), points))
	require.Error(t, draw(filepath.Join(t.TempDir(), "out.unknown"), points))
}
