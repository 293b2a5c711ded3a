package quant8

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// lamb and lars make a step in float64 by the equations of LAMB and LARS, with
// the constants of rules.
func lamb(t int, p, g, m, v []float64, ratio bool) {
	u := make([]float64, len(p))
	for i := range p {
		m[i] = 0.9*m[i] + 0.1*g[i]
		v[i] = 0.99*v[i] + 0.01*g[i]*g[i]
		u[i] = m[i]/(1-math.Pow(0.9, float64(t)))/(math.Sqrt(v[i]/(1-math.Pow(0.99, float64(t))))+1e-6) + 0.1*p[i]
	}
	size := 1e-2
	if ratio {
		size *= norm(p) / norm(u)
	}
	for i := range p {
		p[i] -= size * u[i]
	}
}

func lars(_ int, p, g, m, _ []float64, ratio bool) {
	size := 1e-2
	if ratio {
		size *= 0.02 * norm(p) / (norm(g) + 0.1*norm(p))
	}
	for i := range p {
		m[i] = 0.9*m[i] + size*(g[i]+0.1*p[i])
		p[i] -= m[i]
	}
}

// TestTrustGolden makes 20 steps of parameters of several chunks with float32 state,
// against the definition in float64.
//
//check:in tiers arm64 arm64-go
func TestTrustGolden(t *testing.T) {
	const n = 5000
	for name, define := range map[string]func(t int, p, g, m, v []float64, ratio bool){"LAMB": lamb, "LARS": lars} {
		for _, plain := range []bool{false, true} {
			for _, storage := range []Storage{nil, newFakeStorage()} {
				a := newOf(t, name, Options{
					Bits: 32, Chunk: 1024, Storage: storage,
					Params: func(string) ParamOptions { return ParamOptions{NoTrust: plain} },
				}, map[string]int{"w": n})
				p, want, m, v := kerneltest.Normal(1, n), make([]float64, n), make([]float64, n), make([]float64, n)
				for i, x := range p {
					want[i] = float64(x)
				}
				for i := 1; i <= 20; i++ {
					g, exact := kerneltest.Normal(uint64(i+1), n), make([]float64, n)
					for k, x := range g {
						exact[k] = float64(x) / 2
					}
					advance(a)
					step(t, a, "w", p, g, 0.5)
					define(i, want, exact, m, v, !plain)
					for k, x := range p {
						if !(math.Abs(want[k]-float64(x)) <= 1e-6+1e-5*math.Abs(want[k])) {
							t.Fatalf("%s: step %d, element %d is %v, want %v", name, i, k, x, want[k])
						}
					}
				}
			}
		}
	}
}

// TestTrustStorage: norms are the same for state in memory and in a Storage.
func TestTrustStorage(t *testing.T) {
	const n = 50_000
	for _, name := range []string{"LAMB", "LARS"} {
		a := newOf(t, name, Options{Chunk: 4096}, map[string]int{"w": n})
		b := newOf(t, name, Options{Chunk: 4096, Storage: newFakeStorage()}, map[string]int{"w": n})
		p, q := kerneltest.Normal(1, n), kerneltest.Normal(1, n)
		for i := range 3 {
			advance(a)
			advance(b)
			step(t, a, "w", p, kerneltest.Normal(uint64(i), n), 1)
			step(t, b, "w", q, kerneltest.Normal(uint64(i), n), 1)
		}
		require.True(t, equal(p, q))
		require.Equal(t, stateOf(t, a), stateOf(t, b))
	}
}

// TestTrustZero: where a norm is 0 the ratio is 1.
func TestTrustZero(t *testing.T) {
	for name, want := range map[string]float32{"LAMB": -1e-2, "LARS": -2e-2} {
		a := newOf(t, name, Options{}, map[string]int{"w": 3, "x": 3})
		p, x := make([]float32, 3), []float32{1, 2, 3}
		advance(a)
		step(t, a, "w", p, []float32{2, 2, 2}, 1)
		require.InDelta(t, want, p[0], 1e-7, name)
		step(t, a, "x", x, make([]float32, 3), 1)
		for i := range x {
			require.True(t, finite(x[i]))
		}
	}
}

func TestTrustErrors(t *testing.T) {
	const n = 5000
	inf := float32(math.Inf(1))
	for _, name := range []string{"LAMB", "LARS"} {
		for _, bits := range widths {
			a := newOf(t, name, Options{Bits: bits, Chunk: 1024}, map[string]int{"w": n})
			require.ErrorIs(t, a.AddShard("x", n, 0, 1024), snug.ErrConfig)
			advance(a)
			p, g := kerneltest.Normal(1, n), kerneltest.Normal(2, n)
			require.ErrorIs(t, a.StepRange("w", 0, snug.ViewOf(p[:1024]), snug.ViewOf(g[:1024]), 1), snug.ErrShape)
			require.NoError(t, a.StepRange("w", 0, snug.ViewOf(p), snug.ViewOf(g), 1))
			p[4000] = inf
			advance(a)
			before, params := stateOf(t, a), fmt.Sprint(p)
			err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
			require.ErrorIs(t, err, snug.ErrNonFinite)
			require.ErrorContains(t, err, `parameter "w": a norm`)
			require.Equal(t, before, stateOf(t, a))
			require.Equal(t, params, fmt.Sprint(p))
		}
	}
	for says, err := range map[string]error{
		"LAMB: Beta1":    errorOf(New(LAMB{Beta1: 1}, Options{})),
		"LAMB: Eps":      errorOf(New(LAMB{Eps: inf}, Options{})),
		"LARS: Momentum": errorOf(New(LARS{Momentum: -1}, Options{})),
		"LARS: Trust":    errorOf(New(LARS{Trust: inf}, Options{})),
	} {
		t.Run(says, func(t *testing.T) {
			require.ErrorIs(t, err, snug.ErrConfig, says)
			require.ErrorContains(t, err, says)
		})
	}
}

// TestNoTrust: LAMB and LARS step a parameter without a trust ratio as Adam's update and
// momentum do, and other rules do not know the option.
func TestNoTrust(t *testing.T) {
	none := Options{Params: func(name string) ParamOptions { return ParamOptions{NoTrust: name == "bias"} }}
	for name := range rules {
		const n = 5000
		params := map[string]int{"w": n, "bias": n}
		a, b := newOf(t, name, none, params), newOf(t, name, Options{}, params)
		ratio := name == "LAMB" || name == "LARS"
		for _, param := range []string{"w", "bias"} {
			p, q, g := kerneltest.Normal(1, n), kerneltest.Normal(1, n), kerneltest.Normal(2, n)
			a.Advance(1e-2)
			b.Advance(1e-2)
			step(t, a, param, p, g, 1)
			step(t, b, param, q, g, 1)
			require.Equal(t, !(ratio && param == "bias"), equal(p, q), "%s %s", name, param)
		}
	}
}
