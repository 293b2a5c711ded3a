package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOccupancy(t *testing.T) {
	for _, test := range []struct {
		arch                       string
		threads, registers, shared int
		blocks, warps              int
	}{
		{"80", 256, 32, 0, 8, 64},
		{"80", 256, 33, 0, 6, 48},  // 1280 registers of a warp: 12 warps of a quarter
		{"80", 256, 255, 0, 1, 8},  // 8 warps
		{"80", 256, 128, 0, 2, 16}, // as its __launch_bounds__ may ask for
		{"90", 384, 168, 0, 1, 12}, // 5376 of a warp: 3 of a quarter
		{"90", 512, 128, 0, 1, 16}, // all registers
		{"80", 32, 16, 0, 32, 32},  // blocks
		{"86", 32, 16, 0, 16, 16},  //
		{"86", 256, 32, 0, 6, 48},  // warps
		{"80", 128, 32, 48 << 10, 3, 12},
		{"90", 128, 32, 48 << 10, 4, 16},
		{"90", 128, 32, 227 << 10, 1, 4},
		{"80", 100, 32, 0, 16, 64}, // part of a warp is a warp
		{"80", 0, 32, 0, 0, 0},
	} {
		blocks, warps := LimitsOf[test.arch].Occupancy(test.threads, test.registers, test.shared)
		require.Equal(t, [2]int{test.blocks, test.warps}, [2]int{blocks, warps}, "%+v", test)
	}
}
