package files_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// TestOpenOwn: what is copied lies in the folder, or in the cache of the hub that the folder is a part of.
func TestOpenOwn(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"model/sub", "models--a--b/snapshots/0123", "models--a--b/blobs", "models--c--d/snapshots/4567", "secrets"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	for _, name := range []string{"model/real", "model/sub/real", "models--a--b/blobs/ab", "secrets/key", "models--a--b/refs"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte("{}"), 0o600))
	}
	link := func(to, from string) {
		if err := os.Symlink(to, filepath.Join(root, from)); err != nil {
			t.Skip(err) // such as on Windows without the right to do it
		}
	}
	link("../secrets", "models--c--d/blobs") // a cache that somebody prepared
	link("../secrets", "model/away")
	link("model", "alias")
	key := filepath.Join(root, "secrets", "key")
	for i, row := range []struct {
		dir, to string
		own     bool
	}{
		{"model", "real", true}, {"model", "sub/real", true}, {"model", filepath.Join(root, "model", "real"), true}, {"model", "../alias/sub/real", true},
		{"alias", "real", true}, {"alias", "../model/real", true},
		{"model", "../secrets/key", false}, {"model", key, false}, {"model", "away/key", false}, {"alias", key, false},
		{"models--a--b/snapshots/0123", "../../blobs/ab", true}, {"models--a--b/snapshots/0123", filepath.Join(root, "models--a--b", "blobs", "ab"), true},
		{"models--a--b/snapshots/0123", "../../blobs/../../secrets/key", false}, {"models--a--b/snapshots/0123", "../../refs", false},
		{"models--a--b/snapshots/0123", key, false}, {"models--c--d/snapshots/4567", "../../blobs/key", false}, {"model", "../models--a--b/blobs/ab", false},
	} {
		name := "link" + string(rune('a'+i))
		link(row.to, filepath.Join(row.dir, name))
		dir := filepath.Join(root, row.dir)
		f, size, err := files.OpenOwn(dir, name, files.Description)
		links, listed := files.Links(dir, func(n string) bool { return n == name })
		require.NoError(t, listed)
		if row.own {
			require.NoError(t, err, row)
			require.EqualValues(t, 2, size)
			require.NoError(t, f.Close())
			require.Empty(t, links)
			continue
		}
		var out *files.OutsideError
		require.True(t, errors.As(err, &out), "%v: %v", row, err)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Equal(t, filepath.Join(dir, name), out.Path)
		require.Len(t, links, 1)
		require.Equal(t, files.Link{Name: name, Target: out.Target}, links[0])
		require.True(t, filepath.IsAbs(out.Target) && !strings.Contains(out.Target, ".."), out.Target)
	}
	_, _, err := files.OpenOwn(filepath.Join(root, "model"), "away/key", files.Description)
	require.ErrorIs(t, err, snug.ErrConfig, "through a folder that is a link")
	f, _, err := files.OpenOwn(filepath.Join(root, "model"), "sub/real", files.Description)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, _, err = files.OpenOwn(filepath.Join(root, "model"), "none", files.Description)
	require.ErrorIs(t, err, os.ErrNotExist)
}
