//go:build emu

package emu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCacheIsPrivate: programs are kept in a folder of the user's that only the user writes,
// and never in one that somebody else may have put there.
func TestCacheIsPrivate(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(t *testing.T, dir string)
		taken bool
	}{
		{"nothing is there", func(*testing.T, string) {}, true},
		{"a folder that all read", func(t *testing.T, dir string) { require.NoError(t, os.Mkdir(dir, 0o755)) }, true},
		{"a folder that all write", func(t *testing.T, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Chmod(dir, 0o1777))
		}, false},
		{"a folder that the group writes", func(t *testing.T, dir string) {
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Chmod(dir, 0o770))
		}, false},
		{"a link to a folder", func(t *testing.T, dir string) { require.NoError(t, os.Symlink(t.TempDir(), dir)) }, false},
		{"a link to nothing", func(t *testing.T, dir string) { require.NoError(t, os.Symlink(dir+".gone", dir)) }, false},
		{"a file", func(t *testing.T, dir string) { require.NoError(t, os.WriteFile(dir, nil, 0o600)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "snug-emu")
			c.plant(t, dir)
			err := makePrivate(dir, os.Geteuid())
			if !c.taken {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.NoError(t, makePrivate(dir, os.Geteuid()), "and again")
			require.Error(t, makePrivate(dir, os.Geteuid()+1), "another user's")
		})
	}
}

// TestCacheWithoutHome: where there is no home, a folder of the user's among temporary files,
// and where that is not the user's, a new one.
func TestCacheWithoutHome(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	dir, err := cacheDir()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(home, "snug-emu"), dir)
	info, err := os.Lstat(dir)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())

	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	dir, err = cacheDir()
	require.NoError(t, err)
	require.Equal(t, temporary, filepath.Dir(dir))
	require.NoError(t, os.Chmod(dir, 0o777))
	fresh, err := cacheDir()
	require.NoError(t, err)
	require.NotEqual(t, dir, fresh)
	info, err = os.Lstat(fresh)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())
	again, err := cacheDir()
	require.NoError(t, err)
	require.Equal(t, fresh, again, "one a process")
}
