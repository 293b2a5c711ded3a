package plan

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/svgtest"
)

func TestCharts(t *testing.T) {
	m, err := ModelNamed("gpt-34m", 0)
	require.NoError(t, err)
	m.Name = `<&">` + strings.Repeat("W", 90)
	p, err := Best(Task{Model: m, Device: devices[0], Batch: 32, Rank: 8}.Fit(1 << 29))
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, p.WriteSVG(&text))
	svgtest.TextsFit(t, text.Bytes())
	require.Contains(t, text.String(), "attention not in tiles")
	for i, c := range p.Choices { // as if each had a row, and all were cut off
		p.Choices[i].Saves, p.Choices[i].Without = 1, p.Without
		require.NotEmpty(t, c.Undone)
	}
	for _, limit := range []int64{1, 1 << 29, 1 << 40} {
		p.Limit = limit
		text.Reset()
		require.NoError(t, p.WriteSVG(&text))
		svgtest.TextsFit(t, text.Bytes())
	}
}
