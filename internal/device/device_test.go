package device

import (
	"testing"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// TestView: a View that is made here has the fields of one that package snug makes.
func TestView(t *testing.T) {
	s := []snug.BFloat16{1, 2, 3}
	want := snug.SliceView(s)
	got := View(snug.CPU(), driver.Mem{Host: unsafe.Pointer(&s[0]), Size: 6}, snug.BF16, 3)
	require.Equal(t, want, got)
	require.Equal(t, s, got.BFloat16s())
	require.Equal(t, snug.CPU(), got.Device())
}

// TestStreamer: the CPU has no queue for other libraries.
func TestStreamer(t *testing.T) {
	_, err := Streamer(snug.CPU())
	require.ErrorIs(t, err, snug.ErrDevice)
	require.ErrorContains(t, err, "cpu: no queue for the work of other libraries")
	_, err = Streamer(nil)
	require.ErrorIs(t, err, snug.ErrDevice)
}
