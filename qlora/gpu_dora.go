//go:build cuda || hip || metal || emu

package qlora

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
)

var (
	normsNames = gpu.ForFloats("qlora_norms")
	blendNames = gpu.ForFloats("qlora_blend")
	dotsNames  = gpu.ForFloats("qlora_dots")
)

// The cases of BlendParams.factor in dora.h.
const (
	factorNone = iota
	factorColumn
	factorRow
)

func (j *normsJob) Grids(q gpu.Launcher) error {
	params := struct {
		rows, cols uint64
		keep, _    uint32
	}{rows: uint64(j.norms.Len()), cols: uint64(j.cols)}
	if j.scale.Len() > 0 {
		params.keep = 1
	}
	return kernels.Launch(q, normsNames.Of(uint8(j.x.DType())), gpu.Grid(j.norms.Len(), 1), threads, gpu.Params(&params),
		*device.Mem(&j.norms), *device.Mem(&j.scale), *device.Mem(&j.magnitude), *device.Mem(&j.x))
}

func (j *blendJob) Grids(q gpu.Launcher) error {
	params := struct {
		rows, cols  uint64
		shift, beta float32
		factor, _   uint32
	}{rows: uint64(j.rows()), cols: uint64(j.cols), shift: j.shift, beta: j.beta, factor: factorColumn}
	switch {
	case j.scale.Len() == 0:
		params.factor = factorNone
	case j.byRow:
		params.factor = factorRow
	}
	return kernels.Launch(q, blendNames.Of(uint8(j.dst.DType())), gpu.Grid(j.rows(), 1), threads, gpu.Params(&params),
		*device.Mem(&j.dst), *device.Mem(&j.src), *device.Mem(&j.scale))
}

func (j *dotsJob) Grids(q gpu.Launcher) error {
	params := struct {
		rows, cols  uint64
		alpha, beta float32
	}{uint64(j.dy.Len() / j.acc.Len()), uint64(j.acc.Len()), j.alpha, j.beta}
	return kernels.Launch(q, dotsNames.Of(uint8(j.dy.DType())), gpu.Grid(j.acc.Len(), threads), threads, gpu.Params(&params),
		*device.Mem(&j.acc), *device.Mem(&j.norms), *device.Mem(&j.dy), *device.Mem(&j.h))
}
