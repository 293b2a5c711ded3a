//go:build cuda || hip || metal || emu

package conv

import (
	"github.com/snug-ml/snug/internal/gpu"
)

// poolNames has the kernels of MaxPool at true and of AvgPool at false: forward and backward.
var poolNames = map[bool][2]gpu.Floats{
	true:  {gpu.ForFloats("conv_maxpool"), gpu.ForFloats("conv_maxpool_backward")},
	false: {gpu.ForFloats("conv_avgpool"), gpu.ForFloats("conv_avgpool_backward")},
}

// deviceWindows is Windows of pool.h.
type deviceWindows struct {
	in, out, kernel, stride, dilation, before, after, adaptive uint32
}

// poolParams is PoolParams of pool.h.
type poolParams struct {
	items, rowBytes       uint64
	dim                   [3]deviceWindows
	channels, last, lanes uint32
	bits, per             uint32
	skip, indexed         uint32
	alpha, beta           float32
	_                     uint32
}

func (j *poolJob) Grids(q gpu.Launcher) error {
	s := &j.shape
	if j.x.Len() == 0 {
		return nil
	}
	if err := fits(j.x.Len(), j.y.Len()); err != nil {
		return err
	}
	rows, lanes := s.rows()
	bits := s.indexBits()
	p := poolParams{
		rowBytes: uint64(indexBytes(lanes, bits)), channels: uint32(s.Channels), last: flag(s.Layout == ChannelsLast), lanes: uint32(lanes),
		bits: uint32(bits), per: 1, skip: flag(s.SkipPadding), indexed: flag(j.index.Len() > 0), alpha: j.into.Alpha, beta: j.into.Beta,
	}
	for i, w := range s.all() {
		if w.adaptive { // scaled of pool.h counts to these products
			if err := fits((w.in%w.out+1)*w.out, (w.out%w.in+1)*w.in); err != nil {
				return err
			}
		}
		p.dim[i] = deviceWindows{uint32(w.in), uint32(w.out), uint32(w.kernel), uint32(w.stride), uint32(w.dilation), uint32(w.before),
			uint32(w.after), flag(w.adaptive)}
	}
	names := poolNames[j.max]
	if j.backward {
		p.items = uint64(j.x.Len())
		return launch(q, nameOf(&names[1], &j.x), gpu.Grid(j.x.Len(), threads), p, &j.x, &j.y, &j.index)
	}
	if p.indexed != 0 {
		p.per = max(1, 8/p.bits)
	}
	items := rows * gpu.CeilDiv(lanes, int(p.per))
	p.items = uint64(items)
	return launch(q, nameOf(&names[0], &j.x), gpu.Grid(items, threads), p, &j.y, &j.index, &j.x)
}
