package recurrent

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in race
func TestZeroRecurrent(t *testing.T) {
	kerneltest.Zero(t, Batch{}, Conv{}, Delta{}, ConvForward[[]float32], ConvForward[snug.View], ConvBackward[[]float32, []float32], ConvBackward[snug.View, snug.View],
		DeltaForward[[]float32, []float32], DeltaForward[snug.View, snug.View], DeltaBackward[[]float32, []float32], DeltaBackward[snug.View, snug.View],
		GatesForward[[]float32, []float32], GatesForward[snug.View, snug.View], GatesBackward[[]float32, []float32], GatesBackward[snug.View, snug.View])
}

func TestConvRefused(t *testing.T) {
	halves := make([]snug.BFloat16, 4*2)
	for name, row := range map[string]struct {
		change func(c *Conv, x, dw *snug.View)
		err    error
	}{
		"no rows":           {func(c *Conv, _, _ *snug.View) { c.Rows = 0 }, snug.ErrShape},
		"no channels":       {func(c *Conv, _, _ *snug.View) { c.Channels = -1 }, snug.ErrShape},
		"no taps":           {func(c *Conv, _, _ *snug.View) { c.Taps = 0 }, snug.ErrShape},
		"too many taps":     {func(c *Conv, _, _ *snug.View) { c.Taps = mostTaps + 1 }, snug.ErrShape},
		"too many channels": {func(c *Conv, _, _ *snug.View) { c.Channels = math.MaxInt }, snug.ErrShape},
		"sequences":         {func(c *Conv, _, _ *snug.View) { c.Sequences = 3 }, snug.ErrShape},
		"starts":            {func(c *Conv, _, _ *snug.View) { c.Starts = []int{0, 5, 4} }, snug.ErrShape},
		"no starts":         {func(c *Conv, _, _ *snug.View) { c.Starts = []int{} }, snug.ErrShape},
		"state":             {func(c *Conv, _, _ *snug.View) { c.Initial = snug.ViewOf(make([]float32, 3)) }, snug.ErrShape},
		"type of state":     {func(c *Conv, _, _ *snug.View) { c.Final = snug.ViewOf(halves[:4]) }, snug.ErrDType},
		"gates":             {func(c *Conv, _, _ *snug.View) { c.Gates = true }, snug.ErrShape},
		"type of x":         {func(_ *Conv, x, _ *snug.View) { *x = snug.ViewOf(halves) }, snug.ErrDType},
		"integers":          {func(_ *Conv, x, _ *snug.View) { *x = snug.SliceView(make([]int32, 8)) }, snug.ErrDType},
		"device of x":       {func(_ *Conv, x, _ *snug.View) { *x = far(t, 8) }, snug.ErrDevice},
		"type of dw":        {func(_ *Conv, _, dw *snug.View) { *dw = snug.ViewOf(halves[:6]) }, snug.ErrDType},
		"length of dw":      {func(_ *Conv, _, dw *snug.View) { *dw = snug.ViewOf(make([]float32, 5)) }, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			c := Conv{Batch: Batch{Rows: 4}, Channels: 2, Taps: 3}
			y, w := snug.ViewOf(make([]float32, 8)), snug.ViewOf(make([]float32, 6))
			x, dw := y, snug.ViewOf(make([]float32, 6))
			row.change(&c, &x, &dw)
			err := ConvBackward(snug.ViewOf(make([]float32, 8)), dw, snug.View{}, y, x, w, snug.View{}, c, snug.Into{})
			require.ErrorIs(t, err, row.err)
			kerneltest.Error(t, "recurrent.ConvBackward", err)
			if dw.DType() == snug.F32 && dw.Len() == 6 {
				require.ErrorIs(t, ConvForward(y, x, w, snug.View{}, c), row.err)
			}
		})
	}
	x := make([]float32, 2)
	require.ErrorIs(t, ConvBackward(x, x, nil, x, x, x, nil, Conv{Batch: Batch{Rows: 1}, Channels: 2, Taps: 1}, snug.Into{Beta: float32(math.NaN())}), snug.ErrConfig)
}

func far(t *testing.T, n int) snug.View {
	v, _, err := snug.MakeView(kerneltest.Backends(t)[2].Dev, snug.F32, n)
	require.NoError(t, err)
	return v
}

func TestDeltaRefused(t *testing.T) {
	for name, row := range map[string]struct {
		change func(d *Delta, q, states *snug.View)
		err    error
	}{
		"no rows":        {func(d *Delta, _, _ *snug.View) { d.Rows = 0 }, snug.ErrShape},
		"no heads":       {func(d *Delta, _, _ *snug.View) { d.Heads = 0 }, snug.ErrShape},
		"heads":          {func(d *Delta, _, _ *snug.View) { d.Heads = 3 }, snug.ErrShape},
		"no dimension":   {func(d *Delta, _, _ *snug.View) { d.Dim = 0 }, snug.ErrShape},
		"large":          {func(d *Delta, _, _ *snug.View) { d.KeyDim = math.MaxInt / 2 }, snug.ErrShape},
		"scale":          {func(d *Delta, _, _ *snug.View) { d.Scale = float32(math.Inf(1)) }, snug.ErrConfig},
		"negative scale": {func(d *Delta, _, _ *snug.View) { d.Scale = -1 }, snug.ErrConfig},
		"rows of q":      {func(d *Delta, _, _ *snug.View) { d.QRow = 5 }, snug.ErrShape},
		"length of q":    {func(_ *Delta, q, _ *snug.View) { *q = snug.ViewOf(make([]float32, 7)) }, snug.ErrShape},
		"type of q":      {func(_ *Delta, q, _ *snug.View) { *q = snug.ViewOf(make([]snug.Float16, 6*600)) }, snug.ErrDType},
		"device of q":    {func(_ *Delta, q, _ *snug.View) { *q = far(t, 6*600) }, snug.ErrDevice},
		"states":         {func(_ *Delta, _, states *snug.View) { *states = snug.ViewOf(make([]float32, 5)) }, snug.ErrShape},
		"final":          {func(d *Delta, _, _ *snug.View) { d.Final = snug.ViewOf(make([]float32, 1)) }, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			d := Delta{Batch: Batch{Rows: 600}, KeyHeads: 2, Heads: 2, KeyDim: 3, Dim: 1}
			states, k, v, g := snug.ViewOf(make([]float32, d.StatesLen())), snug.ViewOf(make([]float32, 6*600)), snug.ViewOf(make([]float32, 1200)), snug.ViewOf(make([]float32, 1200))
			q := k
			row.change(&d, &q, &states)
			err := DeltaForward(v, q, k, v, g, g, states, d)
			require.ErrorIs(t, err, row.err)
			kerneltest.Error(t, "recurrent.DeltaForward", err)
			require.ErrorIs(t, DeltaBackward(k, k, v, g, g, v, q, k, v, g, g, states, d), row.err)
		})
	}
	d := Delta{Batch: Batch{Rows: 600}, KeyHeads: 2, Heads: 2, KeyDim: 3, Dim: 1}
	x, g := make([]float32, 6*600), make([]float32, 1200)
	require.ErrorIs(t, DeltaBackward(x, x, g, g, g, g, x, x, g, g, g, nil, d), snug.ErrShape)
}

// TestAllocations: calls allocate nothing.
func TestAllocations(t *testing.T) {
	d := Delta{Batch: Batch{Rows: 600}, KeyHeads: 1, Heads: 2, KeyDim: 8, Dim: 8, Normalize: true}
	x, dx, v, dv, g, dg := make([]float32, 600*8), make([]float32, 600*8), make([]float32, 600*16), make([]float32, 600*16), make([]float32, 1200), make([]float32, 1200)
	states := make([]float32, d.StatesLen())
	c := Conv{Batch: Batch{Rows: 600}, Channels: 8, Taps: 3, SiLU: true}
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, DeltaForward(v, x, x, v, g, g, states, d))
		require.NoError(t, DeltaBackward(dx, dx, dv, dg, dg, v, x, x, v, g, g, states, d))
		require.NoError(t, GatesForward(g, dg, v[:1200], v[:1200], v[:2], v[:2], 2))
		require.NoError(t, GatesBackward(v[:1200], v[:1200], dg[:2], dg[:2], g, dg, v[:1200], v[:1200], v[:2], v[:2], 2, snug.Into{}))
		require.NoError(t, ConvForward(x, x, g[:24], nil, c))
		require.NoError(t, ConvBackward(dx, dg[:24], nil, x, x, g[:24], nil, c, snug.Into{}))
	})
}
