//go:build cuda || hip || metal || emu

package amp

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
)

// splitPerThread is how many elements a thread joins or splits at a time: two
// packs of eight.
const splitPerThread = 16

func (j *splitJob) Grids(q gpu.Launcher) error {
	if j.apart {
		return splitGrids(q, "amp_split", &j.w, &j.upper, &j.rest)
	}
	return splitGrids(q, "amp_join", &j.w, &j.upper, &j.rest)
}

// splitGrids launches a kernel that joins or splits without random numbers.
func splitGrids(q gpu.Launcher, name string, wide, high, low *snug.View) error {
	w, upper, rest, n := *device.Mem(wide), *device.Mem(high), *device.Mem(low), wide.Len()
	if n == 0 {
		return nil
	}
	params := struct {
		n       uint64
		wide, _ uint32
	}{n: uint64(n), wide: gpu.Aligned(w.Addr, upper.Addr, rest.Addr)}
	return kernels.Launch(q, name, gpu.Grid(n, threads*splitPerThread), threads, gpu.Params(&params), w, upper, rest)
}
