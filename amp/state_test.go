package amp

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/state"
	"github.com/stretchr/testify/require"
)

// sealed appends the checksum of data.
func sealed(data []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(data), crc32c.Seal(crc32c.Checksum(data)))
}

func TestScalerState(t *testing.T) {
	s := newScaler(t, ScalerOptions{Init: 8, Growth: 3, Backoff: 0.25, Interval: 3, Floor: 2, Cap: 100, Hysteresis: 2})
	iterate(t, s, nan)
	iterate(t, s, 1)
	saved, err := s.AppendBinary([]byte{1})
	require.NoError(t, err)
	require.Equal(t, byte(1), saved[0])
	restored := newScaler(t, ScalerOptions{})
	_, err = restored.Unscale("opt", walk(slice("w", []float32{1})))
	require.NoError(t, err)
	require.NoError(t, restored.UnmarshalBinary(saved[1:]))
	for _, g := range []float32{nan, 1, 1, 1, nan, nan, 1} {
		require.Equal(t, iterate(t, s, g), iterate(t, restored, g))
		require.Equal(t, s, restored)
	}
}

// TestScalerStateVersion1 has state of version 1: a scaler of 8 with an interval of 3,
// after two finite steps.
func TestScalerStateVersion1(t *testing.T) {
	body := append([]byte(scalerMagic), 1, 0, 0, 0)
	body, err := binary.Append(body, binary.LittleEndian, scalerState1{
		Init: 4, Growth: 2, Backoff: 0.5, Floor: minScale, Interval: 3, Hysteresis: 1, Scale: 8, Tracker: 2, Patience: 1,
	})
	require.NoError(t, err)
	s := new(Scaler)
	require.NoError(t, s.UnmarshalBinary(sealed(body)))
	require.True(t, iterate(t, s, 1), "the loss was scaled before")
	require.Equal(t, float32(16), s.Scale())
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

	body := saved[:len(saved)-4]
	newer := bytes.Clone(body)
	binary.LittleEndian.PutUint32(newer[state.MagicLen:], scalerVersion+1)
	refuse(sealed(newer), "newer")
	refuse(sealed(body[:20]), "short, with a right checksum")
	foreign := bytes.Clone(body)
	copy(foreign, masterMagic)
	refuse(sealed(foreign), "of another kind")
	lie := func(change func(*scalerState)) []byte {
		var st scalerState
		_, err := binary.Decode(body[state.MagicLen+4:], binary.LittleEndian, &st)
		require.NoError(t, err)
		change(&st)
		b, err := binary.Append(bytes.Clone(body[:state.MagicLen+4]), binary.LittleEndian, st)
		require.NoError(t, err)
		return sealed(b)
	}
	refuse(lie(func(st *scalerState) { st.Growth = 0.5 }), "options out of range")
	refuse(lie(func(st *scalerState) { st.Scale = 0 }), "scale out of range")
	refuse(lie(func(st *scalerState) { st.Scale = nan }), "scale is NaN")
	refuse(lie(func(st *scalerState) { st.Tracker = -1 }), "negative count")
	refuse(lie(func(st *scalerState) { st.Patience = math.MinInt64 }), "negative count")
	require.NoError(t, s.UnmarshalBinary(lie(func(*scalerState) {})))
	refuse(lie(func(st *scalerState) { st.Mode = uint32(Disabled) + 1 }), "an unknown mode")
}
