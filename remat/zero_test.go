package remat_test

import (
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat"
)

type (
	anyChain  = remat.Chain[int, int]
	anyRunner = remat.Runner[int, int]
)

// TestZeroValues calls everything that is exported with nil and zero values.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		(*anyChain)(nil), new(anyChain), (*anyRunner)(nil), new(anyRunner),
		remat.Plan{}, new(remat.Plan), (*remat.Plan)(nil), remat.Costs{}, new(remat.Costs), (*remat.Costs)(nil),
		remat.Planner{}, remat.Report{}, remat.Mismatch{}, remat.Op{},
		remat.Kind(0), remat.Kind(255), remat.Tier(255), remat.Method(255),

		(*remat.Tiles[int, int])(nil), new(remat.Tiles[int, int]), remat.TiledCost, new(remat.BudgetError), new(remat.RecomputeError),
		remat.KeepAll, remat.Only, remat.AllBut, remat.FirstPass, remat.RecomputeAll, remat.Every, remat.Chen, remat.Revolve, remat.Rotor, remat.Exact, remat.Fit, remat.HRevolve,
		remat.Repeat[int, int], remat.Iteration, remat.ParsePlan, remat.ParseMethod, remat.HashView,
	)

	// With a context and functions, so that the next check is reached.
	ctx, loss := t.Context(), func(int) (int, error) { return 0, nil }
	for _, c := range []*anyChain{nil, {}, {Stages: make([]remat.Stage[int, int], 2)}} {
		_, _, err := c.Run(ctx, remat.Plan{}, 0, loss)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = c.Eval(ctx, 0)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = c.NewRunner(remat.Plan{})
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = c.MeasureCosts(ctx, 0, loss, 1)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	for _, r := range []*anyRunner{nil, {}} {
		_, _, err := r.Run(ctx, 0, loss)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.ErrorIs(t, new(remat.Plan).UnmarshalJSON(nil), snug.ErrCorrupt)
	require.ErrorIs(t, (*remat.Costs)(nil).UnmarshalJSON([]byte(`{"input":0,"stages":[]}`)), snug.ErrConfig)
	require.ErrorIs(t, remat.Report{}.WriteCSV(nil, remat.Plan{}), snug.ErrConfig)
	require.NoError(t, remat.Report{}.WriteSVG(io.Discard, remat.Plan{}, ""))
	_, err := new(anyChain).MeasureCosts(ctx, 0, loss, math.MaxInt)
	require.ErrorIs(t, err, snug.ErrConfig)
}
