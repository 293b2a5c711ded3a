package recurrent

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestGates compares values and gradients with the definition and its central differences, for logits of all signs and sizes.
func TestGates(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {5, 3}, {4, 19}} {
		rows, heads := shape[0], shape[1]
		for dt, tolerance := range tolerances {
			t.Run(fmt.Sprintf("%d rows of %d heads of %v", rows, heads, dt), func(t *testing.T) {
				n := rows * heads
				a, b := vector(t, dt, n, 1, 6, 1), vector(t, dt, n, 2, 6, 0)
				aLog, bias := vector(t, dt, heads, 3, 1, 0), vector(t, dt, heads, 4, 1, 0)
				g, beta, dg, dbeta := vector(t, snug.F32, n, 5, 1, 0), vector(t, snug.F32, n, 6, 1, 0), vector(t, snug.F32, n, 7, 1, 0), vector(t, snug.F32, n, 8, 1, 0)
				define := func() (decays, steps []float64) {
					for i := range a.x {
						decays = append(decays, -math.Exp(aLog.x[i%heads])*math.Log1p(math.Exp(a.x[i]+bias.x[i%heads])))
						steps = append(steps, 1/(1+math.Exp(-b.x[i])))
					}
					return decays, steps
				}
				differentiate(func() float64 {
					decays, steps := define()
					return dot(decays, dg.x) + dot(steps, dbeta.x)
				}, a, b, aLog, bias)
				require.NoError(t, GatesForward(g.in, beta.in, a.in, b.in, aLog.in, bias.in, heads))
				decays, steps := define()
				near(t, "g", decays, g.in, 1e-6)
				near(t, "beta", steps, beta.in, 1e-6)

				daLog, dbias := vector(t, snug.F32, heads, 9, 1, 0), vector(t, snug.F32, heads, 10, 1, 0)
				for i := range heads {
					aLog.grad[i], bias.grad[i] = 2*aLog.grad[i]+0.5*daLog.x[i], 2*bias.grad[i]+0.5*dbias.x[i]
				}
				into := snug.Into{Alpha: 2, Beta: 0.5}
				require.NoError(t, GatesBackward(a.back, b.back, daLog.in, dbias.in, dg.in, dbeta.in, a.in, b.in, aLog.in, bias.in, heads, into))
				near(t, "da", a.grad, a.back, tolerance)
				near(t, "db", b.grad, b.back, tolerance)
				near(t, "daLog", aLog.grad, daLog.in, 2e-5)
				near(t, "dbias", bias.grad, dbias.in, 2e-5)
				require.NoError(t, GatesBackward(a.in, b.in, snug.View{}, snug.View{}, dg.in, dbeta.in, a.in, b.in, aLog.in, bias.in, heads, snug.Into{}))
				near(t, "da in place", a.grad, a.in, tolerance)
			})
		}
	}
	// Logits whose exponential overflows.
	x := []float32{200, -200}
	g, beta := make([]float32, 2), make([]float32, 2)
	require.NoError(t, GatesForward(g, beta, x, x, []float32{0, 0}, []float32{0, 0}, 2))
	require.Equal(t, []float32{-200, 0}, g)
	require.Equal(t, []float32{1, 0}, beta)
}

func TestGatesRefused(t *testing.T) {
	x, two := make([]float32, 6), make([]float32, 2)
	for name, row := range map[string]struct {
		heads int
		a     snug.View
		aLog  []float32
		into  snug.Into
		err   error
	}{
		"no heads":       {0, snug.ViewOf(x), two, snug.Into{}, snug.ErrShape},
		"no rows":        {2, snug.ViewOf(x[:0]), two, snug.Into{}, snug.ErrShape},
		"rows":           {4, snug.ViewOf(x), two, snug.Into{}, snug.ErrShape},
		"parameters":     {2, snug.ViewOf(x), x, snug.Into{}, snug.ErrShape},
		"type of a":      {2, snug.ViewOf(make([]snug.BFloat16, 6)), two, snug.Into{}, snug.ErrDType},
		"device":         {2, far(t, 6), two, snug.Into{}, snug.ErrDevice},
		"an accumulator": {2, snug.ViewOf(x), two, snug.Into{Beta: float32(math.NaN())}, snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			v, l, none := snug.ViewOf(x), snug.ViewOf(row.aLog), snug.View{}
			err := GatesBackward(v, v, none, none, v, v, row.a, v, l, l, row.heads, row.into)
			require.ErrorIs(t, err, row.err)
			kerneltest.Error(t, "recurrent.GatesBackward", err)
			if row.err != snug.ErrConfig {
				require.ErrorIs(t, GatesForward(v, v, row.a, v, l, l, row.heads), row.err)
			}
		})
	}
}
