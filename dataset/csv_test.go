package dataset

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestFieldsOfARow: a row has a bounded number of fields, and commas within quotes are no fields.
func TestFieldsOfARow(t *testing.T) {
	read := func(text string) (n int, err error) {
		err = readCSV(strings.NewReader(text), ',', 0, 64<<20, func(row) error { n++; return nil })
		return n, err
	}
	n, err := read("text,more\n\"" + strings.Repeat("a,\"\"", maxFields) + "\",b\nc,d\n")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = read("a,b\n" + strings.Repeat("c,d\n", maxFields))
	require.NoError(t, err)
	require.Equal(t, maxFields, n)
	for _, text := range []string{strings.Repeat(",", maxFields), "a,b\n" + strings.Repeat("c,", maxFields)} {
		_, err = read(text)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "a row of more than 10000 fields")
	}
}
