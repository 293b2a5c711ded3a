package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug/internal/svgtest"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// TestChart: the chart has every method, and its texts have room in a wide font.
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
	svgtest.TextsFit(t, svg)
	for _, m := range methods {
		require.Contains(t, string(svg), ">"+m.name+"</text>")
	}
	require.Contains(t, string(svg), `d="M402.0 320.0L`, "100 of 200 KiB and 1 of 5 ms")
	require.Equal(t, 2*len(methods), strings.Count(string(svg), "<path")-1)
	require.Error(t, draw(filepath.Join(t.TempDir(), "out.png"), points))
}
