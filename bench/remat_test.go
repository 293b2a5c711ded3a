package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// tinyChains are a transformer and a ResNet for tests.
var tinyChains = []chainSize{
	{name: chainTransformer, depth: 7, rows: 16, cols: 8, tokens: 8, heads: 2, points: transformerPoints, runs: 2},
	{name: chainResnet, depth: 4, rows: 64, cols: 4, points: resnetPoints, runs: 2},
}

// forEachTiny runs a test with every chain, and with the lean one of the transformer.
func forEachTiny(t *testing.T, test func(t *testing.T, c *trainable)) {
	for _, c := range tinyChains {
		t.Run(c.name, func(t *testing.T) { test(t, newTrainable(c.rows*c.cols, c.layers(false))) })
	}
	c := &tinyChains[0]
	t.Run(c.name+" lean", func(t *testing.T) { test(t, newTrainable(c.rows*c.cols, c.layers(true))) })
}

// costsOf measures a chain once.
func costsOf(t *testing.T, c *trainable) remat.Costs {
	costs, err := measureCosts(t.Context(), 1, c)
	require.NoError(t, err)
	return costs[0]
}

// runnerOf returns one for the plan that the planner makes, and its simulated peak.
func runnerOf(t *testing.T, c *trainable, planner func(remat.Costs) (remat.Plan, error)) (*runner, int64) {
	costs := costsOf(t, c)
	plan, err := planner(costs)
	require.NoError(t, err)
	sim, err := plan.Simulate(costs)
	require.NoError(t, err)
	r, err := c.NewRunner(plan)
	require.NoError(t, err)
	return r, sim.Peak
}

// TestChainsGiveTheGradient compares elements of dx with finite differences.
func TestChainsGiveTheGradient(t *testing.T) {
	forEachTiny(t, func(t *testing.T, c *trainable) {
		value := func() (sum float64) {
			y, err := c.Eval(t.Context(), c.x)
			require.NoError(t, err)
			for _, v := range y {
				sum += float64(v) * float64(v) / 2
			}
			c.pool.put(y)
			return sum
		}
		r, _ := runnerOf(t, c, remat.Chen)
		_, _, err := c.pass(t.Context(), r)
		require.NoError(t, err)
		const h, stride = 1.0 / 2048, 4
		wrong := 0
		for i := 0; i < len(c.x); i += stride {
			v := c.x[i]
			c.x[i] = v + h
			up := value()
			c.x[i] = v - h
			down := value()
			c.x[i] = v
			if want := (up - down) / (2 * h); math.Abs(want-float64(c.dx[i])) > 0.02*(1+math.Abs(want)) {
				wrong++
			}
		}
		require.LessOrEqual(t, wrong, len(c.x)/stride/16, "steps across the kink of a relu are few")
	})
}

func TestPlansGiveTheSameBits(t *testing.T) {
	forEachTiny(t, func(t *testing.T, c *trainable) {
		all, peak := runnerOf(t, c, remat.KeepAll)
		_, err := c.verify(t.Context(), all, peak, nil)
		require.NoError(t, err)
		want := c.bits()
		for _, planner := range []func(remat.Costs) (remat.Plan, error){remat.Chen, remat.RecomputeAll} {
			r, lowerBound := runnerOf(t, c, planner)
			measured, err := c.verify(t.Context(), r, lowerBound, want)
			require.NoError(t, err)
			require.Equal(t, lowerBound, measured)
			require.Less(t, measured, peak)
		}
		_, err = c.verify(t.Context(), all, peak-4, want)
		require.ErrorContains(t, err, "bytes simulated")
		want[len(want)/2] ^= 1
		_, err = c.verify(t.Context(), all, peak, want)
		require.EqualError(t, err, "gradients differ from those with everything kept")
	})
}

func TestLeanStagesGiveTheSameBitsAndSaveLess(t *testing.T) {
	c := &tinyChains[0]
	full, lean := newTrainable(c.rows*c.cols, c.layers(false)), newTrainable(c.rows*c.cols, c.layers(true))
	fullRunner, fullPeak := runnerOf(t, full, remat.KeepAll)
	_, err := full.verify(t.Context(), fullRunner, fullPeak, nil)
	require.NoError(t, err)
	leanRunner, leanPeak := runnerOf(t, lean, remat.KeepAll)
	_, err = lean.verify(t.Context(), leanRunner, leanPeak, full.bits())
	require.NoError(t, err)
	// A block saves 16 tensors of the size of x with everything kept, and 10 lean.
	require.InEpsilon(t, 16./10, float64(fullPeak)/float64(leanPeak), 0.1)
}

func TestPassesHoldAndAllocateNothing(t *testing.T) {
	forEachTiny(t, func(t *testing.T, c *trainable) {
		for _, planner := range []func(remat.Costs) (remat.Plan, error){remat.KeepAll, remat.Chen} {
			r, _ := runnerOf(t, c, planner)
			l := passes(t.Context(), c, r)
			kerneltest.NoAllocs(t, func() {
				if l.f() != nil {
					panic("a pass fails")
				}
			})
			require.EqualValues(t, 4*len(c.x), c.pool.held, "x")
		}
	})
}

func TestFailedStepsLeaveNothing(t *testing.T) {
	forEachTiny(t, func(t *testing.T, c *trainable) {
		r, _ := runnerOf(t, c, remat.Chen)
		last := c.Stages[len(c.Stages)-1].(*stage)
		good := last.sublayer
		last.sublayer = broken{good}
		_, _, err := c.pass(t.Context(), r)
		require.ErrorIs(t, err, errBroken)
		require.EqualValues(t, 4*len(c.x), c.pool.held, "x")
		last.sublayer = good
		_, err = last.Forward(t.Context(), nil)
		require.ErrorIs(t, err, snug.ErrShape)
		_, _, err = last.ForwardSave(t.Context(), nil)
		require.ErrorIs(t, err, snug.ErrShape)
		require.EqualValues(t, 4*len(c.x), c.pool.held, "x")

		ended, end := context.WithCancel(t.Context())
		end()
		_, _, err = c.pass(ended, r)
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 4*len(c.x), c.pool.held, "x")
	})
}

func TestEqualStagesHaveEqualCosts(t *testing.T) {
	forEachTiny(t, func(t *testing.T, c *trainable) {
		first := map[string]remat.Cost{}
		for _, s := range costsOf(t, c).Stages {
			require.NotEmpty(t, s.Name)
			require.Positive(t, s.ForwardTime)
			require.Positive(t, s.BackwardTime)
			if f, ok := first[s.Name]; ok {
				require.Equal(t, f, s)
			}
			first[s.Name] = s
		}
	})
}

func TestMeasureRemat(t *testing.T) {
	for _, w := range rematerializations(sizes{chains: tinyChains}) {
		m, once := known(), options{device: "emu:0"} // whose pace is one run
		rows, err := w.measureRemat(t.Context(), once, m)
		require.NoError(t, err)
		methods := 3
		if w.chain.name == chainTransformer {
			methods = 4
		}
		require.Len(t, rows, 1+methods*len(w.chain.points))
		all := rows[0].Plan
		require.Equal(t, "keep-all", all.Plan)
		require.Zero(t, all.SimulatedOverhead)
		published := map[float64]bool{}
		for _, r := range rows {
			p := r.Plan
			require.Equal(t, w.shape, r.Shape)
			require.Equal(t, p.Simulated, p.Measured)
			require.LessOrEqual(t, p.Measured, p.Budget)
			require.InDelta(t, p.Fraction*float64(all.Measured), p.Budget, 1)
			if p.Published != nil {
				published[*p.Published] = true
			}
			if p.Minimum > 0 {
				require.Greater(t, p.Minimum, p.Budget)
				require.Zero(t, r.Median)
				continue
			}
			require.Positive(t, r.Median)
			require.NotNil(t, r.Allocs)
			require.GreaterOrEqual(t, p.Gap, 0.0)
		}
		require.Len(t, published, map[string]int{chainTransformer: 2, chainResnet: 1}[w.chain.name])

		text, err := json.Marshal(rows[1])
		require.NoError(t, err)
		require.Contains(t, string(text), `"published_overhead":null`)
		var out bytes.Buffer
		newTable(&out).add(rows)
		require.Len(t, regexp.MustCompile(`(?m)^ +\d+\.\d% +\d+  (fit|rotor|chen|fit lean) `).FindAllString(out.String(), -1), len(rows)-1)
	}
}

func TestPlannedLine(t *testing.T) {
	dtr := 0.19
	p := &planned{
		Method: "fit", Plan: "rotor", Fraction: 0.425, Budget: 1000, Simulated: 990, Measured: 990,
		Time: 0.1, SimulatedOverhead: 0.2, Overhead: 0.25, OverheadSpread: 0.01, Gap: 0.02, Published: &dtr,
	}
	require.Equal(t, "42.5% 1000 fit rotor 990 990 +20.0% +25.0% 1.0% 2.0% +19.0%", strings.Join(strings.Fields(p.line()), " "))
	require.Contains(t, p.head(), "everything kept: 990 bytes simulated, 990 measured; 100 ms simulated; measured next to itself +25.0%, ±1.0%")
	p.Minimum, p.Published = 1200, nil
	require.Equal(t, "42.5% 1000 fit none below 1200 –", strings.Join(strings.Fields(p.line()), " "))
}

func TestRelu(t *testing.T) {
	inf := float32(math.Inf(1))
	x := []float32{-1, 2, 0, float32(math.Copysign(0, -1)), -inf, inf, 1e-45}
	y := relu(x)
	require.Equal(t, []float32{0, 2, 0, 0, 0, inf, 1e-45}, y)
	require.False(t, math.Signbit(float64(y[3])))
	require.Equal(t, []float32{0, -2, 0, 0, 0, -6, 7}, reluBackward([]float32{-1, -2, 3, 4, 5, -6, 7}, y))
}

func TestChainFlops(t *testing.T) {
	w := rematerializations(options{device: "cpu"}.sizes())
	require.Equal(t, "chain=transformer stages=48 rows=128 cols=128", w[0].shape)
	// 24 blocks of 12·128² weights for 128 rows, and attention.
	require.InEpsilon(t, 24*128*(6*12*128*128+6*128*129.), w[0].products, 1e-9)
	require.Equal(t, "chain=resnet stages=98 rows=512 cols=64", w[1].shape)
	require.InEpsilon(t, 98*6*2*512*64*64., w[1].products, 1e-9)
	for _, c := range append(shortChains, tinyChains...) {
		require.Len(t, c.layers(false), c.stages())
	}
}

// broken is a sublayer whose backward pass fails.
type broken struct{ sublayer }

func (broken) backward(_, _, _ []float32, _ *saved) error { return errBroken }

var errBroken = errors.New("broken")
