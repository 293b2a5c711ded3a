package conv

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

func (g *poolGolden) resize() (s ResizeShape, is bool) {
	i := slices.Index([]string{"nearest", "nearest-exact", "bilinear", "bicubic", "linear", "trilinear"}, g.Kind)
	if i > 3 {
		i = 2
	}
	return ResizeShape{Batch: 2, Channels: 2, Dims: len(g.Size), Size: three(g.Size), Out: three(g.Out), Interpolation: Interpolation(max(i, 0)),
		AlignCorners: g.Align, Antialias: g.Antialias}, i >= 0
}

// TestResizeGolden: resizes are PyTorch's, in both layouts.
func TestResizeGolden(t *testing.T) {
	n := 0
	for _, g := range poolGoldens(t) {
		s, is := g.resize()
		if !is {
			continue
		}
		n++
		require.NoError(t, s.Check())
		x, dy, ws := operand32(s.XLen(), 7919, 1009, 128, 4), operand32(s.YLen(), 104729, 997, 64, 8), make([]float32, s.WorkspaceLen())
		for range 2 {
			y, dx := make([]float32, s.YLen()), make([]float32, s.XLen())
			require.NoError(t, Resize(y, x, s, ws))
			require.NoError(t, ResizeBackward(dx, dy, s, snug.Into{}, ws))
			requireNear(t, "y", g.Y, y)
			requireNear(t, "dx", g.DX, dx)
			s.Layout = ChannelsLast
			x, dy, g.Y, g.DX = toLast(x, 2, 2), toLast(dy, 2, 2), toLast(g.Y, 2, 2), toLast(g.DX, 2, 2)
		}
	}
	require.Greater(t, n, 20)
}

// interpolation returns the weights of one dimension as a matrix [out][in], from the definitions of the field: the filter at the
// distance of each pair of elements, with those beyond the border at the border.
func interpolation(s ResizeShape, d int) [][]float64 {
	in, out := s.Size[d], s.Out[d]
	w := make([][]float64, out)
	for o := range w {
		w[o] = make([]float64, in)
		scale, at := float64(in)/float64(out), 0.0
		if s.AlignCorners {
			if scale = 0; out > 1 {
				scale = float64(in-1) / float64(out-1)
			}
			at = float64(o) * scale
		} else {
			at = (float64(o)+0.5)*scale - 0.5
		}
		switch {
		case s.Interpolation == Nearest:
			w[o][min(o*in/out, in-1)] = 1
		case s.Interpolation == NearestExact:
			w[o][min((2*o+1)*in/(2*out), in-1)] = 1
		case s.Antialias:
			wide, sum := max(scale, 1), 0.0
			at = (float64(o)+0.5)*scale - 0.5
			for i := range in {
				w[o][i] = hat(s.Interpolation, math.Abs(float64(i)-at)/wide, -0.5)
				sum += w[o][i]
			}
			for i := range in {
				w[o][i] /= sum
			}
		default:
			if s.Interpolation == Linear {
				at = max(at, 0)
			}
			for i := int(math.Floor(at)) - 2; i <= int(math.Floor(at))+3; i++ {
				w[o][min(max(i, 0), in-1)] += hat(s.Interpolation, math.Abs(float64(i)-at), -0.75)
			}
		}
	}
	return w
}

// hat is the filter of linear interpolation, or Keys' of cubic.
func hat(i Interpolation, x, a float64) float64 {
	switch {
	case i == Linear:
		return max(1-x, 0)
	case x < 1:
		return (a+2)*x*x*x - (a+3)*x*x + 1
	case x < 2:
		return a*x*x*x - 5*a*x*x + 8*a*x - 4*a
	}
	return 0
}

func drawResize(rng *rand.Rand) ResizeShape {
	s := ResizeShape{Batch: rng.IntN(3), Channels: 1 + rng.IntN(3), Dims: 1 + rng.IntN(3), Interpolation: Interpolation(rng.IntN(4)), Layout: Layout(rng.IntN(2))}
	if s.Interpolation > NearestExact {
		s.AlignCorners = rng.IntN(2) == 0
		s.Antialias = !s.AlignCorners && rng.IntN(2) == 0
	}
	for i := range s.Dims {
		s.Size[i], s.Out[i] = 1+rng.IntN(8), 1+rng.IntN(8)
	}
	switch rng.IntN(12) { // longer than what a worker takes at a time
	case 0:
		s.Batch, s.Channels, s.Dims, s.Size, s.Out = 1, 2, 1, [3]int{s.Size[0] + 2500}, [3]int{s.Out[0]}
	case 1:
		s.Batch, s.Channels, s.Dims, s.Size, s.Out = 1, 2, 1, [3]int{s.Size[0]}, [3]int{s.Out[0] + 1200}
	}
	return s
}

// TestResizeDefinition: random resizes are as defined in all types, into accumulators too, and the gradient is the adjoint.
//
//check:in checked ordered
func TestResizeDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, b kerneltest.Backend) {
		n := 300
		if b.Emulated {
			n = 60
		}
		resizeDefinition(t, b, n)
	})
}

func resizeDefinition(t *testing.T, b kerneltest.Backend, n int) {
	rng := rand.New(rand.NewPCG(1, 3))
	for i := range n {
		s, dt := drawResize(rng), floatTypes[i%3]
		x, dy := rounded(dt, kerneltest.Normal(uint64(i), s.XLen())), rounded(dt, kerneltest.Normal(uint64(i+1000), s.YLen()))
		wantY, wantDX := make([]float64, len(dy)), make([]float64, len(x))
		var w [3][][]float64
		for d := range s.Dims {
			w[d] = interpolation(s, d)
		}
		index := func(b, c int, size, at []int) int {
			if s.Layout == ChannelsLast {
				return (b*prod(size)+flat(at, size))*s.Channels + c
			}
			return (b*s.Channels+c)*prod(size) + flat(at, size)
		}
		each(s.Out[:s.Dims], func(o []int) {
			each(s.Size[:s.Dims], func(at []int) {
				f := 1.0
				for d := range at {
					f *= w[d][o[d]][at[d]]
				}
				for b := range s.Batch {
					for c := range s.Channels {
						from, to := index(b, c, s.Size[:s.Dims], at), index(b, c, s.Out[:s.Dims], o)
						wantY[to] += f * float64(x[from])
						wantDX[from] += f * float64(dy[to])
					}
				}
			})
		})
		put := func(dt snug.DType, x []float32) *kerneltest.Floats {
			return kerneltest.PutFloats(t, b, dt, x)
		}
		into, old := snug.Into{}, full(len(x), float32(math.NaN()))
		if i%4 > 1 {
			into, old = snug.Into{Alpha: 0.5, Beta: 2}, rounded(dt, kerneltest.Normal(5, len(x)))
			for j, v := range old {
				wantDX[j] = wantDX[j]/2 + 2*float64(v)
			}
		}
		y, dx, ws := put(dt, full(len(dy), float32(math.NaN()))), put(dt, old), put(snug.F32, full(s.WorkspaceLen(), float32(math.NaN())))
		require.NoError(t, Resize(y.View, put(dt, x).View, s, ws.View))
		require.NoError(t, ResizeBackward(dx.View, put(dt, dy).View, s, into, ws.View))
		terms := 60.0
		if s.Size[0] > 1000 || s.Out[0] > 1000 {
			terms = 4000
		}
		requireClose(t, dt, wantY, y.Get(), terms, "y", s)
		requireClose(t, dt, wantDX, dx.Get(), terms, "dx", s, into)
		ws.Get()
	}
}

func TestResizeRefused(t *testing.T) {
	good := ResizeShape{Batch: 1, Channels: 2, Dims: 2, Size: [3]int{4, 6}, Out: [3]int{8, 3}, Interpolation: Linear}
	for name, row := range map[string]struct {
		change func(*ResizeShape)
		err    error
	}{
		"no dims":              {func(s *ResizeShape) { s.Dims = 0 }, snug.ErrConfig},
		"unknown layout":       {func(s *ResizeShape) { s.Layout = 9 }, snug.ErrConfig},
		"unknown mode":         {func(s *ResizeShape) { s.Interpolation = 4 }, snug.ErrConfig},
		"corners of nearest":   {func(s *ResizeShape) { s.Interpolation, s.AlignCorners = Nearest, true }, snug.ErrConfig},
		"negative batch":       {func(s *ResizeShape) { s.Batch = -1 }, snug.ErrShape},
		"no channels":          {func(s *ResizeShape) { s.Channels = 0 }, snug.ErrShape},
		"no size":              {func(s *ResizeShape) { s.Size[1] = 0 }, snug.ErrShape},
		"no output":            {func(s *ResizeShape) { s.Out[0] = 0 }, snug.ErrShape},
		"size of no dimension": {func(s *ResizeShape) { s.Out[2] = 1 }, snug.ErrShape},
		"too many elements":    {func(s *ResizeShape) { s.Batch, s.Channels, s.Out = 1<<30, 1<<30, [3]int{1 << 30, 1 << 30} }, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			row.change(&s)
			kerneltest.Error(t, "conv.Check", s.Check())
			none := []float32{}
			require.ErrorIs(t, s.Check(), row.err)
			require.Zero(t, s.XLen()+s.YLen()+s.WorkspaceLen())
			require.ErrorIs(t, Resize(none, none, s, none), row.err)
			require.ErrorIs(t, ResizeBackward(none, none, s, snug.Into{}, none), row.err)
		})
	}
	x, y, ws := make([]float32, good.XLen()), make([]float32, good.YLen()), make([]float32, good.WorkspaceLen())
	require.ErrorIs(t, Resize(y, x[1:], good, ws), snug.ErrShape)
	require.ErrorIs(t, Resize(y, x, good, ws[1:]), snug.ErrShape)
	require.ErrorIs(t, Resize(x[:len(y)], x, good, ws), snug.ErrConfig, "overlap")
	require.ErrorIs(t, ResizeBackward(x, y, good, snug.Into{Alpha: float32(math.Inf(1))}, ws), snug.ErrConfig)
}

//check:in race
func TestResizeZeroValues(t *testing.T) {
	kerneltest.Zero(t, ResizeShape{}, Interpolation(0), Interpolation(9), Resize[[]float32, []float32], ResizeBackward[snug.View, snug.View])
}

func TestResizeAllocates(t *testing.T) {
	s := ResizeShape{Batch: 2, Channels: 3, Dims: 2, Size: [3]int{9, 9}, Out: [3]int{20, 4}, Interpolation: Cubic, Antialias: true}
	x, y, ws := make([]snug.Float16, s.XLen()), make([]snug.Float16, s.YLen()), make([]float32, s.WorkspaceLen())
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, Resize(y, x, s, ws))
		require.NoError(t, ResizeBackward(x, y, s, snug.Into{}, ws))
	})
}
