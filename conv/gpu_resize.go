//go:build cuda || hip || metal || emu

package conv

import "github.com/snug-ml/snug/internal/gpu"

var resizeNames = [2]gpu.Floats{gpu.ForFloats("conv_resize"), gpu.ForFloats("conv_resize_backward")}

// resizeDim is ResizeDim of resize.h.
type resizeDim struct{ in, out, taps, at uint32 }

// resizeParams is ResizeParams of resize.h.
type resizeParams struct {
	items          uint64
	dims           [3]resizeDim
	channels, last uint32
	alpha, beta    float32
}

func (j *resizeJob) Grids(q gpu.Launcher) error {
	s := &j.shape
	if err := fits(j.x.Len(), j.y.Len(), j.ws.Len()); err != nil || j.x.Len() == 0 {
		return err
	}
	p := resizeParams{channels: uint32(s.Channels), last: flag(s.Layout == ChannelsLast), alpha: j.into.Alpha, beta: j.into.Beta}
	at := 0
	for i := range p.dims {
		p.dims[i] = resizeDim{in: 1, out: 1}
	}
	for i := range s.Dims {
		p.dims[3-s.Dims+i] = resizeDim{uint32(s.Size[i]), uint32(s.Out[i]), uint32(s.taps(i)), uint32(at)}
		at += s.Out[i] * (2 + s.taps(i))
	}
	name, to, from := &resizeNames[0], &j.y, &j.x
	if j.backward {
		name, to, from = &resizeNames[1], from, to
	}
	p.items = uint64(to.Len())
	return launch(q, nameOf(name, to), gpu.Grid(to.Len(), threads), p, to, from, &j.ws)
}
