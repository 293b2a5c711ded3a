package attention

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sentinels are those that an error of a bad argument may wrap.
var sentinels = []error{
	snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrConfig, snug.ErrNonFinite, snug.ErrNoMemory, snug.ErrNotBuilt, snug.ErrCorrupt,
}

// extremes are numbers at the ends of what an int counts, and around the sizes of tiles.
var extremes = []int{
	math.MinInt, math.MinInt + 1, -1, 0, 1, 2, 3, 63, 64, 65, 127, 128, 255, 256, maxDim, maxDim + 1, math.MaxInt32 - 1, math.MaxInt32,
	math.MaxInt / 128, math.MaxInt/4 - 1, math.MaxInt / 4, math.MaxInt/2 + 1, math.MaxInt - 127, math.MaxInt - 1, math.MaxInt,
}

// drawn is a call with arguments that are likely to be wrong.
type drawn struct {
	t    *rapid.T
	all  []snug.View // what the call must not write if it fails
	want [][]byte
}

// odd says whether to draw an argument at random, rarely: most of the others are right, so
// that the checks behind theirs are reached.
func (d *drawn) odd(name string) bool { return rapid.IntRange(0, 9).Draw(d.t, name+" is odd") == 0 }

// size draws right, or any number.
func (d *drawn) size(name string, right int) int {
	if !d.odd(name) {
		return right
	}
	return rapid.SampledFrom(extremes).Draw(d.t, name)
}

// vector draws a vector of n float32, or another.
func (d *drawn) vector(name string, n int) snug.View {
	v := snug.SliceView(make([]float32, n))
	if d.odd(name) {
		n = rapid.SampledFrom([]int{0, 1, 2, 3, 4, 8}).Draw(d.t, name+" length")
		v = rapid.SampledFrom([]snug.View{
			{}, snug.SliceView(make([]snug.Float16, n)), snug.SliceView(make([]snug.BFloat16, n)), snug.SliceView(make([]uint8, n)),
			snug.SliceView(make([]int32, n)), snug.SliceView(make([]float32, n)), snug.SliceView([]float32(nil)),
		}).Draw(d.t, name)
	}
	for i := range device.Mem(&v).Bytes() {
		device.Mem(&v).Bytes()[i] = 42 // a finite number in every type
	}
	d.all = append(d.all, v)
	d.want = append(d.want, slices.Clone(device.Mem(&v).Bytes()))
	return v
}

func (d *drawn) strides(name string) Strides {
	if !d.odd(name) {
		return Strides{}
	}
	return Strides{d.size(name+".Batch", 4), d.size(name+".Head", 4), d.size(name+".Row", 2)}
}

// numbers draws right or, rarely, some others of them.
func (d *drawn) numbers(name string, right ...int) []int {
	x := slices.Clone(right)
	for i := range x {
		x[i] = d.size(name, x[i])
	}
	if d.odd(name + " length") {
		x = x[:rapid.IntRange(0, len(x)).Draw(d.t, name+" length")]
	}
	return x
}

func (d *drawn) sometimes(name string) bool { return rapid.IntRange(0, 4).Draw(d.t, name) == 0 }

func (d *drawn) config() Options {
	c := Options{
		Batch: d.size("Batch", 1), Heads: d.size("Heads", 1), KVHeads: d.size("KVHeads", 1), SeqQ: d.size("SeqQ", 2), SeqK: d.size("SeqK", 2),
		Dim: d.size("Dim", 2), DimV: d.size("DimV", 2), Causal: rapid.Bool().Draw(d.t, "causal"), Align: Align(d.size("Align", 0)),
		Q: d.strides("Q"), K: d.strides("K"), V: d.strides("V"), Out: d.strides("Out"),
	}
	for _, part := range []struct {
		name string
		add  func()
	}{
		{"packed", func() { c.QStarts, c.KStarts = d.numbers("QStarts", 0, 2), d.numbers("KStarts", 0, 2) }},
		{"lens", func() { c.KLens = d.numbers("KLens", 1) }},
		{"shift", func() { c.Align, c.Shift = Shifted, d.size("Shift", 1) }},
		{"window", func() { c.Window = Window{Left: d.size("left", 1), Right: d.size("right", 1)} }},
		{"drop", func() { c.Dropout = Dropout{P: 0.5, Query: d.size("Query", 1), Key: d.size("Key", 1)} }},
		{"bias", func() {
			c.Bias = Bias{X: d.vector("bias", 1), Grad: d.vector("dbias", 1)}
			for i := range c.Bias.Dims {
				c.Bias.Dims[i] = d.size("bias dim", 1)
			}
		}},
		{"sinks", func() { c.Sinks = Sinks{X: d.vector("sinks", 1), Grad: d.vector("dsinks", 1)} }},
		{"slopes", func() { c.Slopes = d.vector("slopes", 1) }},
		{"dlse", func() { c.GradLSE = d.vector("dlse", 2) }},
		{"score", func() { c.Score = func(s float32, _, _, _, _ int) (float32, float32) { return s, 1 } }},
		{"mask", func() {
			if c.Mask = tiles(1, 1, 2, 2); d.odd("mask") {
				c.Mask = &Mask{}
			}
		}},
	} {
		if d.sometimes(part.name) {
			part.add()
		}
	}
	return c
}

func (d *drawn) cache() *Cache {
	if d.odd("cache") {
		return nil
	}
	kv := &Cache{K: d.vector("K", 4), V: d.vector("V", 4), PageSize: d.size("PageSize", 1), Count: d.size("Count", 2)}
	if rapid.Bool().Draw(d.t, "scales") {
		kv.KScale, kv.VScale = d.vector("KScale", 2), d.vector("VScale", 2)
	}
	switch rapid.IntRange(0, 2).Draw(d.t, "pages") {
	case 0:
		kv.Pages = [][]int{d.numbers("page", 0, 1)}
	case 1:
		if kv.Table = d.vector("Table", 2); kv.Table.DType() == snug.F32 {
			kv.Table = snug.SliceView([]int32{0, int32(d.size("page", 1))})
		}
	}
	return kv
}

// limitsProperty calls a function with any arguments: it does not panic, and an error wraps
// a sentinel and comes before anything is written.
func limitsProperty(t *rapid.T) {
	d := &drawn{t: t}
	c := d.config()
	tensor := func(name string) snug.View { return d.vector(name, 4) }
	row := func(name string) snug.View { return d.vector(name, 2) }
	err := error(nil)
	switch rapid.IntRange(0, 6).Draw(t, "function") {
	case 0:
		err = Forward(tensor("out"), row("lse"), tensor("q"), tensor("k"), tensor("v"), c)
	case 1:
		err = Backward(tensor("dq"), tensor("dk"), tensor("dv"), tensor("dout"), tensor("q"), tensor("k"), tensor("v"), tensor("out"),
			row("lse"), c, row("ws"))
	case 2:
		err = ForwardCached(tensor("out"), row("lse"), tensor("q"), d.cache(), c)
	case 3:
		err = Merge(tensor("out"), row("lse"), tensor("out1"), row("lse1"), tensor("out2"), row("lse2"), c)
	case 4:
		err = MergeBackward(tensor("dout1"), row("dlse1"), tensor("dout"), tensor("out"), row("lse"), tensor("out1"), row("lse1"), c)
	case 5:
		codes := snug.SliceView(make([]uint8, 4))
		if d.odd("codes") {
			codes = d.vector("codes", 4)
		}
		err = QuantizeRows(codes, row("scales"), tensor("x"), d.size("dim", 2))
	default:
		c = SequenceMajor(PackedQKV(SequenceMajor(c)))
		err = c.Validate()
		if n := c.WorkspaceLen(); n < 0 || err != nil && n != 0 {
			t.Fatalf("%d elements of workspace, %v", n, err)
		}
		if n := c.ScratchBytes(); n < 0 || err != nil && n != 0 {
			t.Fatalf("%d bytes of scratch, %v", n, err)
		}
	}
	if err == nil {
		return
	}
	if !slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) }) {
		t.Fatalf("%v wraps no sentinel", err)
	}
	for i, v := range d.all {
		require.Equal(t, d.want[i], device.Mem(&v).Bytes(), "%v, but something was written", err)
	}
}

func TestLimits(t *testing.T) {
	for range 30 { // a call takes microseconds
		rapid.Check(t, limitsProperty)
	}
}

func FuzzLimits(f *testing.F) { f.Fuzz(rapid.MakeFuzz(limitsProperty)) }

func TestMaskLimits(t *testing.T) {
	sees := func(_, _, _, _ int) bool { return true }
	for _, n := range extremes {
		for i := range 4 {
			dims := [4]int{1, 1, 1, 1}
			dims[i] = n
			if n > 1<<20 {
				dims[(i+1)%4] = 1 << 30 // too many in any case: a Mask of 2^31 tiles is right where memory holds it
				dims[(i+2)%4] = 1 << 10
			}
			for name, make := range map[string]func(int, int, int, int, func(b, h, i, j int) bool) (*Mask, error){"NewMask": NewMask, "NewTileMask": NewTileMask} {
				m, err := make(dims[0], dims[1], dims[2], dims[3], sees)
				if n >= 0 && n <= 1<<20 {
					require.NoError(t, err, "%s %v", name, dims)
					require.NotNil(t, m)
					continue
				}
				require.ErrorIs(t, err, snug.ErrShape, "%s %v", name, dims)
			}
		}
	}
}

// Numbers that once overflowed or were counted up to.
func TestLargeNumbers(t *testing.T) {
	one := func() snug.View { return snug.SliceView([]float32{42}) }
	none := snug.SliceView([]float32{})
	t.Run("SeqK and PageSize", func(t *testing.T) {
		for _, seqK := range []int{math.MaxInt, math.MaxInt - 1, math.MaxInt - 62, math.MaxInt / 2} {
			for _, kv := range []*Cache{
				{K: one(), V: one(), PageSize: 64, Pages: [][]int{{0}}},
				{K: one(), V: one(), PageSize: 64, Table: snug.SliceView([]int32{0}), Count: 1},
				{K: one(), V: one(), PageSize: math.MaxInt, Pages: [][]int{{0}}},
				{K: one(), V: one(), PageSize: math.MaxInt, Table: snug.SliceView([]int32{0}), Count: math.MaxInt},
			} {
				out := one()
				err := ForwardCached(out, snug.View{}, one(), kv, Options{Batch: 1, Heads: 1, SeqQ: 1, SeqK: seqK, Dim: 1})
				require.ErrorIs(t, err, snug.ErrShape, "%d keys in pages of %d", seqK, kv.PageSize)
				require.Equal(t, []float32{42}, out.Float32s())
			}
		}
	})
	t.Run("sequences of a table", func(t *testing.T) {
		kv := &Cache{K: one(), V: one(), PageSize: 1, Table: snug.SliceView([]int32{0, 0}), Count: 1}
		err := ForwardCached(none, snug.View{}, none, kv, Options{Batch: math.MaxInt / 2, Heads: 1, SeqQ: 0, SeqK: 1, Dim: 1})
		require.ErrorIs(t, err, snug.ErrShape)
	})
	t.Run("sequences without rows", func(t *testing.T) {
		for _, batch := range []int{1, math.MaxInt32, math.MaxInt} {
			for _, keys := range []int{0, 1} {
				heads := 1 - keys // with a key, no heads
				c := Options{Batch: batch, Heads: heads, SeqK: keys, Dim: 1, Bias: Bias{X: one(), Grad: one(), Dims: [4]int{1, 1, 1, 1}}}
				if heads > 0 {
					c.Sinks = Sinks{X: one(), Grad: one()}
				}
				require.NoError(t, Backward(none, none, none, none, none, none, none, none, none, c, none), "%d", batch)
				require.Zero(t, c.Bias.Grad.Float32s()[0])
				if heads > 0 {
					require.Zero(t, c.Sinks.Grad.Float32s()[0])
				}
			}
		}
	})
	t.Run("rows of no elements", func(t *testing.T) {
		require.NoError(t, QuantizeRows([]uint8{}, []float32{}, []float32{}, math.MaxInt))
	})
}

// Zero values of every exported type, and nil.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		Options{}, new(Mask), (*Mask)(nil), NewMask, NewTileMask, Align(-1),
		Forward[[]float32, []float32], Forward[snug.View, snug.View], Backward[[]float32, []float32], Backward[snug.View, snug.View],
		Merge[[]float32, []float32], Merge[snug.View, snug.View], MergeBackward[[]float32, []float32], MergeBackward[snug.View, snug.View],
		ForwardCached[[]float32, []float32], ForwardCached[snug.View, snug.View],
		RingForward[[]float32, []float32], RingForward[snug.View, snug.View], RingBackward[[]float32, []float32], RingBackward[snug.View, snug.View],
		UlyssesForward[[]float32, []float32], UlyssesForward[snug.View, snug.View], UlyssesBackward[[]float32, []float32], UlyssesBackward[snug.View, snug.View],
		RingRows, Rows{},
		QuantizeRows[[]uint8, []float32, []float32], QuantizeRows[snug.View, snug.View, snug.View],
	)
	x := []float32{42}
	require.ErrorIs(t, Options{}.Validate(), snug.ErrShape, "Dim")
	require.ErrorIs(t, Forward(x, x[:0], x, x, x, Options{}), snug.ErrShape)
	require.ErrorIs(t, Backward(x, x, x, x, x, x, x, x, x, Options{}, x), snug.ErrShape)
	require.ErrorIs(t, Merge(x, x, x, x, x, x, Options{}), snug.ErrShape)
	require.ErrorIs(t, MergeBackward(x, x, x, x, x, x, x, Options{}), snug.ErrShape)
	one := Options{Batch: 1, Heads: 1, SeqQ: 1, SeqK: 1, Dim: 1}
	require.ErrorIs(t, ForwardCached(x, x[:0], x, nil, one), snug.ErrConfig)
	require.ErrorIs(t, ForwardCached(x, x[:0], x, &Cache{}, one), snug.ErrDType)
	require.ErrorIs(t, ForwardCached(snug.Array[float32]{}, snug.Array[float32]{}, snug.Array[float32]{}, &Cache{}, one), snug.ErrDType)
	require.ErrorIs(t, Forward(snug.View{}, snug.View{}, snug.View{}, snug.View{}, snug.View{}, one), snug.ErrDType)
	require.ErrorIs(t, Forward(snug.Array[float32]{}, snug.Array[float32]{}, snug.Array[float32]{}, snug.Array[float32]{}, snug.Array[float32]{}, one), snug.ErrShape)
	require.Equal(t, []float32{42}, x)

	for name, m := range map[string]*Mask{"nil": nil, "zero": {}} {
		none, all, some := m.Tiles()
		require.Zero(t, none+all+some, name)
		require.Zero(t, m.Bytes(), name)
		same, err := m.On(snug.CPU())
		require.NoError(t, err, name)
		require.Same(t, m, same)
		_, err = m.On(nil)
		require.ErrorIs(t, err, snug.ErrDevice, name)
		require.NoError(t, m.Close(), name)
	}
	one.Mask = &Mask{}
	require.ErrorIs(t, Forward(x, x[:0], x, x, x, one), snug.ErrShape)
	_, err := NewMask(1, 1, 1, 1, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = NewTileMask(1, 1, 1, 1, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// A Options without a dimension that tensors have is refused, or has the default that its
// doc names: never zeros and no error.
func TestForgottenDimensions(t *testing.T) {
	full := Options{Batch: 2, Heads: 2, SeqQ: 3, SeqK: 3, Dim: 4}
	p := newProblem(t, full, snug.F32, 1)
	want := p.run(t, kerneltest.Backend{}, snug.F32)
	for name, forget := range map[string]func(*Options){
		"Batch": func(c *Options) { c.Batch = 0 },
		"Heads": func(c *Options) { c.Heads, c.KVHeads = 0, 0 },
		"SeqQ":  func(c *Options) { c.SeqQ = 0 },
		"SeqK":  func(c *Options) { c.SeqK = 0 },
		"Dim":   func(c *Options) { c.Dim = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			c := full
			forget(&c)
			out, dq, dk, dv := filled(48), filled(48), filled(48), filled(48)
			lse, ws := filled(12), filled(12)
			err := Forward(out, lse, p.q, p.k, p.v, c)
			if name == "SeqK" {
				require.NoError(t, err)
				require.Equal(t, want.out, out)
				require.NoError(t, Backward(dq, dk, dv, p.dout, p.q, p.k, p.v, out, lse, c, ws))
				require.Equal(t, want.dk, dk)
				return
			}
			require.ErrorIs(t, err, snug.ErrShape)
			require.ErrorIs(t, Backward(dq, dk, dv, p.dout, p.q, p.k, p.v, p.v, lse, c, ws), snug.ErrShape)
			require.ErrorIs(t, Merge(out, lse, p.q, lse, p.k, lse, c), snug.ErrShape)
			for _, x := range [][]float32{out, dq, dk, dv} {
				require.Equal(t, filled(48), x)
			}
		})
	}
	t.Run("layouts", func(t *testing.T) {
		c := full
		c.SeqK = 0
		require.Equal(t, SequenceMajor(full).K, SequenceMajor(c).K)
		require.Equal(t, SequenceMajor(full).V, SequenceMajor(c).V)
	})
	t.Run("packed", func(t *testing.T) {
		for _, tc := range []struct{ starts, want []int }{
			{nil, []int{0, 1, 3}}, {[]int{0, 0, 0}, []int{0, 0, 0}}, {[]int{0, 2, 5}, []int{0, 2, 5}},
		} {
			c := Options{Batch: 2, Heads: 1, SeqQ: 3, Dim: 1, QStarts: []int{0, 1, 3}, KStarts: tc.starts}
			keys := tc.want[2]
			k := make([]float32, keys)
			out := filled(3)
			require.NoError(t, Forward(out, []float32(nil), []float32{1, 2, 3}, k, k, c))
			require.Equal(t, []float32{0, 0, 0}, out, "no keys, or values that are 0")
			require.Equal(t, keys, resolved(t, c).SeqK)
		}
	})
	t.Run("cache", func(t *testing.T) {
		c := full
		c.SeqK = 0
		out := filled(48)
		err := ForwardCached(out, []float32(nil), p.q, &Cache{K: snug.SliceView(p.k), V: snug.SliceView(p.v)}, c)
		require.ErrorIs(t, err, snug.ErrShape)
		require.ErrorContains(t, err, "SeqK")
		require.Equal(t, filled(48), out)
	})
	t.Run("bias", func(t *testing.T) {
		c := full
		c.Bias.Dims = [4]int{1, 1, 3, 3}
		require.Error(t, c.Validate(), "Dims without X")
	})
	require.NoError(t, full.Validate(), fmt.Sprint(full))
}
