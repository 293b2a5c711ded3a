package quant8

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// newAdamW returns an optimizer with the defaults of AdamW.
func newAdamW(t testing.TB, o Options, params map[string]int) *Optimizer {
	t.Helper()
	return newWith(t, AdamW{}, o, params)
}

// newWith returns an optimizer with parameters.
func newWith(t testing.TB, rule Rule, o Options, params map[string]int) *Optimizer {
	t.Helper()
	a, err := New(rule, o)
	require.NoError(t, err)
	for name, n := range params {
		require.NoError(t, a.Add(name, n))
	}
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// withDefaults returns the options that an AdamW has.
func withDefaults(o Options) Options { return o.withDefaults(optim.Adam) }

func TestDefaults(t *testing.T) {
	a := newAdamW(t, Options{}, nil)
	beta1, beta2, eps := float32(0.9), float32(0.999), float32(1e-8)
	require.Equal(t, optim.Hyper{Rule: optim.Adam, Beta1: float64(beta1), Beta2: float64(beta2), Eps: float64(eps)}, a.o.hyper)
	require.Equal(t, a.o.Options, Options{Bits: 8, Block: 256, MinSize: 4096, Chunk: 1 << 16})
	require.Equal(t, 128, withDefaults(Options{Bits: 4}).Block)
	require.Equal(t, 256, withDefaults(Options{Bits: 16}).Block)
	require.Equal(t, 65472, withDefaults(Options{Block: 33}).Chunk, "even, and a multiple of the block")
	require.Equal(t, 65280, withDefaults(Options{Block: 4096 - 256}).Chunk)
}

func TestOptionErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	large, unordered := DynamicMap(true), LinearMap(false)
	large[255], unordered[7] = 1.5, 0
	for name, rule := range map[string]Rule{
		"Beta1":       AdamW{Beta1: 1},
		"Beta2":       AdamW{Beta2: -0.5},
		"Eps":         AdamW{Eps: inf},
		"WeightDecay": AdamW{WeightDecay: -1},
		"decay NaN":   AdamW{WeightDecay: nan},
		"nil":         nil, "pointer": &AdamW{}, "nil pointer": (*AdamW)(nil), "around": struct{ *AdamW }{}, "around one": struct{ AdamW }{},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(rule, Options{})
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.Zero(t, StateBytes(rule, Options{}, 100), name)
		})
	}
	for name, o := range map[string]Options{
		"Bits":         {Bits: 5},
		"Block":        {Block: 16},
		"4-bit Block":  {Bits: 4, Block: 48},
		"4-bit Map1":   {Bits: 4, Map1: DynamicMap(true)},
		"4-bit Map2":   {Bits: 4, Map2: DynamicMap(false)},
		"large Block":  {Block: 8192},
		"MinSize":      {MinSize: -1},
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
		t.Run(name, func(t *testing.T) {
			_, err := New(AdamW{}, o)
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.Zero(t, StateBytes(AdamW{}, o, 100), name)
		})
	}
}

func TestStateBytes(t *testing.T) {
	for _, c := range []struct {
		n    int
		o    Options
		want int64
	}{
		{1 << 20, Options{}, 2<<20 + 8<<12},
		{1 << 20, Options{Bits: 32}, 8 << 20},
		{4095, Options{}, 8 * 4095},
		{4096, Options{}, 2*4096 + 8*16},
		{4097, Options{}, 2*4097 + 8*17},
		{5, Options{MinSize: 1}, 10 + 8},
		{0, Options{}, 0},
		{-1, Options{}, 0},
		{math.MaxInt32, Options{Bits: 32}, 8 * math.MaxInt32},
		{100_001, Options{Block: 33, Chunk: 660}, 2*100_001 + 8*3031},
	} {
		require.Equal(t, c.want, StateBytes(AdamW{}, c.o, c.n), "%d %+v", c.n, c.o)
	}
	require.Equal(t, 2.03125, float64(StateBytes(AdamW{}, Options{}, 1<<20))/(1<<20), "bytes a parameter")
	require.LessOrEqual(t, float64(StateBytes(AdamW{}, Options{}, 100_003))/100_003, 2.04)

	a := newAdamW(t, Options{}, map[string]int{"w": 70_001, "b": 10})
	want := StateBytes(AdamW{}, Options{}, 70_001) + StateBytes(AdamW{}, Options{}, 10)
	require.Equal(t, want, a.StateBytes())
	advance(a)
	for name, n := range map[string]int{"w": 70_001, "b": 10} {
		require.NoError(t, a.Step(name, snug.ViewOf(make([]float32, n)), snug.ViewOf(make([]float32, n)), 1))
	}
	require.Equal(t, want, int64(a.params["w"].state.Len()+a.params["b"].state.Len()), "what is allocated")
}

// TestStateBytesOfRules: StateBytes are the bytes of an optimizer with the parameter, and 0
// where it refuses that.
func TestStateBytesOfRules(t *testing.T) {
	for _, rule := range []Rule{AdamW{}, Adam{}, AdEMAMix{}, Lion{}, SGD{}, RMSprop{}, Adagrad{}, LAMB{}, LARS{}, Adafactor{}, Adafactor{Beta1: 0.9}, Muon{}} {
		for _, bits := range widths {
			for _, shape := range [][]int{{5001}, {61, 83}, {3, 5}, {0}, {0, 7}, {-1}, {-1, 5}, {math.MaxInt, 2}, {}, {2, 3, 4}} {
				a, err := New(rule, Options{Bits: bits})
				require.NoError(t, err)
				switch len(shape) {
				case 1:
					_ = a.Add("w", shape[0])
				case 2:
					_ = a.AddMatrix("w", shape[0], shape[1])
				}
				require.Equal(t, a.StateBytes(), StateBytes(rule, Options{Bits: bits}, shape...), "%T %d bits %v", rule, bits, shape)
			}
		}
	}
}

func TestMaps(t *testing.T) {
	a := newAdamW(t, Options{}, nil)
	m, v := a.Maps()
	require.Equal(t, DynamicMap(true), m)
	require.Equal(t, DynamicMap(false), v)
	m[0], v[0] = -1, 0.5
	again, _ := a.Maps()
	require.Equal(t, DynamicMap(true), again, "a copy")

	o := Options{Map1: LinearMap(true), Map2: LinearMap(false)}
	b := newAdamW(t, o, nil)
	*o.Map1 = *m
	m, v = b.Maps()
	require.Equal(t, LinearMap(true), m, "the options are copied")
	require.Equal(t, LinearMap(false), v)
	newAdamW(t, Options{Map1: DynamicMap(false), NearestCodes: true}, nil)
}

func TestAddErrors(t *testing.T) {
	a := newAdamW(t, Options{}, map[string]int{"w": 10})
	require.ErrorIs(t, a.Add("", 1), snug.ErrConfig)
	require.ErrorIs(t, a.Add("w", 1), snug.ErrConfig)
	require.ErrorIs(t, a.Add("x", -1), snug.ErrShape)
	require.ErrorIs(t, a.Add("x", math.MaxInt), snug.ErrShape)
	a.Advance(0)
	require.ErrorIs(t, a.Add("x", 1), snug.ErrConfig)
	require.Equal(t, 1, a.Steps())
}

func TestClose(t *testing.T) {
	a := newAdamW(t, Options{}, map[string]int{"w": 10})
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
