package meter

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/svgtest"
)

// TestComparison: figures of any size have room.
func TestComparison(t *testing.T) {
	large := Measured{Name: "attention", Total: 1000 << 30, Resident: 1023 << 30, Columns: []string{"10000000", "1234.500"}}
	for c := range Allowance {
		large.Peak[c] = 170 << 30
	}
	var b bytes.Buffer
	columns := []string{"tokens/s", "loss <&>"}
	require.NoError(t, WriteComparison(&b, "peak memory, large: 7000000000 parameters, 1000000 steps", columns,
		[]Measured{large, {Name: "<none>", Total: 1, Columns: []string{"1", "2"}}}))
	svgtest.TextsFit(t, b.Bytes())
	for _, want := range []string{">1000.00 GiB<", ">1023.00 GiB<", ">–<", "&lt;none&gt;", "loss &lt;&amp;&gt;", "resident (RSS)", "<title>activations: 170.00 GiB</title>"} {
		require.Contains(t, b.String(), want)
	}
	require.ErrorIs(t, WriteComparison(nil, "", nil, nil), snug.ErrConfig)
	require.ErrorIs(t, WriteComparison(io.Discard, "", columns, []Measured{{}}), snug.ErrConfig)
	require.NoError(t, WriteComparison(io.Discard, "", nil, nil))
}
