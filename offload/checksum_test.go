package offload

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/crc32c"
)

func TestChecksumsJoin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sum := func(b []byte) uint32 { return crc32c.Checksum(b) }
	for _, n := range []int{0, 1, 2, 255, 256, 4096, 70001} {
		require.Equal(t, sum(make([]byte, n)), zeros(int64(n)), n)
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		for _, at := range []int{0, n / 3, n} {
			require.Equal(t, sum(b), joined(sum(b[:at]), sum(b[at:]), int64(n-at)), "%d of %d", at, n)
		}
	}
}
