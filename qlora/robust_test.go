package qlora

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestNilAndZeroValues goes through all methods and functions with nil and zero values,
// and with ones that are closed: none panics, and what needs elements returns an error.
func TestNilAndZeroValues(t *testing.T) {
	kerneltest.Zero(t, (*AdapterReader)(nil), new(AdapterReader),
		AdapterOptions{}, new(Dense), (*Dense)(nil), new(DoRA), (*DoRA)(nil), new(Linear), (*Linear)(nil), new(LoRA), (*LoRA)(nil), new(Weight), (*Weight)(nil),
		new(Weights), (*Weights)(nil), GGUF, Modules{}, new(Modules), Type(255), new(VeRA), (*VeRA)(nil), NewVeRA, SaveVeRA, LoRAPlus, LoRAScale, PackedBytes, Blocks, NewDense, NewDoRA, NewLinear, Merge,
		NewWeight[[]float32], NewWeight[snug.View], NewWeights, NewBlocks, ParseType, WriteWeights, SaveAdapters,
		Quantize[[]uint8, []float32, []float32], Dequantize[[]float32, []uint8, []float32], Quantize[snug.View, snug.View, snug.View],
		Dequantize[snug.View, snug.View, snug.View], DoubleQuantize[[]uint8, []float32, []float32], DoubleDequantize[[]float32, []uint8, []float32],
	)
	x := snug.ViewOf(make([]float32, 64))
	weight, err := NewWeight(x, []int{1, 64}, Options{})
	require.NoError(t, err)
	closed, err := NewWeight(x, []int{1, 64}, Options{})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	adapter := &LoRA{In: 64, Out: 1, Rank: 1, Scale: 1, A: x, B: snug.ViewOf([]float32{1}), Magnitude: snug.ViewOf([]float32{1})}
	linear, err := NewLinear(weight, snug.F32, 0)
	require.NoError(t, err)
	dora, err := NewDoRA(linear, adapter)
	require.NoError(t, err)
	y := snug.ViewOf(make([]float32, 1))

	for name, w := range map[string]*Weight{"nil": nil, "zero": {}, "closed": closed} {
		t.Run("Weight/"+name, func(t *testing.T) {
			want := snug.ErrConfig
			if w == closed {
				want = snug.ErrDevice
			}
			_, _, _, _, _, _, _, _ = w.Shape(), w.Len(), w.Type(), w.Block(), w.Double(), w.DType(), w.Device(), w.Bytes()
			require.Zero(t, w.Blocks())
			require.Zero(t, w.Packed().Len())
			_, err := w.Absmax()
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, w.Dequantize(x), want)
			_, err = w.Deviation(x)
			require.ErrorIs(t, err, want)
			_, err = NewLinear(w, snug.F32, 0)
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, errorOf(Merge(x, w, adapter, 0)), want)
			n, err := WriteWeights(io.Discard, one("w", w), nil)
			require.ErrorIs(t, err, want)
			require.Zero(t, n)
			require.NoError(t, w.Close())
		})
	}
	linears := map[string]*Linear{"nil": nil, "zero": {}, "closed": closedLinear(t, weight)}
	for name, l := range linears {
		t.Run("Linear/"+name, func(t *testing.T) {
			require.Zero(t, l.Bytes())
			require.ErrorIs(t, l.Forward(y, x, 0), snug.ErrConfig)
			require.ErrorIs(t, l.Backward(x, y, 0), snug.ErrConfig)
			require.ErrorIs(t, l.Norms(y, nil), snug.ErrConfig)
			require.ErrorIs(t, l.Norms(y, adapter), snug.ErrConfig)
			_, err := NewDoRA(l, adapter)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.NoError(t, l.Close())
		})
	}
	for name, a := range map[string]*LoRA{"nil": nil, "zero": {}} {
		t.Run("LoRA/"+name, func(t *testing.T) {
			require.Zero(t, a.Params())
			require.ErrorIs(t, a.Forward(y, y, x, Dropout{}), snug.ErrConfig)
			require.ErrorIs(t, a.Forward(snug.View{}, snug.View{}, snug.View{}, Dropout{}), snug.ErrConfig)
			require.ErrorIs(t, a.Backward(x, y, y, y, x, Grads{}, Dropout{}), snug.ErrConfig)
			require.ErrorIs(t, errorOf(Merge(x, weight, a, 0)), snug.ErrConfig)
			_, err := NewDoRA(linear, a)
			require.ErrorIs(t, err, snug.ErrConfig)
			if a != nil {
				require.ErrorIs(t, linear.Norms(y, a), snug.ErrConfig)
			}
			c := AdapterOptions{Rank: 1, Alpha: 1}
			require.ErrorIs(t, SaveAdapters(t.TempDir(), c, map[string]*LoRA{"up": a}), snug.ErrConfig)
			require.NoError(t, a.Close())
		})
	}
	require.NoError(t, linear.Norms(y, nil))
	other, err := NewDoRA(linear, adapter)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	for name, d := range map[string]*DoRA{"nil": nil, "zero": {}, "closed": other} {
		t.Run("DoRA/"+name, func(t *testing.T) {
			require.ErrorIs(t, d.Update(), snug.ErrConfig)
			require.ErrorIs(t, d.Forward(y, y, y, x, Dropout{}), snug.ErrConfig)
			require.ErrorIs(t, d.Backward(x, y, y, y, y, x, Grads{}, Dropout{}), snug.ErrConfig)
			require.NoError(t, d.Close())
		})
	}
	for name, w := range map[string]*Weights{"nil": nil, "zero": {}} {
		t.Run("Weights/"+name, func(t *testing.T) {
			require.Empty(t, w.Names())
			_, err := w.Load("x", nil)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.NoError(t, w.Close())
		})
	}
	t.Run("others", func(t *testing.T) {
		_, err := (AdapterOptions{}).Selects("x")
		require.ErrorIs(t, err, snug.ErrConfig)
		_, _, err = (AdapterOptions{}).RankOf("x")
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorIs(t, SaveAdapters("", AdapterOptions{}, nil), snug.ErrConfig)
		folder := filepath.Join(t.TempDir(), "missing")
		_, _, err = LoadAdapters(folder, nil)
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, fmt.Sprintf("load adapters of %q", folder))
		_, _, err = LoadAdapters("", nil)
		require.Error(t, err)
		_, err = NewWeights(nil, 0)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = WriteWeights(nil, nil, nil)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = WriteWeights(io.Discard, nil, nil)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Zero(t, Type(0).Values())
		require.Equal(t, "invalid", Type(9).String())
		_, err = NewWeight[[]float32](nil, nil, Options{})
		require.ErrorIs(t, err, snug.ErrShape)
		_, err = NewWeight(snug.View{}, []int{0}, Options{})
		require.ErrorIs(t, err, snug.ErrDType)
		_, err = NewWeight(x, []int{64}, Options{Type: 9})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Error(t, Quantize([]uint8(nil), []float32(nil), []float32(nil), 0, 0))
		require.Error(t, Dequantize([]float32(nil), []uint8(nil), []float32(nil), 0, 0))
		require.NoError(t, (&Modules{}).UnmarshalJSON([]byte("null")))
		require.Error(t, (&Modules{}).UnmarshalJSON(nil))
	})
	require.NoError(t, dora.Close())
	require.NoError(t, linear.Close())
}

func closedLinear(t *testing.T, w *Weight) *Linear {
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l
}

// TestClosedBeneath closes the weight of layers in use.
func TestClosedBeneath(t *testing.T) {
	for _, backend := range backends(t) {
		put := func(n int) snug.View { return on(t, backend.Dev, snug.F32, make([]float32, n)) }
		w, err := NewWeight(put(128), []int{2, 64}, Options{})
		require.NoError(t, err)
		l, err := NewLinear(w, snug.F32, 0)
		require.NoError(t, err)
		d, err := NewDoRA(l, &LoRA{In: 64, Out: 2, Rank: 1, Scale: 1, A: put(64), B: put(2), Magnitude: put(2)})
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.ErrorIs(t, l.Forward(put(2), put(64), 0), snug.ErrDevice)
		require.ErrorIs(t, l.Backward(put(64), put(2), 0), snug.ErrDevice)
		require.ErrorIs(t, l.Norms(put(2), nil), snug.ErrDevice)
		require.ErrorIs(t, d.Update(), snug.ErrDevice)
		require.ErrorIs(t, d.Forward(put(2), put(2), put(1), put(64), Dropout{}), snug.ErrDevice)
		require.NoError(t, d.Close())
		require.NoError(t, l.Close())
	}
}

// TestSizesNearTheLargest has sizes whose products do not fit in an int.
func TestSizesNearTheLargest(t *testing.T) {
	half := 1 << (bits.UintSize / 2) // its square is 0
	none := snug.ViewOf([]float32{})
	for _, a := range []LoRA{
		{In: half, Out: half, Rank: half, Scale: 1, A: none, B: none},
		{In: math.MaxInt, Out: math.MaxInt, Rank: 2, Scale: 1, A: none, B: none},
		{In: 2, Out: math.MaxInt/2 + 1, Rank: math.MaxInt/2 + 1, Scale: 1, A: none, B: none},
	} {
		require.ErrorIs(t, a.Forward(none, none, none, Dropout{}), snug.ErrShape)
		require.ErrorIs(t, SaveAdapters(t.TempDir(), AdapterOptions{Rank: a.Rank, Alpha: 1}, map[string]*LoRA{"up": &a}), snug.ErrShape)
	}
	for _, n := range []int{math.MaxInt, math.MaxInt - 1} {
		require.Equal(t, n/2+n%2, PackedBytes(n))
		require.Equal(t, 1, Blocks(n, math.MaxInt))
		require.Positive(t, Blocks(n, 64))
	}
	x := snug.ViewOf(make([]float32, 64))
	for _, shape := range [][]int{{math.MaxInt}, {math.MaxInt, math.MaxInt}, {half, half}, {-1, -64}, {math.MinInt}} {
		_, err := NewWeight(x, shape, Options{})
		require.ErrorIs(t, err, snug.ErrShape)
	}
	for _, block := range []int{math.MaxInt, math.MinInt, -64, 1 << 30} {
		_, err := NewWeight(x, []int{64}, Options{Block: block})
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	w, err := NewWeight(x, []int{1, 64}, Options{})
	require.NoError(t, err)
	for _, tile := range []int{math.MaxInt, 1, math.MaxInt - 1} {
		l, err := NewLinear(w, snug.F32, tile)
		require.NoError(t, err)
		require.LessOrEqual(t, l.Bytes(), int64(4*64))
		require.NoError(t, l.Close())
	}
	_, err = NewLinear(w, snug.F32, math.MinInt)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, _, err = (AdapterOptions{Rank: math.MaxInt, Alpha: math.MaxFloat32}).RankOf("x")
	require.NoError(t, err)
}

// panicky is a reader and a writer that panic at the n-th call.
type panicky struct {
	n int
	r io.ReaderAt
}

func (p *panicky) call() {
	if p.n--; p.n == 0 {
		panic("callback")
	}
}

func (p *panicky) ReadAt(b []byte, off int64) (int, error) {
	p.call()
	return p.r.ReadAt(b, off)
}

func (p *panicky) Write(b []byte) (int, error) {
	p.call()
	return len(b), nil
}

// TestPanicsOfCallbacks: a panic in what the caller hands in reaches the caller, no memory
// of a device is left, and later calls work.
//
//check:in race
func TestPanicsOfCallbacks(t *testing.T) {
	file := small(t)
	for n := 1; n <= 2; n++ {
		require.PanicsWithValue(t, "callback", func() { _, _ = NewWeights(&panicky{n, bytes.NewReader(file)}, int64(len(file))) })
	}
	dev := kerneltest.Backends(t)[2].Dev
	used := func() int64 {
		require.NoError(t, dev.Sync())
		free, total, err := dev.Memory()
		require.NoError(t, err)
		return total - free
	}
	before := used()
	for n := 1; ; n++ {
		p := &panicky{r: bytes.NewReader(file)}
		w, err := NewWeights(p, int64(len(file)))
		require.NoError(t, err)
		p.n = n
		var loaded *Weight
		if n > 6 { // the state, two maps, codes and absmax of two levels
			loaded, err = w.Load("w", dev)
			require.NoError(t, err)
			require.Greater(t, used(), before)
			require.NoError(t, loaded.Close())
			require.Equal(t, before, used())
			break
		}
		require.PanicsWithValue(t, "callback", func() { loaded, err = w.Load("w", dev) }, n)
		require.Nil(t, loaded)
		require.Equal(t, before, used(), n)
		p.n = 0
		loaded, err = w.Load("w", dev)
		require.NoError(t, err)
		require.NoError(t, loaded.Close())
	}
	weight, err := open(t, file).Load("w", nil)
	require.NoError(t, err)
	for n := 1; n <= 3; n++ {
		require.PanicsWithValue(t, "callback", func() { _, _ = WriteWeights(&panicky{n: n}, one("w", weight), nil) })
	}
	require.PanicsWithValue(t, "callback", func() {
		_, _ = WriteWeights(io.Discard, func(func(string, *Weight) bool) { panic("callback") }, nil)
	})
}
