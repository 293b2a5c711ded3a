package offload

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/adam"
)

// TestAdamWOncePerStep: an element is updated once in a step, also after a restore
// between two ranges, and what failed before it began may be repeated.
func TestAdamWOncePerStep(t *testing.T) {
	const n, pageLen = 100, 16
	s := memStore(t, Options{})
	a := newAdamW(t, s, n, pageLen)
	p, g := normals(n, 1), normals(n, 2)
	part := func(a *AdamW, lo, hi int) error {
		return a.StepRange("w", lo, snug.ViewOf(p[lo:hi]), snug.ViewOf(g[lo:hi]), 1)
	}
	a.Advance(0)
	require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1), "0 is a rate")
	requireSameBits(t, normals(n, 1), p)
	twice := func(a *AdamW, lo, hi int) {
		t.Helper()
		err := part(a, lo, hi)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "already has an update")
	}
	twice(a, 0, n)
	a.Advance(0.1)
	require.NoError(t, part(a, 32, 64))
	for _, r := range [][2]int{{32, 64}, {0, n}, {48, 64}, {16, 48}} {
		before := append([]float32(nil), p...)
		twice(a, r[0], r[1])
		requireSameBits(t, before, p)
	}
	state, err := a.AppendBinary(nil)
	require.NoError(t, err)
	b, err := NewAdamW(s, AdamWOptions{})
	require.NoError(t, err)
	require.NoError(t, b.UnmarshalBinary(state))
	twice(b, 32, 64)
	require.NoError(t, part(b, 0, 32))
	require.NoError(t, part(b, 64, n))
	want, m, v := normals(n, 1), make([]float32, n), make([]float32, n)
	for t, lr := range []float32{0, 0.1} {
		adam.Hyper{
			LR: lr, Beta1: hyper.Beta1, Beta2: hyper.Beta2, Eps: hyper.Eps, WeightDecay: hyper.WeightDecay,
			Step: t + 1, GradScale: 1, DecayFirst: true,
		}.Coef().Update(want, m, v, g)
	}
	requireSameBits(t, want, p)

	b.Advance(float32(math.NaN()))
	require.ErrorIs(t, part(b, 0, 32), snug.ErrConfig)
	require.Equal(t, 2, b.Steps(), "no step has begun")
	b.Advance(0.1)
	require.NoError(t, part(b, 0, 32))
}

// TestAdamWRepeats: a step that could not begin is made later.
func TestAdamWRepeats(t *testing.T) {
	s := memStore(t, Options{HostLimit: 2 * 4 * 64})
	a := newAdamW(t, s, 100, 64)
	other, err := Create[float32](s, "other", 128, 64)
	require.NoError(t, err)
	held, err := other.Pin(t.Context(), 0)
	require.NoError(t, err)
	a.Advance(0.1)
	p := make([]float32, 100)
	require.ErrorIs(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1), snug.ErrNoMemory)
	require.NoError(t, held.Unpin(false))
	require.NoError(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1))
	require.ErrorContains(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1), "already has an update")
}
