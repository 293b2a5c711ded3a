package amp

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// torchGolden is what testdata/torch/make.py has written: what torch does.
type torchGolden struct {
	Torch     string
	Sequences []struct {
		Name    string
		Options struct {
			Init     float32 `json:"init_scale"`
			Growth   float64 `json:"growth_factor"`
			Backoff  float64 `json:"backoff_factor"`
			Interval int     `json:"growth_interval"`
		}
		Events []torchEvent
	}
	Clips []struct {
		MaxNorm        float64 `json:"max_norm"`
		Scale          float32
		Grads, Clipped [][]float32
		Norm           float64
		ByValue        [][]float32 `json:"by_value"`
	}
	Penalties []struct {
		Scaled  bool
		Micros  int
		Weights [][]float32
		Scale   float32
	}
}

// torchEvent is a change of the interval, an update(new_scale), or a step.
type torchEvent struct {
	Interval int
	To       float32
	Grads    map[string]string
	Stepped  map[string]bool
	Scale    float32
	Tracker  int
}

func readTorch(t *testing.T) (golden torchGolden) {
	data, err := os.ReadFile("testdata/torch/scaler.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	require.Equal(t, "2.15.0", golden.Torch)
	return golden
}

// TestTorchSequences replays what torch's scaler did. The scaler is saved and
// restored after every event, into one that was used before and into one that
// was not.
//
//check:in tiers arm64 arm64-go
func TestTorchSequences(t *testing.T) {
	kinds := map[string]float32{"finite": 1, "inf": inf, "nan": nan}
	golden := readTorch(t)
	require.Len(t, golden.Sequences, 25)
	for _, sequence := range golden.Sequences {
		t.Run(sequence.Name, func(t *testing.T) {
			o := sequence.Options
			s := newScaler(t, ScalerOptions{Init: o.Init, Growth: o.Growth, Backoff: o.Backoff, Interval: o.Interval})
			for i, e := range sequence.Events {
				if e.Interval > 0 {
					require.NoError(t, s.SetInterval(e.Interval))
					continue
				}
				scale := s.Scale()
				for name, kind := range e.Grads {
					grad := []float32{scale, scale * kinds[kind]}
					stepped, err := s.Step(name, kerneltest.Walk(kerneltest.Slice("w", grad)), func() error { return nil })
					require.NoError(t, err)
					require.Equal(t, e.Stepped[name], stepped, "event %d", i)
				}
				if e.To > 0 {
					require.NoError(t, s.UpdateTo(e.To))
				} else {
					require.NoError(t, s.Update())
				}
				require.Equal(t, e.Scale, s.Scale(), "event %d", i)
				require.Equal(t, e.Tracker, s.tracker, "event %d", i)
				saved, err := s.AppendBinary(nil)
				require.NoError(t, err)
				s = newScaler(t, ScalerOptions{Init: 3})
				require.NoError(t, s.UnmarshalBinary(saved))
			}
		})
	}
}

//check:in tiers arm64 arm64-go
func TestTorchClip(t *testing.T) {
	for _, test := range readTorch(t).Clips {
		s := newScaler(t, ScalerOptions{Init: test.Scale})
		var grads []kerneltest.Named
		for _, g := range test.Grads {
			grads = append(grads, kerneltest.Slice("w", g))
		}
		stats, err := s.Unscale("opt", kerneltest.Walk(grads...))
		require.NoError(t, err)
		require.InEpsilon(t, test.Norm, stats.Norm, 1e-6)
		_, err = s.Clip("opt", kerneltest.Walk(grads...), test.MaxNorm)
		require.NoError(t, err)
		for i, want := range test.Clipped {
			require.InDeltaSlice(t, want, test.Grads[i], 1e-6)
		}
		_, err = s.ClipValue("opt", kerneltest.Walk(grads...), 0.1)
		require.NoError(t, err)
		for i, want := range test.ByValue {
			require.InDeltaSlice(t, want, test.Grads[i], 1e-6)
		}
	}
}

// TestTorchPenalty trains with a penalty on the norm of the gradient, which is
// taken of the scaled loss and unscaled by the caller, as in torch's guide.
//
//check:in tiers arm64 arm64-go
func TestTorchPenalty(t *testing.T) {
	for _, test := range readTorch(t).Penalties {
		mode := Disabled
		if test.Scaled {
			mode = Dynamic
		}
		s := newScaler(t, ScalerOptions{Mode: mode, Init: 128, Interval: 2})
		w, grad := []float32{0.5, -1, 0.25}, make([]float32, 3)
		for step, want := range test.Weights {
			clear(grad)
			for micro := range test.Micros {
				k := step*test.Micros + micro
				penalizedGradient(grad, w, k, s.Scale(), 1/float32(test.Micros))
			}
			stepped, err := s.Step("sgd", kerneltest.Walk(kerneltest.Slice("w", grad)), func() error {
				for i := range w {
					w[i] -= 0.1 * grad[i]
				}
				return nil
			})
			require.NoError(t, err)
			require.True(t, stepped)
			require.NoError(t, s.Update())
			require.InDeltaSlice(t, want, w, 1e-6)
		}
		require.Equal(t, test.Scale, s.Scale())
	}
}

// penalizedGradient adds share times the scaled gradient of L + 0.01·|∇L| for
// L = (w·x - 1)², whose gradient is ∇L = 2(w·x - 1)x.
func penalizedGradient(grad, w []float32, k int, scale, share float32) {
	x := []float32{1, float32(k%3) - 1, 0.5 * float32(k)}
	var residual, xx float32 = -1, 0
	for i := range x {
		residual += w[i] * x[i]
		xx += x[i] * x[i]
	}
	for i := range x {
		first := scale * 2 * residual * x[i] / scale // unscaled by the caller
		sign := float32(math.Copysign(1, float64(residual)))
		penalty := 0.01 * 2 * sign * float32(math.Sqrt(float64(xx))) * x[i]
		grad[i] += scale * share * (first + penalty)
	}
}
