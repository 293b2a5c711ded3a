package plan

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func isOne(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "512KiB": 512 << 10, "1.5GiB": 3 << 29, "64MB": 64e6, "7B": 7, "1TiB": 1 << 40, "2TB": 2e12} {
		got, err := ParseBytes(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
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

func TestNames(t *testing.T) {
	require.Equal(t, "optimizer state", State.String())
	require.Equal(t, "Component(7)", Components.String())
	require.Equal(t, "host", OnHost.String())
	require.Equal(t, "Tier(-1)", Tier(-1).String())
	require.Equal(t, "in-backward", InBackward.String())
	require.Equal(t, "Gradient(9)", Gradient(9).String())
}

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
