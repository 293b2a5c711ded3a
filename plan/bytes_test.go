package plan

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
	m := monitorOf(t, MonitorOptions{Limits: [Tiers]int64{10}})
	m.Add(OnDevice, Weights, 3<<20)
	_, miss := Task{Model: Model{Layers: []Layer{{Params: [][]int{{64, 64}}, Output: 4}}}, Device: oneMemory(), Batch: 1}.Fit(1)
	for _, c := range []struct {
		err, kind error
		want      string
	}{
		{m.Check(), snug.ErrNoMemory, "plan: needs at least 3.00 MiB of device memory; the limit is 10 B"},
		{miss, snug.ErrNoMemory, "plan: nothing fits in 1 B: the smallest plan takes"},
		{second(ParseBytes("x")), snug.ErrConfig, `plan: "x" is not a size, want one such as 512KiB, 1.5GiB or 64MB`},
		{second(ModelNamed("gpt2", 1025)), snug.ErrShape, "plan: model \"gpt2\": a context of 1025 tokens"},
		{second(ReadModel(strings.NewReader("{"))), snug.ErrCorrupt, "plan: read a model: "},
		{second(DeviceNamed("x")), snug.ErrConfig, `plan: unknown device "x"`},
	} {
		require.ErrorIs(t, c.err, c.kind)
		require.ErrorContains(t, c.err, c.want)
		require.NotContains(t, c.err.Error(), strings.TrimPrefix(c.kind.Error(), "snug: "))
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "optimizer state", State.String())
	require.Equal(t, "Component(7)", Components.String())
	require.Equal(t, "host", OnHost.String())
	require.Equal(t, "Tier(-1)", Tier(-1).String())
	require.Equal(t, "in-backward", InBackward.String())
	require.Equal(t, "folded", Folded.String())
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
