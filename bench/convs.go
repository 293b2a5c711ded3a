package main

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// convLayer is a convolution of square images with a square kernel, padded so that only the stride makes the images smaller.
type convLayer struct{ in, out, groups, size, kernel, stride int }

// convLayers are layers of ResNet and MobileNet.
var convLayers = []convLayer{
	{64, 64, 1, 56, 3, 1}, {128, 256, 1, 28, 3, 2}, {1024, 256, 1, 14, 1, 1}, {144, 144, 144, 56, 3, 1},
}

// convs are layers forward and backward.
func convs(s sizes) (all []work) {
	var group []work
	for _, dt := range both {
		for _, l := range convLayers {
			for _, layout := range s.layouts {
				group = append(group, convWorks(dt, conv.Shape{
					Batch: s.images, In: l.in, Out: l.out, Groups: l.groups, Dims: 2, Layout: layout,
					Size: [3]int{l.size, l.size}, Kernel: [3]int{l.kernel, l.kernel}, Stride: [3]int{l.stride, l.stride},
					PadBefore: [3]int{l.kernel / 2, l.kernel / 2}, PadAfter: [3]int{l.kernel / 2, l.kernel / 2},
				})...)
			}
		}
	}
	return byKernel(group)
}

// convWorks are a layer forward, and the gradients of its input and of its weights.
func convWorks(dt snug.DType, s conv.Shape) []work {
	x, w, y, dw := size(dt, s.XLen()), size(dt, s.WLen()), size(dt, s.YLen()), size(snug.F32, s.WLen())
	flops := 2 * float64(s.YLen()) * float64(s.WLen()/s.Out)
	text := fmt.Sprintf("images=%d in=%d out=%d groups=%d size=%d kernel=%d stride=%d", s.Batch, s.In, s.Out, s.Groups, s.Size[0], s.Kernel[0], s.Stride[0])
	if s.Layout == conv.ChannelsLast {
		text += " last"
	}
	row := func(kernel string, reads, writes float64, run func(mem *memory) func() error) work {
		return work{
			kernel: kernel, dtype: dt.String(), shape: text, reads: reads, writes: writes, ops: flops, products: flops,
			bf16: dt == snug.BF16, peers: []string{torch},
			prepare: func(mem *memory) (func() error, func() error, error) { return run(mem), nil, nil },
		}
	}
	return []work{
		row("conv", x+w, y, func(mem *memory) func() error {
			x, w, y := mem.operand(dt, s.XLen()), mem.operand(dt, s.WLen()), mem.empty(dt, s.YLen())
			return func() error { return conv.Forward(y, x, w, hostVector(dt, 0), s) }
		}),
		row("conv dx", y+w, x, func(mem *memory) func() error {
			dx, w, dy := mem.empty(dt, s.XLen()), mem.operand(dt, s.WLen()), mem.operand(dt, s.YLen())
			return func() error { return conv.BackwardInput(dx, dy, w, s, snug.Into{}) }
		}),
		row("conv dw", x+y, dw, func(mem *memory) func() error {
			x, dy, dw := mem.operand(dt, s.XLen()), mem.operand(dt, s.YLen()), mem.empty(snug.F32, s.WLen())
			ws, none := mem.empty(snug.F32, s.WorkspaceLen()), hostVector(snug.F32, 0)
			return func() error { return conv.BackwardWeight(dw, none, x, dy, s, snug.Into{}, ws) }
		}),
	}
}
