package amp

import (
	"testing"

	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestRecordsOnDevices: a pass waits once and allocates nothing on the device, and takes nothing from what passes before
// have left in the same memory.
func TestRecordsOnDevices(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) {
			bad := kerneltest.Uniform(1, 9001)
			for i := 0; i < len(bad); i += 100 {
				bad[i] = nan
			}
			x := kerneltest.Uniform(2, 9001)
			spoilt, short := kerneltest.Put(t, p, bad), kerneltest.Put(t, p, x[:100])
			long := kerneltest.Put(t, p, x)
			free, _, err := p.Dev.Memory()
			require.NoError(t, err)
			for range 2 {
				stats, err := Measure(kerneltest.Walk(kerneltest.Named{Name: "x", View: spoilt.View}))
				require.NoError(t, err)
				require.Equal(t, 91, stats.NonFinite)
				before := device.Counts(p.Dev)
				stats, err = Measure(kerneltest.Walk(kerneltest.Named{Name: "x", View: short.View}, kerneltest.Named{Name: "y", View: long.View}))
				require.NoError(t, err)
				require.NoError(t, stats.Err())
				require.InEpsilon(t, norm(append(x[:100:100], x...)), stats.Norm, 1e-12)
				require.Equal(t, driver.Counts{Waits: 1, ToHost: 1}, device.Counts(p.Dev).Minus(before))
			}
			after, _, err := p.Dev.Memory()
			require.NoError(t, err)
			require.Equal(t, free, after)
		})
	}
}
