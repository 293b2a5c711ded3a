package quant8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func newAdamW(t testing.TB, o AdamWOptions, params map[string]int) *AdamW {
	t.Helper()
	a, err := NewAdamW(o)
	require.NoError(t, err)
	for name, n := range params {
		require.NoError(t, a.Add(name, n))
	}
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

func TestDefaults(t *testing.T) {
	a := newAdamW(t, AdamWOptions{}, nil)
	require.Equal(t, AdamWOptions{
		Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Bits: 8, Block: 256, Min8bit: 4096, Chunk: 1 << 16,
	}, AdamWOptions{}.withDefaults())
	require.Equal(t, a.o.StateOptions, StateOptions{Bits: 8, Block: 256, Min8bit: 4096, Chunk: 1 << 16})
	require.Equal(t, 128, AdamWOptions{Bits: 4}.withDefaults().Block)
	require.Equal(t, 256, AdamWOptions{Bits: 16}.withDefaults().Block)
	require.Equal(t, 65472, AdamWOptions{Block: 33}.withDefaults().Chunk, "even, and a multiple of the block")
	require.Equal(t, 65280, AdamWOptions{Block: 4096 - 256}.withDefaults().Chunk)
}

func TestOptionErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	large, unordered := DynamicMap(true), LinearMap(false)
	large[255], unordered[7] = 1.5, 0
	for name, o := range map[string]AdamWOptions{
		"Beta1":        {Beta1: 1},
		"Beta2":        {Beta2: -0.5},
		"Eps":          {Eps: inf},
		"WeightDecay":  {WeightDecay: -1},
		"decay NaN":    {WeightDecay: nan},
		"Bits":         {Bits: 5},
		"Block":        {Block: 16},
		"4-bit Block":  {Bits: 4, Block: 48},
		"4-bit Map1":   {Bits: 4, Map1: DynamicMap(true)},
		"4-bit Map2":   {Bits: 4, Map2: DynamicMap(false)},
		"large Block":  {Block: 8192},
		"Min8bit":      {Min8bit: -1},
		"Order":        {Order: 9},
		"Chunk":        {Chunk: 1000},
		"odd Chunk":    {Block: 33, Chunk: 33},
		"large Chunk":  {Chunk: 1 << 28},
		"negative":     {Chunk: -256},
		"small Block":  {Block: -5},
		"smaller Bits": {Bits: -8},
		"Map1":         {Map1: new(Map)},
		"large Map1":   {Map1: large},
		"Map1 sign":    {Map1: DynamicMap(false)},
		"Map2":         {Map2: DynamicMap(true)},
		"Map2 order":   {Map2: unordered},
	} {
		_, err := NewAdamW(o)
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.Zero(t, StateBytes(100, o), name)
	}
}

func TestStateBytes(t *testing.T) {
	for _, c := range []struct {
		n    int
		o    AdamWOptions
		want int64
	}{
		{1 << 20, AdamWOptions{}, 2<<20 + 8<<12},
		{1 << 20, AdamWOptions{Bits: 32}, 8 << 20},
		{4095, AdamWOptions{}, 8 * 4095},
		{4096, AdamWOptions{}, 2*4096 + 8*16},
		{4097, AdamWOptions{}, 2*4097 + 8*17},
		{5, AdamWOptions{Min8bit: 1}, 10 + 8},
		{0, AdamWOptions{}, 0},
		{-1, AdamWOptions{}, 0},
		{math.MaxInt32, AdamWOptions{Bits: 32}, 8 * math.MaxInt32},
		{100_001, AdamWOptions{Block: 33, Chunk: 660}, 2*100_001 + 8*3031},
	} {
		require.Equal(t, c.want, StateBytes(c.n, c.o), "%d %+v", c.n, c.o)
	}
	require.Equal(t, 2.03125, float64(StateBytes(1<<20, AdamWOptions{}))/(1<<20), "bytes a parameter")
	require.LessOrEqual(t, float64(StateBytes(100_003, AdamWOptions{}))/100_003, 2.04)

	a := newAdamW(t, AdamWOptions{}, map[string]int{"w": 70_001, "b": 10})
	want := StateBytes(70_001, AdamWOptions{}) + StateBytes(10, AdamWOptions{})
	require.Equal(t, want, a.StateBytes())
	advance(a)
	for name, n := range map[string]int{"w": 70_001, "b": 10} {
		require.NoError(t, a.Step(name, snug.ViewOf(make([]float32, n)), snug.ViewOf(make([]float32, n)), 1))
	}
	require.Equal(t, want, int64(a.params["w"].state.Len()+a.params["b"].state.Len()), "what is allocated")
}

func TestMaps(t *testing.T) {
	a := newAdamW(t, AdamWOptions{}, nil)
	m, v := a.Maps()
	require.Equal(t, DynamicMap(true), m)
	require.Equal(t, DynamicMap(false), v)
	m[0], v[0] = -1, 0.5
	again, _ := a.Maps()
	require.Equal(t, DynamicMap(true), again, "a copy")

	o := AdamWOptions{Map1: LinearMap(true), Map2: LinearMap(false)}
	b := newAdamW(t, o, nil)
	*o.Map1 = *m
	m, v = b.Maps()
	require.Equal(t, LinearMap(true), m, "the options are copied")
	require.Equal(t, LinearMap(false), v)
	newAdamW(t, AdamWOptions{Map1: DynamicMap(false), Order: Decoupled}, nil)
}

func TestAddErrors(t *testing.T) {
	a := newAdamW(t, AdamWOptions{}, map[string]int{"w": 10})
	require.ErrorIs(t, a.Add("", 1), snug.ErrConfig)
	require.ErrorIs(t, a.Add("w", 1), snug.ErrConfig)
	require.ErrorIs(t, a.Add("x", -1), snug.ErrShape)
	require.ErrorIs(t, a.Add("x", math.MaxInt), snug.ErrShape)
	a.Advance(0)
	require.ErrorIs(t, a.Add("x", 1), snug.ErrConfig)
	require.Equal(t, 1, a.Steps())
}

func TestClose(t *testing.T) {
	a := newAdamW(t, AdamWOptions{}, map[string]int{"w": 10})
	x := snug.ViewOf(make([]float32, 10))
	advance(a)
	require.NoError(t, a.Step("w", x, x, 1))
	data, err := a.AppendBinary(nil)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Step("w", x, x, 1), snug.ErrConfig)
	_, err = a.AppendBinary(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, a.UnmarshalBinary(data))
	require.ErrorIs(t, a.Step("w", x, x, 1), snug.ErrConfig, "it was updated before it was saved")
	advance(a)
	require.NoError(t, a.Step("w", x, x, 1))
}
