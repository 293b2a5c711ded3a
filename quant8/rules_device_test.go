package quant8

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestRulesOnDevices has every rule, width, type and alignment of operands, and
// blocks of all sizes, with a partial one, on devices other than the CPU. Trust ratios
// may differ there in the last bits of float64, which float32 does not show here.
func TestRulesOnDevices(t *testing.T) {
	for _, place := range kerneltest.Places(t)[2:] {
		for i, c := range []ruleCase{
			{8, 32, 64, snug.F32, snug.BF16, 257, 9},
			{8, 33, 132, snug.F16, snug.F32, 300, 9},
			{8, 36, 72, snug.BF16, snug.F32, 199, 0},
			{8, 256, 512, snug.BF16, snug.BF16, 1300, 9},
			{8, 256, 1024, snug.F32, snug.F32, 1, 9},
			{8, 4096, 4096, snug.F16, snug.F16, 4100 + 31, 9},
			{32, 32, 1024, snug.F32, snug.F16, 2100, 9},
			{32, 33, 1056, snug.BF16, snug.F32, 2000 + 7, 0},
			{32, 256, 512, snug.F16, snug.BF16, 1023, 9},
		} {
			for name := range rules {
				t.Run(fmt.Sprintf("%s/%s/%v", place.Name, name, c), func(t *testing.T) {
					s := StateOptions{Order: Order(i % 2), Bits: c.bits, Min8bit: 1, Block: c.block, Chunk: c.chunk}
					ruleDefinition(t, place, newOf(t, name, s, map[string]int{"w": c.n}), c)
				})
			}
		}
	}
}

// TestTrustNonFinite: nothing is written when a norm is not finite.
func TestTrustNonFinite(t *testing.T) {
	const n = 1500
	kerneltest.Each(t, func(t *testing.T, place kerneltest.Place) {
		for _, name := range []string{"LAMB", "LARS", "Adafactor", "AdafactorMomentum"} {
			for _, bits := range []int{8, 32} {
				for _, bad := range []float32{float32(math.Inf(-1)), float32(math.NaN())} {
					a, x := newOf(t, name, StateOptions{Bits: bits, Min8bit: 1}, map[string]int{"w": n}), randn(n, 1)
					g := kerneltest.Put(t, place, randn(n, 2))
					a.Advance(-1)
					require.NoError(t, a.Step("w", kerneltest.Put(t, place, x).View, g.View, 1))
					before := stateOf(t, a)
					x[n-1] = bad
					p := kerneltest.Put(t, place, x)
					err := a.Step("w", p.View, g.View, 1)
					require.ErrorIs(t, err, snug.ErrNonFinite)
					require.ErrorContains(t, err, `parameter "w": a norm`)
					require.Equal(t, fmt.Sprint(x), fmt.Sprint(p.Get()))
					require.Equal(t, before, stateOf(t, a))
				}
			}
		}
	})
}

// TestTrustSums: the sums of devices are those of the definition.
func TestTrustSums(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, place kerneltest.Place) {
		for _, name := range []string{"LAMB", "LARS", "Adafactor", "AdafactorMomentum"} {
			for _, c := range []ruleCase{
				{8, 32, 1024, snug.F32, snug.BF16, 50_001, 9},
				{8, 33, 132, snug.F16, snug.F32, 9000, 0},
				{8, 4096, 4096, snug.BF16, snug.F32, 4100, 9},
				{32, 256, 1024, snug.BF16, snug.F16, 30_000, 9},
				{32, 33, 132, snug.F32, snug.F32, 1000, 9},
			} {
				s := StateOptions{Bits: c.bits, Min8bit: 1, Block: c.block, Chunk: c.chunk}
				trustSums(t, place, newOf(t, name, s, map[string]int{"w": c.n}), c)
			}
		}
	})
}

func trustSums(t *testing.T, place kerneltest.Place, a *Optimizer, c ruleCase) {
	p := kerneltest.PutFloats(t, place, c.pt, randn(c.skip+c.n, 1))
	g := kerneltest.PutFloats(t, place, c.gt, gradient(c.skip+c.n, 2))
	a.Advance(-1)
	require.NoError(t, a.Step("w", after(t, p.View, c.skip), after(t, g.View, c.skip), 0.5))

	h, q := a.o.hyper, a.params["w"]
	h.LR, h.Step, h.GradScale = float64(a.o.lr), 2, 0.5
	coef, states := h.Coef(), statesOf(t, a, "w")
	wantP, wantU := coef.Squares(p.Get()[c.skip:], g.Get()[c.skip:], [3][]float32(append(states, nil, nil)[:3]))
	sums := new(squares)
	require.NoError(t, a.run(p.Device(), q, 0, stepJob{
		p: after(t, p.View, c.skip), g: after(t, g.View, c.skip), layout: q.layout, chunk: c.chunk,
		m: a.maps.m, v: a.maps.v, rule: coef, signed: h.Rule.Signed(), sums: sums,
	}))
	require.InEpsilon(t, wantP, sums.parameter, 1e-12)
	require.InEpsilon(t, wantU, sums.update, 1e-12)
}
