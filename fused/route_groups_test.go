package fused

import (
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestRouteGroups compares the choice with that of transformers' DeepSeek routers, written out: the other groups are masked.
func TestRouteGroups(t *testing.T) {
	for name, r := range map[string]Router{
		"DeepSeek-V2":      {Experts: 12, Chosen: 3, Scale: 16, Groups: 4, ChosenGroups: 2},
		"DeepSeek-V3":      {Experts: 32, Chosen: 4, Sigmoid: true, Normalize: true, Scale: 2.5, Groups: 8, ChosenGroups: 3, GroupTop: 2},
		"softmax, two":     {Experts: 9, Chosen: 2, Groups: 3, ChosenGroups: 1, GroupTop: 2},
		"all of the group": {Experts: 6, Chosen: 3, Sigmoid: true, Groups: 2, ChosenGroups: 1, GroupTop: 3},
	} {
		t.Run(name, func(t *testing.T) {
			const rows = 200
			rng := newRand(3)
			logits, bias := normals(rng, snug.F32, rows*r.Experts, 0, 2), quarters(rng, r.Experts)
			for _, bias := range [][]float32{nil, bias} {
				experts, weights := make([]int32, rows*r.Chosen), make([]float32, rows*r.Chosen)
				require.NoError(t, Route(r, experts, weights, logits, bias))
				h, each := router64{r}, r.Experts/r.Groups
				for i := range rows {
					z := float64s(logits[i*r.Experts:][:r.Experts])
					ranks := h.scores(z)
					for e, b := range bias {
						ranks[e] += float64(b)
					}
					groups := make([]float64, r.Groups)
					for g, of := range slices.Collect(slices.Chunk(ranks, each)) {
						sorted := slices.Sorted(slices.Values(of))
						for _, best := range sorted[each-max(1, r.GroupTop):] {
							groups[g] += best
						}
					}
					masked := slices.Repeat([]float64{math.Inf(-1)}, r.Experts)
					for _, g := range (router64{Router{Chosen: r.ChosenGroups}}).choose(groups) {
						copy(masked[int(g)*each:][:each], ranks[int(g)*each:])
					}
					got := experts[i*r.Chosen:][:r.Chosen]
					require.Equal(t, h.choose(masked), got)
					for k, w := range h.weights(z, got) {
						require.InEpsilon(t, w, weights[i*r.Chosen+k], 1e-5)
					}
				}
			}
		})
	}
	for name, r := range map[string]Router{
		"no divisor":      {Experts: 8, Chosen: 1, Groups: 3, ChosenGroups: 1},
		"too few experts": {Experts: 8, Chosen: 3, Groups: 4, ChosenGroups: 1},
		"no group chosen": {Experts: 8, Chosen: 1, Groups: 4},
		"no groups":       {Experts: 8, Chosen: 1, GroupTop: 2},
		"best of more":    {Experts: 8, Chosen: 1, Groups: 4, ChosenGroups: 2, GroupTop: 3},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, Route(r, make([]int32, r.Chosen), make([]float32, r.Chosen), make([]float32, 8), nil), snug.ErrConfig)
		})
	}
}
