package quant8

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/lowrank"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// TestLowRankBytes: what the docs of the rules state.
func TestLowRankBytes(t *testing.T) {
	for _, c := range []struct {
		rule  Rule
		bits  int
		shape []int
		want  int64
	}{
		{Apollo{}, 32, []int{4096, 4096}, 8*256*4096 + 4},
		{Apollo{}, 8, []int{4096, 4096}, 2*256*4096 + 2*4*4096 + 4},
		{Apollo{Tensor: true}, 8, []int{4096, 4096}, 2*4096 + 2*4*16 + 4},
		{Apollo{Tensor: true}, 8, []int{4095, 300}, 8*4095 + 4},
		{GaLore{}, 32, []int{4096, 4096}, 8*128*4096 + 4*128*4096 + 4},
		{GaLore{}, 8, []int{4096, 4096}, 2*128*4096 + 2*4*2048 + 4*128*4096 + 4},
		{GaLore{Rank: 3}, 16, []int{300, 70_000}, 4*3*70_000 + 4*3*300 + 4},
		{Apollo{}, 32, []int{256, 4096}, 8 * 256 * 4096}, // no side is longer than the rank: AdamW
		{Apollo{}, 32, []int{257, 4096}, 8*256*4096 + 4},
		{Apollo{Tensor: true}, 8, []int{63, 65}, 8 * 63 * 65}, // fewer elements than MinSize
		{Apollo{Tensor: true}, 8, []int{64, 64}, 8*64 + 4},
		{GaLore{}, 32, []int{4096 * 4096}, 8 * 4096 * 4096},
		{Apollo{Rank: math.MaxInt}, 32, []int{4096, 4096}, 8 * 4096 * 4096},
	} {
		require.Equal(t, c.want, StateBytes(c.rule, Options{Bits: c.bits}, c.shape...), "%+v", c)
		a, err := New(c.rule, Options{Bits: c.bits})
		require.NoError(t, err)
		if len(c.shape) == 2 {
			require.NoError(t, a.AddMatrix("w", c.shape[0], c.shape[1]))
		} else {
			require.NoError(t, a.Add("w", c.shape[0]))
		}
		require.Equal(t, c.want, a.StateBytes())
	}
	require.InDelta(t, 8.4e6, float64(StateBytes(Apollo{}, Options{Bits: 32}, 4096, 4096)), 5e4)
	require.InDelta(t, 34e6, float64(StateBytes(AdamW{}, Options{}, 4096, 4096)), 5e5)
}

// TestLowRankDirections: without a hook the directions are the normal numbers that the seed, the name and the period
// give, or the basis of the first gradient of a period. A resumed run has them too.
func TestLowRankDirections(t *testing.T) {
	const rows, cols, seed = 90, 61, 9
	s := Options{Bits: 32, Seed: seed}
	for name, rule := range map[string]Rule{"apollo": Apollo{Rank: 3, Gap: 2}, "mini": Apollo{Tensor: true, Gap: 2}, "galore": GaLore{Rank: 3, Gap: 2}} {
		t.Run(name, func(t *testing.T) {
			make2 := func() *matrixRun {
				a, err := New(rule, s)
				require.NoError(t, err)
				require.NoError(t, a.AddMatrix("w", rows, cols))
				return newMatrixRun(t, a)
			}
			a, b := make2(), make2()
			rank := a.a.params["w"].engine.(*lowRank).of.rank
			stream := func(period int) philox.Stream {
				return philox.Stream{Seed: rounding.Seed(rounding.Seed(seed, math.MaxUint64), uint64(period)), Tensor: rounding.Tensor("w")}
			}
			b.a.directions = func(_ string, period int) []float32 {
				values := make([]float32, rank*cols)
				if name != "galore" {
					for i := range rank {
						lowrank.Normal(values[i*cols:][:cols], stream(period), uint64(i*cols))
					}
					return values
				}
				g := lowrank.Matrix{Data: snug.ViewOf(kerneltest.Normal(uint64(2*period+1), rows*cols)), Rows: rows, Cols: cols}
				floats, sums := lowrank.BasisWork(rows, cols, rank)
				lowrank.Basis(values, g, rank, stream(period), make([]float32, floats), make([]float64, sums))
				return values
			}
			for i := range 5 {
				for _, r := range []*matrixRun{a, b} {
					advance(r.a)
					r.step("w")
				}
				a.requireSame(b)
				require.Equal(t, stateOf(t, a.a), stateOf(t, b.a), "%s, step %d", name, i+1)
			}
		})
	}
}

// TestLowRankNames: a step does not depend on what other parameters there are, and matrices of one shape have
// directions of their own.
func TestLowRankNames(t *testing.T) {
	alone := newMatrixRun(t, newMatrices(t, "apollo", Options{}, map[string][2]int{"w": {70, 80}}))
	both := newMatrixRun(t, newMatrices(t, "apollo", Options{}, map[string][2]int{"v": {70, 80}, "w": {70, 80}}))
	for range 2 {
		advance(alone.a)
		advance(both.a)
		alone.step("w")
		both.step("v", "w")
	}
	require.True(t, equal(alone.p["w"], both.p["w"]))
	require.False(t, equal(both.p["v"], both.p["w"]))
}

// TestLowRankLimit: the norm of an update grows by 1 % at most, counted from the first, and NoLimit lets it grow.
func TestLowRankLimit(t *testing.T) {
	const rows, cols = 80, 70
	for _, tensor := range []bool{false, true} {
		for _, free := range []bool{false, true} {
			a, err := New(Apollo{Rank: 4, Tensor: tensor, NoLimit: free, Scale: 1}, Options{Bits: 32})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", rows, cols))
			before, grew := 0.0, false
			for i, size := range []float32{0, 1, 1, 1000, 1, 1000} {
				g := kerneltest.Normal(uint64(i), rows*cols)
				for k := range g {
					g[k] *= size
				}
				p := make([]float32, rows*cols)
				a.Advance(1)
				step(t, a, "w", p, g, 1)
				squares := 0.0
				for _, x := range p {
					squares += float64(x) * float64(x)
				}
				norm := math.Sqrt(squares) / a.hyper(a.params["w"], 1).Corrected()
				grew = grew || before > 0 && norm > before*1.01*(1+1e-5)
				before = norm
			}
			require.Equal(t, free, grew)
		}
	}
}

// TestGaLoreOfZeros: a gradient of zeros, or of one direction, at the begin of a period does not keep later ones of the
// period from the matrix, as the authors' package has it too.
func TestGaLoreOfZeros(t *testing.T) {
	for _, side := range [][2]int{{90, 64}, {64, 90}, {300, 200}} {
		for _, factor := range []float32{0, 1} {
			a := newMatrices(t, "galore", Options{Bits: 32}, map[string][2]int{"w": side})
			n := side[0] * side[1]
			p, g := make([]float32, n), make([]float32, n)
			for i := range g {
				g[i] = factor * float32(i%side[1]+1)
			}
			advance(a)
			step(t, a, "w", p, g, 1)
			before := append([]float32(nil), p...)
			g = kerneltest.Normal(1, n)
			advance(a)
			step(t, a, "w", p, g, 1)
			along, squares := 0.0, 0.0
			for i := range p {
				along += float64(g[i]) * float64(p[i]-before[i])
				squares += float64(g[i]) * float64(g[i])
			}
			require.Less(t, along, -1e-5*squares, "%v %g", side, factor)
		}
	}
}

// TestLowRankNonFinite has the policies, in all periods.
func TestLowRankNonFinite(t *testing.T) {
	const rows, cols = 90, 64
	bad := map[int]float32{0: nan, 1: inf, 500: -inf, 501: 1e20, rows*cols - 1: nan}
	for _, rule := range lowRankRules {
		for _, bits := range widths {
			for _, side := range [][2]int{{rows, cols}, {cols, rows}} {
				s := Options{Bits: bits, Block: 64, Chunk: 640}
				clean := newMatrices(t, rule, s, map[string][2]int{"w": side})
				s.NonFinite = SkipElement
				a := newMatrices(t, rule, s, map[string][2]int{"w": side})
				p, q := kerneltest.Normal(1, rows*cols), kerneltest.Normal(1, rows*cols)
				for i := range 5 {
					g, zeros := kerneltest.Normal(uint64(i+2), rows*cols), kerneltest.Normal(uint64(i+2), rows*cols)
					if i%2 == 1 {
						for k, x := range bad {
							g[k], zeros[k] = x, 0
						}
					}
					what := fmt.Sprintf("%s, %d bits, step %d", rule, bits, i+1)
					advance(a)
					advance(clean)
					before := append([]float32(nil), p...)
					step(t, a, "w", p, g, 0.5)
					step(t, clean, "w", q, zeros, 0.5)
					require.Equal(t, i%2, len(a.Skipped()), what)
					for k := range p {
						if _, skip := bad[k]; skip && i%2 == 1 {
							require.Equal(t, before[k], p[k], what)
							q[k] = p[k]
						}
						if rule == "galore" && i > 2 { // step 4 keeps the directions, and 5 makes new ones
							require.True(t, finite(p[k]), what)
							continue
						}
						require.InDelta(t, q[k], p[k], 1e-5, "%s, element %d", what, k) // sums of other parts
					}
				}
			}
		}
	}
	g := kerneltest.Normal(2, rows*cols)
	g[7] = nan
	for _, rule := range lowRankRules { // the first gradient
		for _, policy := range []NonFinitePolicy{Fail, SkipStep, SkipElement} {
			a := newMatrices(t, rule, Options{NonFinite: policy}, map[string][2]int{"w": {rows, cols}})
			p := kerneltest.Normal(1, rows*cols)
			advance(a)
			err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
			if policy == Fail {
				require.ErrorIs(t, err, snug.ErrNonFinite)
			} else {
				require.NoError(t, err)
			}
			if policy != SkipElement || rule == "galore" {
				require.True(t, equal(kerneltest.Normal(1, rows*cols), p))
			}
			advance(a)
			step(t, a, "w", p, kerneltest.Normal(3, rows*cols), 1)
			require.False(t, equal(kerneltest.Normal(1, rows*cols), p))
		}
	}
}

// TestLowRankOverflow: a projection that float32 or its square cannot hold is a gradient that is not finite.
func TestLowRankOverflow(t *testing.T) {
	const rows, cols = 90, 4096
	g := make([]float32, rows*cols)
	for i := range g {
		g[i] = math.Nextafter32(0x1p63, 0)
	}
	for _, rule := range lowRankRules {
		for _, policy := range []NonFinitePolicy{Fail, SkipStep, SkipElement} {
			a := newMatrices(t, rule, Options{NonFinite: policy}, map[string][2]int{"w": {rows, cols}})
			p := kerneltest.Normal(1, rows*cols)
			advance(a)
			before := stateOf(t, a)
			err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
			switch policy {
			case Fail:
				require.ErrorIs(t, err, snug.ErrNonFinite)
				require.ErrorContains(t, err, `parameter "w": the projection of the gradient`)
			case SkipStep:
				require.NoError(t, err)
				require.Len(t, a.Skipped(), 1)
			case SkipElement:
				require.NoError(t, err)
				require.NotEmpty(t, a.Skipped())
			}
			if policy != SkipElement {
				require.Equal(t, before, stateOf(t, a))
				require.True(t, equal(kerneltest.Normal(1, rows*cols), p))
			}
			for _, x := range p {
				require.True(t, finite(x))
			}
			advance(a)
			step(t, a, "w", p, kerneltest.Normal(3, rows*cols), 1)
			for _, x := range p {
				require.True(t, finite(x))
			}
		}
	}
}

// TestLowRankOfAnotherRank: a state is not that of another rank, and changes nothing.
func TestLowRankOfAnotherRank(t *testing.T) {
	for _, rules := range [][2]Rule{{Apollo{Rank: 3}, Apollo{Rank: 4}}, {GaLore{Rank: 3}, GaLore{Rank: 2}}, {Apollo{Rank: 3}, Apollo{Rank: 70}}, {Apollo{Rank: 3}, GaLore{Rank: 3}}} {
		var all [2]*Optimizer
		for i, rule := range rules {
			a, err := New(rule, Options{})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", 70, 90))
			all[i] = a
		}
		data := bytesOf(all[0].AppendBinary(nil))
		before := stateOf(t, all[1])
		for _, err := range []error{all[1].UnmarshalBinary(data), second(all[1].ReadFrom(bytes.NewReader(data))), all[1].ReadShards(bytes.NewReader(data))} {
			require.ErrorIs(t, err, snug.ErrConfig)
		}
		require.Equal(t, before, stateOf(t, all[1]))
	}
	a, err := New(Apollo{}, Options{})
	require.NoError(t, err)
	require.ErrorContains(t, second(a.WriteBitsAndBytes(new(bytes.Buffer), BitsAndBytesFormat{})), "bitsandbytes has no optimizer that goes on")
}

// TestLowRankFolds: nothing is folded into moments of projections.
func TestLowRankFolds(t *testing.T) {
	for _, rule := range []Rule{Apollo{}, GaLore{}} {
		require.False(t, TraitsOf(rule).Folds)
		a := newWith(t, rule, Options{}, map[string]int{"w": 1})
		advance(a)
		_, _, err := a.FoldInBackward(FoldOptions{Weight: 1, Total: 2}, func(ready Ready) error {
			return ready("w", snug.ViewOf([]float32{1}), snug.ViewOf([]float32{1}))
		})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "whole gradient")
	}
}

// TestLowRankOnDevices: matrices are refused, and vectors step.
func TestLowRankOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, rule := range lowRankRules {
			a, b := newMatrices(t, rule, Options{}, map[string][2]int{"w": {70, 90}}), newMatrices(t, rule, Options{}, nil)
			require.NoError(t, a.Add("v", 5000))
			require.NoError(t, b.Add("v", 5000))
			advance(a)
			advance(b)
			v, g := kerneltest.Put(t, backend, kerneltest.Normal(1, 5000)), kerneltest.Put(t, backend, kerneltest.Normal(2, 5000))
			require.NoError(t, a.Step("v", v.View, g.View, 1))
			want := kerneltest.Normal(1, 5000)
			step(t, b, "v", want, kerneltest.Normal(2, 5000), 1)
			require.True(t, equal(want, v.Get()))
			p, g := kerneltest.Put(t, backend, kerneltest.Normal(1, 6300)), kerneltest.Put(t, backend, kerneltest.Normal(2, 6300))
			if dev := p.View.Device(); dev.IsCPU() {
				require.NoError(t, a.Step("w", p.View, g.View, 1))
				continue
			}
			require.ErrorIs(t, a.Step("w", p.View, g.View, 1), snug.ErrDevice)
			require.True(t, equal(kerneltest.Normal(1, 6300), p.Get()))
		}
	})
}
