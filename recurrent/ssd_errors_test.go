package recurrent

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in race
func TestZeroSSD(t *testing.T) {
	kerneltest.Zero(t, SSD{}, SSDForward[[]float32, []float32], SSDForward[snug.View, snug.View], SSDBackward[[]float32, []float32], SSDBackward[snug.View, snug.View])
}

func TestSSDRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(d *SSD, x, states *snug.View)
		err    error
	}{
		"no rows":         {func(d *SSD, _, _ *snug.View) { d.Rows = 0 }, snug.ErrShape},
		"no groups":       {func(d *SSD, _, _ *snug.View) { d.Groups = 0 }, snug.ErrShape},
		"heads":           {func(d *SSD, _, _ *snug.View) { d.Heads = 3 }, snug.ErrShape},
		"no dimension":    {func(d *SSD, _, _ *snug.View) { d.Dim = 0 }, snug.ErrShape},
		"no state":        {func(d *SSD, _, _ *snug.View) { d.StateDim = -1 }, snug.ErrShape},
		"large":           {func(d *SSD, _, _ *snug.View) { d.StateDim = math.MaxInt / 2 }, snug.ErrShape},
		"negative limit":  {func(d *SSD, _, _ *snug.View) { d.Min = -1 }, snug.ErrConfig},
		"infinite limit":  {func(d *SSD, _, _ *snug.View) { d.Min = float32(math.Inf(1)) }, snug.ErrConfig},
		"limits":          {func(d *SSD, _, _ *snug.View) { d.Min, d.Max = 2, 1 }, snug.ErrConfig},
		"limit of no one": {func(d *SSD, _, _ *snug.View) { d.Max = float32(math.NaN()) }, snug.ErrConfig},
		"rows of x":       {func(d *SSD, _, _ *snug.View) { d.XRow = 1 }, snug.ErrShape},
		"rows of dt":      {func(d *SSD, _, _ *snug.View) { d.DtRow = 1 }, snug.ErrShape},
		"length of x":     {func(_ *SSD, x, _ *snug.View) { *x = snug.ViewOf(make([]float32, 7)) }, snug.ErrShape},
		"type of x":       {func(_ *SSD, x, _ *snug.View) { *x = snug.ViewOf(make([]snug.Float16, 1200)) }, snug.ErrDType},
		"device of x":     {func(_ *SSD, x, _ *snug.View) { *x = far(t, 1200) }, snug.ErrDevice},
		"states":          {func(_ *SSD, _, states *snug.View) { *states = snug.ViewOf(make([]float32, 5)) }, snug.ErrShape},
		"initial":         {func(d *SSD, _, _ *snug.View) { d.Initial = snug.ViewOf(make([]float32, 1)) }, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			d := SSD{Batch: Batch{Rows: 600}, Groups: 2, Heads: 2, StateDim: 3, Dim: 1}
			states, b, y, a := snug.ViewOf(make([]float32, d.StatesLen())), snug.ViewOf(make([]float32, 6*600)), snug.ViewOf(make([]float32, 1200)), snug.ViewOf(make([]float32, 2))
			x, ws := y, snug.ViewOf(make([]float32, d.WorkspaceLen()))
			row.change(&d, &x, &states)
			err := SSDForward(y, x, b, b, y, a, a, a, states, d)
			require.ErrorIs(t, err, row.err)
			kerneltest.Error(t, "recurrent.SSDForward", err)
			require.ErrorIs(t, SSDBackward(SSDGrads{X: y, B: b, C: b, Dt: y}, y, x, b, b, y, a, a, a, states, ws, d), row.err)
		})
	}
	d := SSD{Batch: Batch{Rows: 600}, Groups: 2, Heads: 2, StateDim: 3, Dim: 1}
	b, y, a := snug.ViewOf(make([]float32, 6*600)), snug.ViewOf(make([]float32, 1200)), snug.ViewOf(make([]float32, 2))
	states, ws := snug.ViewOf(make([]float32, d.StatesLen())), snug.ViewOf(make([]float32, d.WorkspaceLen()))
	g := SSDGrads{X: y, B: b, C: b, Dt: y}
	require.NoError(t, SSDBackward(g, y, y, b, b, y, a, a, a, states, ws, d))
	require.ErrorIs(t, SSDBackward(g, y, y, b, b, y, a, a, a, snug.View{}, ws, d), snug.ErrShape)
	require.ErrorIs(t, SSDBackward(g, y, y, b, b, y, a, a, a, states, b, d), snug.ErrShape)
	require.ErrorIs(t, SSDBackward(SSDGrads{X: y, B: b, C: b}, y, y, b, b, y, a, a, a, states, ws, d), snug.ErrShape)
	g.Into.Beta = float32(math.NaN())
	require.ErrorIs(t, SSDBackward(g, y, y, b, b, y, a, a, a, states, ws, d), snug.ErrConfig)
}

// TestSSDAllocations: calls allocate nothing.
func TestSSDAllocations(t *testing.T) {
	x, dx, v, dv, g, dg := make([]float32, 600*8), make([]float32, 600*8), make([]float32, 600*16), make([]float32, 600*16), make([]float32, 1200), make([]float32, 1200)
	m := SSD{Batch: Batch{Rows: 600}, Groups: 1, Heads: 2, StateDim: 8, Dim: 8}
	sstates, ws, grads := make([]float32, m.StatesLen()), make([]float32, m.WorkspaceLen()), SSDGrads{X: snug.ViewOf(dv), B: snug.ViewOf(dx), C: snug.ViewOf(dx), Dt: snug.ViewOf(dg)}
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, SSDForward(v, v, x, x, g, g[:2], nil, nil, sstates, m))
		require.NoError(t, SSDBackward(grads, v, v, x, x, g, g[:2], nil, nil, sstates, ws, m))
	})
}
