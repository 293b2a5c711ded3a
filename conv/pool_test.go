package conv

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// poolGolden is what testdata/pool/make.py writes.
type poolGolden struct {
	Kind                          string
	Size, Out                     []int
	Kernel, Stride, Pad, Dilation []int
	Ceil, Skip, Align, Antialias  bool
	Y, DX                         []float64
}

func three(n []int) (a [3]int) {
	copy(a[:], n)
	return a
}

// operand are the numbers of make.py.
func operand32(n, factor, modulus int, divisor, shift float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i*factor%modulus)/divisor - shift
	}
	return x
}

func poolGoldens(t *testing.T) (all []poolGolden) {
	data, err := os.ReadFile("testdata/pool/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	return all
}

func (g *poolGolden) pool() (p PoolShape, isMax, is bool) {
	p = PoolShape{Batch: 2, Channels: 2, Dims: len(g.Size), Size: three(g.Size), Kernel: three(g.Kernel), Stride: three(g.Stride), PadBefore: three(g.Pad),
		PadAfter: three(g.Pad), Ceil: g.Ceil, SkipPadding: g.Skip, Dilation: three(g.Dilation)}
	switch g.Kind {
	case "adaptive max", "adaptive avg":
		p.Adaptive = three(g.Out)
	case "max", "avg":
	default:
		return p, false, false
	}
	return p, g.Kind == "max" || g.Kind == "adaptive max", true
}

// TestPoolGolden: poolings are PyTorch's, in both layouts.
func TestPoolGolden(t *testing.T) {
	for _, g := range poolGoldens(t) {
		p, isMax, is := g.pool()
		if !is {
			continue
		}
		require.NoError(t, p.Check())
		out := p.OutSize()
		require.Equal(t, g.Out, out[:p.Dims], "%+v", p)
		x, dy := operand32(p.XLen(), 7919, 1009, 128, 4), operand32(p.YLen(), 104729, 997, 64, 8)
		for range 2 {
			y, dx, index := make([]float32, p.YLen()), make([]float32, p.XLen()), make([]byte, p.IndexLen())
			if isMax {
				require.NoError(t, MaxPool(y, index, x, p))
				require.NoError(t, MaxPoolBackward(dx, dy, index, p, snug.Into{}))
			} else {
				require.NoError(t, AvgPool(y, x, p))
				require.NoError(t, AvgPoolBackward(dx, dy, p, snug.Into{}))
			}
			requireNear(t, "y", g.Y, y)
			requireNear(t, "dx", g.DX, dx)
			p.Layout = ChannelsLast
			x, dy, g.Y, g.DX = toLast(x, 2, 2), toLast(dy, 2, 2), toLast(g.Y, 2, 2), toLast(g.DX, 2, 2)
		}
	}
}

// definePool computes the definition in float64: the largest element or the mean of each window, and how much of the gradient of
// each y each x gets.
func definePool(p PoolShape, isMax bool, x, dy []float32) (y, dx []float64) {
	y, dx = make([]float64, p.YLen()), make([]float64, p.XLen())
	out := p.OutSize()
	index := func(b, c int, size, at []int) int {
		if p.Layout == ChannelsLast {
			return (b*prod(size)+flat(at, size))*p.Channels + c
		}
		return (b*p.Channels+c)*prod(size) + flat(at, size)
	}
	for b := range p.Batch {
		for c := range p.Channels {
			each(out[:p.Dims], func(o []int) {
				var from, to [3]int
				step, n := [3]int{1, 1, 1}, 1
				var shape [3]int
				for d := range o {
					if p.Adaptive != [3]int{} {
						from[d], to[d] = o[d]*p.Size[d]/out[d], ((o[d]+1)*p.Size[d]+out[d]-1)/out[d]
						n *= to[d] - from[d]
					} else {
						stride := p.Stride[d]
						if stride == 0 {
							stride = p.Kernel[d]
						}
						step[d] = max(p.Dilation[d], 1)
						from[d] = o[d]*stride - p.PadBefore[d]
						to[d] = from[d] + (p.Kernel[d]-1)*step[d] + 1
						if p.SkipPadding {
							n *= min(to[d], p.Size[d]) - max(from[d], 0)
						} else {
							n *= min(to[d], p.Size[d]+p.PadAfter[d]) - from[d]
						}
					}
					shape[d] = (to[d]-from[d]-1)/step[d] + 1
				}
				at, best, which := index(b, c, out[:p.Dims], o), math.Inf(-1), -1
				each(shape[:p.Dims], func(k []int) {
					pos := make([]int, p.Dims)
					for d := range k {
						if pos[d] = from[d] + k[d]*step[d]; pos[d] < 0 || pos[d] >= p.Size[d] {
							return
						}
					}
					i := index(b, c, p.Size[:p.Dims], pos)
					if v := float64(x[i]); which < 0 || v > best || v != v {
						best, which = v, i
					}
					if !isMax {
						y[at] += float64(x[i]) / float64(n)
						dx[i] += float64(dy[at]) / float64(n)
					}
				})
				if isMax {
					if y[at] = best; which >= 0 {
						dx[which] += float64(dy[at])
					}
				}
			})
		}
	}
	return y, dx
}

// drawPool returns a shape that Check does not refuse.
func drawPool(rng *rand.Rand, isMax bool) PoolShape {
	for {
		p := PoolShape{Batch: rng.IntN(3), Channels: 1 + rng.IntN(3), Dims: 1 + rng.IntN(3), Layout: Layout(rng.IntN(2))}
		adaptive := rng.IntN(3) == 0
		if !adaptive {
			p.Ceil, p.SkipPadding = rng.IntN(2) == 0, rng.IntN(2) == 0
		}
		for i := range p.Dims {
			p.Size[i] = 1 + rng.IntN(9)
			if adaptive {
				p.Adaptive[i] = 1 + rng.IntN(10)
				continue
			}
			p.Kernel[i], p.Stride[i] = 1+rng.IntN(4), rng.IntN(4)
			p.PadBefore[i], p.PadAfter[i] = rng.IntN(3), rng.IntN(3)
			if isMax {
				p.Dilation[i] = rng.IntN(4)
			}
		}
		if rng.IntN(20) == 0 { // longer than what a worker takes at a time
			p.Size[p.Dims-1] += 1200
			p.Channels = 1
		}
		if p.Check() == nil {
			return p
		}
	}
}

// requireClose compares sums of float32, which are rounded to a type.
func requireClose(t testing.TB, dt snug.DType, want []float64, got []float32, terms float64, what string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	scale := 1.0
	for _, w := range want {
		if !math.IsInf(w, 0) {
			scale = max(scale, math.Abs(w))
		}
	}
	for i, w := range want {
		if g := float64(got[i]); g != w && !(math.Abs(g-w) <= roundoff(dt, w)+terms*0x1p-24*scale) {
			require.Failf(t, what, "element %d is %v, want %v: %v", i, g, w, args)
		}
	}
}

// TestPoolDefinition: random poolings are as defined in all types, into accumulators too.
//
//check:in checked ordered
func TestPoolDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, b kerneltest.Backend) {
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range 400 {
			if b.Emulated && i == 120 {
				return
			}
			poolDefinition(t, b, rng, i)
		}
	})
}

func poolDefinition(t *testing.T, b kerneltest.Backend, rng *rand.Rand, i int) {
	isMax, dt := i%2 == 0, floatTypes[i%3]
	p := drawPool(rng, isMax)
	x, dy := rounded(dt, kerneltest.Normal(uint64(i), p.XLen())), rounded(dt, kerneltest.Normal(uint64(i+1000), p.YLen()))
	if i%7 == 0 && len(x) > 0 {
		for j := range x {
			x[j] = float32(math.Round(float64(x[j]))) // with equal elements
		}
	}
	wantY, wantDX := definePool(p, isMax, x, dy)
	put := func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, b, dt, x) }
	into, old := snug.Into{}, full(p.XLen(), float32(math.NaN()))
	if i%4 > 1 {
		into, old = snug.Into{Alpha: 0.5, Beta: 2}, rounded(dt, kerneltest.Normal(5, p.XLen()))
		for j, v := range old {
			wantDX[j] = wantDX[j]/2 + 2*float64(v)
		}
	}
	y, dx, index := put(full(p.YLen(), float32(math.NaN()))), put(old), kerneltest.Put(t, b, make([]byte, p.IndexLen()))
	if isMax {
		require.NoError(t, MaxPool(y.View, index.View, put(x).View, p))
		again := put(full(p.YLen(), float32(math.NaN())))
		require.NoError(t, MaxPool(again.View, snug.View{}, put(x).View, p))
		require.Equal(t, y.Get(), again.Get())
		require.NoError(t, MaxPoolBackward(dx.View, put(dy).View, index.View, p, into))
		requireClose(t, dt, wantY, y.Get(), 0, "y", p)
	} else {
		require.NoError(t, AvgPool(y.View, put(x).View, p))
		require.NoError(t, AvgPoolBackward(dx.View, put(dy).View, p, into))
		requireClose(t, dt, wantY, y.Get(), 200, "y", p)
	}
	requireClose(t, dt, wantDX, dx.Get(), 200, "dx", p, into)
}

// TestPoolWideWindows: the index of windows of more than 256, and of more than 65,536 elements.
func TestPoolWideWindows(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, b kerneltest.Backend) {
		for _, n := range []int{2, 3, 5, 17, 256, 300, 70000} {
			p := PoolShape{Batch: 1, Channels: 3, Dims: 1, Size: [3]int{2 * n}, Kernel: [3]int{n}}
			for range 2 {
				x := make([]float32, p.XLen())
				at := func(c, i int) int {
					if p.Layout == ChannelsLast {
						return i*3 + c
					}
					return c*2*n + i
				}
				x[at(0, n-1)], x[at(1, n)], x[at(2, 2*n-1)] = 1, 2, 3
				put := func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, b, snug.F32, x) }
				y, dx, index := put(make([]float32, 6)), put(x), kerneltest.Put(t, b, make([]byte, p.IndexLen()))
				require.NoError(t, MaxPool(y.View, index.View, put(x).View, p))
				require.NoError(t, MaxPoolBackward(dx.View, put(full(6, 1)).View, index.View, p, snug.Into{}))
				index.Get()
				got := dx.Get()
				require.Equal(t, []float32{1, 1, 1}, []float32{got[at(0, n-1)], got[at(1, n)], got[at(2, 2*n-1)]}, n)
				p.Layout = ChannelsLast
			}
		}
	})
}

// TestMaxPoolSpecial: a NaN is the largest, of equal elements the first counts, and windows without an element give -Inf.
func TestMaxPoolSpecial(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	p := PoolShape{Batch: 1, Channels: 1, Dims: 1, Size: [3]int{6}, Kernel: [3]int{3}}
	y, index, dx := make([]float32, 2), make([]byte, p.IndexLen()), make([]float32, 6)
	require.NoError(t, MaxPool(y, index, []float32{nan, 5, nan, 2, 2, 1}, p))
	require.True(t, math.IsNaN(float64(y[0])))
	require.NoError(t, MaxPoolBackward(dx, []float32{3, 4}, index, p, snug.Into{}))
	require.Equal(t, []float32{0, 0, 3, 4, 0, 0}, dx)
	require.NoError(t, MaxPool(y, index, full(6, inf), p))
	require.NoError(t, MaxPoolBackward(dx, []float32{3, 4}, index, p, snug.Into{}))
	require.Equal(t, []float32{3, 0, 0, 4, 0, 0}, dx)
	p = PoolShape{Batch: 1, Channels: 1, Dims: 1, Size: [3]int{1}, Kernel: [3]int{2}, Stride: [3]int{1}, Dilation: [3]int{2}, PadBefore: [3]int{1}, PadAfter: [3]int{1}}
	one := []float32{7}
	require.NoError(t, MaxPool(y[:1], index[:p.IndexLen()], one, p))
	require.Equal(t, inf, y[0])
	require.NoError(t, MaxPoolBackward(one, []float32{3}, index[:p.IndexLen()], p, snug.Into{}))
	require.Equal(t, []float32{0}, one)
}

func TestPoolRefused(t *testing.T) {
	good := PoolShape{Batch: 1, Channels: 2, Dims: 2, Size: [3]int{4, 6}, Kernel: [3]int{2, 3}}
	for name, row := range map[string]struct {
		change func(*PoolShape)
		err    error
	}{
		"no dims":               {func(p *PoolShape) { p.Dims = 0 }, snug.ErrConfig},
		"unknown layout":        {func(p *PoolShape) { p.Layout = 9 }, snug.ErrConfig},
		"adaptive and a kernel": {func(p *PoolShape) { p.Adaptive = [3]int{1, 1} }, snug.ErrConfig},
		"half adaptive": {func(p *PoolShape) {
			*p = PoolShape{Batch: 1, Channels: 2, Dims: 2, Size: p.Size, Adaptive: [3]int{0, 3}}
		}, snug.ErrShape},
		"negative batch":       {func(p *PoolShape) { p.Batch = -1 }, snug.ErrShape},
		"no channels":          {func(p *PoolShape) { p.Channels = 0 }, snug.ErrShape},
		"no size":              {func(p *PoolShape) { p.Size[1] = 0 }, snug.ErrShape},
		"size of no dimension": {func(p *PoolShape) { p.Size[2] = 1 }, snug.ErrShape},
		"no kernel":            {func(p *PoolShape) { p.Kernel[0] = 0 }, snug.ErrShape},
		"negative stride":      {func(p *PoolShape) { p.Stride[0] = -1 }, snug.ErrShape},
		"padding":              {func(p *PoolShape) { p.PadAfter[1] = 2 }, snug.ErrShape},
		"kernel beyond x":      {func(p *PoolShape) { p.Kernel[0] = 5 }, snug.ErrShape},
		"far dilation":         {func(p *PoolShape) { p.Dilation[0], p.Kernel[0] = 1<<30, 1<<30 }, snug.ErrShape},
		"too many elements":    {func(p *PoolShape) { p.Batch, p.Channels, p.Size = 1<<30, 1<<30, [3]int{1 << 30, 1 << 30} }, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			row.change(&p)
			kerneltest.Error(t, "conv.Check", p.Check())
			none := []float32{}
			require.ErrorIs(t, p.Check(), row.err)
			require.Zero(t, p.XLen()+p.YLen()+p.IndexLen())
			require.Zero(t, p.OutSize())
			require.ErrorIs(t, MaxPool(none, []byte{}, none, p), row.err)
			require.ErrorIs(t, AvgPoolBackward(none, none, p, snug.Into{}), row.err)
		})
	}
	x, y, index := make([]float32, good.XLen()), make([]float32, good.YLen()), make([]byte, good.IndexLen())
	dilated := good
	dilated.Dilation[0] = 1
	require.ErrorIs(t, AvgPool(y, x, dilated), snug.ErrConfig)
	require.ErrorIs(t, MaxPool(y, index, x[1:], good), snug.ErrShape)
	require.ErrorIs(t, MaxPool(y[1:], index, x, good), snug.ErrShape)
	require.ErrorIs(t, MaxPool(y, index[1:], x, good), snug.ErrShape)
	require.ErrorIs(t, MaxPoolBackward(x, y, []byte(nil), good, snug.Into{}), snug.ErrShape)
	require.ErrorIs(t, MaxPoolBackward(x, y, index, good, snug.Into{Beta: float32(math.NaN())}), snug.ErrConfig)
	require.ErrorIs(t, AvgPool(x[:len(y)], x, good), snug.ErrConfig, "overlap")
	require.ErrorIs(t, AvgPool(snug.SliceView(index), snug.ViewOf(x), good), snug.ErrDType)
}

//check:in race
func TestPoolZeroValues(t *testing.T) {
	kerneltest.Zero(t, PoolShape{}, MaxPool[[]float32, []byte], MaxPoolBackward[snug.View, snug.View], AvgPool[[]float32], AvgPoolBackward[snug.View])
}

func TestPoolAllocates(t *testing.T) {
	p := PoolShape{Batch: 2, Channels: 3, Dims: 2, Size: [3]int{9, 9}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}}
	x, y, index := make([]snug.BFloat16, p.XLen()), make([]snug.BFloat16, p.YLen()), make([]byte, p.IndexLen())
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, MaxPool(y, index, x, p))
		require.NoError(t, MaxPoolBackward(x, y, index, p, snug.Into{Beta: 1}))
		require.NoError(t, AvgPool(y, x, p))
		require.NoError(t, AvgPoolBackward(x, y, p, snug.Into{}))
	})
}

// Results have the same bits for any GOMAXPROCS.
//
//check:in race
func TestPoolProcs(t *testing.T) {
	p := PoolShape{Batch: 2, Channels: 5, Dims: 2, Size: [3]int{19, 700}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 1}, Ceil: true}
	s := ResizeShape{Batch: 2, Channels: 5, Dims: 2, Size: p.Size, Out: [3]int{11, 900}, Interpolation: Cubic, Antialias: true}
	x, ws := kerneltest.Normal(1, p.XLen()), make([]float32, s.WorkspaceLen())
	dp, ds := kerneltest.Normal(2, p.YLen()), kerneltest.Normal(3, s.YLen())
	var first [][]float32
	kerneltest.WithProcs(func(procs int) {
		got := [][]float32{make([]float32, len(dp)), make([]float32, len(x)), make([]float32, len(dp)), make([]float32, len(x)), make([]float32, len(ds)), make([]float32, len(x))}
		index := make([]byte, p.IndexLen())
		require.NoError(t, MaxPool(got[0], index, x, p))
		require.NoError(t, MaxPoolBackward(got[1], dp, index, p, snug.Into{}))
		require.NoError(t, AvgPool(got[2], x, p))
		require.NoError(t, AvgPoolBackward(got[3], dp, p, snug.Into{}))
		require.NoError(t, Resize(got[4], x, s, ws))
		require.NoError(t, ResizeBackward(got[5], ds, s, snug.Into{}, ws))
		if procs == 1 {
			first = got
		}
		for i := range got {
			require.Equal(t, kerneltest.Bits(first[i]), kerneltest.Bits(got[i]), "result %d", i)
		}
	})
}
