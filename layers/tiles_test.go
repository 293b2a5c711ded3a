package layers

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTileSizes(t *testing.T) {
	for _, rows := range []int{1, 1024, 2047, 2048, 2049, 4096, 4097, 32768, math.MaxInt32} {
		for _, tiles := range []int{0, 1, 2, 3, 16, 1 << 28} {
			n, most := tileCount(rows, tiles), tileRows(rows, tiles)
			require.LessOrEqual(t, n, max(1, tiles))
			require.GreaterOrEqual(t, int64(n)*int64(most), int64(rows))
			if n > 1 {
				require.GreaterOrEqual(t, rows/n, WholeRows/2)
			}
			if int64(rows) >= int64(WholeRows)*int64(tiles) {
				require.Equal(t, max(1, tiles), n)
			}
		}
	}
}
