package fused

import (
	"math"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Where they are flat, activations are their limits, and -Inf gives -0.
func TestActivationLimits(t *testing.T) {
	nan, inf, zero := float32(math.NaN()), float32(math.Inf(1)), float32(math.Copysign(0, -1))
	x := []float32{-inf, -200, zero, 0, 200, inf, nan}
	y := []float32{zero, zero, zero, 0, 200, inf, nan}
	slope := []float32{0, 0, 0.5, 0.5, 1, 1, nan}
	for _, dt := range floatTypes {
		t.Run(dt.String(), func(t *testing.T) {
			kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
				put := func(vals []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, vals) }
				n, none := len(x), snug.View{}
				in, one, bias := put(x), put(fill(n, 1)), put(fill(n, zero)) // x + -0 is x
				gelu, dgelu, silu, dgate, dup, erf, derf, gated, dgated, dug := put(x), put(x), put(x), put(x), put(x), put(x), put(x), put(x), put(x), put(x)
				require.NoError(t, BiasGELU(gelu.View, in.View, bias.View))
				require.NoError(t, BiasGELUBackward(dgelu.View, none, one.View, in.View, bias.View, snug.Into{}, none))
				require.NoError(t, BiasGELUErf(erf.View, in.View, bias.View))
				require.NoError(t, BiasGELUErfBackward(derf.View, none, one.View, in.View, bias.View, snug.Into{}, none))
				require.NoError(t, SwiGLU(silu.View, in.View, one.View))
				require.NoError(t, SwiGLUBackward(dgate.View, dup.View, one.View, in.View, one.View))
				require.NoError(t, GeGLU(gated.View, in.View, one.View))
				require.NoError(t, GeGLUBackward(dgated.View, dug.View, one.View, in.View, one.View))
				for _, c := range []struct {
					name string
					want []float32
					got  *kerneltest.Floats
				}{{"gelu", y, gelu}, {"gelu'", slope, dgelu}, {"erf gelu", y, erf}, {"erf gelu'", slope, derf}, {"silu", y, silu}, {"silu'", slope, dgate}, {"dup", y, dup},
					{"gated gelu", y, gated}, {"gated gelu'", slope, dgated}, {"dup of gelu", y, dug}} {
					t.Run(c.name, func(t *testing.T) {
						for i, g := range c.got.Get() {
							requireLimit(t, c.name, x[i], c.want[i], g)
						}
					})
				}
			})
		})
	}
}

// requireLimit checks one value. Slopes that are 0 have either sign, and a limit
// of 0 may be a number too small to matter where x is finite.
func requireLimit(t *testing.T, name string, x, want, got float32) {
	t.Helper()
	switch {
	case want != want:
		require.True(t, got != got, "%s(%v) is %v", name, x, got)
	case want == 0 && x == -200:
		require.InDelta(t, 0, got, 1e-35, "%s(%v)", name, x)
	default:
		require.Equal(t, want, got, "%s(%v)", name, x)
	}
	if want == want && !strings.HasSuffix(name, "'") {
		require.Equal(t, math.Signbit(float64(want)), math.Signbit(float64(got)), "the sign of %s(%v), %v", name, x, got)
	}
}
