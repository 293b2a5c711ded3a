//go:build cuda

package attention

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
	"github.com/stretchr/testify/require"
)

// TestHopperImage holds what a device is asked for against the machine code: every kernel is there, has the
// threads of its launches, and declares no block memory, so that the launch gives it all.
//
//check:in drivers
func TestHopperImage(t *testing.T) {
	code, err := gpu.Unpack(hopperKernels.Image, 90)
	require.NoError(t, err)
	kernels, err := machine.Kernels(code.Data, code.Capability)
	require.NoError(t, err)
	require.Len(t, kernels, len(hopperKernels.Entries))
	threads := map[string]int{}
	for i := range hoppers {
		for _, p := range []*hopperPass{&hoppers[i].forward, &hoppers[i].backwardQuery, &hoppers[i].backwardKey} {
			for _, name := range p.names[1:] {
				threads[name] = 128 * (p.groups + 1)
			}
		}
	}
	for _, k := range kernels {
		require.Equal(t, threads[k.Name], k.Threads, k.Name)
		require.Zero(t, k.Shared, k.Name)
	}
}

// TestHopperMemory holds the block memory of launches against the machine code: the barriers, which lie behind
// everything else, are within it, and less than 4 KiB is left. The environment variable
// SNUG_NVDISASM names the disassembler; machine.sh installs one.
func TestHopperMemory(t *testing.T) {
	disassembler := os.Getenv("SNUG_NVDISASM")
	if disassembler == "" {
		t.Skip("SNUG_NVDISASM names no disassembler")
	}
	code, err := gpu.Unpack(hopperKernels.Image, 90)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "cubin")
	require.NoError(t, os.WriteFile(file, code.Data, 0o600))
	listing, err := exec.Command(disassembler, "-c", file).Output()
	require.NoError(t, err)
	functions, err := machine.Parse(string(listing))
	require.NoError(t, err)
	require.Len(t, functions, len(hopperKernels.Entries))
	ends := map[string]int{}
	for _, f := range functions {
		ends[f.Name] = f.BarrierEnd()
	}
	for _, e := range hopperKernels.Entries {
		end := ends[e.Name]
		require.LessOrEqual(t, end, e.Shared, e.Name)
		require.Less(t, e.Shared-end, 4<<10, e.Name)
	}
}
