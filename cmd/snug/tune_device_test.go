package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestTuneDevice: a device that runs the CPU's kernels on memory that Go cannot address gives the CPU's losses and files.
// Those of the build come near them.
func TestTuneDevice(t *testing.T) {
	dir, data, answers := publish(t), chats(t, 40), pairs(t, 40)
	for name, args := range map[string][]string{
		"lora":    nil,
		"dropout": {"-dropout", "0.2", "-rslora", "-loraplus-ratio", "4"},
		"dora":    {"-dora", "-base", "nf4"},
		"nf4":     {"-base", "nf4", "-modules-to-save", "lm_head"},
		"fp8":     {"-base", "fp8"},
		"int8":    {"-dora", "-base", "int8"},
		"f16":     {"-compute", "f16"},
		"full":    {"-full"},
		"split24": {"-full", "-masters", "split24"},
		"average": {"-optimizer", "schedule-free"},
		"mezo":    {"-optimizer", "mezo"},
		"dpo":     {"-dpo", "0.1", "-data", answers},
		"teacher": {"-teacher", dir, "-base", "nf4"},
		"tiles":   {"-tiles", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			tuned := func(device string) (result, string) {
				out := filepath.Join(t.TempDir(), "out")
				all := slices.Concat([]string{"tune", "-model", dir, "-o", out, "-device", device, "-steps", "3", "-batch", "4", "-held-out", "0.1", "-json"}, orData(data, args))
				status, text, errs := snugged(all...)
				require.Zero(t, status, errs)
				return lastLine(t, text), out
			}
			want, files := tuned("cpu")
			got, there := tuned("opaque:0")
			require.Equal(t, want.Loss, got.Loss)
			require.Equal(t, want.LossLast, got.LossLast)
			require.Equal(t, want.Predicted, got.Predicted)
			require.InEpsilon(t, got.Predicted, got.Measured, 0.05)
			sameFiles(t, files, there)
			for _, p := range kerneltest.Backends(t)[3:] {
				got, _ := tuned(p.Name)
				require.InDelta(t, want.Loss, got.Loss, 5e-3, p.Name)
			}
		})
	}
}

// sameFiles wants the weights in two folders to be the same bytes.
func sameFiles(t *testing.T, a, b string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(a, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		want, err := os.ReadFile(name)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(b, filepath.Base(name)))
		require.NoError(t, err)
		require.Equal(t, want, got, filepath.Base(name))
	}
}

// TestTuneDeviceResume: a run goes on from a checkpoint on another device.
func TestTuneDeviceResume(t *testing.T) {
	dir, data := publish(t), chats(t, 40)
	run := func(checkpoint, device string) result {
		status, out, errs := snugged("tune", "-model", dir, "-data", data, "-o", filepath.Join(t.TempDir(), "out"), "-device", device, "-full", "-steps", "6",
			"-batch", "4", "-held-out", "0.1", "-checkpoint", checkpoint, "-save-every", "3", "-json")
		require.Zero(t, status, errs)
		return lastLine(t, out)
	}
	for _, devices := range [][2]string{{"cpu", "opaque:0"}, {"opaque:0", "cpu"}} {
		saved := t.TempDir()
		want := run(saved, devices[0])
		require.NoError(t, os.RemoveAll(filepath.Join(saved, "step-00000006")))
		got := run(saved, devices[1])
		require.Equal(t, want.Loss, got.Loss)
		require.Equal(t, want.LossLast, got.LossLast)
		require.Less(t, got.Tokens, want.Tokens, "it went on")
	}
}

func TestTuneDeviceErrors(t *testing.T) {
	dir, data := publish(t), chats(t, 8)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown":  {[]string{"-device", "tpu:0"}, `tune: -device: `},
		"disk":     {[]string{"-device", "opaque:0", "-disk", "1GiB"}, "-disk makes pages for the CPU, and -device is opaque:0"},
		"fold":     {[]string{"-device", "opaque:0", "-full", "-fold"}, "-fold is for the CPU, and -device is opaque:0"},
		"matrices": {[]string{"-device", "opaque:0", "-full", "-optimizer", "apollo"}, "-device opaque:0 does not go with the optimizer apollo: its steps are made on the CPU"},
		"prodigy":  {[]string{"-device", "opaque:0", "-optimizer", "prodigy"}, "-device opaque:0 does not go with the optimizer prodigy: its steps are made on the CPU"},
		"vera":     {[]string{"-device", "opaque:0", "-adapter", "vera"}, "adapters of VeRA are for the CPU"},
		"too much": {[]string{"-device", "opaque:0", "-device-memory", "1KiB"}, "tune: -device opaque:0: nothing fits in 1.00 KiB there: the smallest plan takes "},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			status, _, errs := snugged(append([]string{"tune", "-model", dir, "-data", data, "-o", out}, c.args...)...)
			require.NotZero(t, status)
			require.Contains(t, errs, c.want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			require.NoDirExists(t, out)
		})
	}
}

// TestGenerateDevice: the same text.
func TestGenerateDevice(t *testing.T) {
	dir := publish(t)
	_, want, errs := snugged("generate", "-model", dir, "-prompt", "say a", "-tokens", "8")
	require.NotEmpty(t, want, errs)
	status, got, errs := snugged("generate", "-model", dir, "-prompt", "say a", "-tokens", "8", "-device", "opaque:0")
	require.Zero(t, status, errs)
	require.Equal(t, want, got)
	status, _, errs = snugged("generate", "-model", dir, "-prompt", "say a", "-device", "tpu:0")
	require.NotZero(t, status)
	require.Contains(t, errs, "generate: -device: ")
}
