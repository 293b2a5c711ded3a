package transformer

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestCheckFinite: the first element that is not finite is named, wherever the pieces of a tensor end.
func TestCheckFinite(t *testing.T) {
	const piece = 1 << 16
	for _, n := range []int{0, 1, piece - 1, piece, piece + 1, 2*piece + 3, 250_000, 4 * piece} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			v := make([]float32, n)
			require.NoError(t, checkFinite("weight", snug.SliceView(v)))
			for _, at := range []int{0, piece - 1, piece, 2*piece - 1, 2 * piece, n - 1} {
				if at < 0 || at >= n {
					continue
				}
				v[at] = float32(math.Inf(-1))
				err := checkFinite("weight", snug.SliceView(v))
				require.ErrorIs(t, err, snug.ErrNonFinite)
				require.ErrorContains(t, err, fmt.Sprintf("weight[%d] is not finite", at))
				v[at] = 0
			}
		})
	}
}
