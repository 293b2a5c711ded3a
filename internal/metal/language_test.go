//go:build metal

package metal

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLanguage compiles kernels as the newest language that the driver knows and the system
// has, whatever the program was linked for.
func TestLanguage(t *testing.T) {
	for _, c := range []struct {
		system string
		want   language
		text   string
		says   string
	}{
		{"12.7.6", 0x20004, "2.4", "without the matrix units"},
		{"13.0", 0x20004, "2.4", "without the matrix units"},
		{"14.0", 0x30001, "3.1", "compiles kernels"},
		{"15.3.1", 0x30001, "3.1", "compiles kernels"},
		{"26", 0x30001, "3.1", "compiles kernels"},
		{"", 0x20004, "2.4", "without the matrix units"},
	} {
		t.Run(c.system, func(t *testing.T) {
			var logged bytes.Buffer
			before := slog.Default()
			defer slog.SetDefault(before)
			slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
			f := newFake()
			f.system = c.system
			d := f.open(t)
			m, err := d.Alloc(64)
			require.NoError(t, err)
			require.NoError(t, d.LaunchGrid(f.fill(m, 7)))
			require.Equal(t, []compileOptions{{language: c.want, mathMode: 0, functions: 1}}, f.spoken, "safe mode, precise functions")
			require.Contains(t, logged.String(), "language="+c.text+"\n")
			require.Contains(t, logged.String(), c.says)
			require.Equal(t, 1, bytes.Count(logged.Bytes(), []byte("\n")))
		})
	}
}
