package state_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

const magic = "TESTTEST"

// inner is saved state with one number.
func inner(t *testing.T, x uint64) []byte {
	var b bytes.Buffer
	e := state.NewEncoder(&b, magic)
	e.Put(uint32(7))
	e.Data(8)
	e.Put(x)
	_, err := e.Finish()
	require.NoError(t, err)
	require.NoError(t, state.Verify(b.Bytes()))
	return b.Bytes()
}

// outer is saved state that holds another one.
func outer(t *testing.T, held []byte) []byte {
	var b bytes.Buffer
	e := state.NewEncoder(&b, magic)
	e.PutName(string(held))
	e.PutName("end")
	n, err := e.Finish()
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.Bytes()
}

func read(data []byte) ([]byte, error) {
	d := state.NewDecoder(bytes.NewReader(data), magic)
	held := []byte(d.GetName())
	if name := d.GetName(); d.Err == nil && name != "end" {
		d.Corrupt("%q", name)
	}
	_, err := d.Finish()
	return held, err
}

// TestStateInState: a state that is held by another cannot be exchanged for a third one,
// although both end in their own checksum.
func TestStateInState(t *testing.T) {
	a, b := inner(t, 1), inner(t, 2)
	data := outer(t, a)
	got, err := read(data)
	require.NoError(t, err)
	require.Equal(t, a, got)
	mixed := bytes.Replace(data, a, b, 1)
	require.NotEqual(t, data, mixed)
	_, err = read(mixed)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	for bit := range 8 * len(data) {
		data[bit/8] ^= 1 << (bit % 8)
		_, err := read(data)
		require.ErrorIs(t, err, snug.ErrCorrupt, "bit %d", bit)
		data[bit/8] ^= 1 << (bit % 8)
	}
	for n := range data {
		_, err := read(data[:n])
		require.ErrorIs(t, err, snug.ErrCorrupt, "%d bytes", n)
	}
}
