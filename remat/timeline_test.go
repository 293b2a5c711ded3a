package remat

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/svgtest"
)

func TestTimelineFiles(t *testing.T) {
	c := mixed()
	p := must(Revolve(c, 2))
	rep, err := p.Simulate(c)
	require.NoError(t, err)

	var b bytes.Buffer
	require.NoError(t, rep.WriteCSV(&b, p))
	rows, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, len(p.Ops)+1)
	for i, op := range p.Ops {
		at := rep.Timeline[i]
		require.Equal(t, fmt.Sprintf("%d,%v,%d,%d,%d,%d,%d", i, op, op.Stage, at.Peak, at.Held, at.Host, at.Disk), strings.Join(rows[i+1], ","))
	}

	b.Reset()
	require.NoError(t, rep.WriteSVG(&b, p, "a < b & c"))
	require.Contains(t, b.String(), "a &lt; b &amp; c")
	require.Contains(t, b.String(), fmt.Sprint(">", rep.Peak, "<"))
	bars := 0
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "well-formed")
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "title" {
			bars++
		}
	}
	require.Equal(t, len(p.Ops), bars)

	for _, peak := range []int64{0, 999_999_999, 1e9, math.MaxInt64} {
		for _, title := range []string{"", strings.Repeat("W\x00\xff", 100)} {
			b.Reset()
			require.NoError(t, Report{Peak: peak, Timeline: rep.Timeline}.WriteSVG(&b, p, title))
			svgtest.TextsFit(t, b.Bytes())
		}
	}
	require.Equal(t, "8 EiB", size(math.MaxInt64))
	require.Equal(t, "1.5 GiB", size(3<<29))

	other := must(KeepAll(c))
	require.ErrorIs(t, rep.WriteCSV(&b, other), snug.ErrShape)
	require.ErrorIs(t, rep.WriteSVG(&b, other, ""), snug.ErrShape)
	broken := errors.New("broken")
	require.ErrorIs(t, rep.WriteCSV(failing{broken}, p), broken)
	require.ErrorIs(t, rep.WriteSVG(failing{broken}, p, ""), broken)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
