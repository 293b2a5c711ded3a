//go:build cuda

package attention

import (
	"testing"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
	"github.com/stretchr/testify/require"
)

// TestHopperImage holds what a device is asked for against the machine code: every kernel is there, has the
// threads of its launches, and declares no block memory, so that the launch gives it all.
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
