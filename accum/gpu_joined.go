//go:build cuda || hip || metal || emu

package accum

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/measure"
)

// address is 0 for no vector.
func address(v *snug.View) uint64 {
	if v.Len() == 0 {
		return 0
	}
	return uint64(device.Mem(v).Addr)
}

// typeOf returns the number of the type of a gradient in accum.h, 0 for no gradient.
func typeOf(g *snug.View) uint32 {
	if g.Len() == 0 {
		return 0
	}
	return uint32(g.DType())
}

// gridOfMany has one launch for all vectors.
func (j *accumulateJob) gridOfMany(q gpu.Launcher) error {
	var params struct {
		alpha, beta float32
		count, _    uint32
		items       [maxSums]struct {
			acc, g, n    uint64
			first, dtype uint32
		}
	}
	params.alpha, params.beta = j.alpha, j.beta
	blocks := 0
	for _, o := range j.joined.Jobs {
		if o.acc.Len() == 0 {
			continue
		}
		p := &params.items[params.count]
		p.acc, p.g, p.n = address(&o.acc), address(&o.g), uint64(o.acc.Len())
		p.first, p.dtype = uint32(blocks), typeOf(&o.g)
		blocks += gpu.Grid(o.acc.Len(), threads*perThread)[0]
		params.count++
	}
	return launchMany(q, "accum_sums", blocks, gpu.Params(&params))
}

// launchMany launches a kernel that has no operands.
func launchMany(q gpu.Launcher, name string, blocks int, params []byte) error {
	if blocks == 0 {
		return nil
	}
	return kernels.Launch(q, name, [3]int{blocks, 1, 1}, threads, params)
}

// gridsOfMany has one launch for all gradients, and one for what was found in them.
func (j *measuredJob) gridsOfMany(q gpu.Launcher) error {
	var params struct {
		alpha, beta float32
		count, _    uint32
		items       [measure.MaxVectors]struct {
			g, acc, n                    uint64
			first, dtype, piece, ordinal uint32
		}
	}
	params.alpha, params.beta = j.alpha, j.beta
	var first [measure.MaxVectors + 1]uint32
	for i, o := range j.joined.Jobs {
		p := &params.items[i]
		p.g, p.acc, p.n = address(&o.g), address(&o.acc), uint64(o.g.Len())
		p.first, p.dtype, p.piece, p.ordinal = first[i], uint32(o.g.DType()), uint32(o.piece()), uint32(o.ordinal)
		first[i+1] = first[i] + uint32(measure.Pieces(o.g))
		params.count++
	}
	err := kernels.Launch(q, "accum_measured_many", [3]int{int(first[params.count]), 1, 1}, threads, gpu.Params(&params),
		*device.Mem(&j.records.Parts))
	if err != nil {
		return err
	}
	return j.records.Gather(q, &kernels, "accum_gather", first[:params.count+1])
}

// gridOfMany has one launch for all vectors.
func (j *roundedJob) gridOfMany(q gpu.Launcher) error {
	var params struct {
		seed        uint64
		alpha, beta float32
		count, _    uint32
		items       [maxRounded]struct {
			acc, g, n, tensor uint64
			first, dtype      uint32
		}
	}
	params.seed, params.alpha, params.beta = j.seed, j.alpha, j.beta
	blocks := 0
	for _, o := range j.joined.Jobs {
		if o.acc.Len() == 0 {
			continue
		}
		p := &params.items[params.count]
		p.acc, p.g, p.n, p.tensor = address(&o.acc), address(&o.g), uint64(o.acc.Len()), o.tensor
		p.first, p.dtype = uint32(blocks), typeOf(&o.g)
		blocks += gpu.Grid(o.acc.Len(), threads*perBlock)[0]
		params.count++
	}
	return launchMany(q, "accum_rounded_many", blocks, gpu.Params(&params))
}
