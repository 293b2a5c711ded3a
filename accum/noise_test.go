package accum

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestNoiseScale has samples whose gradients are a fixed vector and normal noise,
// so that S and |G|² are known, in micro-batches of unequal sizes, with a loss
// scale, by Add, AddAll and kernels.
func TestNoiseScale(t *testing.T) {
	const n, sigma, mean = 400, 0.5, 0.1
	want := float64(n*sigma*sigma) / (n * mean * mean) // 25 samples
	sizes := []int{1, 3, 8, 2, 6, 4}
	for _, mode := range []string{"add", "drop", "into", "bf16"} {
		t.Run(mode, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			o := Options{Schedule: Constant(len(sizes)), Measure: true, Scaler: &fakeScaler{scale: 8}}
			switch mode {
			case "drop":
				o.NonFinite = DropMicro
			case "bf16":
				o.DType = snug.BF16
			}
			w := one(t, n, o)
			estimate, err := NewNoiseScale(NoiseOptions{Min: 1, Max: 1000, Decay: 0.995})
			require.NoError(t, err)
			_, known := estimate.Estimate()
			require.False(t, known)
			require.Equal(t, Target{Weight: 1}, estimate.Target(Progress{}))
			g := make([]float32, n)
			for range 600 {
				for _, size := range sizes {
					for i := range g {
						g[i] = 8 * float32(mean+sigma/math.Sqrt(float64(size))*rng.NormFloat64())
					}
					require.NoError(t, w.Begin(float64(size)))
					if mode == "into" {
						addInto(t, w, g)
					} else {
						_, err := w.AddAll(kerneltest.Walk(kerneltest.Slice("w", g)))
						require.NoError(t, err)
					}
					_, err := w.End()
					require.NoError(t, err)
				}
				require.NoError(t, estimate.Observe(w.Moments(), windowNorm(t, w)/8))
				w.Reset()
			}
			got, known := estimate.Estimate()
			require.True(t, known)
			require.InEpsilon(t, want, got, 0.15)
			require.InEpsilon(t, want, estimate.Target(Progress{}).Weight, 0.15)
		})
	}
}

// addInto is a kernel that adds g in place.
func addInto(t *testing.T, w *Window, g []float32) {
	acc, into, err := w.Into("w")
	require.NoError(t, err)
	for i, x := range acc.Float32s() {
		if into.Beta == 0 {
			x = 0
		}
		acc.Float32s()[i] = into.Alpha*g[i] + into.Beta*x
	}
}

func windowNorm(t *testing.T, w *Window) float64 {
	v, err := w.Gradient("w")
	require.NoError(t, err)
	x := make([]float32, v.Len())
	switch {
	case v.Float32s() != nil:
		copy(x, v.Float32s())
	default:
		for i, b := range v.BFloat16s() {
			x[i] = b.Float32()
		}
	}
	return math.Sqrt(dot(x, x))
}

// fakeScaler is a loss scaler whose state is its scale.
type fakeScaler struct {
	scale float32
	err   error
}

func (s *fakeScaler) Scale() float32 { return s.scale }

func (s *fakeScaler) AppendBinary(b []byte) ([]byte, error) { return append(b, byte(s.scale)), s.err }

func (s *fakeScaler) UnmarshalBinary(data []byte) error {
	s.scale = float32(data[0])
	return s.err
}

// TestMomentsDevices compares with the definition on every device.
func TestMomentsDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, skip := range skips {
				for _, acc := range []snug.DType{snug.F32, snug.BF16} {
					for _, overflow := range []NonFinitePolicy{SkipWindow, DropMicro} {
						moments(t, p, dt, acc, skip, overflow)
					}
				}
			}
		}
	})
}

func moments(t *testing.T, p kerneltest.Backend, dt, acc snug.DType, skip int, overflow NonFinitePolicy) {
	n := 2*chunk + 5
	if p.Emulated {
		n = 5001
	}
	buffer := kerneltest.PutFloats(t, p, acc, make([]float32, n+3))
	w := newWindow(t, []Param{{"a", n}, {"b", 3}}, Options{Schedule: Constant(2), DType: acc, Buffer: buffer.View, Measure: true, NonFinite: overflow})
	require.Zero(t, w.Moments())
	sum := 0.0
	for i, weight := range []float64{3, 5} {
		a := kerneltest.PutFloats(t, p, dt, kerneltest.Uniform(uint64(i), n+skip))
		b := kerneltest.PutFloats(t, p, dt, kerneltest.Uniform(uint64(i+9), 3))
		require.NoError(t, w.Begin(weight))
		_, err := w.AddAll(kerneltest.Walk(kerneltest.Named{Name: "b", View: b.View}, kerneltest.Named{Name: "a", View: kerneltest.After(t, a.View, skip)}))
		require.NoError(t, err)
		_, err = w.End()
		require.NoError(t, err)
		x, y := a.Get()[skip:], b.Get()
		sum += weight * (dot(x, x) + dot(y, y))
	}
	m := w.Moments()
	require.InEpsilon(t, sum/8, m.Squares, 1e-12)
	require.Equal(t, Moments{m.Squares, 0.25, 8}, m)
	require.Empty(t, w.NonFinite())
	w.Reset()
	require.Zero(t, w.Moments())
}

func TestNoiseScaleEdges(t *testing.T) {
	for _, o := range []NoiseOptions{
		{}, {Min: 2, Max: 1}, {Min: 1, Max: math.Inf(1)}, {Min: 1, Max: 2, Decay: 1}, {Min: 1, Max: 2, Decay: -1},
		{Min: 1, Max: 2, Factor: -1}, {Min: 1, Max: 2, Ranks: -1}, {Min: math.NaN(), Max: 2},
	} {
		_, err := NewNoiseScale(o)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", o)
	}
	n, err := NewNoiseScale(NoiseOptions{Min: 2, Max: 64, Factor: 3, Ranks: 2, Decay: 0.5})
	require.NoError(t, err)
	require.ErrorIs(t, n.Observe(Moments{1, 1, 4}, -1), snug.ErrConfig)
	for _, nothing := range []struct {
		m    Moments
		norm float64
	}{{Moments{}, 1}, {Moments{1, 0.25, 4}, 1}, {Moments{math.Inf(1), 1, 4}, 1}, {Moments{1, 1, 4}, math.NaN()}} {
		require.NoError(t, n.Observe(nothing.m, nothing.norm))
		_, known := n.Estimate()
		require.False(t, known)
	}
	// |g|² = 1 + 8/b: 9 for one sample, 3 for four.
	require.NoError(t, n.Observe(Moments{Squares: 9, Inverse: 1, Total: 4}, math.Sqrt(3)))
	scale, _ := n.Estimate()
	require.InDelta(t, 8, scale, 1e-9)
	require.InDelta(t, 12, n.Target(Progress{}).Weight, 1e-9, "three times that, shared by two ranks")

	saved, err := n.AppendBinary(nil)
	require.NoError(t, err)
	restored, err := NewNoiseScale(NoiseOptions{Min: 2, Max: 64, Factor: 3, Ranks: 2, Decay: 0.5})
	require.NoError(t, err)
	require.NoError(t, restored.UnmarshalBinary(saved))
	require.Equal(t, n, restored)
	for i := range saved {
		damaged := bytes.Clone(saved)
		damaged[i] ^= 4
		require.ErrorIs(t, restored.UnmarshalBinary(damaged), snug.ErrCorrupt)
		require.ErrorIs(t, restored.UnmarshalBinary(saved[:i]), snug.ErrCorrupt)
		require.Equal(t, n, restored)
	}

	require.NoError(t, n.Observe(Moments{Squares: 100, Inverse: 1, Total: 4}, 0))
	scale, _ = n.Estimate()
	require.Equal(t, math.Inf(1), scale, "all noise")
	require.Equal(t, 64.0, n.Target(Progress{}).Weight)
	for range 9 {
		require.NoError(t, n.Observe(Moments{Squares: 1, Inverse: 1, Total: 4}, 100))
	}
	scale, _ = n.Estimate()
	require.Zero(t, scale, "no noise")
	require.Equal(t, 2.0, n.Target(Progress{}).Weight)
}
