package driver

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestOverlaps(t *testing.T) {
	var bytes [16]byte
	for name, m := range map[string]Mem{
		"host":   {Host: unsafe.Pointer(&bytes), Size: 16},
		"device": {Addr: 4096, Size: 16},
		"both":   {Host: unsafe.Pointer(&bytes), Addr: 4096, Size: 16},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, c := m.Slice(0, 8), m.Slice(7, 9), m.Slice(8, 8)
			require.True(t, a.Overlaps(b) && b.Overlaps(a) && a.Overlaps(a) && m.Overlaps(b) && b.Overlaps(m), name)
			require.False(t, a.Overlaps(c) || c.Overlaps(a), name)
			require.False(t, m.Slice(4, 0).Overlaps(m) || m.Overlaps(m.Slice(4, 0)), name)
			require.True(t, m.Same(a), name)
			require.False(t, b.Same(c), name)
		})
	}
}
