//go:build cuda || hip || metal || emu

package amp

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
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
	return q.LaunchGrid(&gpu.Launch{
		Module: &kernels, Func: name,
		Blocks: gpu.Grid(n, threads*splitPerThread), Threads: threads,
		Operands: []driver.Mem{w, upper, rest}, Params: gpu.Params(&params),
	})
}
