package gguf

import (
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/files/filestest"
)

// TestFullDisk: whichever call fails, once or with all that follow, the file is what it was or what it should become, also
// after a power cut, and nothing else is left.
func TestFullDisk(t *testing.T) {
	write := func(dir *filestest.Dir) error {
		w, err := create(dir, "a.gguf", []Pair{{"a", "b"}}, []Tensor{{"x", F32, []int{4}}, {"y", F16, []int{2}}}, false)
		if err != nil {
			return err
		}
		err = errors.Join(w.Write("x", make([]byte, 8)), w.Write("x", make([]byte, 8)), w.Write("y", []byte{1, 2, 3, 4}))
		return errors.Join(err, w.Close())
	}
	whole := filestest.New()
	require.NoError(t, write(whole))
	before, after := []byte("old"), whole.Bytes("a.gguf")
	failed := 0
	for _, stop := range []bool{false, true} {
		for k := 1; ; k++ {
			dir := filestest.New()
			dir.SetBytes("a.gguf", before)
			dir.FailCall(k, stop, syscall.ENOSPC)
			err := write(dir)
			_, _, calls := dir.Counts()
			dir.FailCall(0, false, nil)
			if err == nil {
				require.Less(t, calls, k)
				require.Equal(t, after, dir.Bytes("a.gguf"))
				break
			}
			failed++
			require.ErrorIs(t, err, syscall.ENOSPC, "call %d", k)
			require.Contains(t, [][]byte{before, after}, dir.Bytes("a.gguf"), "call %d", k)
			if !stop { // else the removal of the other file fails too
				require.Equal(t, []string{"a.gguf"}, dir.Names(), "call %d", k)
			}
			for seed := range uint64(10) {
				survivor := dir.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
				require.Contains(t, [][]byte{before, after}, survivor.Bytes("a.gguf"), "call %d, then the power", k)
			}
		}
	}
	require.Greater(t, failed, 15)
}

// TestWriteAfterAFailure: nothing more is written, and the error stays the first.
func TestWriteAfterAFailure(t *testing.T) {
	dir := filestest.New()
	w, err := create(dir, "a.gguf", nil, []Tensor{{"x", F32, []int{4}}}, false)
	require.NoError(t, err)
	dir.FailChange(1, false, syscall.ENOSPC)
	require.ErrorIs(t, w.Write("x", make([]byte, 8)), syscall.ENOSPC)
	require.ErrorIs(t, w.Write("x", make([]byte, 8)), syscall.ENOSPC)
	err = w.Close()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.True(t, strings.HasPrefix(err.Error(), "gguf: "))
	require.Empty(t, dir.Names())
}
