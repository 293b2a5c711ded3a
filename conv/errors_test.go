package conv

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in race
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t, Shape{}, Layout(0), Layout(200), Forward[[]float32], Forward[snug.View], BackwardInput[[]float32], BackwardInput[snug.View],
		BackwardWeight[[]float32, []float32, []float32], BackwardWeight[snug.View, snug.View, snug.View])
}

// plain is a shape of 16 elements of x, 18 of w and 8 of y.
var plain = Shape{Batch: 1, In: 1, Out: 2, Dims: 2, Size: [3]int{4, 4}, Kernel: [3]int{3, 3}}

func TestShapeRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*Shape)
		err    error
	}{
		"no dims":                {func(s *Shape) { s.Dims = 0 }, snug.ErrConfig},
		"4 dims":                 {func(s *Shape) { s.Dims = 4 }, snug.ErrConfig},
		"unknown layout":         {func(s *Shape) { s.Layout = 2 }, snug.ErrConfig},
		"negative batch":         {func(s *Shape) { s.Batch = -1 }, snug.ErrShape},
		"no channels":            {func(s *Shape) { s.In = 0 }, snug.ErrShape},
		"no output channels":     {func(s *Shape) { s.Out = 0 }, snug.ErrShape},
		"too many channels":      {func(s *Shape) { s.Out = math.MaxInt32 }, snug.ErrShape},
		"groups":                 {func(s *Shape) { s.Groups = 2 }, snug.ErrShape},
		"negative groups":        {func(s *Shape) { s.Groups = -1 }, snug.ErrShape},
		"no size":                {func(s *Shape) { s.Size[1] = 0 }, snug.ErrShape},
		"size of no dimension":   {func(s *Shape) { s.Size[2] = 1 }, snug.ErrShape},
		"no kernel":              {func(s *Shape) { s.Kernel[0] = 0 }, snug.ErrShape},
		"negative stride":        {func(s *Shape) { s.Stride[0] = -1 }, snug.ErrShape},
		"negative dilation":      {func(s *Shape) { s.Dilation[1] = -1 }, snug.ErrShape},
		"negative padding":       {func(s *Shape) { s.PadBefore[1] = -1 }, snug.ErrShape},
		"negative padding after": {func(s *Shape) { s.PadAfter[1] = -1 }, snug.ErrShape},
		"kernel beyond x":        {func(s *Shape) { s.Kernel[0] = 5 }, snug.ErrShape},
		"dilation beyond x":      {func(s *Shape) { s.Dilation[0] = 2 }, snug.ErrShape},
		"far dilation":           {func(s *Shape) { s.Dilation[0], s.Kernel[0] = 1<<28, 1<<28 }, snug.ErrShape},
		"all cut":                {func(s *Shape) { s.Transposed, s.PadAfter[0] = true, 6 }, snug.ErrShape},
		"too many elements": {func(s *Shape) {
			s.Batch, s.In, s.Size = 1<<28, 1<<28, [3]int{1 << 28, 1 << 28}
		}, snug.ErrShape},
		"output padding":           {func(s *Shape) { s.OutputPadding[0] = 1 }, snug.ErrConfig},
		"output padding of stride": {func(s *Shape) { s.Transposed, s.Stride[0], s.OutputPadding[0] = true, 2, 2 }, snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			s := plain
			row.change(&s)
			kerneltest.Error(t, "conv.Check", s.Check())
			require.ErrorIs(t, s.Check(), row.err)
			require.Zero(t, s.XLen()+s.WLen()+s.YLen()+s.BiasLen()+s.WorkspaceLen())
			require.Zero(t, s.OutSize())
			none := []float32{}
			require.ErrorIs(t, Forward(none, none, none, none, s), row.err)
			require.ErrorIs(t, BackwardInput(none, none, none, s, snug.Into{}), row.err)
			require.ErrorIs(t, BackwardWeight(none, none, none, none, s, snug.Into{}, none), row.err)
			s.Same()
		})
	}
}

// args are what calls get.
type args struct{ y, x, w, bias, dw, db, ws snug.View }

func TestOperandsRefused(t *testing.T) {
	vec := func(n int) snug.View { return snug.SliceView(make([]float32, n)) }
	halves := func(n int) snug.View { return snug.SliceView(make([]snug.BFloat16, n)) }
	nan := snug.Into{Beta: float32(math.NaN())}
	for name, row := range map[string]struct {
		change             func(*args)
		into               snug.Into
		forward, input, dw bool // which functions refuse it
		err                error
	}{
		"types differ":     {func(a *args) { a.w = halves(18) }, snug.Into{}, true, true, false, snug.ErrDType},
		"types of x and y": {func(a *args) { a.y = halves(8) }, snug.Into{}, true, true, true, snug.ErrDType},
		"bytes":            {func(a *args) { a.x = snug.SliceView(make([]uint8, 16)) }, snug.Into{}, true, true, true, snug.ErrDType},
		"dw of bfloat16":   {func(a *args) { a.dw = halves(18) }, snug.Into{}, false, false, true, snug.ErrDType},
		"long x":           {func(a *args) { a.x = vec(17) }, snug.Into{}, true, true, true, snug.ErrShape},
		"short y":          {func(a *args) { a.y = vec(7) }, snug.Into{}, true, true, true, snug.ErrShape},
		"short w":          {func(a *args) { a.w = vec(9) }, snug.Into{}, true, true, false, snug.ErrShape},
		"short bias":       {func(a *args) { a.bias = vec(1) }, snug.Into{}, true, false, false, snug.ErrShape},
		"short dw":         {func(a *args) { a.dw = vec(17) }, snug.Into{}, false, false, true, snug.ErrShape},
		"long db":          {func(a *args) { a.db = vec(3) }, snug.Into{}, false, false, true, snug.ErrShape},
		"factor":           {func(a *args) {}, nan, false, true, true, snug.ErrConfig},
		"y over x":         {func(a *args) { x := vec(20); a.x, a.y = cut(x, 0, 16), cut(x, 12, 20) }, snug.Into{}, true, true, false, snug.ErrConfig},
		"dw over dy":       {func(a *args) { x := vec(20); a.dw, a.y = cut(x, 2, 20), cut(x, 0, 8) }, snug.Into{}, false, false, true, snug.ErrConfig},
		"db over dw":       {func(a *args) { a.db = cut(a.dw, 0, 2) }, snug.Into{}, false, false, true, snug.ErrConfig},
		"ws over x":        {func(a *args) { a.ws = a.x }, snug.Into{}, false, false, true, snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			a := args{vec(8), vec(16), vec(18), vec(2), vec(18), vec(2), vec(plain.WorkspaceLen())}
			row.change(&a)
			calls := map[string]error{
				"conv.Forward":        forward(a.y, a.x, a.w, a.bias, plain),
				"conv.BackwardInput":  backwardInput(a.x, a.y, a.w, plain, row.into),
				"conv.BackwardWeight": backwardWeight(a.dw, a.db, a.x, a.y, plain, row.into, a.ws),
			}
			for call, refused := range map[string]bool{"conv.Forward": row.forward, "conv.BackwardInput": row.input, "conv.BackwardWeight": row.dw} {
				if !refused {
					require.NoError(t, calls[call], call)
					continue
				}
				kerneltest.Error(t, call, calls[call])
				require.ErrorIs(t, calls[call], row.err, call)
			}
		})
	}
}

func cut(v snug.View, lo, hi int) snug.View {
	v, _ = v.Slice(lo, hi)
	return v
}

// What a shape's arithmetic says of sizes.
func TestSame(t *testing.T) {
	for _, transposed := range []bool{false, true} {
		for size := 1; size < 9; size++ {
			for kernel := 1; kernel < 5; kernel++ {
				for stride := 1; stride < 5; stride++ {
					for dilation := 1; dilation < 3; dilation++ {
						s := Shape{Batch: 1, In: 1, Out: 1, Dims: 1, Size: [3]int{size}, Kernel: [3]int{kernel}, Stride: [3]int{stride},
							Dilation: [3]int{dilation}, Transposed: transposed}.Same()
						require.NoError(t, s.Check(), "%+v", s)
						want := (size + stride - 1) / stride
						if transposed {
							want = size * stride
						}
						require.Equal(t, want, s.OutSize()[0], "%+v", s)
						require.GreaterOrEqual(t, s.PadAfter[0], s.PadBefore[0])
						require.LessOrEqual(t, s.PadAfter[0], s.PadBefore[0]+1)
					}
				}
			}
		}
	}
}

func TestLayoutNames(t *testing.T) {
	require.Equal(t, "channels first", ChannelsFirst.String())
	require.Equal(t, "channels last", ChannelsLast.String())
	require.Equal(t, "Layout(7)", Layout(7).String())
}

func TestScratch(t *testing.T) { require.LessOrEqual(t, Scratch, 1<<20) }
