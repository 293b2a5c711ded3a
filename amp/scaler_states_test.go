package amp

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// nop is an optimizer's step.
func nop() error { return nil }

func TestScalerUseBeforeScale(t *testing.T) {
	grads := kerneltest.Walk(kerneltest.Slice("w", []float32{2}))
	s, err := NewScaler(ScalerOptions{Init: 2})
	require.NoError(t, err)
	saved, err := s.AppendBinary(nil)
	require.NoError(t, err)
	for range 2 {
		_, err = s.Unscale("opt", grads)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "no loss was scaled")
		_, err = s.Step("opt", grads, nop)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.NoError(t, s.UnmarshalBinary(saved), "nor was one before it was saved")
	}
	s.Scale()
	saved, err = s.AppendBinary(nil)
	require.NoError(t, err)
	s = newScaler(t, ScalerOptions{})
	require.NoError(t, s.UnmarshalBinary(saved))
	_, err = s.Unscale("opt", grads)
	require.NoError(t, err, "the loss was scaled before the state was saved")
}

func TestScalerStepUnscales(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 4})
	grad := []float32{8}
	_, err := s.Step("opt", nil, nop)
	require.ErrorIs(t, err, snug.ErrConfig, "nothing to unscale")
	stepped, err := s.Step("opt", kerneltest.Walk(kerneltest.Slice("w", grad)), func() error {
		require.Equal(t, float32(2), grad[0])
		return nil
	})
	require.NoError(t, err)
	require.True(t, stepped)
	require.NoError(t, s.Update())

	_, err = s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", grad)))
	require.NoError(t, err)
	_, err = s.Step("opt", kerneltest.Walk(kerneltest.Slice("w", grad)), nop)
	require.NoError(t, err)
	require.Equal(t, float32(0.5), grad[0], "gradients are unscaled once")
}

// TestScalerEmptyWalk: a walk that yields nothing is an error that changes nothing, so that
// the right walk may follow.
func TestScalerEmptyWalk(t *testing.T) {
	for _, mode := range []Mode{Dynamic, Static, Disabled} {
		s := newScaler(t, ScalerOptions{Mode: mode})
		refused := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "no gradients: the walk is empty")
		}
		_, err := s.Unscale("opt", kerneltest.Walk())
		refused(err)
		stepped, err := s.Step("opt", kerneltest.Walk(), nop)
		refused(err)
		require.False(t, stepped)
		if mode != Disabled {
			require.ErrorContains(t, s.Update(), "no gradient was unscaled")
		}
		grad := []float32{65536}
		stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", grad)))
		require.NoError(t, err)
		_, err = s.Clip("opt", kerneltest.Walk(), 1)
		refused(err)
		_, err = s.ClipValue("opt", kerneltest.Walk(), 1)
		refused(err)
		require.Equal(t, stats.Norm, float64(grad[0]))
		stepped, err = s.Step("opt", nil, nop)
		require.NoError(t, err)
		require.True(t, stepped)
		require.NoError(t, s.Update())
	}
	s := newScaler(t, ScalerOptions{})
	_, err := s.Unscale("other", kerneltest.Walk(kerneltest.Slice("w", []float32{})))
	require.NoError(t, err)
	_, err = s.Step("other", nil, nop)
	require.NoError(t, err, "a gradient without elements was checked")
	require.NoError(t, s.Update())
}

// TestScalerGradientsGone is torch's
// test_params_invalidated_with_grads_invalidated_between_unscale_and_step.
//
//check:in tiers arm64
func TestScalerGradientsGone(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 2})
	grads := []kerneltest.Named{kerneltest.Slice("w", []float32{inf})}
	all := func(yield func(string, snug.View) bool) { kerneltest.Walk(grads...)(yield) }
	_, err := s.Unscale("opt", all)
	require.NoError(t, err)
	grads = nil
	stepped, err := s.Step("opt", all, nop)
	require.NoError(t, err)
	require.False(t, stepped, "what Unscale found is latched")
	require.NoError(t, s.Update())
	require.Equal(t, float32(1), s.Scale())
}

// TestScalerClipChecks has values that break between Unscale and Clip.
func TestScalerClipChecks(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for name, clip := range map[string]func(*Scaler, kerneltest.Named) (Stats, error){
			"norm":  func(s *Scaler, g kerneltest.Named) (Stats, error) { return s.Clip("opt", kerneltest.Walk(g), 1) },
			"value": func(s *Scaler, g kerneltest.Named) (Stats, error) { return s.ClipValue("opt", kerneltest.Walk(g), 1) },
		} {
			s := newScaler(t, ScalerOptions{Init: 2})
			_, err := clip(s, kerneltest.Slice("w", []float32{1}))
			require.ErrorIs(t, err, snug.ErrConfig, "not unscaled")
			v := kerneltest.Put(t, p, []float32{6, 8})
			_, err = s.Unscale("opt", kerneltest.Walk(kerneltest.Named{Name: "w", View: v.View}))
			require.NoError(t, err)
			stats, err := clip(s, kerneltest.Named{Name: "w", View: v.View})
			require.NoError(t, err)
			require.NoError(t, stats.Err())
			require.Less(t, stats.Norm, 1.5, name)

			stats, err = clip(s, kerneltest.Named{Name: "w", View: kerneltest.Put(t, p, []float32{1, inf}).View})
			require.NoError(t, err)
			require.Equal(t, 1, stats.Overflows[0].Index)
			untouched := kerneltest.Put(t, p, []float32{5})
			again, err := clip(s, kerneltest.Named{Name: "w", View: untouched.View})
			require.NoError(t, err)
			sameStats(t, stats, again)
			require.Equal(t, []float32{5}, untouched.Get(), "nothing will be stepped")
			stepped, err := s.Step("opt", nil, nop)
			require.NoError(t, err)
			require.False(t, stepped, name)
			_, err = clip(s, kerneltest.Named{Name: "w", View: v.View})
			require.ErrorIs(t, err, snug.ErrConfig, "stepped")
			require.NoError(t, s.Update())
			require.Equal(t, float32(1), s.Scale())
		}
	})
}

func TestScalerUpdateTo(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 4, Interval: 3, Floor: 1, Cap: 64})
	iterate(t, s, 1)
	iterate(t, s, 1)
	for _, bad := range []float32{0.5, 65, -1, nan, inf} {
		require.ErrorIs(t, s.UpdateTo(bad), snug.ErrConfig)
	}
	require.NoError(t, s.UpdateTo(16), "in any state")
	require.Equal(t, float32(16), s.Scale())
	iterate(t, s, 1)
	require.Equal(t, float32(32), s.Scale(), "the counter went on")
	_, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", []float32{nan})))
	require.NoError(t, err)
	require.NoError(t, s.UpdateTo(8))
	require.True(t, iterate(t, s, 1), "the step has ended")
	require.Equal(t, float32(8), s.Scale())
}

func TestScalerFloorError(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 4, Floor: 2, FloorError: true, Hysteresis: 2, Interval: 1})
	overflow := func() error {
		_, err := s.Step("opt", kerneltest.Walk(kerneltest.Slice("w", []float32{1, nan})), nop)
		require.NoError(t, err)
		return s.Update()
	}
	require.NoError(t, overflow(), "hysteresis")
	require.NoError(t, overflow(), "4 to 2")
	for range 2 {
		err := overflow()
		require.ErrorIs(t, err, snug.ErrNonFinite)
		require.ErrorContains(t, err, `optimizer "opt" overflow at the least scale, 2`)
		require.ErrorContains(t, err, "first w[1] = NaN")
		require.Equal(t, float32(2), s.Scale())
	}
	require.True(t, iterate(t, s, 1), "training may go on")
	require.Equal(t, float32(4), s.Scale())
}

func TestScalerDisabled(t *testing.T) {
	s, err := NewScaler(ScalerOptions{Mode: Disabled})
	require.NoError(t, err)
	require.NoError(t, s.Update(), "nothing to end")
	grad := []float32{3, 4}
	half := snug.ViewOf([]snug.Float16{1})
	stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", grad), kerneltest.Named{Name: "half", View: half}))
	require.NoError(t, err)
	require.Equal(t, 5, int(stats.Norm))
	require.Equal(t, []float32{3, 4}, grad)
	stats, err = s.Clip("opt", kerneltest.Walk(kerneltest.Slice("w", grad)), 1)
	require.NoError(t, err)
	require.InDelta(t, 1, stats.Norm, 0.01, "clipping works as ever")
	stepped, err := s.Step("opt", nil, nop)
	require.NoError(t, err)
	require.True(t, stepped)
	_, err = s.Step("opt", nil, nop)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, s.Update())
	require.True(t, iterate(t, s, nan), "nothing is skipped")
	require.Equal(t, float32(1), s.Scale())
	saved, err := s.AppendBinary(nil)
	require.NoError(t, err)
	restored := newScaler(t, ScalerOptions{})
	require.NoError(t, restored.UnmarshalBinary(saved))
	require.Equal(t, Disabled, restored.opts.Mode)
}

// scalerStatesProperty calls the methods in any order for several optimizers and
// compares what they allow with the states of the documentation. Whatever
// overflows, a parameter changes only by finite values.
func scalerStatesProperty(t *rapid.T) {
	const ready, unscaled, stepped = 0, 1, 2
	type model struct {
		state    int
		overflow bool
		param    float32
		grad     []float32
	}
	s := newScaler(t, ScalerOptions{Init: 8, Interval: 2, Hysteresis: rapid.IntRange(1, 2).Draw(t, "hysteresis")})
	models := map[string]*model{}
	for _, name := range []string{"a", "b", "c"} {
		models[name] = &model{grad: []float32{0}}
	}
	backward := func(m *model, x float32) { m.grad[0] = x * s.Scale() }
	for i := range rapid.IntRange(1, 60).Draw(t, "calls") {
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "optimizer")
		m := models[name]
		grads := kerneltest.Walk(kerneltest.Slice(name, m.grad))
		if m.state == ready {
			backward(m, rapid.SampledFrom([]float32{1, 2, inf, nan}).Draw(t, "gradient"))
		}
		bad := m.grad[0]-m.grad[0] != 0
		switch rapid.SampledFrom([]string{"unscale", "clip", "step", "update", "broken"}).Draw(t, "call") {
		case "unscale":
			_, err := s.Unscale(name, grads)
			require.Equal(t, m.state == ready, err == nil, i)
			if err == nil {
				m.state, m.overflow = unscaled, bad
			}
		case "clip":
			_, err := s.Clip(name, grads, 1)
			require.Equal(t, m.state == unscaled, err == nil, i)
		case "broken": // gradients that break between Unscale and Clip
			if m.state == unscaled {
				m.grad[0] = inf
				_, err := s.Clip(name, grads, 1)
				require.NoError(t, err)
				m.overflow = true
			}
		case "step":
			done, err := s.Step(name, grads, func() error { m.param -= m.grad[0]; return nil })
			require.Equal(t, m.state != stepped, err == nil, i)
			if err == nil {
				m.overflow = m.overflow || m.state == ready && bad
				require.Equal(t, !m.overflow, done, i)
				m.state = stepped
			}
		case "update":
			err := s.Update()
			some := false
			for _, m := range models {
				some = some || m.state != ready
				m.state, m.overflow = ready, false
			}
			require.Equal(t, some, err == nil, i)
		}
		require.True(t, finite(m.param), "%s is %v after call %d", name, m.param, i)
	}
}

//check:in tiers
func TestScalerStatesProperty(t *testing.T) { rapid.Check(t, scalerStatesProperty) }
func FuzzScalerStates(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(scalerStatesProperty)) }

// TestUnscaleBFloat16 has gradients that torch unscales too.
//
//check:in flush
func TestUnscaleBFloat16(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		s := newScaler(t, ScalerOptions{Init: 4})
		v := kerneltest.PutFloats(t, p, snug.BF16, []float32{4, 1, 0x1p-130})
		stats, err := s.Unscale("opt", kerneltest.Walk(kerneltest.Named{Name: "w", View: v.View}))
		require.NoError(t, err)
		requireSame(t, []float32{1, 0.25, 0x1p-132}, v.Get())
		require.InDelta(t, 1.0307764, stats.Norm, 1e-6)
	})
}
