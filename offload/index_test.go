package offload

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/stretchr/testify/require"
)

// seal replaces the checksum at the end of b.
func seal(b []byte) []byte {
	body := b[:len(b)-4]
	return binary.LittleEndian.AppendUint32(append([]byte(nil), body...), crc32c.Seal(crc32c.Checksum(body)))
}

// TestMalformedIndex changes fields of a valid index and gives it a valid
// checksum.
func TestMalformedIndex(t *testing.T) {
	s := memStore(t, Options{})
	_, err := Create[float32](s, "t", 5, 4)
	require.NoError(t, err)
	whole := s.encodeIndex()
	objects, err := decodeIndex(whole)
	require.NoError(t, err)
	require.Equal(t, s.objects["t"], objects[0])
	const object = headerSize
	le := binary.LittleEndian
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   error
	}{
		"version":         {func(b []byte) []byte { b[8]++; return b }, snug.ErrCorrupt},
		"byte order":      {func(b []byte) []byte { b[12], b[13] = b[13], b[12]; return b }, snug.ErrConfig},
		"too few objects": {func(b []byte) []byte { b[14] = 0; return b }, snug.ErrCorrupt},
		"too many":        {func(b []byte) []byte { b[14] = 2; return b }, snug.ErrCorrupt},
		"dtype":           {func(b []byte) []byte { b[object] = 99; return b }, snug.ErrCorrupt},
		"blob in pages":   {func(b []byte) []byte { b[object] = 0; return b }, snug.ErrCorrupt},
		"no name":         {func(b []byte) []byte { b[object+1] = 0; return b }, snug.ErrCorrupt},
		"long name":       {func(b []byte) []byte { b[object+2] = 255; return b }, snug.ErrCorrupt},
		"not UTF-8":       {func(b []byte) []byte { b[object+3] = 255; return b }, snug.ErrCorrupt},
		"elements":        {func(b []byte) []byte { le.PutUint64(b[object+4:], math.MaxUint64); return b }, snug.ErrCorrupt},
		"many elements":   {func(b []byte) []byte { le.PutUint64(b[object+4:], 1<<20); return b }, snug.ErrCorrupt},
		"page length":     {func(b []byte) []byte { le.PutUint64(b[object+12:], 0); return b }, snug.ErrCorrupt},
		"slot alignment":  {func(b []byte) []byte { le.PutUint64(b[object+20:], 4095); return b }, snug.ErrCorrupt},
		"slot far out":    {func(b []byte) []byte { le.PutUint64(b[object+20:], 1<<63); return b }, snug.ErrCorrupt},
		"twice": {func(b []byte) []byte {
			b[14] = 2
			return append(b[:len(b)-4:len(b)-4], b[object:]...)
		}, snug.ErrCorrupt},
	} {
		b := seal(c.change(append([]byte(nil), whole...)))
		_, err := decodeIndex(b)
		require.ErrorIs(t, err, c.want, name)
	}
}

// TestSharedSlot checks that two pages at one place are refused.
func TestSharedSlot(t *testing.T) {
	dir, _ := smallStore(t)
	objects, err := decodeIndex(dir.Bytes(indexName))
	require.NoError(t, err)
	s := &Store{objects: map[string]*object{}}
	for _, obj := range objects {
		for i := range obj.pages {
			obj.pages[i].slot.off = 0
		}
		s.objects[obj.name] = obj
	}
	dir.SetBytes(indexName, s.encodeIndex())
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
	f.Add(s.encodeIndex())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 4 {
			return
		}
		objects, err := decodeIndex(seal(b))
		if err != nil {
			return
		}
		again := &Store{objects: map[string]*object{}}
		for _, obj := range objects {
			again.objects[obj.name] = obj
		}
		_, err = decodeIndex(again.encodeIndex())
		require.NoError(t, err)
	})
}
