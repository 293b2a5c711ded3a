package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in tiers arm64
func TestAddScoresAgainstDefinition(t *testing.T) {
	for _, dt := range floatTypes {
		kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
			for _, r := range routers {
				for _, rows := range rowCounts {
					logits, before := normals(newRand(uint64(rows)), dt, rows*r.Experts, 0, 2), random(r.Experts)
					want, bound := float64s(before), make([]float64, r.Experts)
					for i := range rows {
						for e, s := range (router64{r}).scores(float64s(logits[i*r.Experts:][:r.Experts])) {
							want[e] += s
							bound[e] += float64(rows+40) * u * s
						}
					}
					for e, x := range before {
						bound[e] += 2 * u * (math.Abs(float64(x)) + math.Abs(want[e]))
					}
					sums, ws := kerneltest.Put(t, p, before), kerneltest.Put(t, p, fill(r.WorkspaceLen(rows), float32(math.NaN())))
					require.NoError(t, AddScores(r, sums.View, kerneltest.PutFloats(t, p, dt, logits).View, ws.View))
					requireClose(t, "sums", want, bound, sums.Get())
				}
			}
		})
	}
}

// The coefficients are the derivative of the loss, through the logits of two layers.
func TestAuxLossGradient(t *testing.T) {
	r, rows := Router{Experts: 5, Chosen: 2}, 6
	for _, r.Sigmoid = range []bool{false, true} {
		h := router64{r}
		z := float64s(normals(newRand(1), snug.F32, 2*rows*r.Experts, 0, 1))
		counts := make([]int64, r.Experts)
		for i := range 2 * rows {
			for _, e := range h.choose(z[i*r.Experts:][:r.Experts]) {
				counts[e]++
			}
		}
		sums := func() []float32 {
			s := make([]float64, r.Experts)
			for i := range 2 * rows {
				for e, x := range h.scores(z[i*r.Experts:][:r.Experts]) {
					s[e] += x
				}
			}
			s32 := make([]float32, len(s))
			for e, x := range s {
				s32[e] = float32(x)
			}
			return s32
		}
		coefficients := make([]float32, r.Experts)
		loss, err := AuxLoss(coefficients, sums(), counts, 2*rows, 8)
		require.NoError(t, err)
		want := 0.0
		for e, s := range sums() {
			want += 5 * float64(counts[e]) / 12 * float64(s) / 12
		}
		require.InDelta(t, want, loss, 1e-12)
		at := z[3*r.Experts:][:r.Experts]
		dz, _ := h.gradient(at, nil, nil, coefficients)
		for e := range dz {
			f := func() (sum float64) { // the terms of one row
				for e, s := range h.scores(at) {
					sum += 5 * float64(counts[e]) / 12 * s / 12
				}
				return sum
			}
			require.InDelta(t, 8*slope(f, at, e), dz[e], 1e-6)
		}
	}
}

func TestUpdateBias(t *testing.T) {
	bias := []float32{0, 0.5, -1, 0}
	require.NoError(t, UpdateBias(bias, []int64{4, 1, 9, 2}, 0.25))
	require.Equal(t, []float32{0, 0.75, -1.25, 0.25}, bias)
	require.NoError(t, UpdateBias(bias, make([]int64, 4), 1))
	require.Equal(t, []float32{0, 0.75, -1.25, 0.25}, bias, "equal loads")
	require.NoError(t, UpdateBias(nil, nil, 1))
	require.ErrorIs(t, UpdateBias(bias, []int64{1, 2, 3}, 1), snug.ErrShape)
	require.ErrorIs(t, UpdateBias(bias, []int64{1, 2, 3, -1}, 1), snug.ErrConfig)
	require.ErrorIs(t, UpdateBias(bias, []int64{1, 2, 3, 4}, float32(math.NaN())), snug.ErrConfig)
	require.Equal(t, []float32{0, 0.75, -1.25, 0.25}, bias, "after errors")
}

func TestAuxLossErrors(t *testing.T) {
	x, counts := []float32{1, 2}, []int64{1, 2}
	for _, err := range []error{
		second(AuxLoss(x, x, counts, 0, 1)), second(AuxLoss(x[:1], x, counts, 1, 1)), second(AuxLoss(x, x[:1], counts, 1, 1)),
	} {
		require.ErrorIs(t, err, snug.ErrShape)
		require.ErrorContains(t, err, "fused: AuxLoss: ")
	}
	require.ErrorIs(t, second(AuxLoss(x, x, counts, 1, float32(math.Inf(1)))), snug.ErrConfig)
	require.ErrorIs(t, second(AuxLoss(x, x, []int64{0, -1}, 1, 1)), snug.ErrConfig)
	require.Equal(t, []float32{1, 2}, x)
}

func second(_ float64, err error) error { return err }

func TestGroup(t *testing.T) {
	experts := []int32{2, 0, 0, 2, 1, 2}
	rows, pairs, starts := make([]int32, 6), make([]int32, 6), make([]int32, 5)
	require.NoError(t, Group(rows, pairs, starts, experts, 2))
	require.Equal(t, []int32{0, 2, 3, 6, 6}, starts)
	require.Equal(t, []int32{1, 2, 4, 0, 3, 5}, pairs)
	require.Equal(t, []int32{0, 1, 2, 0, 1, 2}, rows)
	for _, c := range []struct {
		rows, pairs, starts, experts []int32
		chosen                       int
		want                         string
	}{
		{rows, pairs, starts, experts, 0, "chosen is 0"}, {rows, pairs, starts, experts, 4, "multiple of 4"},
		{rows, pairs, starts[:1], experts, 2, "starts has 1"}, {rows, pairs, nil, nil, 1, "starts has 0"},
		{rows[:5], pairs, starts, experts, 2, "rows has 5"}, {rows, pairs[:5], starts, experts, 2, "pairs has 5"},
		{rows, pairs, starts[:3], experts, 2, "experts[0] is 2, starts has 2"}, {rows, pairs, starts, []int32{0, 0, 0, 0, 0, -1}, 2, "experts[5] is -1"},
	} {
		t.Run(c.want, func(t *testing.T) {
			err := Group(c.rows, c.pairs, c.starts, c.experts, c.chosen)
			require.ErrorIs(t, err, snug.ErrShape)
			require.ErrorContains(t, err, c.want)
		})
	}
	require.Equal(t, []int32{0, 2, 3, 6, 6}, starts, "after errors")
	require.NoError(t, Group(nil, nil, starts, nil, 3))
	require.Equal(t, make([]int32, 5), starts)
}
