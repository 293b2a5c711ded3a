package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// elementLosses are losses with their definitions.
var elementLosses = []struct {
	c  Elementwise
	of func(x, t float64) float64
}{
	{Elementwise{Form: MSE}, func(x, t float64) float64 { return (x - t) * (x - t) }},
	{Elementwise{Form: L1}, func(x, t float64) float64 { return math.Abs(x - t) }},
	{Elementwise{Form: Huber}, huber64(1, 1)},
	{Elementwise{Form: Huber, Delta: 0.5}, huber64(0.5, 0.5)},
	{Elementwise{Form: SmoothL1, Delta: 2}, huber64(2, 1)},
	{Elementwise{Form: BCE}, bce64},
	{Elementwise{Form: BCE, PosWeight: []float32{3}}, func(x, t float64) float64 {
		return 3*t*math.Log1p(math.Exp(-x)) + (1-t)*math.Log1p(math.Exp(x))
	}},
	{Elementwise{Form: Focal}, focal64(0.25, 2)},
	{Elementwise{Form: Focal, Alpha: -1, Gamma: 1.5}, focal64(-1, 1.5)},
	{Elementwise{Form: Focal, Alpha: 0.7, Gamma: 0.5}, focal64(float64(float32(0.7)), 0.5)},
}

func huber64(delta, slope float64) func(x, t float64) float64 {
	return func(x, t float64) float64 {
		if d := math.Abs(x - t); d > delta {
			return slope * (d - delta/2)
		} else {
			return slope * d * d / (2 * delta)
		}
	}
}

func bce64(x, t float64) float64 { return t*math.Log1p(math.Exp(-x)) + (1-t)*math.Log1p(math.Exp(x)) }

func focal64(alpha, gamma float64) func(x, t float64) float64 {
	return func(x, t float64) float64 {
		p := 1 / (1 + math.Exp(-x))
		loss := bce64(x, t) * math.Pow(p*(1-t)+(1-p)*t, gamma)
		if alpha >= 0 {
			loss *= alpha*t + (1-alpha)*(1-t)
		}
		return loss
	}
}

// Losses and their derivatives, weighted by rows, for targets that are 0, 1 or between.
//
//check:in tiers arm64
func TestElementwiseAgainstDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, b kerneltest.Backend) {
		for i, l := range elementLosses {
			for _, dt := range floatTypes {
				t.Run(fmt.Sprint(i, l.c.Form, dt), func(t *testing.T) {
					for _, n := range []int{0, 1, 60, 9000} {
						if b.Emulated && n > 60 && dt != snug.F32 {
							continue
						}
						rng := newRand(uint64(n))
						x, targets := normals(rng, dt, n, 0, 2), normals(rng, dt, n, 0.5, 0.2)
						for i := range targets {
							targets[i] = []float32{0, 1, min(max(targets[i], 0), 1)}[i%3]
						}
						c := l.c
						if n >= 60 {
							c.Weights = make([]float32, n/20)
							for i := range c.Weights {
								c.Weights[i] = float32(i%4) / 2
							}
						}
						put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, b, dt, v) }
						px, pt, dx := put(x), put(targets), put(fill(n, 42))
						loss, err := ElementwiseBackward(c, dx.View, px.View, pt.View, 0.5)
						require.NoError(t, err)
						sum, want, bound := 0.0, make([]float64, n), make([]float64, n)
						expected := Loss{}
						for i := range x {
							w := 1.0
							if c.Weights != nil {
								w = float64(c.Weights[i/20])
							}
							if w != 0 {
								expected.Targets++
							}
							expected.Weight += w
							at, target := []float64{float64(x[i])}, float64(targets[i])
							sum += w * l.of(at[0], target)
							want[i] = 0.5 * w * slope(func() float64 { return l.of(at[0], target) }, at, 0)
							bound[i] = 2e-6*math.Abs(w)*(1+math.Abs(at[0])) + roundoff(dt, want[i])
						}
						require.InDelta(t, sum, loss.Sum, 1e-6*(1+sum))
						expected.Sum = loss.Sum
						require.Equal(t, expected.Targets, loss.Targets)
						require.InDelta(t, expected.Weight, loss.Weight, 1e-9)
						requireClose(t, "dx", want, bound, dx.Get())

						alone, err := ElementwiseLoss(c, px.View, pt.View)
						require.NoError(t, err)
						require.Equal(t, loss, alone)
						again, err := ElementwiseBackward(c, px.View, px.View, pt.View, 0.5)
						require.NoError(t, err)
						require.Equal(t, loss, again)
						requireBits(t, "dx is x", dx.Get(), px.Get())
					}
				})
			}
		}
	})
}

func dice64(c Dice, x, t []float64) float64 {
	smooth := float64(c.Smooth)
	if smooth == 0 {
		smooth = 1
	}
	total := 0.0
	for r := range len(x) / c.Cols {
		overlap, sizes := 0.0, 0.0
		for i := r * c.Cols; i < (r+1)*c.Cols; i++ {
			p := 1 / (1 + math.Exp(-x[i]))
			overlap += p * t[i]
			if c.Squared {
				sizes += p*p + t[i]*t[i]
			} else {
				sizes += p + t[i]
			}
		}
		w := 1.0
		if c.Weights != nil {
			w = float64(c.Weights[r])
		}
		total += w * (1 - (2*overlap+smooth)/(sizes+smooth))
	}
	return total
}

//check:in tiers arm64
func TestDiceAgainstDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, b kerneltest.Backend) {
		for _, dt := range floatTypes {
			for _, c := range []Dice{{Cols: 1}, {Cols: 7, Squared: true, Smooth: 0.1}, {Cols: 3000, Squared: true}, {Cols: 40, Weights: []float32{1, 0, 2}}, {Cols: 1500, Weights: []float32{0.5, 0, 0}}} {
				t.Run(fmt.Sprint(dt, c.Cols), func(t *testing.T) {
					n := 3 * c.Cols
					rng := newRand(uint64(n))
					x, targets := normals(rng, dt, n, 0, 2), normals(rng, dt, n, 0, 1)
					for i, v := range targets {
						targets[i] = float32(math.Float32bits(v) >> 31)
					}
					put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, b, dt, v) }
					px, pt, dx := put(x), put(targets), put(fill(n, 42))
					loss, err := DiceBackward(c, dx.View, px.View, pt.View, 0.5)
					require.NoError(t, err)
					x64, t64 := float64s(x), float64s(targets)
					require.InDelta(t, dice64(c, x64, t64), loss.Sum, 1e-6)
					got := dx.Get()
					for i := 0; i < n; i += max(1, n/40) {
						want := 0.5 * slope(func() float64 { return dice64(c, x64, t64) }, x64, i)
						require.InDelta(t, want, got[i], 1e-9+1e-5*math.Abs(want)+roundoff(dt, want))
					}
					alone, err := DiceLoss(c, px.View, pt.View)
					require.NoError(t, err)
					require.Equal(t, loss, alone)
					_, err = DiceBackward(c, px.View, px.View, pt.View, 0.5)
					require.NoError(t, err)
					requireBits(t, "dx is x", got, px.Get())
				})
			}
		}
	})
	none, err := DiceBackward(Dice{Cols: 5}, noFloats, noFloats, noFloats, 1)
	require.NoError(t, err)
	require.Zero(t, none)
}

// PyTorch's losses, and torchvision's focal one.
//
//check:in tiers arm64
func TestGoldenLosses(t *testing.T) {
	all := readGoldenCNN(t)
	require.Len(t, all.Losses, 20)
	configs := map[string]Elementwise{
		"MSE": {Form: MSE}, "L1": {Form: L1}, "Huber": {Form: Huber, Delta: 0.5}, "SmoothL1": {Form: SmoothL1, Delta: 0.5}, "BCE": {Form: BCE},
		"BCE of classes": {Form: BCE, PosWeight: []float32{0.5, 2, 3}, Positions: 2}, "Focal": {Form: Focal}, "Focal of 1.5": {Form: Focal, Alpha: -1, Gamma: 1.5},
	}
	for _, g := range all.Losses {
		t.Run(fmt.Sprint(g.Name, g.Weighted), func(t *testing.T) {
			x, targets, dx := goldenNumbers(t, 1, 24, 4, snug.F32), goldenNumbers(t, 2, 24, 0.5, snug.F32), make([]float32, 24)
			for i := range targets {
				targets[i] += 0.5
			}
			x[0] = targets[0]
			var weights []float32
			if g.Weighted {
				weights = []float32{1, 0.25, 2, 0}
			}
			var loss Loss
			var err error
			if c, found := configs[g.Name]; found {
				c.Weights = weights
				loss, err = ElementwiseBackward(c, dx, x, targets, 0.5)
			} else {
				loss, err = DiceBackward(Dice{Cols: 6, Squared: g.Name != "Dice", Weights: weights}, dx, x, targets, 0.5)
			}
			require.NoError(t, err)
			require.InEpsilon(t, g.Loss, loss.Sum, 5e-6)
			require.InDeltaSlice(t, g.DX, dx, 2e-6)
		})
	}
}

// An ignored element may hold anything, one that is not may not; large logits lose nothing.
func TestElementwiseExtremes(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, l := range elementLosses {
		c, dx := l.c, fill(3, 42)
		c.Weights = []float32{1, 0, 0}
		loss, err := ElementwiseBackward(c, dx, []float32{2, nan, inf}, []float32{0, 1, nan}, 1)
		require.NoError(t, err)
		require.InDelta(t, l.of(2, 0), loss.Sum, 1e-6)
		require.Equal(t, []float32{0, 0}, dx[1:])
		require.Equal(t, 1, loss.Targets)
		loss, err = ElementwiseBackward(l.c, dx, []float32{2, nan, 0}, []float32{0, 1, 0}, 1)
		require.NoError(t, err)
		require.True(t, loss.Sum != loss.Sum && dx[1] != dx[1], l.c.Form)
	}
	dx := make([]float32, 4)
	loss, err := ElementwiseBackward(Elementwise{Form: BCE}, dx, []float32{-80, 80, -200, 200}, []float32{0, 1, 1, 0}, 1)
	require.NoError(t, err)
	require.InDelta(t, 400, loss.Sum, 1e-6)
	require.InEpsilonSlice(t, []float64{math.Exp(-80), -math.Exp(-80), -1, 1}, float64s(dx), 1e-5)
	weights := []float32{0, 1}
	loss, err = DiceBackward(Dice{Cols: 2, Weights: weights}, dx, []float32{nan, inf, 0, 0}, []float32{1, 1, 1, 1}, 1)
	require.NoError(t, err)
	require.InDelta(t, 1-3./4, loss.Sum, 1e-7)
	require.Equal(t, []float32{0, 0}, dx[:2])
	require.Equal(t, "LossForm(0)", LossForm(0).String())
	require.Equal(t, "Focal", Focal.String())
}

// Losses collects the sums that calls would return.
func TestElementwiseLosses(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		losses := &Losses{}
		x, targets := kerneltest.Put(t, p, random(50)).View, kerneltest.Put(t, p, random(50)).View
		a, err := ElementwiseLoss(Elementwise{Form: MSE}, x, targets)
		require.NoError(t, err)
		b, err := DiceLoss(Dice{Cols: 10}, x, targets)
		require.NoError(t, err)
		got, err := ElementwiseLoss(Elementwise{Form: MSE, Losses: losses}, x, targets)
		require.NoError(t, err)
		require.Equal(t, Loss{Targets: 50, Weight: 50}, got)
		_, err = DiceLoss(Dice{Cols: 10, Losses: losses}, x, targets)
		require.NoError(t, err)
		sum, err := losses.Take()
		require.NoError(t, err)
		require.Equal(t, a.Sum+b.Sum, sum)
		for range lossSlots + 3 { // more than wait on a device
			_, err = ElementwiseLoss(Elementwise{Form: MSE, Losses: losses}, x, targets)
			require.NoError(t, err)
		}
		sum, err = losses.Take()
		require.NoError(t, err)
		require.InDelta(t, a.Sum*(lossSlots+3), sum, 1e-9)
	})
}

// A batch's loss is the sum of its rows', and a row's gradient does not depend on the others.
func rowsOfLosses(t *rapid.T) {
	l := rapid.SampledFrom(elementLosses).Draw(t, "loss")
	rows, cols := rapid.IntRange(1, 9).Draw(t, "rows"), rapid.IntRange(1, 2000).Draw(t, "cols")
	r := rapid.IntRange(0, rows-1).Draw(t, "row")
	rng := newRand(rapid.Uint64().Draw(t, "seed"))
	x, targets := normals(rng, snug.F32, rows*cols, 0, 3), normals(rng, snug.F32, rows*cols, 0.5, 0.1)
	dx, alone := make([]float32, rows*cols), make([]float32, cols)
	all, err := ElementwiseBackward(l.c, dx, x, targets, 2)
	require.NoError(t, err)
	sum := 0.0
	for i := range rows {
		one, err := ElementwiseLoss(l.c, x[i*cols:][:cols], targets[i*cols:][:cols])
		require.NoError(t, err)
		sum += one.Sum
	}
	require.InDelta(t, sum, all.Sum, 1e-9*(1+math.Abs(sum)))
	_, err = ElementwiseBackward(l.c, alone, x[r*cols:][:cols], targets[r*cols:][:cols], 2)
	require.NoError(t, err)
	requireBits(t, "dx", dx[r*cols:][:cols], alone)
}

func TestRowsOfLosses(t *testing.T) { rapid.Check(t, rowsOfLosses) }
func FuzzRowsOfLosses(f *testing.F) { f.Fuzz(rapid.MakeFuzz(rowsOfLosses)) }
