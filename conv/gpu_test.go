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
