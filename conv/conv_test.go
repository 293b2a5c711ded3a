package conv

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// shapes are named for what they have that others lack.
var shapes = map[string]Shape{
	"1-d":                 {Batch: 2, In: 3, Out: 4, Dims: 1, Size: [3]int{20}, Kernel: [3]int{5}, PadBefore: [3]int{2}, PadAfter: [3]int{1}},
	"2-d 3x3":             Shape{Batch: 2, In: 5, Out: 7, Dims: 2, Size: [3]int{9, 11}, Kernel: [3]int{3, 3}}.Same(),
	"many channels":       Shape{Batch: 1, In: 40, Out: 37, Dims: 2, Size: [3]int{6, 7}, Kernel: [3]int{3, 3}}.Same(),
	"wide":                Shape{Batch: 1, In: 2, Out: 15, Dims: 2, Size: [3]int{3, 700}, Kernel: [3]int{3, 3}}.Same(),
	"many positions":      Shape{Batch: 3, In: 4, Out: 18, Dims: 2, Size: [3]int{30, 33}, Kernel: [3]int{3, 3}}.Same(),
	"575 positions":       Shape{Batch: 1, In: 17, Out: 35, Dims: 2, Size: [3]int{23, 25}, Kernel: [3]int{3, 3}}.Same(),
	"70 channels":         {Batch: 1, In: 70, Out: 40, Dims: 2, Size: [3]int{8, 11}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}},
	"small images":        Shape{Batch: 9, In: 20, Out: 34, Dims: 2, Size: [3]int{3, 3}, Kernel: [3]int{3, 3}}.Same(),
	"1x1":                 {Batch: 2, In: 33, Out: 20, Dims: 2, Size: [3]int{7, 9}, Kernel: [3]int{1, 1}},
	"1x1, large":          {Batch: 2, In: 33, Out: 20, Dims: 2, Size: [3]int{17, 19}, Kernel: [3]int{1, 1}},
	"1x1, moved":          {Batch: 2, In: 3, Out: 4, Dims: 1, Size: [3]int{20}, Kernel: [3]int{1}, Dilation: [3]int{3}, PadBefore: [3]int{2}, OutputPadding: [3]int{2}, Transposed: true},
	"1x1 stride 2":        {Batch: 2, In: 17, Out: 20, Dims: 2, Size: [3]int{7, 9}, Kernel: [3]int{1, 1}, Stride: [3]int{2, 2}},
	"3x3 stride 2":        {Batch: 2, In: 6, Out: 5, Dims: 2, Size: [3]int{11, 14}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}},
	"7x7 stride 2":        {Batch: 1, In: 3, Out: 5, Dims: 2, Size: [3]int{20, 21}, Kernel: [3]int{7, 7}, Stride: [3]int{2, 2}, PadBefore: [3]int{3, 3}, PadAfter: [3]int{3, 3}},
	"stride above kernel": {Batch: 1, In: 2, Out: 3, Dims: 2, Size: [3]int{11, 14}, Kernel: [3]int{2, 1}, Stride: [3]int{3, 4}},
	"dilation":            {Batch: 1, In: 3, Out: 2, Dims: 2, Size: [3]int{12, 13}, Kernel: [3]int{3, 2}, Dilation: [3]int{2, 5}, PadBefore: [3]int{2, 1}, PadAfter: [3]int{0, 3}},
	"dilation, stride":    {Batch: 1, In: 3, Out: 2, Dims: 2, Size: [3]int{12, 15}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 3}, Dilation: [3]int{3, 2}, PadBefore: [3]int{2, 1}, PadAfter: [3]int{4, 3}},
	"padding beyond all":  {Batch: 1, In: 2, Out: 2, Dims: 2, Size: [3]int{2, 3}, Kernel: [3]int{2, 3}, PadBefore: [3]int{5, 0}, PadAfter: [3]int{0, 7}},
	"kernel as large":     {Batch: 2, In: 3, Out: 4, Dims: 2, Size: [3]int{5, 6}, Kernel: [3]int{5, 6}},
	"groups":              Shape{Batch: 2, In: 6, Out: 9, Groups: 3, Dims: 2, Size: [3]int{5, 8}, Kernel: [3]int{3, 3}}.Same(),
	"depthwise":           Shape{Batch: 2, In: 21, Out: 21, Groups: 21, Dims: 2, Size: [3]int{8, 37}, Kernel: [3]int{3, 3}}.Same(),
	"depthwise stride 2":  Shape{Batch: 2, In: 5, Out: 5, Groups: 5, Dims: 2, Size: [3]int{9, 40}, Kernel: [3]int{5, 5}, Stride: [3]int{2, 2}}.Same(),
	"depthwise dilated":   {Batch: 1, In: 5, Out: 5, Groups: 5, Dims: 2, Size: [3]int{9, 20}, Kernel: [3]int{3, 3}, Dilation: [3]int{2, 4}, PadBefore: [3]int{2, 4}, PadAfter: [3]int{2, 4}},
	"depthwise 1-d":       {Batch: 2, In: 8, Out: 8, Groups: 8, Dims: 1, Size: [3]int{50}, Kernel: [3]int{4}, PadBefore: [3]int{3}},
	"depthwise 3-d":       Shape{Batch: 1, In: 3, Out: 3, Groups: 3, Dims: 3, Size: [3]int{3, 4, 18}, Kernel: [3]int{3, 3, 3}}.Same(),
	"multiplier":          Shape{Batch: 1, In: 4, Out: 12, Groups: 4, Dims: 2, Size: [3]int{5, 19}, Kernel: [3]int{3, 3}}.Same(),
	"3-d":                 Shape{Batch: 2, In: 4, Out: 6, Dims: 3, Size: [3]int{4, 5, 6}, Kernel: [3]int{3, 3, 3}}.Same(),
	"patches":             {Batch: 1, In: 3, Out: 20, Dims: 3, Size: [3]int{4, 8, 12}, Kernel: [3]int{2, 4, 4}, Stride: [3]int{2, 4, 4}},
	"transposed":          {Batch: 2, In: 5, Out: 4, Dims: 2, Size: [3]int{5, 6}, Kernel: [3]int{4, 4}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}, Transposed: true},
	"transposed, more":    {Batch: 1, In: 4, Out: 6, Groups: 2, Dims: 2, Size: [3]int{5, 6}, Kernel: [3]int{3, 2}, Stride: [3]int{2, 4}, Dilation: [3]int{1, 3}, PadBefore: [3]int{1, 0}, PadAfter: [3]int{0, 2}, OutputPadding: [3]int{1, 3}, Transposed: true},
	"transposed 3-d":      Shape{Batch: 1, In: 3, Out: 2, Dims: 3, Size: [3]int{2, 3, 4}, Kernel: [3]int{3, 3, 3}, Stride: [3]int{2, 2, 2}, Transposed: true}.Same(),
	"long kernel":         {Batch: 1, In: 2, Out: 3, Dims: 1, Size: [3]int{900}, Kernel: [3]int{700}, PadBefore: [3]int{30}},
	"long kernel, stride": {Batch: 2, In: 3, Out: 2, Dims: 1, Size: [3]int{700}, Kernel: [3]int{300}, Stride: [3]int{3}, Dilation: [3]int{2}},
	"20x20":               {Batch: 1, In: 2, Out: 2, Dims: 2, Size: [3]int{23, 24}, Kernel: [3]int{20, 20}},
	"5x5x5":               {Batch: 1, In: 3, Out: 33, Dims: 3, Size: [3]int{5, 6, 7}, Kernel: [3]int{5, 5, 5}, PadBefore: [3]int{2, 2, 2}, PadAfter: [3]int{2, 2, 2}},
	"many of all":         Shape{Batch: 2, In: 300, Out: 530, Dims: 2, Size: [3]int{3, 3}, Kernel: [3]int{1, 1}},
	"depthwise, 1-d long": {Batch: 1, In: 3, Out: 3, Groups: 3, Dims: 1, Size: [3]int{5000}, Kernel: [3]int{3}},
	"depthwise, wide":     Shape{Batch: 1, In: 2, Out: 4, Groups: 2, Dims: 2, Size: [3]int{40, 2500}, Kernel: [3]int{3, 3}, Stride: [3]int{1, 2}}.Same(),
	"depthwise, 200 taps": {Batch: 1, In: 2, Out: 2, Groups: 2, Dims: 1, Size: [3]int{300}, Kernel: [3]int{200}},
	"depthwise, far":      {Batch: 1, In: 2, Out: 2, Groups: 2, Dims: 2, Size: [3]int{300, 290}, Kernel: [3]int{2, 2}, Stride: [3]int{70, 60}, Dilation: [3]int{200, 150}},
	"depthwise, 8 of 9":   {Batch: 2, In: 2, Out: 18, Groups: 2, Dims: 2, Size: [3]int{5, 6}, Kernel: [3]int{2, 2}},
	"few of many":         {Batch: 2, In: 6, Out: 44, Groups: 2, Dims: 2, Size: [3]int{31, 29}, Kernel: [3]int{5, 7}, Stride: [3]int{2, 3}, Dilation: [3]int{2, 1}, PadBefore: [3]int{4, 1}, PadAfter: [3]int{3, 5}},
	"few, wide":           {Batch: 1, In: 20, Out: 2, Dims: 2, Size: [3]int{3, 300}, Kernel: [3]int{4, 4}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}, Transposed: true},
	"depthwise, 40":       Shape{Batch: 2, In: 40, Out: 40, Groups: 40, Dims: 2, Size: [3]int{13, 17}, Kernel: [3]int{3, 4}, Stride: [3]int{2, 1}}.Same(),
	"depthwise, in place": Shape{Batch: 2, In: 48, Out: 48, Groups: 48, Dims: 2, Size: [3]int{7, 21}, Kernel: [3]int{3, 3}}.Same(),
	"in place, stride 2":  Shape{Batch: 3, In: 32, Out: 32, Groups: 32, Dims: 2, Size: [3]int{9, 30}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}}.Same(),
	"in place, 2 parts":   {Batch: 2, In: 288, Out: 288, Groups: 288, Dims: 2, Size: [3]int{3, 5}, Kernel: [3]int{3, 3}, Stride: [3]int{2, 2}, PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}},
	"in place, 3-d":       Shape{Batch: 1, In: 16, Out: 16, Groups: 16, Dims: 3, Size: [3]int{3, 4, 7}, Kernel: [3]int{3, 2, 3}, Transposed: true}.Same(),
	"in place, 2 taps":    Shape{Batch: 1, In: 16, Out: 16, Groups: 16, Dims: 2, Size: [3]int{4, 10}, Kernel: [3]int{5, 2}}.Same(),
	"in place, 1 column":  Shape{Batch: 2, In: 16, Out: 16, Groups: 16, Dims: 2, Size: [3]int{40, 1}, Kernel: [3]int{3, 3}}.Same(),
	"in place, wide":      Shape{Batch: 1, In: 256, Out: 256, Groups: 256, Dims: 1, Size: [3]int{600}, Kernel: [3]int{3}}.Same(),
	"in place, bands":     {Batch: 1, In: 32, Out: 32, Groups: 32, Dims: 2, Size: [3]int{70, 40}, Kernel: [3]int{2, 3}, Stride: [3]int{2, 1}, PadBefore: [3]int{3, 1}, PadAfter: [3]int{4, 0}},
	"windows":             Shape{Batch: 2, In: 50, Out: 26, Groups: 2, Dims: 2, Size: [3]int{5, 28}, Kernel: [3]int{3, 3}}.Same(),
	"windows, stride 2":   {Batch: 1, In: 70, Out: 35, Dims: 2, Size: [3]int{7, 56}, Kernel: [3]int{4, 5}, Stride: [3]int{3, 2}, PadBefore: [3]int{1, 2}, PadAfter: [3]int{0, 2}},
	"windows, 3-d":        Shape{Batch: 1, In: 33, Out: 34, Dims: 3, Size: [3]int{3, 4, 28}, Kernel: [3]int{3, 2, 3}, Transposed: true}.Same(),
	"windows, no taps":    {Batch: 1, In: 22, Out: 24, Dims: 2, Size: [3]int{5, 28}, Kernel: [3]int{1, 3}, Stride: [3]int{2, 1}},
	"no images":           Shape{In: 3, Out: 2, Dims: 2, Size: [3]int{4, 4}, Kernel: [3]int{3, 3}}.Same(),
}

// All functions against the definition, for every type, layout and backend. Under the race detector, with which the definition takes
// minutes, shapes of many products are left to TestProcsAndAllocations.
//
//check:in tiers race arm64 arm64-go
func TestDefinition(t *testing.T) {
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			for i, dt := range floatTypes {
				if s.XLen() > 10000 && !kerneltest.Taken(i, 3) || kerneltest.Race && s.YLen()*(s.WLen()/s.Out) > 1<<18 {
					continue
				}
				for _, s.Layout = range []Layout{ChannelsFirst, ChannelsLast} {
					o := newOperands(s, dt, 1)
					want := define(s, o)
					for _, p := range backends(t) {
						check(t, p, s, dt, o, want, snug.Into{})
						check(t, p, s, dt, o, want, snug.Into{Alpha: 0.5, Beta: 1})
					}
				}
			}
		})
	}
}

// backends are those whose jobs run on the CPU.
func backends(t *testing.T) []kerneltest.Backend { return kerneltest.Backends(t)[:3] }

// golden is a case of testdata/torch/make.py.
type golden struct {
	Name                                                    string
	Batch, Inp, Out, Groups                                 int
	Size, Kernel, Stride, Dilation, Output_Padding, OutSize []int
	Padding                                                 any
	Same, Transposed                                        bool
	Y, DX, DW, DB                                           []float64
}

func (g *golden) shape() Shape {
	s := Shape{Batch: max(g.Batch, 1), In: g.Inp, Out: g.Out, Groups: g.Groups, Dims: len(g.Size), Transposed: g.Transposed}
	copy(s.Size[:], g.Size)
	copy(s.Kernel[:], g.Kernel)
	copy(s.Stride[:], g.Stride)
	copy(s.Dilation[:], g.Dilation)
	copy(s.OutputPadding[:], g.Output_Padding)
	if g.Same {
		return s.Same()
	}
	if pads, ok := g.Padding.([]any); ok {
		for i, pad := range pads {
			s.PadBefore[i], s.PadAfter[i] = int(pad.(float64)), int(pad.(float64))
		}
	}
	return s
}

// goldenNumbers are those that make.py draws.
func goldenNumbers(number, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		word := (uint64(i)*2654435761 + uint64(number)*97531) % (1 << 32)
		x[i] = float32(float64(word)/(1<<31) - 1)
	}
	return x
}

// toLast moves the channels of a vector behind the positions.
func toLast[T any](x []T, batch, channels int) []T {
	y, n := make([]T, len(x)), len(x)/batch/channels
	for i, v := range x {
		b, ch, pos := i/n/channels, i/n%channels, i%n
		y[(b*n+pos)*channels+ch] = v
	}
	return y
}

//check:in tiers arm64 arm64-go
func TestGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/golden.json")
	require.NoError(t, err)
	var all []golden
	require.NoError(t, json.Unmarshal(data, &all))
	for _, g := range all {
		t.Run(g.Name, func(t *testing.T) {
			s := g.shape()
			require.NoError(t, s.Check())
			outSize := s.OutSize()
			require.Equal(t, g.OutSize, outSize[:s.Dims])
			require.Equal(t, len(g.Y), s.YLen())
			require.Equal(t, len(g.DX), s.XLen())
			require.Equal(t, len(g.DW), s.WLen())
			x, w, bias, dy := goldenNumbers(1, s.XLen()), goldenNumbers(2, s.WLen()), goldenNumbers(3, s.Out), goldenNumbers(4, s.YLen())
			if g.DB == nil {
				bias = nil
			}
			for range 2 {
				y, dx, dw, db, ws := make([]float32, s.YLen()), make([]float32, s.XLen()), make([]float32, s.WLen()), make([]float32, s.Out), make([]float32, s.WorkspaceLen())
				require.NoError(t, Forward(y, x, w, bias, s))
				require.NoError(t, BackwardInput(dx, dy, w, s, snug.Into{}))
				require.NoError(t, BackwardWeight(dw, db, x, dy, s, snug.Into{}, ws))
				requireNear(t, "y", g.Y, y)
				requireNear(t, "dx", g.DX, dx)
				requireNear(t, "dw", g.DW, dw)
				if g.DB != nil {
					requireNear(t, "db", g.DB, db)
				}
				s.Layout = ChannelsLast
				x, dy = toLast(x, s.Batch, s.In), toLast(dy, s.Batch, s.Out)
				g.Y, g.DX = toLast(g.Y, s.Batch, s.Out), toLast(g.DX, s.Batch, s.In)
			}
		})
	}
}

// requireNear compares with numbers of six digits.
func requireNear(t *testing.T, what string, want []float64, got []float32) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, x := range want {
		require.InDelta(t, x, float64(got[i]), 6e-6*(1+math.Abs(x)), "%s[%d]", what, i)
	}
}

// drawShape draws a small shape.
func drawShape(t *rapid.T) Shape {
	n := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, name) }
	s := Shape{Batch: n("batch", 0, 3), Dims: n("dims", 1, 3), Groups: n("groups", 0, 3), Transposed: rapid.Bool().Draw(t, "transposed")}
	s.In, s.Out = or1(s.Groups)*n("in", 1, 6), or1(s.Groups)*n("out", 1, 6)
	if rapid.IntRange(0, 4).Draw(t, "more channels") == 0 {
		s.Out *= n("times", 1, 9)
	}
	s.Layout = Layout(n("layout", 0, 1))
	for i := range s.Dims {
		s.Size[i], s.Kernel[i] = n("size", 1, 9-2*s.Dims), n("kernel", 1, 4)
		s.Stride[i], s.Dilation[i] = n("stride", 0, 3), n("dilation", 0, 3)
		s.PadBefore[i], s.PadAfter[i] = n("before", 0, 3), n("after", 0, 3)
		if most := max(s.Stride[i], s.Dilation[i]) - 1; s.Transposed && most > 0 {
			s.OutputPadding[i] = n("output padding", 0, most)
		}
	}
	if s.Dims < 3 && rapid.IntRange(0, 3).Draw(t, "longer") == 0 {
		s.Size[s.Dims-1] += n("by", 1, 60)
	}
	return s
}

// definitionHolds: the functions agree with the definition.
func definitionHolds(t *testing.T) func(*rapid.T) {
	return func(r *rapid.T) {
		s := drawShape(r)
		if s.Check() != nil {
			return
		}
		into := snug.Into{Beta: float32(rapid.IntRange(0, 1).Draw(r, "beta"))}
		dt := rapid.SampledFrom(floatTypes).Draw(r, "type")
		o := newOperands(s, dt, 1)
		check(t, kerneltest.Backend{}, s, dt, o, define(s, o), into)
	}
}

func TestDefinitionHolds(t *testing.T) { rapid.Check(t, definitionHolds(t)) }
func FuzzDefinitionHolds(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed []byte) { rapid.MakeFuzz(definitionHolds(t))(t, seed) })
}

// adjoint: with <a, b> = Σ a[i]·b[i], <dy, conv(x, w)> = <dx, x> = <dw, w>.
func adjoint(t *rapid.T) {
	s := drawShape(t)
	if s.Check() != nil {
		return
	}
	o := newOperands(s, snug.F32, rapid.Uint64().Draw(t, "seed"))
	y, dx, dw, ws := make([]float32, s.YLen()), make([]float32, s.XLen()), make([]float32, s.WLen()), make([]float32, s.WorkspaceLen())
	require.NoError(t, Forward(y, o.x, o.w, nil, s))
	require.NoError(t, BackwardInput(dx, o.dy, o.w, s, snug.Into{}))
	require.NoError(t, BackwardWeight(dw, nil, o.x, o.dy, s, snug.Into{}, ws))
	of, scale := inner(o.dy, y)
	for name, pair := range map[string][2][]float32{"dx": {dx, o.x}, "dw": {dw, o.w}} {
		is, size := inner(pair[0], pair[1])
		require.InDelta(t, of, is, 1e-5*(scale+size)+1e-30, name)
	}
}

func TestAdjoint(t *testing.T) { rapid.Check(t, adjoint) }
func FuzzAdjoint(f *testing.F) { f.Fuzz(rapid.MakeFuzz(adjoint)) }

func inner(a, b []float32) (sum, scale float64) {
	for i, x := range a {
		sum += float64(x) * float64(b[i])
		scale += math.Abs(float64(x) * float64(b[i]))
	}
	return sum, scale
}

// Results have the same bits for any GOMAXPROCS, and calls allocate nothing.
//
//check:in race
func TestProcsAndAllocations(t *testing.T) {
	for name, s := range shapes {
		for _, s.Layout = range []Layout{ChannelsFirst, ChannelsLast} {
			o := newOperands(s, snug.F32, 5)
			ws := make([]float32, s.WorkspaceLen())
			var first [4][]float32
			kerneltest.WithProcs(func(procs int) {
				got := [4][]float32{make([]float32, s.YLen()), make([]float32, s.XLen()), make([]float32, s.WLen()), make([]float32, s.Out)}
				kerneltest.NoAllocs(t, func() {
					require.NoError(t, Forward(got[0], o.x, o.w, o.bias, s))
					require.NoError(t, BackwardInput(got[1], o.dy, o.w, s, snug.Into{}))
					require.NoError(t, BackwardWeight(got[2], got[3], o.x, o.dy, s, snug.Into{}, ws))
				})
				if procs == 1 {
					first = got
				}
				for i := range got {
					require.Equal(t, kerneltest.Bits(first[i]), kerneltest.Bits(got[i]), "%s, result %d", name, i)
				}
			})
		}
	}
}

// So it is with bfloat16, which some processors multiply by pairs.
//
//check:in race
func TestProcsAndAllocationsOfPairs(t *testing.T) {
	bits := func(x []float32) []snug.BFloat16 {
		y := make([]snug.BFloat16, len(x))
		for i, v := range x {
			y[i] = snug.ToBFloat16(v)
		}
		return y
	}
	for name, s := range shapes {
		for _, s.Layout = range []Layout{ChannelsFirst, ChannelsLast} {
			o := newOperands(s, snug.BF16, 5)
			x, w, bias, dy := bits(o.x), bits(o.w), bits(o.bias), bits(o.dy)
			y, dx, dw, ws := bits(o.dy), bits(o.x), make([]float32, s.WLen()), make([]float32, s.WorkspaceLen())
			var firstY, firstX []snug.BFloat16
			var firstW []float32
			kerneltest.WithProcs(func(procs int) {
				kerneltest.NoAllocs(t, func() {
					require.NoError(t, Forward(y, x, w, bias, s))
					require.NoError(t, BackwardInput(dx, dy, w, s, snug.Into{}))
					require.NoError(t, BackwardWeight(dw, nil, x, dy, s, snug.Into{}, ws))
				})
				if procs == 1 {
					firstY, firstX, firstW = slices.Clone(y), slices.Clone(dx), slices.Clone(dw)
				}
				require.Equal(t, firstY, y, "%s, y", name)
				require.Equal(t, firstX, dx, "%s, dx", name)
				require.Equal(t, kerneltest.Bits(firstW), kerneltest.Bits(dw), "%s, dw", name)
			})
		}
	}
}
