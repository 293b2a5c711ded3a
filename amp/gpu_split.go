//go:build cuda || hip || metal || emu

package amp

import (
	"strings"

	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/rounding"
)

// splitPerThread is how many elements a thread joins or splits at a time: two
// packs of eight.
const splitPerThread = 16

func (j *splitJob) Grids(q gpu.Launcher) error {
	w, upper, rest, n := *device.Mem(&j.w), *device.Mem(&j.upper), *device.Mem(&j.rest), j.w.Len()
	switch {
	case n == 0:
		return nil
	case j.apart && j.random && j.to24():
		return j.gridsAtRandom(q)
	}
	params := struct {
		n       uint64
		wide, _ uint32
	}{n: uint64(n), wide: gpu.Aligned(w.Addr, upper.Addr, rest.Addr)}
	name := strings.Replace(j.Kernel(), ".", "_", 1)
	return kernels.Launch(q, name, gpu.Grid(n, threads*splitPerThread), threads, gpu.Params(&params), w, upper, rest)
}

// gridsAtRandom has a thread for each block of random numbers.
func (j *splitJob) gridsAtRandom(q gpu.Launcher) error {
	w, upper, rest, n := *device.Mem(&j.w), *device.Mem(&j.upper), *device.Mem(&j.rest), j.w.Len()
	skip := uintptr(j.draw.First % rounding.PerBlock)
	params := struct {
		n, seed, tensor, first uint64
		wide, _                uint32
	}{
		n: uint64(n), seed: j.draw.Seed, tensor: j.draw.Tensor, first: j.draw.First,
		wide: gpu.Aligned(w.Addr-4*skip, upper.Addr-2*skip, rest.Addr-skip),
	}
	return kernels.Launch(q, "amp_split24_random", gpu.Grid(n+rounding.PerBlock, threads*rounding.PerBlock), threads, gpu.Params(&params),
		w, upper, rest)
}
