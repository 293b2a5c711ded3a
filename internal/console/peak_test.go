package console

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/meter"
)

func TestPeak(t *testing.T) {
	p := Peak{Predicted: meter.Bytes{meter.Weights: 2 << 20}, Measured: meter.Bytes{meter.Weights: 1 << 20}, Total: 1 << 20, Resident: 8 << 20, RSS: 4 << 20}
	var b bytes.Buffer
	require.NoError(t, p.Write(&b, MiB, false))
	require.Regexp(t, `(?s)^\npeak memory\n +predicted +measured +measured/predicted\n +weights +2.00 MiB +1.00 MiB +50.0 %\n +total .* 50.0 %\n +process \(peak RSS\) +8.00 MiB +4.00 MiB +50.0 %\n$`, b.String())
	b.Reset()
	p.Resident = 0
	require.NoError(t, p.Write(&b, MiB, false))
	require.Regexp(t, `process \(peak RSS\) +– +4.00 MiB +–\n$`, b.String())
	b.Reset()
	p.RSS = 0
	require.NoError(t, p.Write(&b, MiB, true))
	require.Regexp(t, `gradients +0.00 MiB +0.00 MiB +–\n`, b.String())
	require.NotContains(t, b.String(), "process")
}

func TestWritable(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "x.svg")
	require.NoError(t, Writable(name, ".csv", ".svg"))
	require.NoError(t, WriteFile(name, func(w io.Writer) error { _, err := w.Write([]byte("a")); return err }))
	require.NoError(t, Writable(name, ".svg"))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "a", string(text))
	require.ErrorContains(t, Writable(name, ".csv", ".png"), "want a name that ends in .csv or .png")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d.svg"), 0o700))
	require.ErrorContains(t, Writable(filepath.Join(dir, "d.svg"), ".svg"), "is not a regular file")
	require.Error(t, Writable(filepath.Join(dir, "none", "x.svg"), ".svg"))
	require.Error(t, WriteFile(filepath.Join(dir, "none", "x.svg"), nil))
}
