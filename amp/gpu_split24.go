//go:build cuda || hip || metal || emu

package amp

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/rounding"
)

func (j *split24Job) Grids(q gpu.Launcher) error {
	switch {
	case j.apart && j.random:
		return j.gridsAtRandom(q)
	case j.apart:
		return splitGrids(q, "amp_split24", &j.w, &j.upper, &j.rest)
	}
	return splitGrids(q, "amp_join24", &j.w, &j.upper, &j.rest)
}

// gridsAtRandom has a thread for each block of random numbers.
func (j *split24Job) gridsAtRandom(q gpu.Launcher) error {
	w, upper, rest, n := *device.Mem(&j.w), *device.Mem(&j.upper), *device.Mem(&j.rest), j.w.Len()
	if n == 0 {
		return nil
	}
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
