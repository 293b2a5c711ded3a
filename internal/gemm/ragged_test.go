package gemm

import (
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// A last panel of A that is not full leaves the sums of the next panel of B alone, also where they hold what is added
// to: C, or the parts of the depth before.
func TestPairsAddToRaggedPanels(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	for rows := 1; rows <= mr; rows++ {
		for i, more := range []int{0, mr} {
			if !kerneltest.Taken(rows+i, 3) {
				continue
			}
			m, n, k := more+rows, 4*mr, mr
			a, b := random(rng, snug.BF16, m, k, 0, false), random(rng, snug.BF16, k, n, 0, false)
			checkTiers(t, m, n, k, 1, a, b, 1, random(rng, snug.F32, m, n, 0, false))
		}
	}
	m, n, k := mr-1, 2*mr, kc+1
	a, b := random(rng, snug.BF16, m, k, 0, false), random(rng, snug.BF16, k, n, 0, false)
	checkTiers(t, m, n, k, 1, a, b, 0, random(rng, snug.F32, m, n, 0, false))
}
