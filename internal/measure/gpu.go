//go:build cuda || hip || metal || emu

package measure

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
)

// Gather queues the launch that adds the records of Parts to those of r, as passes over one vector after the other do.
// The pieces of vector i are parts first[i] to first[i+1]-1. name is a kernel of m that measure.h makes.
func (r *Records) Gather(q gpu.Launcher, m *gpu.Module, name string, first []uint32) error {
	var params struct {
		count, used uint32
		first       [MaxVectors + 1]uint32
	}
	params.count, params.used = uint32(len(first)-1), uint32(r.Used)
	most := uint32(0)
	for i := range first[1:] {
		most = max(most, first[i+1]-first[i])
	}
	copy(params.first[:], first)
	return m.Launch(q, name, gpu.Grid(int(most), gatherThreads), gatherThreads, gpu.Params(&params), *device.Mem(&r.View), *device.Mem(&r.Parts))
}

// gatherThreads is the size of a block of that kernel.
const gatherThreads = 256
