package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func TestDevices(t *testing.T) {
	for _, d := range Devices() {
		require.NoError(t, d.Validate())
		found, err := DeviceNamed(d.Name)
		require.NoError(t, err)
		require.Equal(t, d, found)
	}
	require.ErrorIs(t, second(DeviceNamed("7GB")), snug.ErrConfig)
	inf := 1 / zero
	for what, change := range map[string]func(d *Device){
		"memory": func(d *Device) { d.Memory = -1 }, "reserved": func(d *Device) { d.Reserved = d.Memory + 1 }, "host": func(d *Device) { d.Host = -1 },
		"disk": func(d *Device) { d.Disk = 1 << 62 }, "fragmentation": func(d *Device) { d.Fragmentation = zero / zero },
		"rate": func(d *Device) { d.F32 = 0 }, "bandwidth": func(d *Device) { d.Bandwidth = inf }, "link": func(d *Device) { d.Link = -inf },
	} {
		d := devices[0]
		change(&d)
		require.ErrorIs(t, d.Validate(), snug.ErrConfig, what)
	}
}

var zero float64
