package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// inCache has the user's cache in a folder of the test.
func inCache(t *testing.T) (dir string) {
	dir, before := t.TempDir(), cacheDir
	cacheDir = func() (string, error) { return dir, nil }
	t.Cleanup(func() { cacheDir = before })
	return dir
}

// rates returns a measured of this processor.
func rates(t *testing.T) measured {
	m, err := thisProcessor()
	require.NoError(t, err)
	m.At = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	m.F32, m.F16, m.Elementwise, m.Bandwidth, m.DiskRate = 4e9, 1e9, 5e10, 2e10, 3e8
	return m
}

// TestMeasured: plan takes the rates of this processor, and says so, but not those of another one, of other threads or instructions or of another
// version, nor what no processor has, nor a damaged file.
func TestMeasured(t *testing.T) {
	dir := inCache(t)
	args := []string{"plan", "-model", "gpt-34m", "-memory", "2GiB"}
	plans := func() string {
		status, out, errs := snugged(args...)
		require.Zero(t, status, errs)
		return out
	}
	require.Contains(t, plans(), "on an assumed processor (snug devices -measure measures this one)")
	for name, c := range map[string]struct {
		change func(m *measured)
		taken  bool
	}{
		"this":         {func(*measured) {}, true},
		"another":      {func(m *measured) { m.Processor += "x" }, false},
		"threads":      {func(m *measured) { m.Threads++ }, false},
		"instructions": {func(m *measured) { m.Tier = "none" }, false},
		"version":      {func(m *measured) { m.Version = "v0" }, false},
		"no rate":      {func(m *measured) { m.F16 = 0 }, false},
		"below 0":      {func(m *measured) { m.Elementwise = -1 }, false},
		"hardly any":   {func(m *measured) { m.Bandwidth = 1e-300 }, false},
		"too much":     {func(m *measured) { m.DiskRate = 1e300 }, false},
	} {
		m := rates(t)
		c.change(&m)
		require.NoError(t, m.write())
		require.Equal(t, c.taken, strings.Contains(plans(), "measured on 2026-11-30"), name)
	}
	m := rates(t)
	require.NoError(t, m.write())
	out := plans()
	require.Contains(t, out, "0.004 TFLOP/s in f32, 0.001 in 16 bits, 20 GB/s of memory, 20 of the link, 0.3 of the disk")
	require.Contains(t, out, "-compute f32 fits too, and a step takes about ")
	status, out, errs := snugged("devices", "-json")
	require.Zero(t, status, errs)
	var report struct{ Processor measured }
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Equal(t, m, report.Processor)

	path := filepath.Join(dir, "snug", "processor.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, damaged := range []string{string(text[:len(text)/2]), "", "null", strings.Replace(string(text), "4000000000", "1e999", 1)} {
		require.NoError(t, os.WriteFile(path, []byte(damaged), 0o600))
		require.Contains(t, plans(), "an assumed processor", damaged)
	}
	cacheDir = func() (string, error) { return path, nil } // which is no folder
	require.Error(t, m.write())
	require.Contains(t, plans(), "an assumed processor")
}

// TestMeasure: the rates are those of devices -measure, which are kept.
func TestMeasure(t *testing.T) {
	kerneltest.Slow(t)
	inCache(t)
	status, out, errs := snugged("devices", "-measure")
	require.Zero(t, status, errs)
	m, ok := readMeasured()
	require.True(t, ok)
	require.Contains(t, out, m.String())
	require.NoError(t, m.device(0).Validate())
	require.WithinDuration(t, time.Now(), m.At, time.Hour)
	again, err := trainingRate(context.Background(), snug.F32)
	require.NoError(t, err)
	require.InEpsilon(t, m.F32, again, 10, "one rate")
}
