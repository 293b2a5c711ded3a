package rowwise

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var nan, inf = float32(math.NaN()), float32(math.Inf(1))

// float32s returns numbers of every magnitude and sign in [−limit, limit], one
// in step.
func float32s(step uint32, limit float32) (x []float32) {
	for b := uint32(0); b <= math.Float32bits(limit); b += step {
		x = append(x, math.Float32frombits(b), math.Float32frombits(b|1<<31))
	}
	return x
}

// eachTier runs test once for every tier that this machine has.
func eachTier(t *testing.T, test func(t *testing.T, k tier)) {
	for tier, k := range tiers {
		t.Run(tier.String(), func(t *testing.T) { test(t, k) })
	}
}

// ulps returns the distance from got to want in units in the last place of
// want, subnormals included.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, max(e-24, -149))
}

func TestExpError(t *testing.T) {
	var x []float32
	for _, v := range float32s(4099, 104) {
		if v <= 88.7228 {
			x = append(x, v)
		}
	}
	eachTier(t, func(t *testing.T, k tier) {
		y := make([]float32, len(x))
		k.ExpSum(y, x, 0)
		worst := 0.0
		for i, v := range x {
			worst = max(worst, ulps(y[i], math.Exp(float64(v))))
		}
		require.Less(t, worst, 1.0)
		require.Greater(t, worst, 0.5, "the sweep found nothing")
	})
}

func TestExpLimits(t *testing.T) {
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {0x1p-149, 1},
		{inf, inf}, {88.73, inf}, {200, inf}, {math.MaxFloat32, inf},
		{-inf, 0}, {-104.1, 0}, {-math.MaxFloat32, 0}, {-103.9, 0x1p-149},
	} {
		eachTier(t, func(t *testing.T, k tier) {
			row := make([]float32, 17)
			for i := range row {
				row[i] = c.x
			}
			k.ExpSum(row, row, 0)
			for _, y := range row {
				require.Equal(t, c.want, y, "exp(%v)", c.x)
			}
			one := []float32{c.x}
			require.Equal(t, c.want, k.ExpSum(one, one, 0))
		})
	}
	eachTier(t, func(t *testing.T, k tier) {
		y := make([]float32, 3)
		sum := k.ExpSum(y, []float32{1, nan, 3}, 3)
		require.True(t, sum != sum && y[0] == y[0] && y[1] != y[1] && y[2] == 1)
	})
}

func TestExp2Error(t *testing.T) {
	var x []float32
	for _, v := range float32s(4099, 128) {
		if v >= minExponent && v < 128 {
			x = append(x, v)
		}
	}
	for _, scale := range []float32{1, -0.75} {
		eachTier(t, func(t *testing.T, k tier) {
			y := make([]float32, len(x))
			for i, v := range x {
				y[i] = v / scale
			}
			k.Exp2Sum(y, scale, 0)
			worst := 0.0
			for i, v := range x {
				exact := float64(scale) * float64(v/scale) // one product is exact in float64
				if exact < minExponent+0.1 || exact > 127.9 {
					continue
				}
				slack := 0.0
				if scale != 1 {
					slack = math.Abs(exact) * math.Ln2 // of the product's rounding, in units of 2⁻²⁴
				}
				worst = max(worst, ulps(y[i], math.Exp2(exact))-slack)
			}
			require.LessOrEqual(t, worst, 2.0)
		})
	}
}

func TestExp2Limits(t *testing.T) {
	below := math.Nextafter32
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {1e-40, 1}, {3, 8}, {-3, 0.125}, {127, 0x1p127}, {minExponent, 0x1p-100},
		{below(minExponent, -200), 0}, {-126, 0}, {-127, 0}, {-1e30, 0}, {-inf, 0}, {128, inf}, {1e30, inf}, {inf, inf},
	} {
		eachTier(t, func(t *testing.T, k tier) {
			row := []float32{c.x}
			require.Equal(t, c.want, k.Exp2Sum(row, 1, 0), "exp2(%g)", c.x)
			require.Equal(t, c.want, row[0])
			row = []float32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, c.x}
			k.Exp2Sum(row, 1, 0)
			require.Equal(t, c.want, row[15])
		})
	}
	eachTier(t, func(t *testing.T, k tier) {
		row := []float32{nan, 5, -inf, inf}
		sum := k.Exp2Sum(row, 2, 9)
		require.True(t, sum != sum && row[0] != row[0])
		require.Equal(t, []float32{2, 0, inf}, row[1:])
		row = []float32{-inf, 1, inf}
		k.Exp2Sum(row, 1, inf) // a row that sees nothing
		require.Equal(t, []float32{0, 0}, row[:2])
		require.True(t, row[2] != row[2])
		row = []float32{below(128, 0)}
		require.Less(t, k.Exp2Sum(row, 1, 0), inf)
	})
}

// sigma2u returns 2u and σ(2u) in float64.
func sigma2u(x float64) (u2, s float64) {
	u2 = 2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)
	return u2, sigma(u2)
}

func sigma(v float64) float64 { return 1 / (1 + math.Exp(-v)) }

func gelu64(x float64) (y, slope float64) {
	u2, s := sigma2u(x)
	return x * s, s + x*s*sigma(-u2)*2*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
}

func geluErf64(x float64) (y, slope float64) {
	s := 0.5 * math.Erfc(-x/math.Sqrt2)
	return x * s, s + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}

func silu64(x float64) (y, slope float64) {
	s := sigma(x)
	return x * s, s + x*s*sigma(-x)
}

// The definitions agree with themselves.
func TestSlopes(t *testing.T) {
	for x := -6.0; x <= 6; x += 0.01 {
		y, _ := gelu64(x)
		require.InDelta(t, 0.5*x*(1+math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))), y, 1e-15)
		for _, f := range []func(float64) (float64, float64){gelu64, geluErf64, silu64} {
			above, _ := f(x + 1e-5)
			below, _ := f(x - 1e-5)
			_, slope := f(x)
			require.InDelta(t, (above-below)/2e-5, slope, 1e-9)
		}
	}
}

func TestActivationError(t *testing.T) {
	step := uint32(2053)
	if !kerneltest.Full() {
		step *= 5
	}
	x := float32s(step, 130)
	zeros, ones := make([]float32, len(x)), make([]float32, len(x))
	for i := range ones {
		ones[i] = 1
	}
	eachTier(t, func(t *testing.T, k tier) {
		for name, f := range map[string]struct {
			want         func(float64) (float64, float64)
			value, slope func(dst []float32)
		}{
			"gelu": {gelu64,
				func(dst []float32) { k.GELU(dst, x, zeros, false) },
				func(dst []float32) { k.GELUGrad(dst, make([]float32, len(x)), ones, x, zeros, false) }},
			"erf gelu": {geluErf64,
				func(dst []float32) { k.GELUErf(dst, x, zeros, false) },
				func(dst []float32) { k.GELUErfGrad(dst, make([]float32, len(x)), ones, x, zeros, false) }},
			"gated gelu": {gelu64,
				func(dst []float32) { k.GELUMul(dst, x, ones, false) },
				func(dst []float32) { k.GELUMulGrad(dst, make([]float32, len(x)), ones, x, ones, false) }},
			"silu": {silu64,
				func(dst []float32) { k.SiLUMul(dst, x, ones, false) },
				func(dst []float32) { k.SiLUMulGrad(dst, make([]float32, len(x)), ones, x, ones, false) }},
			"clamped silu": {silu64,
				func(dst []float32) { k.ClampedMul(dst, x, zeros, 1, 1e9, false) },
				func(dst []float32) { k.ClampedMulGrad(dst, make([]float32, len(x)), ones, x, zeros, 1, 1e9, false) }},
		} {
			t.Run(name, func(t *testing.T) {
				value, slope := make([]float32, len(x)), make([]float32, len(x))
				f.value(value)
				f.slope(slope)
				worst, worstSlope := 0.0, 0.0
				for i, v := range x {
					y, s := f.want(float64(v))
					worst = max(worst, math.Abs(float64(value[i])-y)/max(1, math.Abs(float64(v))))
					worstSlope = max(worstSlope, math.Abs(float64(slope[i])-s))
				}
				require.Less(t, worst, 1.2e-7, name)
				require.Less(t, worstSlope, 2e-7, name)
				require.Greater(t, min(worst, worstSlope), 1e-8, "the sweep found nothing")
			})
		}
	})
}

func TestActivationLimits(t *testing.T) {
	eachTier(t, func(t *testing.T, k tier) {
		at := func(x float32) (gelu, geluSlope, silu, siluSlope float32) {
			var y [4][1]float32
			one, zero, row, sums := []float32{1}, []float32{0}, []float32{x}, []float32{0}
			k.GELU(y[0][:], row, zero, false)
			k.GELUGrad(y[1][:], sums, one, row, zero, false)
			k.SiLUMul(y[2][:], row, one, false)
			dup := []float32{0}
			k.SiLUMulGrad(y[3][:], dup, one, row, one, false)
			require.Equal(t, math.Float32bits(y[2][0]), math.Float32bits(dup[0]))
			var gated, gatedSlope [1]float32
			k.GELUMul(gated[:], row, one, false)
			k.GELUMulGrad(gatedSlope[:], dup, one, row, one, false)
			require.Equal(t, math.Float32bits(gated[0]), math.Float32bits(dup[0]))
			require.Equal(t, [2]uint32{math.Float32bits(y[0][0]) << 1, math.Float32bits(y[1][0]) << 1},
				[2]uint32{math.Float32bits(gated[0]) << 1, math.Float32bits(gatedSlope[0]) << 1}, "gated, gelu has one limit")
			var erf, erfSlope [1]float32
			k.GELUErf(erf[:], row, zero, false)
			k.GELUErfGrad(erfSlope[:], sums, one, row, zero, false)
			require.Equal(t, [2]uint32{math.Float32bits(y[0][0]) << 1, math.Float32bits(y[1][0]) << 1},
				[2]uint32{math.Float32bits(erf[0]) << 1, math.Float32bits(erfSlope[0]) << 1}, "both forms have one limit")
			return erf[0], erfSlope[0], y[2][0], y[3][0]
		}
		for _, x := range []float32{-inf, -math.MaxFloat32, -1e20, -129} {
			a, b, c, d := at(x)
			require.Equal(t, [4]float32{}, [4]float32{a, b, c, d}, "%v", x)
			require.True(t, math.Signbit(float64(a)) && math.Signbit(float64(c)))
		}
		for _, x := range []float32{129, 1e20, math.MaxFloat32, inf} {
			a, b, c, d := at(x)
			require.Equal(t, [4]float32{x, 1, x, 1}, [4]float32{a, b, c, d})
		}
		a, b, c, d := at(0)
		require.Equal(t, [4]float32{0, 0.5, 0, 0.5}, [4]float32{a, b, c, d})
		a, b, c, d = at(nan)
		require.True(t, a != a && b != b && c != c && d != d)
	})
}

// Every sum keeps the bound of the package's doc for every length.
func TestSumsError(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	eachTier(t, func(t *testing.T, k tier) {
		for n := range 400 {
			x, y, g := normals(rng, n), normals(rng, n), normals(rng, n)
			var s, d, q, lnSum, lnX [2]float64 // the sum, and the sum of magnitudes
			for i := range x {
				term(&s, float64(x[i]))
				term(&d, float64(x[i])*float64(y[i]))
			}
			bound := func(v [2]float64, roundings float64) float64 {
				return (float64(n)/4 + 4 + roundings) * 0x1p-24 * v[1]
			}
			require.InDelta(t, d[0], k.Dot(x, y), bound(d, 1))
			if n == 0 {
				continue
			}
			size, out, zeros := float64(n), make([]float32, n), make([]float32, n)
			mean, rstd := k.LayerNorm(out, x, y, g, 0.1, false)
			for _, v := range x {
				term(&q, (float64(v)-s[0]/size)*(float64(v)-s[0]/size))
			}
			require.InDelta(t, s[0]/size, mean, bound(s, 0)/size+1e-9)
			require.InEpsilon(t, 1/math.Sqrt(q[0]/size+0.1), rstd, bound(q, 6)/max(q[0], 1e-9)+4e-7)
			for i := range x {
				xhat := (float64(x[i]) - float64(mean)) * float64(rstd)
				require.InDelta(t, xhat*float64(y[i])+float64(g[i]), out[i], 3e-7*(math.Abs(xhat*float64(y[i]))+math.Abs(float64(g[i])))+1e-7*math.Abs(float64(y[i])))
				term(&lnSum, float64(y[i])*float64(g[i]))
				term(&lnX, float64(y[i])*float64(g[i])*xhat)
			}
			k.LayerNormGrad(out, zeros, make([]float32, n), y, x, g, mean, rstd, 1, 0, false)
			slack := (bound(lnSum, 1) + 4*(bound(lnX, 4)+1e-6*lnX[1])) / size
			for i := range x {
				xhat := (float64(x[i]) - float64(mean)) * float64(rstd)
				g := float64(y[i]) * float64(g[i])
				want := float64(rstd) * (g - lnSum[0]/size - xhat*lnX[0]/size)
				require.InDelta(t, want, out[i], float64(rstd)*(slack+4e-7*(math.Abs(g)+(lnSum[1]+4*lnX[1])/size)))
			}
		}
	})
}

func term(sum *[2]float64, x float64) {
	sum[0] += x
	sum[1] += math.Abs(x)
}

func normals(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func TestMaxSkipsNaN(t *testing.T) {
	eachTier(t, func(t *testing.T, k tier) {
		for n := range 131 {
			for at := range n {
				x := make([]float32, n)
				for i := range x {
					x[i] = -5
				}
				x[at] = 3
				require.Equal(t, float32(3), k.Max(x, 1, -inf))
				if n > 1 {
					require.Equal(t, float32(10), k.Max(x, -2, -inf))
				}
				x[at] = nan
				want := float32(-5)
				if n == 1 {
					want = -inf
				}
				require.Equal(t, want, k.Max(x, 1, -inf))
			}
			require.Equal(t, float32(7), k.Max(make([]float32, n), 1, 7))
		}
	})
}

func TestFinite(t *testing.T) {
	eachTier(t, func(t *testing.T, k tier) {
		for n := range 131 {
			x := make([]float32, n)
			for i := range x {
				x[i] = math.MaxFloat32
			}
			require.True(t, k.Finite(x))
			for _, bad := range []float32{nan, inf, -inf} {
				for at := range n {
					x[at] = bad
					require.False(t, k.Finite(x))
					x[at] = math.MaxFloat32
				}
			}
		}
	})
}

// Prefetch is a hint and may be given any range.
func TestPrefetch(t *testing.T) {
	eachTier(t, func(t *testing.T, k tier) {
		k.Prefetch(nil)
		k.Prefetch(make([]byte, 1))
		k.Prefetch(make([]byte, 1000))
	})
}

// Small results keep their relative accuracy.
func TestSigmoidError(t *testing.T) {
	x := float32s(4099, 200)
	eachTier(t, func(t *testing.T, k tier) {
		y := make([]float32, len(x))
		k.Sigmoid(y, x, false)
		worst := 0.0
		for i, v := range x {
			want := 1 / (1 + math.Exp(-float64(v)))
			worst = max(worst, (math.Abs(float64(y[i])-want)-2e-38)/want/(4+1.25*math.Abs(float64(v))))
		}
		require.Less(t, worst, 0x1p-24)
		require.Greater(t, worst, 0x1p-26, "the sweep found nothing")
		for _, c := range []struct{ x, want float32 }{{inf, 1}, {-inf, 0}, {0, 0.5}, {nan, nan}} {
			k.Sigmoid(y[:1], []float32{c.x}, false)
			require.True(t, y[0] == c.want || c.want != c.want && y[0] != y[0], "%v: %v", c.x, y[0])
		}
	})
}
