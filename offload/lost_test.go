package offload

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// TestLostIndex: pages of a store that was closed are refused without their index, time
// after time, and stay as they are. The mark of a store that was open says that there was
// no commit.
func TestLostIndex(t *testing.T) {
	dir := inspected(t)
	pages, err := os.ReadFile(filepath.Join(dir, dataName))
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, indexName)))
	for range 2 {
		for name, err := range map[string]error{
			"open": second(Open(dir, Options{})), "contents": second(Contents(dir)), "verify": second(Verify(dir)),
		} {
			require.ErrorIs(t, err, snug.ErrCorrupt, name)
			require.ErrorContains(t, err, filepath.Join(dir, indexName), name)
		}
		require.NoFileExists(t, filepath.Join(dir, openName))
		after, err := os.ReadFile(filepath.Join(dir, dataName))
		require.NoError(t, err)
		require.Equal(t, pages, after)
	}

	require.NoError(t, os.WriteFile(filepath.Join(dir, openName), nil, 0o600))
	list, err := Contents(dir)
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, second(Verify(dir)))
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	require.True(t, s.Recovered())
	require.Empty(t, s.Keys())
	require.NoError(t, s.Close())
}

// TestLostIndexWhileOpen: the commits of a store whose index was removed while it was open
// are not emptied by Close.
func TestLostIndexWhileOpen(t *testing.T) {
	dir := filestest.New()
	s, err := open(dir, Options{})
	require.NoError(t, err)
	touch(t, s, "a", true)
	require.NoError(t, s.Commit())
	require.NoError(t, dir.Remove(indexName))
	require.NoError(t, s.Close())
	require.NotEmpty(t, dir.Bytes(dataName))
	require.ErrorIs(t, second(open(dir, Options{})), snug.ErrCorrupt)
}

// TestNeverCommitted writes pages, closes the store without a commit, or after one that
// failed, and opens it again: whichever call of the file system fails, and if the machine
// stops there or after Close, the store opens.
func TestNeverCommitted(t *testing.T) {
	for _, commit := range []bool{false, true} {
		for _, stop := range []bool{false, true} {
			for k := 1; ; k++ {
				dir, done := filestest.New(), false
				dir.FailCall(k, stop, syscall.EIO)
				s, err := open(dir, Options{HostLimit: 64})
				if err == nil {
					for i := range 3 { // which evicts pages
						if _, err := s.Acquire(fmt.Sprint(i), 64); err == nil {
							require.NoError(t, s.Release(fmt.Sprint(i), true))
						}
					}
					if commit {
						done = s.Commit() == nil
					}
					err = s.Close()
				}
				_, _, calls := dir.Counts()
				if calls < k {
					require.NoError(t, err)
					require.Equal(t, commit, len(dir.Bytes(dataName)) > 0)
					require.Nil(t, dir.Bytes(openName))
				}
				for seed := range uint64(20) {
					after, err := open(dir.Crash(rand.New(rand.NewPCG(seed, uint64(k)))), Options{})
					require.NoError(t, err, "commit %v, stop %v, call %d", commit, stop, k)
					if done || !commit {
						require.Equal(t, done, len(after.Keys()) > 0)
					}
					require.NoError(t, after.Close())
				}
				if calls < k {
					break
				}
			}
		}
	}
}
