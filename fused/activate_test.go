package fused

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// activationForms are the activations with their definitions, a bound of the error of f32 and of f′, by |x|, and the kinks.
var activationForms = []struct {
	a            Activation
	of           func(x float64) (y, slope float64)
	bound, slope func(x, y float64) float64
	kinks        []float64
}{
	{ReLU, func(x float64) (float64, float64) { return max(x, 0), step(x > 0, 1) }, exactly, exactly, []float64{0}},
	{ReLU6, func(x float64) (float64, float64) { return min(max(x, 0), 6), step(x > 0 && x < 6, 1) }, exactly, exactly, []float64{0, 6}},
	{LeakyReLU(0.1), leaky64(0.1), rounded, rounded, []float64{0}},
	{LeakyReLU(-0.5), leaky64(-0.5), rounded, rounded, []float64{0}},
	{LeakyReLU(0), leaky64(0), exactly, exactly, []float64{0}},
	{SquaredReLU, func(x float64) (float64, float64) { return max(x, 0) * max(x, 0), 2 * max(x, 0) }, rounded, rounded, nil},
	{HardSwish, hardSwish64, rounded, func(float64, float64) float64 { return 4 * u }, []float64{-3, 3}},
	{HardSigmoid, func(x float64) (float64, float64) {
		return min(max(x+3, 0), 6) / 6, step(x > -3 && x < 3, 1./6)
	}, func(float64, float64) float64 { return 3 * u }, rounded, []float64{-3, 3}},
	{Sigmoid, sigmoid64, func(x, y float64) float64 { return (4 + 1.25*math.Abs(x)) * u * y }, func(float64, float64) float64 { return 2e-7 }, nil},
	{Tanh, func(x float64) (float64, float64) { y := math.Tanh(x); return y, 1 - y*y }, func(_, y float64) float64 { return 4 * u * math.Abs(y) },
		func(float64, float64) float64 { return 3e-7 }, nil},
	{SiLU, silu64, func(x, _ float64) float64 { return 1.2e-7 * max(1, math.Abs(x)) }, func(float64, float64) float64 { return 2e-7 }, nil},
}

func exactly(float64, float64) float64   { return 0 }
func rounded(_, want float64) float64    { return 4 * u * math.Abs(want) }
func sigmoid64(x float64) (y, s float64) { y = 1 / (1 + math.Exp(-x)); return y, y * (1 - y) }
func leaky64(slope float32) func(x float64) (y, s float64) {
	return func(x float64) (float64, float64) {
		if x > 0 {
			return x, 1
		}
		return float64(slope) * x, float64(slope)
	}
}

func hardSwish64(x float64) (y, slope float64) {
	switch y = x * min(max(x+3, 0), 6) / 6; {
	case x <= -3:
		return y, 0
	case x >= 3:
		return y, 1
	}
	return y, x/3 + 0.5
}

func step(on bool, y float64) float64 {
	if on {
		return y
	}
	return 0
}

// kept returns what the backward pass of a takes.
func (a Activation) kept(x, y snug.View) snug.View {
	if a.FromInput() {
		return x
	}
	return y
}

//check:in tiers arm64 arm64-go
func TestActivateAgainstDefinition(t *testing.T) {
	for _, f := range activationForms {
		for x := -7.035; x < 7; x += 0.01 {
			at := []float64{x}
			_, s := f.of(x)
			require.InDelta(t, slope(func() float64 { y, _ := f.of(at[0]); return y }, at, 0), s, 1e-5, "%v at %v", f.a, x)
		}
		for _, dt := range floatTypes {
			t.Run(fmt.Sprintf("%v %v", f.a, dt), func(t *testing.T) {
				kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
					for _, n := range []int{0, 1, 31, 64, 3712, 5000, 70001} {
						if p.Emulated && n > 5000 {
							continue
						}
						rng := newRand(uint64(n))
						x, dy := normals(rng, dt, n, 0, 3), normals(rng, dt, n, 0, 1)
						for i := range min(n, len(f.kinks)) {
							x[i] = float32(f.kinks[i])
						}
						put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, v) }
						px, pdy, out, dx := put(x), put(dy), put(fill(n, 42)), put(fill(n, 42))
						require.NoError(t, Activate(out.View, px.View, f.a))
						y := out.Get()
						require.NoError(t, ActivateBackward(dx.View, pdy.View, f.a.kept(px.View, out.View), f.a))
						var want, bound [2][]float64
						for i, v := range x {
							w, s := f.of(float64(v))
							d := f.bound(float64(v), w)
							want[0], bound[0] = append(want[0], w), append(bound[0], d+roundoff(dt, math.Abs(w)+d))
							d = f.slope(float64(v), s)
							if !f.a.FromInput() {
								d += 2 * math.Abs(float64(y[i])-w) // the slope of a rounded output
							}
							w, d = s*float64(dy[i]), math.Abs(float64(dy[i]))*(d+2*u*math.Abs(s))
							want[1], bound[1] = append(want[1], w), append(bound[1], d+roundoff(dt, math.Abs(w)+d))
						}
						if dt == snug.BF16 && (f.a == Sigmoid || f.a == SiLU) {
							for i, w := range want[0] {
								bound[0][i] += 0x1p-13 * math.Abs(w)
								bound[1][i] += 5e-6 * math.Abs(float64(dy[i]))
							}
						}
						requireClose(t, "out", want[0], bound[0], y)
						requireClose(t, "dx", want[1], bound[1], dx.Get())

						if f.a.FromInput() && f.a.FromOutput() {
							require.NoError(t, ActivateBackward(pdy.View, pdy.View, out.View, f.a))
							requireBits(t, "dx of the output, in place of dy", dx.Get(), pdy.Get())
						} else {
							require.NoError(t, ActivateBackward(pdy.View, pdy.View, f.a.kept(px.View, out.View), f.a))
							requireBits(t, "dx is dy", dx.Get(), pdy.Get())
						}
						pdy = put(dy)
						require.NoError(t, Activate(px.View, px.View, f.a))
						requireBits(t, "out is x", y, px.Get())
						kept := put(x)
						if !f.a.FromInput() {
							kept = out
						}
						require.NoError(t, ActivateBackward(kept.View, pdy.View, kept.View, f.a))
						requireBits(t, "dx is kept", dx.Get(), kept.Get())
					}
				})
			})
		}
	}
}

// goldenCNN is what testdata/cnn/make.py writes.
type goldenCNN struct {
	Activations []struct {
		Name, DType string
		Y, DX       []float32
	}
	Losses []struct {
		Name     string
		Weighted bool
		Loss     float64
		DX       []float32
	}
	Norms []struct {
		Name                                          string
		Y, DX, DGamma, DBeta, RunningMean, RunningVar []float32
	}
}

func readGoldenCNN(t *testing.T) (all goldenCNN) {
	data, err := os.ReadFile("testdata/cnn/golden.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &all))
	return all
}

var dtypes = map[string]snug.DType{"f32": snug.F32, "f16": snug.F16, "bf16": snug.BF16}

// PyTorch's activations, also at their kinks, with the last bits of a type as slack.
//
//check:in tiers arm64 arm64-go
func TestGoldenActivations(t *testing.T) {
	all := readGoldenCNN(t)
	require.Len(t, all.Activations, 3*9)
	byName := map[string]Activation{}
	for _, f := range activationForms {
		byName[f.a.String()] = f.a
	}
	for _, g := range all.Activations {
		t.Run(g.Name+" "+g.DType, func(t *testing.T) {
			dt, a := dtypes[g.DType], byName[g.Name]
			require.NotZero(t, a)
			x := append([]float32{-3, 0, 3, 6, float32(math.Copysign(0, -1)), -100, 100}, goldenNumbers(t, 1, 17, 8, dt)...)
			dy := goldenNumbers(t, 2, len(x), 2, dt)
			px, pdy := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x), kerneltest.PutFloats(t, kerneltest.Backend{}, dt, dy)
			out, dx := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x), kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x)
			require.NoError(t, Activate(out.View, px.View, a))
			require.NoError(t, ActivateBackward(dx.View, pdy.View, a.kept(px.View, out.View), a))
			for _, c := range []struct {
				name        string
				theirs, got []float32
			}{{"y", g.Y, out.Get()}, {"dx", g.DX, dx.Get()}} {
				want, bound := float64s(c.theirs), make([]float64, len(x))
				for i, w := range want {
					bound[i] = 4*roundoff(dt, w) + 4e-7 + 2*roundoff(dt, 0)
				}
				requireClose(t, c.name, want, bound, c.got)
			}
		})
	}
}

func TestActivationExtremes(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for a, want := range map[Activation][2]float32{ // f(-Inf), f(+Inf)
		ReLU: {0, inf}, ReLU6: {0, 6}, LeakyReLU(0.5): {-inf, inf}, SquaredReLU: {0, inf}, HardSwish: {0, inf}, HardSigmoid: {0, 1},
		Sigmoid: {0, 1}, Tanh: {-1, 1}, SiLU: {0, inf},
	} {
		slopes := [2]float32{}
		switch a {
		case ReLU, HardSwish, SiLU:
			slopes[1] = 1
		case LeakyReLU(0.5):
			slopes = [2]float32{0.5, 1}
		case SquaredReLU:
			slopes[1] = inf
		}
		x, one, y, dx := []float32{-inf, inf, nan}, []float32{1, 1, 1}, make([]float32, 3), make([]float32, 3)
		require.NoError(t, Activate(y, x, a))
		kept := y
		if a.FromInput() {
			kept = x
		}
		require.NoError(t, ActivateBackward(dx, one, kept, a))
		for i := range want {
			require.True(t, want[i] == y[i], "%v(%v) is %v", a, x[i], y[i])
			require.True(t, slopes[i] == dx[i], "%v′(%v) is %v", a, x[i], dx[i])
		}
		require.True(t, y[2] != y[2] && dx[2] != dx[2], "%v of NaN: %v, %v", a, y[2], dx[2])
	}
}

func TestActivationNames(t *testing.T) {
	for a, want := range map[Activation]string{
		0: "Activation(0)", ReLU: "ReLU", SiLU: "SiLU", LeakyReLU(0.01): "LeakyReLU(0.01)", 77: "Activation(77)", ReLU | 1<<32: "Activation(4294967297)",
	} {
		require.Equal(t, want, a.String())
	}
	for a, want := range map[Activation][2]bool{
		0: {}, 77: {}, ReLU | 1<<40: {}, LeakyReLU(float32(math.NaN())): {}, LeakyReLU(float32(math.Inf(1))): {},
		ReLU: {true, true}, ReLU6: {true, true}, LeakyReLU(0): {true, true}, LeakyReLU(-1): {true, false}, SquaredReLU: {true, false},
		HardSwish: {true, false}, HardSigmoid: {true, false}, SiLU: {true, false}, Sigmoid: {false, true}, Tanh: {false, true},
	} {
		require.Equal(t, want, [2]bool{a.FromInput(), a.FromOutput()}, a.String())
	}
}

// An element's result depends on no other, in any type.
func activationsAreElementwise(t *rapid.T) {
	f := rapid.SampledFrom(activationForms).Draw(t, "activation")
	x := rapid.SliceOfN(rapid.Float32(), 1, 100).Draw(t, "x")
	at := rapid.IntRange(0, len(x)-1).Draw(t, "element")
	y, alone := make([]float32, len(x)), []float32{x[at]}
	dx, dxAlone, one := fill(len(x), 1), []float32{1}, fill(len(x), 1)
	require.NoError(t, Activate(y, x, f.a))
	kept, keptAlone := y, []float32{y[at]}
	if f.a.FromInput() {
		kept, keptAlone = x, []float32{x[at]}
	}
	require.NoError(t, Activate(alone, alone, f.a))
	require.NoError(t, ActivateBackward(dx, one, kept, f.a))
	require.NoError(t, ActivateBackward(dxAlone, dxAlone, keptAlone, f.a))
	requireBits(t, "out", y[at:][:1], alone)
	requireBits(t, "dx", dx[at:][:1], dxAlone)
}

func TestActivationsAreElementwise(t *testing.T) { rapid.Check(t, activationsAreElementwise) }
func FuzzActivationsAreElementwise(f *testing.F) { f.Fuzz(rapid.MakeFuzz(activationsAreElementwise)) }
