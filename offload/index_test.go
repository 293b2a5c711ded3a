package offload

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state/statetest"
	"github.com/stretchr/testify/require"
)

func indexOf(t testing.TB, s *Store) []byte {
	c := s.snapshot()
	b, err := encodeIndex(c.objects, c.entries)
	require.NoError(t, err)
	return b
}

func decodeBytes(b []byte) ([]*object, error) {
	return decodeIndex(bytes.NewReader(b), int64(len(b)))
}

// TestMalformedIndex changes fields of a valid index and gives it valid checksums.
func TestMalformedIndex(t *testing.T) {
	s := memStore(t, Options{})
	_, err := Create[float32](s, "t", 5, 4)
	require.NoError(t, err)
	whole := indexOf(t, s)
	objects, err := decodeBytes(whole)
	require.NoError(t, err)
	require.Equal(t, s.objects["t"], objects[0])
	const fields, object = 24, 30
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   error
	}{
		"version":         {func(b []byte) []byte { b[8]++; return b }, snug.ErrCorrupt},
		"header":          {func(b []byte) []byte { b[12]--; return b }, snug.ErrCorrupt},
		"data":            {func(b []byte) []byte { b[16]++; return b }, snug.ErrCorrupt},
		"longer":          {func(b []byte) []byte { return append(b, 0, 0, 0, 0) }, snug.ErrCorrupt},
		"byte order":      {func(b []byte) []byte { b[fields], b[fields+1] = b[fields+1], b[fields]; return b }, snug.ErrConfig},
		"too few objects": {func(b []byte) []byte { b[fields+2] = 0; return b }, snug.ErrCorrupt},
		"too many":        {func(b []byte) []byte { b[fields+2] = 2; return b }, snug.ErrCorrupt},
		"dtype":           {func(b []byte) []byte { b[object] = 99; return b }, snug.ErrCorrupt},
		"blob in pages":   {func(b []byte) []byte { b[object] = 0; return b }, snug.ErrCorrupt},
		"no name":         {func(b []byte) []byte { b[object+1] = 0; return b }, snug.ErrCorrupt},
		"long name":       {func(b []byte) []byte { b[object+2] = 255; return b }, snug.ErrCorrupt},
		"not UTF-8":       {func(b []byte) []byte { b[object+5] = 255; return b }, snug.ErrCorrupt},
		"elements":        {func(b []byte) []byte { le.PutUint64(b[object+6:], math.MaxUint64); return b }, snug.ErrCorrupt},
		"many elements":   {func(b []byte) []byte { le.PutUint64(b[object+6:], 1<<20); return b }, snug.ErrCorrupt},
		"page length":     {func(b []byte) []byte { le.PutUint64(b[object+14:], 0); return b }, snug.ErrCorrupt},
		"slot alignment":  {func(b []byte) []byte { le.PutUint64(b[object+22:], 4095); return b }, snug.ErrCorrupt},
		"slot far out":    {func(b []byte) []byte { le.PutUint64(b[object+22:], 1<<63); return b }, snug.ErrCorrupt},
		"twice": {func(b []byte) []byte {
			b[fields+2] = 2
			b[12] *= 2
			b[12] -= object - fields
			return append(b[:len(b)-8:len(b)-8], b[object:]...)
		}, snug.ErrCorrupt},
	} {
		b := statetest.Seal(c.change(append([]byte(nil), whole...)))
		_, err := decodeBytes(b)
		require.ErrorIs(t, err, c.want, name)
	}
}

// TestSharedSlot checks that two pages at one offset are refused.
func TestSharedSlot(t *testing.T) {
	dir, _ := smallStore(t)
	objects, err := decodeBytes(dir.Bytes(indexName))
	require.NoError(t, err)
	s := &Store{objects: map[string]*object{}}
	for _, obj := range objects {
		for i := range obj.pages {
			obj.pages[i].slot.off = 0
		}
		s.objects[obj.name] = obj
	}
	dir.SetBytes(indexName, indexOf(t, s))
	_, err = open(dir, Options{})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "share")
}

func FuzzDecodeIndex(f *testing.F) {
	s := memStore(f, Options{})
	for name, n := range map[string]int{"a": 5, "bb": 0, "": 1} {
		_, _ = Create[float32](s, name, n, 4)
		_, _ = s.Acquire("blob"+name, n)
	}
	f.Add(indexOf(f, s))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 8 {
			return
		}
		objects, err := decodeBytes(statetest.Seal(b))
		if err != nil {
			return
		}
		again := &Store{objects: map[string]*object{}}
		for _, obj := range objects {
			again.objects[obj.name] = obj
		}
		_, err = decodeBytes(indexOf(t, again))
		require.NoError(t, err)
	})
}
