package attention

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var small = Options{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 3, SeqK: 5, Dim: 4}

// overflows32 is the error for numbers up to MaxInt that must be below 2^32, which all are
// where int has 32 bits.
var overflows32 = map[bool]error{true: snug.ErrConfig}[math.MaxInt > math.MaxUint32]

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"good":            {func(c *Options) {}, nil},
		"batch":           {func(c *Options) { c.Batch = -1 }, snug.ErrShape},
		"heads":           {func(c *Options) { c.Heads = -2 }, snug.ErrShape},
		"kv heads":        {func(c *Options) { c.KVHeads = -1 }, snug.ErrShape},
		"queries":         {func(c *Options) { c.SeqQ = -1 }, snug.ErrShape},
		"keys":            {func(c *Options) { c.SeqK = math.MinInt }, snug.ErrShape},
		"dim 0":           {func(c *Options) { c.Dim = 0 }, snug.ErrShape},
		"dim":             {func(c *Options) { c.Dim = maxDim + 1 }, snug.ErrShape},
		"value dim":       {func(c *Options) { c.DimV = -1 }, snug.ErrShape},
		"product":         {func(c *Options) { c.Batch, c.SeqQ = 1<<16, math.MaxInt/1000 }, snug.ErrShape},
		"product with 0":  {func(c *Options) { c.Batch, c.SeqQ = 0, math.MaxInt/2 }, snug.ErrShape},
		"kv not divisor":  {func(c *Options) { c.KVHeads = 3 }, snug.ErrConfig},
		"kv above heads":  {func(c *Options) { c.KVHeads = 8 }, snug.ErrConfig},
		"align":           {func(c *Options) { c.Align = 3 }, snug.ErrConfig},
		"scale NaN":       {func(c *Options) { c.Scale = float32(math.NaN()) }, snug.ErrConfig},
		"scale inf":       {func(c *Options) { c.Scale = float32(math.Inf(-1)) }, snug.ErrConfig},
		"scale too large": {func(c *Options) { c.Scale = math.MaxFloat32 }, snug.ErrConfig},
		"negative stride": {func(c *Options) { c.K = Strides{Batch: -1, Head: 20, Row: 4} }, snug.ErrShape},
		"rows overlap":    {func(c *Options) { c.Q = Strides{Batch: 48, Head: 12, Row: 3} }, snug.ErrShape},
		"heads overlap":   {func(c *Options) { c.V = Strides{Batch: 100, Head: 19, Row: 4} }, snug.ErrShape},
		"stride overflow": {func(c *Options) { c.Out = Strides{Head: 4, Row: math.MaxInt / 2} }, snug.ErrShape},
		"interleaved":     {func(c *Options) { c.Out = Strides{Head: 4, Row: 16} }, nil},
		"shift":           {func(c *Options) { c.Shift = 1 }, snug.ErrConfig},
		"far shift":       {func(c *Options) { c.Align, c.Shift = Shifted, math.MaxInt }, snug.ErrConfig},
		"softcap":         {func(c *Options) { c.Softcap = -1 }, snug.ErrConfig},
		"softcap NaN":     {func(c *Options) { c.Softcap = float32(math.NaN()) }, snug.ErrConfig},
		"softcap inf":     {func(c *Options) { c.Softcap = float32(math.Inf(1)) }, snug.ErrConfig},
		"softcap tiny":    {func(c *Options) { c.Softcap = 1e-38 }, snug.ErrConfig},
		"dropout 1":       {func(c *Options) { c.Dropout.P = 1 }, snug.ErrConfig},
		"dropout NaN":     {func(c *Options) { c.Dropout.P = float32(math.NaN()) }, snug.ErrConfig},
		"dropout number":  {func(c *Options) { c.Dropout = Dropout{P: 0.5, Key: -1} }, snug.ErrConfig},
		"dropout far":     {func(c *Options) { c.Dropout = Dropout{P: 0.5, Query: math.MaxInt} }, overflows32},
		"slopes":          {func(c *Options) { c.Slopes = zeros(3) }, snug.ErrShape},
		"slopes of f16":   {func(c *Options) { c.Slopes = snug.SliceView(make([]snug.Float16, 4)) }, snug.ErrDType},
		"sinks":           {func(c *Options) { c.Sinks.X = zeros(5) }, snug.ErrShape},
		"sinks' gradient": {func(c *Options) { c.Sinks.X, c.Sinks.Grad = zeros(4), zeros(3) }, snug.ErrShape},
		"no sinks":        {func(c *Options) { c.Sinks.Grad = zeros(4) }, snug.ErrConfig},
		"lse gradient":    {func(c *Options) { c.GradLSE = zeros(11) }, snug.ErrShape},
		"bias":            {func(c *Options) { c.Bias.X = zeros(4*3*5 - 1) }, snug.ErrShape},
		"bias dims":       {func(c *Options) { c.Bias = Bias{X: zeros(30), Dims: [4]int{1, 2, 3, 5}} }, snug.ErrShape},
		"bias of u8":      {func(c *Options) { c.Bias.X = snug.SliceView(make([]uint8, 60)) }, snug.ErrDType},
		"bias gradient":   {func(c *Options) { c.Bias = Bias{X: zeros(60), Grad: zeros(59)} }, snug.ErrShape},
		"bias grad type":  {func(c *Options) { c.Bias = Bias{X: zeros(60), Grad: snug.SliceView(make([]snug.Float16, 60))} }, snug.ErrDType},
		"bias broadcast":  {func(c *Options) { c.Bias = Bias{X: zeros(5), Dims: [4]int{1, 1, 1, 5}} }, nil},
		"mask":            {func(c *Options) { c.Mask = tiles(1, 4, 3, 6) }, snug.ErrShape},
		"mask heads":      {func(c *Options) { c.Mask = tiles(1, 2, 3, 5) }, snug.ErrShape},
		"mask for all":    {func(c *Options) { c.Mask = tiles(1, 1, 3, 5) }, nil},
		"starts":          {func(c *Options) { c.QStarts = []int{0, 3, 3} }, snug.ErrShape},
		"starts at 1":     {func(c *Options) { c.QStarts = []int{1, 3} }, snug.ErrShape},
		"starts too far":  {func(c *Options) { c.QStarts = []int{0, 4} }, snug.ErrShape},
		"starts descend":  {func(c *Options) { c.Batch, c.QStarts = 2, []int{0, 2, 1} }, snug.ErrShape},
		"only key starts": {func(c *Options) { c.KStarts = []int{0, 1} }, snug.ErrConfig},
		"starts and lens": {func(c *Options) { c.QStarts, c.KLens = []int{0, 1}, []int{1} }, snug.ErrConfig},
		"lens":            {func(c *Options) { c.KLens = []int{1, 2} }, snug.ErrShape},
		"lens too long":   {func(c *Options) { c.KLens = []int{6} }, snug.ErrShape},
		"window left":     {func(c *Options) { c.Window.Left = -1 }, snug.ErrConfig},
		"window right":    {func(c *Options) { c.Window.Right = math.MinInt }, snug.ErrConfig},
		"widest window":   {func(c *Options) { c.Window = Window{math.MaxInt, math.MaxInt} }, nil},
		"packed":          {func(c *Options) { c.Batch, c.QStarts = 2, []int{0, 0, 2} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := small
			tc.change(&c)
			err := c.Validate()
			require.ErrorIs(t, err, tc.want)
			if tc.want != nil {
				require.ErrorContains(t, err, "attention: ")
				require.Zero(t, c.WorkspaceLen())
				require.Zero(t, c.ScratchBytes())
			}
		})
	}
}

// TestShiftErrors: a Shift that Align ignores and one that is too far are told apart.
func TestShiftErrors(t *testing.T) {
	c := small
	c.Shift = 5
	require.ErrorContains(t, c.Validate(), "Shift is 5, but Align is not Shifted")
	c.Align, c.Shift = Shifted, math.MaxInt
	require.ErrorContains(t, c.Validate(), " to ")
	require.NotContains(t, c.Validate().Error(), "Align")
}

// TestNamesOfForgottenDimensions: the error for elements where there should be none names the
// fields that were left out.
func TestNamesOfForgottenDimensions(t *testing.T) {
	for want, c := range map[string]Options{
		"q holds 912 elements, want none: Heads is 0":             {Batch: 2, SeqQ: 19, Dim: 8},
		"q holds 912 elements, want none: Batch is 0":             {Heads: 3, SeqQ: 19, Dim: 8},
		"q holds 912 elements, want none: SeqQ is 0":              {Batch: 2, Heads: 3, SeqK: 19, Dim: 8},
		"q holds 912 elements, want none: Batch is 0, Heads is 0": {SeqQ: 19, Dim: 8},
	} {
		t.Run(want, func(t *testing.T) {
			x := make([]float32, 912)
			err := Forward(make([]float32, 912), []float32(nil), x, x, x, c)
			require.ErrorIs(t, err, snug.ErrShape)
			require.ErrorContains(t, err, want)
		})
	}
	x := make([]float32, 912)
	err := Forward(x[:0], x[:0], x[:0], x, x, Options{Batch: 2, Heads: 3, Dim: 8})
	require.ErrorContains(t, err, "k holds 912 elements, want none: SeqK is 0")
}

func TestSizes(t *testing.T) {
	require.Equal(t, 12, small.WorkspaceLen())
	// 128 queries and their dout, 256 keys and values and their gradients, two
	// tiles of scores and one of weights as bfloat16, lse, a row, two rows of scores, the
	// distances in a tile, the keys that each query sees, the sums of dq, a packed tile.
	want := int64(4*(2*128*4+4*256*4+2*128*256+128*256/2+128+4+2*256+(128+256)+4*128+2*3*4) + gemm.ScratchBytes + 2*256*256 + 64)
	require.Equal(t, want, small.ScratchBytes())
}

func zeros(n int) snug.View { return snug.SliceView(make([]float32, n)) }

func tiles(batch, heads, seqQ, seqK int) *Mask {
	m, err := NewTileMask(batch, heads, seqQ, seqK, func(b, h, i, j int) bool { return true })
	if err != nil {
		panic(err)
	}
	return m
}

// A stride that the rules accept lets no two rows share an element, and extent
// is exact.
func stridesProperty(t *rapid.T) {
	o := operand{
		batch: rapid.IntRange(1, 3).Draw(t, "batch"), heads: rapid.IntRange(1, 3).Draw(t, "heads"),
		n: rapid.IntRange(1, 3).Draw(t, "n"), dim: rapid.IntRange(1, 3).Draw(t, "dim"),
		strides: Strides{rapid.IntRange(0, 20).Draw(t, "Batch"), rapid.IntRange(0, 20).Draw(t, "Head"), rapid.IntRange(0, 20).Draw(t, "Row")},
	}
	s, err := o.resolve()
	if err != nil {
		require.ErrorIs(t, err, snug.ErrShape)
		return
	}
	o.strides = s
	hit := make([]bool, o.extent())
	o.each(func(_, at int) {
		require.False(t, hit[at], "element %d twice", at)
		hit[at] = true
	})
	require.True(t, hit[len(hit)-1])
}

func TestStrides(t *testing.T) { rapid.Check(t, stridesProperty) }
func FuzzStrides(f *testing.F) { f.Fuzz(rapid.MakeFuzz(stridesProperty)) }

// call holds the operands of both functions.
type call struct {
	out, dq, dk, dv, dout, q, k, v, lse, ws snug.View
	c                                       Options
}

func (a *call) forward() error { return Forward(a.out, a.lse, a.q, a.k, a.v, a.c) }

func (a *call) backward() error {
	return Backward(a.dq, a.dk, a.dv, a.dout, a.q, a.k, a.v, a.out, a.lse, a.c, a.ws)
}

// Every error is found before anything is written.
func TestErrors(t *testing.T) {
	backends := kerneltest.Backends(t)
	far, err := snug.Make[float32](backends[2].Dev, 100)
	require.NoError(t, err)
	closed, err := snug.Make[float32](snug.CPU(), 100)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	short := func(v *snug.View) { *v, _ = v.Slice(0, v.Len()-1) }
	halves := snug.ViewOf(make([]snug.BFloat16, 100))
	for name, tc := range map[string]struct {
		change            func(*call)
		forward, backward error
	}{
		"good":          {func(a *call) {}, nil, nil},
		"config":        {func(a *call) { a.c.Scale = float32(math.NaN()) }, snug.ErrConfig, snug.ErrConfig},
		"config first":  {func(a *call) { a.c.Dim, a.k, a.q = -1, halves, far.View() }, snug.ErrShape, snug.ErrShape},
		"q bytes":       {func(a *call) { a.q = snug.SliceView(make([]uint8, 100)) }, snug.ErrDType, snug.ErrDType},
		"q none":        {func(a *call) { a.q = snug.View{} }, snug.ErrDType, snug.ErrDType},
		"k dtype":       {func(a *call) { a.k = halves }, snug.ErrDType, snug.ErrDType},
		"out dtype":     {func(a *call) { a.out = halves }, snug.ErrDType, snug.ErrDType},
		"dv dtype":      {func(a *call) { a.dv = halves }, nil, snug.ErrDType},
		"lse dtype":     {func(a *call) { a.lse = halves }, snug.ErrDType, snug.ErrDType},
		"ws dtype":      {func(a *call) { a.ws = halves }, nil, snug.ErrDType},
		"dtype first":   {func(a *call) { short(&a.q); a.k = halves }, snug.ErrDType, snug.ErrDType},
		"q short":       {func(a *call) { short(&a.q) }, snug.ErrShape, snug.ErrShape},
		"k short":       {func(a *call) { short(&a.k) }, snug.ErrShape, snug.ErrShape},
		"v short":       {func(a *call) { short(&a.v) }, snug.ErrShape, snug.ErrShape},
		"out short":     {func(a *call) { short(&a.out) }, snug.ErrShape, snug.ErrShape},
		"dout short":    {func(a *call) { short(&a.dout) }, nil, snug.ErrShape},
		"dq short":      {func(a *call) { short(&a.dq) }, nil, snug.ErrShape},
		"dk short":      {func(a *call) { short(&a.dk) }, nil, snug.ErrShape},
		"dv short":      {func(a *call) { short(&a.dv) }, nil, snug.ErrShape},
		"lse short":     {func(a *call) { short(&a.lse) }, snug.ErrShape, snug.ErrShape},
		"lse long":      {func(a *call) { a.lse = snug.ViewOf(make([]float32, 13)) }, snug.ErrShape, snug.ErrShape},
		"no lse":        {func(a *call) { a.lse = snug.View{} }, nil, snug.ErrShape},
		"ws short":      {func(a *call) { short(&a.ws) }, nil, snug.ErrShape},
		"ws long":       {func(a *call) { a.ws = snug.ViewOf(make([]float32, 20)) }, nil, nil},
		"closed":        {func(a *call) { a.v = closed.View() }, snug.ErrShape, snug.ErrShape},
		"device":        {func(a *call) { a.v = far.View() }, snug.ErrDevice, snug.ErrDevice},
		"device of ws":  {func(a *call) { a.ws = far.View() }, nil, snug.ErrDevice},
		"shape first":   {func(a *call) { a.v = far.View(); short(&a.q) }, snug.ErrShape, snug.ErrShape},
		"strides short": {func(a *call) { a.c.Q = Strides{Head: 4, Row: 17} }, snug.ErrShape, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			r := resolved(t, small)
			view := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
			sizes := map[string]int{}
			for _, o := range r.operands() {
				sizes[o.name] = o.size()
			}
			a := &call{
				out: view(sizes["out"]), dout: view(sizes["out"]), q: view(sizes["q"]), dq: view(sizes["q"]),
				k: view(sizes["k"]), dk: view(sizes["k"]), v: view(sizes["v"]), dv: view(sizes["v"]),
				lse: view(12), ws: view(12), c: small,
			}
			outputs := []snug.View{a.out, a.dq, a.dk, a.dv, a.lse, a.ws}
			for _, o := range outputs {
				fill(o.Float32s(), gap)
			}
			tc.change(a)
			for _, f := range []struct {
				want error
				call func() error
			}{{tc.forward, a.forward}, {tc.backward, a.backward}} {
				err := f.call()
				require.ErrorIs(t, err, f.want)
				if f.want == nil {
					break // it has written
				}
				require.ErrorContains(t, err, "attention: ")
				for _, o := range outputs {
					for _, x := range o.Float32s() {
						require.Equal(t, float32(gap), x)
					}
				}
			}
			if tc.forward == nil {
				require.ErrorIs(t, a.backward(), tc.backward)
			}
		})
	}
}

func callOf(t testing.TB, c Options, dt snug.DType) *call {
	r := resolved(t, c)
	o := r.operands()
	zeros := func(o operand) snug.View {
		return put(t, kerneltest.Backend{}, dt, o, 0, make([]float32, o.size())).View
	}
	rows := func() snug.View { return snug.ViewOf(make([]float32, r.queries())) }
	return &call{
		out: zeros(o[3]), dout: zeros(o[3]), q: zeros(o[0]), dq: zeros(o[0]), k: zeros(o[1]), dk: zeros(o[1]),
		v: zeros(o[2]), dv: zeros(o[2]), lse: rows(), ws: rows(), c: c,
	}
}
