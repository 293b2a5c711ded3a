package amp

import (
	"bytes"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
	"github.com/stretchr/testify/require"
)

func TestScalerState(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 8, Growth: 3, Backoff: 0.25, Interval: 3, Floor: 2, Cap: 100, Hysteresis: 2})
	iterate(t, s, nan)
	iterate(t, s, 1)
	saved, err := s.AppendBinary([]byte{1})
	require.NoError(t, err)
	require.Equal(t, byte(1), saved[0])
	restored := newScaler(t, ScalerOptions{})
	_, err = restored.Unscale("opt", kerneltest.Walk(kerneltest.Slice("w", []float32{1})))
	require.NoError(t, err)
	require.NoError(t, restored.UnmarshalBinary(saved[1:]))
	for _, g := range []float32{nan, 1, 1, 1, nan, nan, 1} {
		require.Equal(t, iterate(t, s, g), iterate(t, restored, g))
		require.Equal(t, s, restored)
	}
}

func TestScalerStateErrors(t *testing.T) {
	s := newScaler(t, ScalerOptions{})
	saved, err := s.AppendBinary(nil)
	require.NoError(t, err)
	want := newScaler(t, ScalerOptions{Init: 4})
	refuse := func(data []byte, msg string) {
		t.Helper()
		s := newScaler(t, ScalerOptions{Init: 4})
		require.ErrorIs(t, s.UnmarshalBinary(data), snug.ErrCorrupt, msg)
		require.Equal(t, want, s, msg)
	}
	for i := range saved {
		damaged := bytes.Clone(saved)
		damaged[i] ^= 1
		refuse(damaged, "a bit differs")
		refuse(saved[:i], "the end is missing")
	}
	refuse(append(bytes.Clone(saved), 0), "a byte too many")

	require.ErrorIs(t, new(Scaler).UnmarshalBinary(saved), snug.ErrConfig, "not made by NewScaler")

	put := func(magic string, v any) []byte {
		e := state.NewHeader(magic)
		e.Put(v)
		b, err := e.Bytes()
		require.NoError(t, err)
		return b
	}
	lie := func(change func(*state.Scaler)) []byte {
		var st state.Scaler
		d := state.NewDecoder(bytes.NewReader(saved), state.ScalerMagic)
		d.Get(&st)
		_, err := d.Finish()
		require.NoError(t, err)
		change(&st)
		return put(state.ScalerMagic, st)
	}
	refuse(put(state.ScalerMagic, uint32(1)), "a header that ends early")
	refuse(put(state.MastersMagic, state.Scaler{}), "of another kind")
	refuse(put(state.ScalerMagic, [2]state.Scaler{}), "a header that is too long")
	refuse(lie(func(st *state.Scaler) { st.Growth = 0.5 }), "options out of range")
	refuse(lie(func(st *state.Scaler) { st.Scale = 0 }), "scale out of range")
	refuse(lie(func(st *state.Scaler) { st.Scale = nan }), "scale is NaN")
	refuse(lie(func(st *state.Scaler) { st.Tracker = -1 }), "negative count")
	refuse(lie(func(st *state.Scaler) { st.Patience = math.MinInt64 }), "negative count")
	require.NoError(t, s.UnmarshalBinary(lie(func(*state.Scaler) {})))
	refuse(lie(func(st *state.Scaler) { st.Mode = uint32(Disabled) + 1 }), "an unknown mode")
}
