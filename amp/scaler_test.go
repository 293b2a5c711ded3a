package amp

import (
	"errors"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// newScaler returns a Scaler that has scaled a loss.
func newScaler(t require.TestingT, o ScalerOptions) *Scaler {
	s, err := NewScaler(o)
	require.NoError(t, err)
	s.Scale()
	return s
}

// iterate runs a whole step of one optimizer with a gradient of one element
// and reports whether it was stepped.
func iterate(t require.TestingT, s *Scaler, grad float32) bool {
	_, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", []float32{grad})))
	require.NoError(t, err)
	stepped, err := s.Step("opt", nil, func() error { return nil })
	require.NoError(t, err)
	require.NoError(t, s.Update())
	return stepped
}

func TestScalerDefaults(t *testing.T) {
	s := newScaler(t, ScalerOptions{})
	require.Equal(t, float32(65536), s.Scale())
	for range 1999 {
		require.True(t, iterate(t, s, 1))
	}
	require.Equal(t, float32(65536), s.Scale())
	iterate(t, s, 1)
	require.Equal(t, float32(131072), s.Scale())
	require.False(t, iterate(t, s, nan))
	require.Equal(t, float32(65536), s.Scale())
}

// TestScalerSequences has torch's test_grad_scaling_update_scale and
// test_grad_scale_will_not_overflow, and floor, cap and hysteresis.
func TestScalerSequences(t *testing.T) {
	tests := []struct {
		name  string
		opts  ScalerOptions
		grads []float32 // one a step
		want  []float32 // the scale after each
	}{
		{"torch update_scale", ScalerOptions{Init: 4, Backoff: 0.25, Interval: 2}, []float32{1, 1, inf}, []float32{4, 8, 2}},
		{"overflow restarts the interval", ScalerOptions{Init: 4, Interval: 2}, []float32{1, nan, 1, 1}, []float32{4, 2, 2, 4}},
		{"growth stays finite", ScalerOptions{Init: 1e38, Growth: 16, Interval: 1}, []float32{1, 1}, []float32{1e38, 1e38}},
		{"growth stops at Cap", ScalerOptions{Init: 4, Interval: 1, Cap: 10}, []float32{1, 1, 1, inf, 1}, []float32{8, 10, 10, 5, 10}},
		{"infinite growth stops at Cap", ScalerOptions{Init: 1e38, Growth: 16, Interval: 1, Cap: 2e38}, []float32{1}, []float32{2e38}},
		{"backoff stops at Floor", ScalerOptions{Init: 4, Interval: 3, Floor: 1.5}, []float32{inf, inf, inf}, []float32{2, 1.5, 1.5}},
		{"the least scale", ScalerOptions{Init: minScale * 2}, []float32{inf, inf}, []float32{minScale, minScale}},
		{"no scaling", ScalerOptions{Init: 1, Floor: 1, Cap: 1, Interval: 1}, []float32{1, inf, 1}, []float32{1, 1, 1}},
		{"hysteresis", ScalerOptions{Init: 8, Interval: 2, Hysteresis: 2}, []float32{inf, inf, inf, 1, 1, inf, inf}, []float32{8, 4, 2, 2, 4, 4, 2}},
		{"static", ScalerOptions{Mode: Static, Init: 4, Interval: 1}, []float32{1, inf, 1}, []float32{4, 4, 4}},
		{"powers of two", ScalerOptions{Init: 5, Growth: 1.5, Backoff: 0.75, Interval: 1, PowerOfTwo: true}, []float32{1, 1, 1, inf, inf, inf}, []float32{4, 8, 16, 8, 8, 4}},
		{"hysteresis is spent by single overflows", ScalerOptions{Init: 8, Interval: 2, Hysteresis: 2}, []float32{inf, 1, inf}, []float32{8, 8, 4}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newScaler(t, test.opts)
			for i, g := range test.grads {
				require.Equal(t, g-g == 0, iterate(t, s, g), "step %d", i)
				require.Equal(t, test.want[i], s.Scale(), "step %d", i)
			}
		})
	}
}

func TestScalerSetInterval(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 4, Interval: 10})
	for range 5 {
		iterate(t, s, 1)
	}
	require.ErrorIs(t, s.SetInterval(0), snug.ErrConfig)
	require.NoError(t, s.SetInterval(3))
	iterate(t, s, 1)
	require.Equal(t, float32(8), s.Scale(), "more than the interval has gone by")
}

// TestScalerSeveralOptimizers has the figures of torch's
// test_grad_scaling_multiple: four steps, one of them with an overflow in one
// of two optimizers.
func TestScalerSeveralOptimizers(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 128, Interval: 1})
	steps := map[string]int{}
	for i := range 4 {
		for _, name := range []string{"a", "b"} {
			grad := []float32{s.Scale()}
			if i == 2 && name == "a" {
				grad[0] = inf
			}
			_, err := s.Unscale(name, kerneltest.Walk(kerneltest.Slice("w", grad)))
			require.NoError(t, err)
			if i != 2 {
				require.Equal(t, float32(1), grad[0])
			}
		}
		for _, name := range []string{"b", "a"} {
			_, err := s.Step(name, nil, func() error { steps[name]++; return nil })
			require.NoError(t, err)
		}
		require.NoError(t, s.Update())
	}
	require.Equal(t, map[string]int{"a": 3, "b": 4}, steps)
	require.Equal(t, float32(128*2*2*2*0.5), s.Scale())
}

func TestScalerOptionErrors(t *testing.T) {
	for _, o := range []ScalerOptions{
		{Mode: -1}, {Mode: 3}, {PowerOfTwo: true, Floor: 3},
		{Growth: 1}, {Growth: math.NaN()}, {Growth: math.Inf(1)}, {Backoff: 1}, {Backoff: -0.5}, {Backoff: math.NaN()},
		{Interval: -1}, {Floor: -1}, {Floor: nan}, {Floor: 1e-40}, {Floor: 1e6}, {Cap: -1}, {Cap: inf}, {Cap: nan},
		{Cap: 100}, {Init: -1}, {Init: inf}, {Init: nan}, {Init: 1e-40}, {Hysteresis: -1},
	} {
		s, err := NewScaler(o)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", o)
		require.Nil(t, s)
	}
}

func TestScalerOrderOfCalls(t *testing.T) {
	grads := kerneltest.Walk(kerneltest.Slice("w", []float32{2}))
	nop := func() error { return nil }
	s := newScaler(t, ScalerOptions{Init: 4, Interval: 1})
	require.ErrorIs(t, s.Update(), snug.ErrConfig, "update without unscale")
	_, err := s.Step("opt", nil, nop)
	require.ErrorIs(t, err, snug.ErrConfig, "step without unscale")
	_, err = s.Unscale("opt", nil)
	require.ErrorIs(t, err, snug.ErrConfig, "no walker")
	_, err = s.Unscale("opt", grads)
	require.NoError(t, err)
	_, err = s.Unscale("opt", grads)
	require.ErrorIs(t, err, snug.ErrConfig, "unscale twice")
	require.ErrorContains(t, err, "unscaled")
	_, err = s.AppendBinary(nil)
	require.ErrorIs(t, err, snug.ErrConfig, "save in mid-step")
	_, err = s.Step("opt", nil, nil)
	require.ErrorIs(t, err, snug.ErrConfig, "nil step")
	_, err = s.Step("other", nil, nop)
	require.ErrorIs(t, err, snug.ErrConfig, "step of another optimizer")

	broken := errors.New("broken")
	stepped, err := s.Step("opt", nil, func() error { return broken })
	require.Equal(t, broken, err)
	require.False(t, stepped)
	stepped, err = s.Step("opt", nil, nop)
	require.NoError(t, err, "a failed step may be repeated")
	require.True(t, stepped)
	_, err = s.Step("opt", nil, nop)
	require.ErrorIs(t, err, snug.ErrConfig, "step twice")
	_, err = s.Unscale("opt", grads)
	require.ErrorIs(t, err, snug.ErrConfig, "unscale after step")
	require.ErrorContains(t, err, "stepped")
	require.NoError(t, s.Update())
	require.Equal(t, float32(8), s.Scale())
	require.ErrorIs(t, s.Update(), snug.ErrConfig, "update twice")
	_, err = s.Unscale("opt", grads)
	require.NoError(t, err, "ready again")
	_, err = new(Scaler).Unscale("opt", grads)
	require.ErrorIs(t, err, snug.ErrConfig, "a scaler that was not made")
}

func TestUnscale(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		s := newScaler(t, ScalerOptions{Init: 4})
		first, second := kerneltest.Uniform(1, 1000), kerneltest.Uniform(2, 3*measure.MinPiece+5)
		a, b := kerneltest.Put(t, p, first), kerneltest.Put(t, p, second)
		empty := kerneltest.Put(t, p, []float32{})
		stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Named{Name: "a", View: a.View}, kerneltest.Named{Name: "empty", View: empty.View}, kerneltest.Named{Name: "b", View: b.View}))
		require.NoError(t, err)
		sum := 0.0
		for i, x := range first {
			first[i] = x * 0.25
		}
		for i, x := range second {
			second[i] = x * 0.25
		}
		for _, x := range append(append([]float32{}, first...), second...) {
			sum += float64(x) * float64(x)
		}
		require.Equal(t, first, a.Get())
		require.Equal(t, second, b.Get())
		require.InEpsilon(t, math.Sqrt(sum), stats.Norm, 1e-12)
		require.Equal(t, 1000+3*measure.MinPiece+5, stats.Elements)
		require.Zero(t, stats.NonFinite)
		require.Nil(t, stats.Overflows)
	})
}

func TestUnscaleNonFinite(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		s := newScaler(t, ScalerOptions{Init: 2})
		a, b, c := make([]float32, 10), make([]float32, 5*measure.MinPiece), make([]float32, 3)
		b[4*measure.MinPiece+7], b[2*measure.MinPiece+9], b[2*measure.MinPiece+8], c[0] = nan, inf, -inf, nan
		stats, err := s.Unscale("opt", kerneltest.Walk(
			kerneltest.Named{Name: "a", View: kerneltest.Put(t, p, a).View},
			kerneltest.Named{Name: "b", View: kerneltest.Put(t, p, b).View},
			kerneltest.Named{Name: "c", View: kerneltest.Put(t, p, c).View}))
		require.NoError(t, err)
		require.Equal(t, 4, stats.NonFinite)
		sameOverflows(t, []snug.NonFinite{
			{Name: "b", Count: 3, Index: 2*measure.MinPiece + 8, Value: -inf, Micro: -1},
			{Name: "c", Count: 1, Index: 0, Value: nan, Micro: -1},
		}, stats.Overflows)
		require.ErrorContains(t, stats.Err(), "4 of 81933 elements in 2 gradients are not finite, first b[32776] = -Inf, the first of 3")
		stepped, err := s.Step("opt", nil, func() error { panic("a step with overflow") })
		require.NoError(t, err)
		require.False(t, stepped)
		require.NoError(t, s.Update())
		require.Equal(t, float32(1), s.Scale())
	})
}

// TestUnscaleValues has values at which arithmetic changes, in vectors that
// start anywhere.
func TestUnscaleValues(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, skip := range skips {
			s := newScaler(t, ScalerOptions{Init: 3})
			x := append(append(make([]float32, skip), special...), kerneltest.Uniform(2, 3000)...)
			v := kerneltest.Put(t, p, x)
			stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.After(t, v.View, skip)}))
			require.NoError(t, err)
			bad := 0
			for i := range x {
				x[i] = float32(x[i] * float32(1.0/3)) // not fused with what follows
				if x[i]-x[i] != 0 {
					bad++
				}
			}
			requireSame(t, x, v.Get(), skip)
			require.Equal(t, bad, stats.NonFinite)
			require.Equal(t, 4, stats.Overflows[0].Index)
		}
	})
}

func TestUnscaleSmallScale(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 0x1p-100})
	grad := []float32{1, 1e30}
	stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", grad)))
	require.NoError(t, err)
	require.Equal(t, []float32{0x1p100, inf}, grad)
	require.Equal(t, []snug.NonFinite{{Name: "w", Count: 1, Index: 1, Value: inf, Micro: -1}}, stats.Overflows, "a product may overflow when its gradient did not")
}

func TestUnscaleErrors(t *testing.T) {
	x := []float32{1, 2}
	dev := kerneltest.Backends(t)[2]
	away := kerneltest.Put(t, dev, []float32{4})
	tests := []struct {
		name string
		bad  kerneltest.Named
		want error
	}{
		{"f16", kerneltest.Named{Name: "half", View: snug.ViewOf([]snug.Float16{1})}, snug.ErrDType},
		{"zero view", kerneltest.Named{Name: "none", View: snug.View{}}, snug.ErrDType},
		{"closed device", kerneltest.Named{Name: "gone", View: kerneltest.Closed(t, snug.F32, 1)}, snug.ErrDevice},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newScaler(t, ScalerOptions{})
			_, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("x", x), kerneltest.Named{Name: "away", View: away.View}, test.bad))
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.bad.Name)
			require.Equal(t, []float32{1, 2}, x)
			require.Equal(t, []float32{4}, away.Get())
			_, err = s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("x", []float32{1})))
			require.NoError(t, err, "the optimizer is still ready")
		})
	}
	_, err := newScaler(t, ScalerOptions{}).Unscale("opt", kerneltest.Once(kerneltest.Slice("x", x)))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "1 gradients of 2 elements, then 0 of 0")
}

func TestUnscaleSeveralDevices(t *testing.T) {
	backends := kerneltest.Backends(t)
	other := kerneltest.Backends(t)[2]
	s := newScaler(t, ScalerOptions{Init: 2})
	var grads []kerneltest.Named
	var bufs []*kerneltest.Buf[float32]
	for i, p := range []kerneltest.Backend{backends[2], backends[0], other, backends[2]} {
		b := kerneltest.Put(t, p, []float32{2, float32(i)})
		bufs, grads = append(bufs, b), append(grads, kerneltest.Named{Name: p.Name, View: b.View})
	}
	stats, err := s.Unscale("opt", kerneltest.Walk(grads...))
	require.NoError(t, err)
	require.InDelta(t, math.Sqrt(4+0.25+1+2.25), stats.Norm, 1e-12)
	require.Equal(t, 8, stats.Elements)
	for i, b := range bufs {
		require.Equal(t, []float32{1, float32(i) / 2}, b.Get())
	}
}

//check:in race
func TestUnscaleProcs(t *testing.T) {
	var want Stats
	kerneltest.WithProcs(func(procs int) {
		s := newScaler(t, ScalerOptions{Init: 3})
		stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("a", kerneltest.Uniform(1, 100_001)), kerneltest.Slice("b", kerneltest.Uniform(2, 77))))
		require.NoError(t, err)
		if procs == 1 {
			want = stats
		}
		require.Equal(t, want, stats)
	})
}

// model is the scaler of the documentation, one statement a rule.
type model struct {
	scale                       float64
	tracker, patience           int
	growth, backoff, floor, cap float64
	interval, hysteresis        int
}

func (m *model) update(overflow bool) {
	if overflow {
		m.tracker = 0
		if m.patience > 0 {
			m.patience--
		}
		if m.patience == 0 {
			m.scale = math.Max(float64(float32(m.scale*m.backoff)), m.floor)
		}
		return
	}
	m.tracker++
	if m.tracker >= m.interval {
		m.tracker, m.patience = 0, m.hysteresis
		if grown := math.Min(m.scale*m.growth, m.cap); grown <= math.MaxFloat32 {
			m.scale = float64(float32(grown))
		}
	}
}

func scalerProperty(t *rapid.T) {
	o := ScalerOptions{
		Init:       rapid.SampledFrom([]float32{1, 2, 100, 65536, 1e38}).Draw(t, "init"),
		Growth:     rapid.SampledFrom([]float64{1.5, 2, 16}).Draw(t, "growth"),
		Backoff:    rapid.SampledFrom([]float64{0.25, 0.3, 0.5}).Draw(t, "backoff"),
		Interval:   rapid.IntRange(1, 4).Draw(t, "interval"),
		Floor:      rapid.SampledFrom([]float32{0, 1, 0.125}).Draw(t, "floor"),
		Cap:        rapid.SampledFrom([]float32{0, 1e38, math.MaxFloat32}).Draw(t, "cap"),
		Hysteresis: rapid.IntRange(1, 3).Draw(t, "hysteresis"),
	}
	s := newScaler(t, o)
	d := o.withDefaults()
	m := &model{
		scale: float64(d.Init), patience: d.Hysteresis, growth: d.Growth, backoff: d.Backoff,
		floor: float64(d.Floor), cap: float64(d.Cap), interval: d.Interval, hysteresis: d.Hysteresis,
	}
	if m.cap == 0 {
		m.cap = math.Inf(1)
	}
	for i, overflow := range rapid.SliceOfN(rapid.Bool(), 1, 40).Draw(t, "overflows") {
		grad := float32(1)
		if overflow {
			grad = nan
		}
		require.Equal(t, !overflow, iterate(t, s, grad))
		m.update(overflow)
		require.Equal(t, float32(m.scale), s.Scale(), "step %d", i)
		saved, err := s.AppendBinary(nil)
		require.NoError(t, err)
		s = newScaler(t, ScalerOptions{})
		require.NoError(t, s.UnmarshalBinary(saved))
	}
}

//check:in tiers
func TestScalerProperty(t *testing.T) { rapid.Check(t, scalerProperty) }
func FuzzScaler(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(scalerProperty)) }

func TestUnscaleClosedDevice(t *testing.T) {
	for at := 1; at <= 2; at++ {
		dev, err := snug.Open("opaque:0")
		require.NoError(t, err)
		g := kerneltest.Put(t, kerneltest.Backend{Name: "opaque", Dev: dev}, []float32{1})
		walks := 0
		_, err = newScaler(t, ScalerOptions{}).Unscale("opt", func(yield func(string, snug.View) bool) {
			if walks++; walks == at {
				require.NoError(t, dev.Close())
			}
			yield("w", g.View)
		})
		require.ErrorIs(t, err, snug.ErrDevice)
	}
}
