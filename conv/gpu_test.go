//go:build cuda || hip || metal || emu

package conv

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestDefinitionOnGPU: convolutions on devices are as defined.
//
//check:in checked ordered
func TestDefinitionOnGPU(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[3:] {
		for name, s := range shapes {
			t.Run(p.Name+" "+name, func(t *testing.T) {
				for i, dt := range floatTypes {
					layouts := []Layout{ChannelsFirst, ChannelsLast}
					if work(s) > 300_000 && !kerneltest.Full() {
						if i > 0 {
							continue
						}
						layouts = layouts[len(name)%2:][:1]
					}
					for _, s.Layout = range layouts {
						o := newOperands(s, dt, 1)
						want := define(s, o)
						check(t, p, s, dt, o, want, snug.Into{Alpha: 0.5, Beta: float32(i % 2)})
					}
				}
			})
		}
	}
}

// toAligned is the lead with which vectors begin at a multiple of 16 bytes: buffers of kerneltest begin at element 7.
const toAligned = 9

// TestNeighboursOnGPU: kernels bring 8 neighbours at a time of vectors that begin at multiples of 16 bytes. Rows, channels and positions
// are multiples of 8 or not, and fill tiles or not.
//
//check:in checked ordered
func TestNeighboursOnGPU(t *testing.T) {
	square := func(in, out, groups, size, kernel, stride int) Shape {
		pad := [3]int{kernel / 2, kernel / 2}
		return Shape{Batch: 2, In: in, Out: out, Groups: groups, Dims: 2, Size: [3]int{size, size}, Kernel: [3]int{kernel, kernel}, Stride: [3]int{stride, stride},
			PadBefore: pad, PadAfter: pad}
	}
	shapes := map[string]Shape{
		"one tap": square(40, 24, 1, 4, 1, 1), "stride, one tap": square(16, 72, 1, 5, 1, 2), "nine taps": square(16, 24, 1, 6, 3, 1),
		"groups": square(32, 48, 2, 4, 3, 1), "odd results": square(16, 21, 1, 4, 3, 2), "odd channels": square(18, 24, 1, 4, 1, 1), "one position": square(24, 40, 1, 1, 1, 1),
	}
	up := square(24, 16, 1, 4, 3, 2)
	up.Transposed = true
	shapes["transposed"] = up
	for _, p := range kerneltest.Backends(t)[3:] {
		for name, s := range shapes {
			t.Run(p.Name+" "+name, func(t *testing.T) {
				for _, dt := range floatTypes[1:] {
					for _, s.Layout = range []Layout{ChannelsFirst, ChannelsLast} {
						o := newOperands(s, dt, 1)
						checkAt(t, p, s, dt, toAligned, o, define(s, o), snug.Into{Alpha: 0.5, Beta: 1})
					}
				}
			})
		}
	}
}

// TestTooManyElements: what the kernels do not count to is refused.
func TestTooManyElements(t *testing.T) {
	require.NoError(t, fits(3, most))
	require.ErrorIs(t, fits(3, most+1), snug.ErrNotBuilt)
	p := PoolShape{Batch: 1, Channels: 1, Dims: 1, Size: [3]int{1<<17 + 1<<16}, Adaptive: [3]int{1 << 17}}
	job := poolJob{x: snug.SliceView(make([]float32, p.XLen())), shape: p}
	require.ErrorIs(t, job.Grids(nil), snug.ErrNotBuilt)
}

// work returns the products of a convolution.
func work(s Shape) (n int) {
	p := newProblem(&s)
	return p.batch * p.groups * p.cout * p.cin * volume(p.out) * volume(p.kernel)
}
