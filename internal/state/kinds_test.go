package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/internal/state/statetest"
	"github.com/snug-ml/snug/quant8"
)

// masters returns a state of two parameters of 3 and 4 elements.
func masters(t testing.TB) []byte {
	var b bytes.Buffer
	e := state.NewEncoder(&b, state.MastersMagic)
	e.PutMasters(&state.Masters{Seed: 7, Params: []state.Master{{Name: "a", N: 3}, {Name: "b", N: 4}}})
	e.Data(28)
	e.Put(make([]float32, 3))
	e.Put(make([]byte, 16))
	n, err := e.Finish()
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.Bytes()
}

func describe(data []byte) (state.Description, error) {
	return state.Describe(bytes.NewReader(data), int64(len(data)), quant8.SavedNumbers)
}

func TestDescribe(t *testing.T) {
	data := masters(t)
	found, err := describe(data)
	require.NoError(t, err)
	require.Equal(t, state.Description{
		Kind: "amp's master weights", Version: 1, Note: "2 parameters", Bytes: int64(len(data)),
		Entries: []state.Entry{{Name: "a", Type: "f32", Shape: []int{3}, Bytes: 12}, {Name: "b", Type: "f32", Shape: []int{4}, Bytes: 16}},
	}, found)
	for i := range data {
		damaged := bytes.Clone(data)
		damaged[i] ^= 0x10
		for _, b := range [][]byte{damaged, data[:i], append(bytes.Clone(data), data[:i+1]...)} {
			_, err := describe(b)
			require.True(t, errors.Is(err, snug.ErrCorrupt) || i < state.MagicLen && errors.Is(err, snug.ErrConfig), "byte %d: %v", i, err)
		}
	}
	newer := bytes.Clone(data)
	newer[state.MagicLen] = 2
	_, err = describe(statetest.Seal(newer))
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "version 2, want 1")
	_, err = describe(statetest.Seal(bytes.Replace(data, []byte("\x04\x00\x00\x00\x00\x00\x00\x00"), []byte("\x05\x00\x00\x00\x00\x00\x00\x00"), 1)))
	require.ErrorContains(t, err, "data of 28 bytes, which is not what its 2 parameters take")
}

// TestDescribeAll: states in a row are described one by one, and damage to any byte, a missing
// end and bytes that follow are found.
func TestDescribeAll(t *testing.T) {
	one := masters(t)
	all := func(data []byte) ([]state.Description, error) {
		return state.DescribeAll(bytes.NewReader(data), int64(len(data)), quant8.SavedNumbers)
	}
	want, err := describe(one)
	require.NoError(t, err)
	for n := 1; n <= 3; n++ {
		data := bytes.Repeat(one, n)
		found, err := all(data)
		require.NoError(t, err)
		require.Equal(t, slices.Repeat([]state.Description{want}, n), found)
		for i := range data {
			damaged := bytes.Clone(data)
			damaged[i] ^= 0x10
			_, err := all(damaged)
			require.True(t, errors.Is(err, snug.ErrCorrupt) || i < state.MagicLen && errors.Is(err, snug.ErrConfig), "byte %d: %v", i, err)
			if i%len(one) > 0 {
				_, err = all(data[:i])
				require.ErrorIs(t, err, snug.ErrCorrupt, "%d bytes", i)
			}
		}
		for _, tail := range []string{"x", "a tail that is longer than the sizes of a state"} {
			_, err = all(append(bytes.Clone(data), tail...))
			require.ErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, fmt.Sprintf("%d bytes follow the state", len(tail)))
		}
	}
	_, err = all(nil)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	broken := errors.New("broken")
	_, err = state.DescribeAll(failingReader{broken}, 100, quant8.SavedNumbers)
	require.ErrorIs(t, err, broken)
}

type failingReader struct{ err error }

func (r failingReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }

// TestHeaderMemory: sizes that a header claims take no memory before the bytes are there.
func TestHeaderMemory(t *testing.T) {
	data := masters(t)
	for _, size := range []uint32{1 << 20, state.MaxHeader, state.MaxHeader + 1, math.MaxUint32} {
		claim := bytes.Clone(data)
		for i := range 4 {
			claim[12+i] = byte(size >> (8 * i))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d := state.NewDecoder(bytes.NewReader(claim), state.MastersMagic)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, d.Err, snug.ErrCorrupt)
		allocated := after.TotalAlloc - before.TotalAlloc
		require.Less(t, allocated, uint64(1<<18), size)
	}
}

// TestCodecErrors: nil streams, streams that fail, names that are too long, data of
// another size.
func TestCodecErrors(t *testing.T) {
	data := masters(t)
	broken := errors.New("broken")
	require.ErrorIs(t, state.NewDecoder(nil, state.MastersMagic).Err, snug.ErrConfig)
	require.ErrorIs(t, state.NewEncoder(nil, state.MastersMagic).Err, snug.ErrConfig)
	for n := range data {
		d := state.NewDecoder(io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(broken)), state.MastersMagic)
		d.GetMasters()
		d.Data(28)
		d.Skip(28)
		read, err := d.Finish()
		require.ErrorIs(t, err, broken, n)
		require.EqualValues(t, n, read)
	}
	e := state.NewHeader(state.MastersMagic)
	e.PutName(string(make([]byte, state.MaxName+1)))
	_, err := e.Bytes()
	require.ErrorIs(t, err, snug.ErrConfig)
	e = state.NewEncoder(io.Discard, state.MastersMagic)
	e.Data(3)
	e.Put([]byte("four"))
	_, err = e.Finish()
	require.ErrorIs(t, err, snug.ErrConfig)
}

// FuzzDescribe: whatever the bytes are, there is an error or a description of all of them.
func FuzzDescribe(f *testing.F) {
	f.Add(masters(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		found, err := describe(statetest.Seal(b))
		if err != nil {
			return
		}
		for _, e := range found.Entries {
			require.LessOrEqual(t, uint64(e.Bytes), uint64(len(b)))
		}
	})
}

// TestDescribeMastersOf24Bits has a byte an element, to nearest and stochastic.
func TestDescribeMastersOf24Bits(t *testing.T) {
	for _, form := range []uint32{3, state.Stochastic24} {
		var b bytes.Buffer
		e := state.NewEncoder(&b, state.MastersMagic)
		e.PutMasters(&state.Masters{Form: form, Seed: 7, Params: []state.Master{{Name: "a", N: 3, Updates: 2}}})
		e.Data(3)
		e.Put(make([]byte, 3))
		_, err := e.Finish()
		require.NoError(t, err)
		found, err := describe(b.Bytes())
		require.NoError(t, err)
		require.Equal(t, []state.Entry{{Name: "a", Type: "bits 8 to 15 of f32", Shape: []int{3}, Bytes: 3}}, found.Entries)
		_, err = describe(statetest.Seal(bytes.Replace(b.Bytes(), []byte{byte(form), 0, 0, 0, 7}, []byte{5, 0, 0, 0, 7}, 1)))
		require.ErrorIs(t, err, snug.ErrCorrupt)
	}
}

// TestDescribeBuffers has the buffers of a model, and finds damage.
func TestDescribeBuffers(t *testing.T) {
	var b bytes.Buffer
	e := state.NewEncoder(&b, state.BuffersMagic)
	e.PutBuffers([]state.Buffer{{Name: "mean", N: 3}, {Name: "var", N: 2}})
	e.Data(20)
	e.Put(make([]float32, 5))
	_, err := e.Finish()
	require.NoError(t, err)
	found, err := describe(b.Bytes())
	require.NoError(t, err)
	require.Equal(t, "2 buffers", found.Note)
	require.Equal(t, []state.Entry{{Name: "mean", Type: "f32", Shape: []int{3}, Bytes: 12}, {Name: "var", Type: "f32", Shape: []int{2}, Bytes: 8}}, found.Entries)
	for i := range b.Bytes() {
		damaged := bytes.Clone(b.Bytes())
		damaged[i] ^= 0x10
		_, err := describe(damaged)
		require.Error(t, err)
	}
	_, err = describe(statetest.Seal(bytes.Replace(b.Bytes(), []byte{2, 0, 0, 0, 0, 0, 0, 0}, []byte{2, 0, 0, 0, 0, 0, 0, 0xff}, 1)))
	require.ErrorIs(t, err, snug.ErrCorrupt)
}
