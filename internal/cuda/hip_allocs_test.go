//go:build hip && linux && (amd64 || arm64) && !race

package cuda

import (
	"testing"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// The race detector makes the pool of purego drop its memory at random.
func TestHIPLaunchAllocatesNothing(t *testing.T) {
	s := buildHIPStub(t)
	d, _ := openHIPStub(t, s)
	l := grid("k", make([]byte, 40), driver.Mem{Addr: 1, Size: 1})
	l.Module = amdModule
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := d.LaunchGrid(l); err != nil {
			t.Fatal(err)
		}
	}))
	require.NoError(t, d.Close())
}
