package quant8

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// layers are parameters and gradients of several types and sizes.
func layers() (p, g map[string][]float32) {
	p, g = map[string][]float32{}, map[string][]float32{}
	for i, n := range []int{1, 300, 5000, 40000} {
		name := fmt.Sprint("layer", i)
		p[name], g[name] = kerneltest.Normal(uint64(i), n), kerneltest.Normal(uint64(i+10), n)
	}
	return p, g
}

func sizes(p map[string][]float32) map[string]int {
	n := map[string]int{}
	for name, x := range p {
		n[name] = len(x)
	}
	return n
}

// TestStepInBackward: the parameters have the bits of clipping all gradients and then
// making all steps, wherever they lie, while there is memory for one gradient.
//
//check:in ordered race
//check:not checked
func TestStepInBackward(t *testing.T) {
	const scale = 0.5
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, most := range []float64{0, 10, 1e6} {
			want, g := layers()
			sum := 0.0
			for _, x := range g {
				for _, v := range x {
					sum += float64(v) * float64(v)
				}
			}
			factor := float32(scale)
			if most > 0 {
				factor *= float32(min(1, most/(math.Sqrt(sum)*scale+1e-6)))
			}
			a, b := newAdamW(t, Options{}, sizes(want)), newAdamW(t, Options{}, sizes(want))
			p := map[string]*kerneltest.Floats{}
			for name, x := range want {
				p[name] = kerneltest.PutFloats(t, backend, snug.F32, x)
			}
			for range 2 {
				advance(a)
				for name, x := range want {
					require.NoError(t, a.Step(name, snug.ViewOf(x), snug.ViewOf(g[name]), factor))
				}
				advance(b)
				o := BackwardOptions{MaxNorm: most, GradScale: scale}
				if !onCPU(backend) {
					o.Squares = func(g snug.View) (float64, error) {
						x := make([]float32, g.Len())
						err := snug.Copy(x, g)
						return sumSquares(snug.ViewOf(x), 1), err
					}
				}
				norm, err := b.StepInBackward(o, func(ready Ready) error {
					for _, name := range slices.Sorted(maps.Keys(g)) {
						if err := ready(name, p[name].View, kerneltest.PutFloats(t, backend, snug.F32, g[name]).View); err != nil {
							return err
						}
					}
					return nil
				})
				require.NoError(t, err)
				if most > 0 {
					require.InEpsilon(t, scale*math.Sqrt(sum), norm, 1e-12)
				} else {
					require.Zero(t, norm)
				}
			}
			for name, x := range want {
				require.True(t, equal(x, p[name].Get()), name)
			}
			require.Equal(t, 2, b.Steps())
		}
	})
}

// TestStepInBackwardSkips: what is not finite is not part of the norm.
//
//check:in race
func TestStepInBackwardSkips(t *testing.T) {
	for policy, want := range map[NonFinitePolicy]float64{SkipElement: 5, SkipStep: 3} {
		a, err := New(Lion{}, Options{NonFinite: policy})
		require.NoError(t, err)
		require.NoError(t, a.Add("a", 1))
		require.NoError(t, a.Add("b", 3))
		p, q := []float32{1}, []float32{1, 1, 1}
		advance(a)
		norm, err := a.StepInBackward(BackwardOptions{MaxNorm: 1}, func(ready Ready) error {
			if err := ready("a", snug.ViewOf(p), snug.ViewOf([]float32{3})); err != nil {
				return err
			}
			return ready("b", snug.ViewOf(q), snug.ViewOf([]float32{0, nan, 4}))
		})
		require.NoError(t, err)
		require.Equal(t, want, norm)
		require.Len(t, a.Skipped(), 1)
		require.NotEqual(t, float32(1), p[0])
		require.Equal(t, float32(1), q[1])
		require.Equal(t, policy == SkipElement, q[2] != 1)
	}
}

// TestStepInBackwardErrors: what has failed before a parameter was updated can be made again.
//
//check:in race
func TestStepInBackwardErrors(t *testing.T) {
	one := func(x float32) snug.View { return snug.ViewOf([]float32{x}) }
	broken := fmt.Errorf("broken")
	calls := 0
	for text, c := range map[string]struct {
		o        BackwardOptions
		backward func(ready Ready) error
		err      error
	}{
		"MaxNorm":   {BackwardOptions{MaxNorm: -1}, nil, snug.ErrConfig},
		"infinite":  {BackwardOptions{MaxNorm: math.Inf(1)}, nil, snug.ErrConfig},
		"GradScale": {BackwardOptions{GradScale: nan}, nil, snug.ErrConfig},
		"backward":  {BackwardOptions{MaxNorm: 1}, func(Ready) error { return broken }, broken},
		"twice": {BackwardOptions{MaxNorm: 1}, func(ready Ready) error {
			if err := ready("w", one(1), one(1)); err != nil {
				return err
			}
			return ready("w", one(1), one(1))
		}, snug.ErrConfig},
		"unknown":  {BackwardOptions{MaxNorm: 1}, func(ready Ready) error { return ready("x", one(1), one(1)) }, snug.ErrConfig},
		"NaN":      {BackwardOptions{MaxNorm: 1}, func(ready Ready) error { return ready("w", one(1), one(nan)) }, snug.ErrNonFinite},
		"one pass": {BackwardOptions{}, func(ready Ready) error { return ready("w", one(1), one(nan)) }, snug.ErrNonFinite},
		"shape": {BackwardOptions{MaxNorm: 1}, func(ready Ready) error {
			return ready("w", one(1), snug.ViewOf([]float32{1, 2}))
		}, snug.ErrShape},
		"fewer": {BackwardOptions{MaxNorm: 1}, func(ready Ready) error {
			if calls++; calls == 2 {
				return nil
			}
			return ready("w", one(1), one(1))
		}, snug.ErrConfig},
		"more": {BackwardOptions{MaxNorm: 1}, func(ready Ready) error {
			if calls++; calls == 1 {
				return nil
			}
			return ready("w", one(1), one(1))
		}, snug.ErrConfig},
	} {
		calls = 0
		a := newAdamW(t, Options{}, map[string]int{"w": 1})
		advance(a)
		_, err := a.StepInBackward(c.o, c.backward)
		require.ErrorIs(t, err, c.err, text)
		if text != "more" { // whose second pass has made the step
			step(t, a, "w", []float32{1}, []float32{1}, 1)
		}
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		if onCPU(backend) {
			return
		}
		a := newAdamW(t, Options{}, map[string]int{"w": 1})
		advance(a)
		p := kerneltest.PutFloats(t, backend, snug.F32, []float32{1})
		_, err := a.StepInBackward(BackwardOptions{MaxNorm: 1}, func(ready Ready) error { return ready("w", p.View, p.View) })
		require.ErrorIs(t, err, snug.ErrDevice)
	})
}
