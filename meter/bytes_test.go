package meter

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "512KiB": 512 << 10, "1.5GiB": 3 << 29, "64MB": 64e6, "7B": 7, "1TiB": 1 << 40, "2TB": 2e12} {
		t.Run(text, func(t *testing.T) {
			got, err := ParseBytes(text)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	for _, text := range []string{"", "KiB", "-1", "1e40", "NaN", "Inf", "1 KiB", "1kib", "0.5", "0", "1QiB", "GiB1", "-1GiB", "NaNGiB"} {
		_, err := ParseBytes(text)
		require.ErrorIs(t, err, snug.ErrConfig, text)
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1_876_480: "1.79 MiB", 3 << 29: "1.50 GiB", 1 << 50: "1024.00 TiB", -2048: "-2.00 KiB"} {
		require.Equal(t, want, FormatBytes(n))
	}
}

// TestFormatBytesUp: what is read from the text is no less than the size, and less than a
// hundredth of the unit more.
func TestFormatBytesUp(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 5: "5 B", 1024: "1.00 KiB", 1025: "1.01 KiB", 1 << 60: "1048576.00 TiB", 46<<30 + 1: "46.01 GiB"} {
		require.Equal(t, want, FormatBytesUp(n))
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<50).Draw(t, "n")
		read, err := ParseBytes(strings.ReplaceAll(FormatBytesUp(n), " ", ""))
		require.NoError(t, err)
		require.GreaterOrEqual(t, read, n)
		require.LessOrEqual(t, float64(read), 1.01*float64(n)+1)
	})
}

// TestErrorsSayWhatIsWrongAlone: the text of a sentinel is no part of a sentence.
func TestErrorsSayWhatIsWrongAlone(t *testing.T) {
	m := monitorOf(t, Options{Limits: [Tiers]int64{10}})
	m.Add(OnDevice, Weights, 3<<20)
	require.ErrorIs(t, m.Check(), snug.ErrNoMemory)
	require.EqualError(t, m.Check(), "meter: needs at least 3.00 MiB of device memory; the limit is 10 B")
	_, err := ParseBytes("x")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.EqualError(t, err, `meter: "x" is not a size, want one such as 512KiB, 1.5GiB or 64MB`)
}

func TestNames(t *testing.T) {
	require.Equal(t, "optimizer state", State.String())
	require.Equal(t, "Component(7)", Components.String())
	require.Equal(t, "host", OnHost.String())
	require.Equal(t, "Tier(-1)", Tier(-1).String())
}
