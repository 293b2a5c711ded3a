//go:build cuda || hip || metal || emu

package fused

import (
	"math"

	"github.com/snug-ml/snug/internal/gpu"
)

var (
	activateNames         = gpu.ForFloats("fused_activate")
	activateBackwardNames = gpu.ForFloats("fused_activate_backward")
)

// The forms of activate.h: forward, and of the slopes backward.
const (
	formRamp = iota
	formRampMul
	formLeaky
	formSigmoid
	formTanh
	formSiLU
)

const (
	slopesPieces = iota
	slopesOutput
	slopesSiLU
)

// activateParams is ActivateParams of activate.h.
type activateParams struct {
	n                         uint64
	form, wide                uint32
	floor, shift, high, scale float32
}

func (j *activateJob) Grids(q gpu.Launcher) error {
	of := elementsOf(&j.out, &j.x)
	p := activateParams{n: of.n, wide: of.wide, high: infinity, scale: 1}
	switch j.a.kind() { // as in activateRow
	case ReLU:
	case ReLU6:
		p.high = 6
	case leakyReLU:
		p.form, p.scale = formLeaky, j.a.slope()
	case SquaredReLU:
		p.form = formRampMul
	case HardSwish:
		p.form, p.floor, p.shift, p.high, p.scale = formRampMul, -3, 3, 6, 1./6
	case HardSigmoid:
		p.shift, p.high, p.scale = 3, 6, 1./6
	case Sigmoid:
		p.form = formSigmoid
	case Tanh:
		p.form = formTanh
	case SiLU:
		p.form = formSiLU
	}
	return grid(q, nameOf(&activateNames, &j.x), packs(j.x.Len(), j.x.DType()), threads, p, &j.out, &j.x)
}

// slopesParams is SlopesParams of activate.h.
type slopesParams struct {
	n                             uint64
	form, wide                    uint32
	low, last, below, a, b, above float32
}

func (j *activateBackwardJob) Grids(q gpu.Launcher) error {
	of := elementsOf(&j.dx, &j.dy, &j.kept)
	p := slopesParams{n: of.n, wide: of.wide, last: math.MaxFloat32}
	switch j.a.kind() { // as in activateRowGrad
	case ReLU:
		p.b, p.above = 1, 1
	case ReLU6:
		p.last, p.b = below6, 1
	case leakyReLU:
		p.below, p.b, p.above = j.a.slope(), 1, 1
	case SquaredReLU:
		p.a, p.above = 2, infinity
	case HardSwish:
		p.low, p.last, p.a, p.b, p.above = -3, below3, 1./3, 0.5, 1
	case HardSigmoid:
		p.low, p.last, p.b = -3, below3, 1./6
	case Sigmoid:
		p.form, p.b = slopesOutput, 1
	case Tanh:
		p.form, p.a = slopesOutput, 1
	case SiLU:
		p.form = slopesSiLU
	}
	return grid(q, nameOf(&activateBackwardNames, &j.dx), packs(j.dx.Len(), j.dx.DType()), threads, p, &j.dx, &j.dy, &j.kept)
}
