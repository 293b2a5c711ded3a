package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Any features, as TestCombinations but fewer, as the emulator is slow.
func TestCombinationsOnDevices(t *testing.T) {
	n := 40
	if !kerneltest.Full() {
		n = 8
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for seed := range n {
			p, dt := combination(t, uint64(2000+seed))
			if !onHost(backend) {
				p.c.Score = nil // for the CPU
			}
			t.Run(fmt.Sprint(seed), func(t *testing.T) { p.check(t, backend, dt) })
		}
	})
}

// A sink of −Inf has no gradient where a query sees nothing.
func TestNoSinkAndNothingSeen(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		p := newProblem(t, Options{Batch: 1, Heads: 2, SeqQ: 2, SeqK: 3, Dim: 2, KLens: []int{0}}, snug.F32, 1)
		p.sinks = []float32{float32(math.Inf(-1)), 1}
		p.c.Sinks = Sinks{X: snug.SliceView(p.sinks), Grad: snug.SliceView(make([]float32, 2))}
		require.Equal(t, []float32{0, 0}, p.run(t, backend, snug.F32).dsinks)
	})
}

// More sequences than devices take at a time, with gradients that sum over all or not.
func TestManySequences(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, batch := range []int{1, 66} { // of the bias
			rng := rand.New(rand.NewPCG(8, 9))
			c := Options{Batch: 66, Heads: 1, Dim: 3, QStarts: make([]int, 67)}
			for b := range c.Batch {
				c.QStarts[b+1] = c.QStarts[b] + rng.IntN(4)
			}
			c.SeqQ = c.QStarts[c.Batch] + 5
			c.SeqK = c.SeqQ
			bias := feature{add: func(t testing.TB, p *problem, rng *rand.Rand) {
				p.biasType, p.bias = snug.F32, uniform(rng, batch*3*3, 1)
				p.c.Bias = Bias{X: snug.SliceView(p.bias), Dims: [4]int{batch, 1, 3, 3}, Grad: snug.SliceView(make([]float32, len(p.bias)))}
			}}
			withFeatures(t, c, snug.F32, 3, false, append(featuresNamed("sinks", "dropout", "alibi"), bias)).check(t, backend, snug.F32)
		}
	})
}

// A Mask is for one device, until it is closed.
func TestMaskOn(t *testing.T) {
	mask, err := NewMask(1, 1, 3, 70, func(b, h, i, j int) bool { return i <= j })
	require.NoError(t, err)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		dev := backend.Dev
		if dev == nil || dev.IsCPU() {
			same, err := mask.On(snug.CPU())
			require.NoError(t, err)
			require.Same(t, mask, same)
			require.NoError(t, same.Close())
			return
		}
		c := Options{Batch: 1, Heads: 1, SeqQ: 3, SeqK: 70, Dim: 2, Mask: mask}
		x := func() snug.View { return kerneltest.Put(t, backend, make([]float32, 140)).View }
		run := func() error { return Forward(x(), snug.View{}, x(), x(), x(), c) }
		require.ErrorIs(t, run(), snug.ErrDevice)
		there, err := mask.On(dev)
		require.NoError(t, err)
		require.Equal(t, 2*mask.Bytes(), there.Bytes())
		c.Mask = there
		require.NoError(t, run())
		host := make([]float32, 140)
		require.ErrorIs(t, Forward(host, []float32(nil), host, host, host, c), snug.ErrDevice)
		require.NoError(t, there.Close())
		require.ErrorIs(t, run(), snug.ErrDevice)
	})
}

// Score is for the CPU.
func TestScoreOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		if onHost(backend) {
			return
		}
		x := func() snug.View { return kerneltest.Put(t, backend, make([]float32, 4)).View }
		c := Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 2, Dim: 2, Score: func(s float32, b, h, i, j int) (value, slope float32) { return s, 1 }}
		require.ErrorIs(t, Forward(x(), snug.View{}, x(), x(), x(), c), snug.ErrDevice)
	})
}

// Rows that several blocks share, in a layout with gaps, and a gradient in lse alone also
// on matrix units.
func TestLongRows(t *testing.T) {
	c := Options{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 20, SeqK: 67, Dim: 200, DimV: 130}
	c.Q = Strides{Batch: 201, Head: 402, Row: 804}
	c.K = Strides{Batch: 70 * 203, Head: 1, Row: 203}
	c.V = Strides{Batch: 130, Head: 1, Row: 260}
	c.Out = Strides{Batch: 40 * 131, Head: 131, Row: 2 * 131}
	c.K.Head, c.V.Head = 2*70*203, 260*70
	units := Options{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 67, SeqK: 70, Dim: 64, Causal: true}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, dt := range dtypes {
			if backend.Emulated && !kerneltest.Full() && i > 0 {
				continue // slow
			}
			some := featuresNamed([]string{"window", "mask", "dropout"}[i], "softcap", "bias gradient", "sinks", "gradient in lse")
			withFeatures(t, c, dt, uint64(i), false, some).check(t, backend, dt)
		}
		p := withFeatures(t, units, snug.F16, 5, false, featuresNamed("gradient in lse"))
		p.start = aligning
		p.check(t, backend, snug.F16)
	})
}
