package offload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// smallStore is a committed store of a blob, an empty one, one of zeros and a
// tensor of three pages.
func smallStore(t *testing.T) (*filestest.Dir, model) {
	dir := filestest.New()
	s, err := open(dir, Options{})
	require.NoError(t, err)
	want := model{"blob": []byte("twelve bytes"), "empty": {}, "zeros": make([]byte, 5)}
	for key, val := range want {
		b, err := s.Acquire(key, len(val))
		require.NoError(t, err)
		copy(b, val)
		require.NoError(t, s.Release(key, key == "blob"))
	}
	x, err := Create[int32](s, "tensor", 5, 2)
	require.NoError(t, err)
	require.NoError(t, x.WriteAt([]int32{1, 2, 3, 4, 5}, 0))
	require.NoError(t, s.Commit())
	require.NoError(t, s.Close())
	return dir, want
}

// readSmall reads everything in a smallStore and returns the first error.
func readSmall(t *testing.T, dir *filestest.Dir, want model) (err error) {
	s, err := open(dir, Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for key, val := range want {
		b, err := s.Acquire(key, len(val))
		if err != nil {
			return err
		}
		require.True(t, bytes.Equal(val, b), key)
	}
	x, err := Lookup[int32](s, "tensor")
	require.NoError(t, err)
	got := make([]int32, 5)
	if err := x.ReadAt(got, 0); err != nil {
		return err
	}
	require.Equal(t, []int32{1, 2, 3, 4, 5}, got)
	return nil
}

func TestEveryBitIsChecked(t *testing.T) {
	dir, want := smallStore(t)
	require.NoError(t, readSmall(t, dir, want))
	flip := func(name string, lo, hi int) {
		for bit := 8 * lo; bit < 8*hi; bit++ {
			data := dir.Bytes(name)
			data[bit/8] ^= 1 << (bit % 8)
			err := readSmall(t, dir, want)
			require.ErrorIs(t, err, snug.ErrCorrupt, "%s: bit %d", name, bit)
			require.ErrorContains(t, err, name)
			data[bit/8] ^= 1 << (bit % 8)
		}
	}
	index := dir.Bytes(indexName)
	flip(indexName, 0, len(index))
	objects, err := decodeIndex(bytes.NewReader(index), int64(len(index)))
	require.NoError(t, err)
	pages := 0
	for _, obj := range objects {
		for i := range obj.pages {
			p := &obj.pages[i]
			if p.slot.n > 0 {
				flip(dataName, int(p.slot.off), int(p.slot.off)+p.size)
				pages++
			}
		}
	}
	require.Equal(t, 1+3, pages, "the blob's and the tensor's")
}

func TestEveryLengthIsChecked(t *testing.T) {
	dir, want := smallStore(t)
	for _, name := range dir.Names() {
		whole := dir.Bytes(name)
		for n := range whole {
			if name == dataName && n%37 != 0 {
				continue
			}
			dir.SetBytes(name, bytes.Clone(whole[:n]))
			require.ErrorIs(t, readSmall(t, dir, want), snug.ErrCorrupt, "%s of %d bytes", name, n)
		}
		dir.SetBytes(name, append(bytes.Clone(whole), 1))
		if err := readSmall(t, dir, want); name == indexName {
			require.ErrorIs(t, err, snug.ErrCorrupt)
		} else {
			require.NoError(t, err, "what lies beyond the last page is no page")
		}
		dir.SetBytes(name, whole)
	}
}

// TestPageReport checks that a damaged page is named.
func TestPageReport(t *testing.T) {
	dir, _ := smallStore(t)
	s, err := open(dir, Options{PrefetchDepth: 1, Workers: 1})
	require.NoError(t, err)
	p := &s.objects["tensor"].pages[1]
	dir.Bytes(dataName)[p.slot.off+3] ^= 4
	x, err := Lookup[int32](s, "tensor")
	require.NoError(t, err)
	x.Prefetch(1, 2) // meets the damage and leaves it to Pin
	for range 2 {
		err = x.ReadAt(make([]int32, 5), 0)
		require.ErrorIs(t, err, snug.ErrCorrupt)
		require.ErrorContains(t, err, fmt.Sprintf(`mem/snug.pages: page 1 of tensor "tensor" at offset %d: checksum`, p.slot.off))
	}
	dir.Bytes(dataName)[p.slot.off+3] ^= 4
	require.NoError(t, x.ReadAt(make([]int32, 5), 0), "a passing fault is no damage")
	require.NoError(t, s.Close())
}

// TestShrunkWhileOpen cuts the page file under an open store.
func TestShrunkWhileOpen(t *testing.T) {
	dir, _ := smallStore(t)
	s, err := open(dir, Options{})
	require.NoError(t, err)
	dir.SetBytes(dataName, dir.Bytes(dataName)[:s.objects["blob"].pages[0].slot.off+5])
	_, err = s.Acquire("blob", 12)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, "ends after 5 of 12 bytes")
	require.NoError(t, s.Close())
}

// unreadable is a directory whose reads fail.
type unreadable struct{ *filestest.Dir }

type unreadableFile struct{ files.File }

func (d unreadable) Open(name string, flag int) (files.File, error) {
	f, err := d.Dir.Open(name, flag)
	if name == dataName {
		f = unreadableFile{f}
	}
	return f, err
}

func (unreadableFile) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

func TestReadError(t *testing.T) {
	dir, _ := smallStore(t)
	s, err := open(unreadable{dir}, Options{})
	require.NoError(t, err)
	_, err = s.Acquire("blob", 12)
	require.ErrorIs(t, err, syscall.EIO)
	require.NotErrorIs(t, err, snug.ErrCorrupt)
	require.NotErrorIs(t, err, io.EOF)
	require.NoError(t, s.Close())
}
