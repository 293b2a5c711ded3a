//go:build unix

package files_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// TestForeignFiles: another user's files are refused, unless the folder is theirs too.
func TestForeignFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Chown(path, 12345, -1))
	_, err := files.OS(dir).Open("file", os.O_RDONLY)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "another user")
	require.NoError(t, os.Chown(dir, 12345, -1))
	f, err := files.OS(dir).Open("file", os.O_RDONLY)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// TestOpenAPipe: reading a pipe in the place of a file does not wait for a writer.
func TestOpenAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, _, err := files.Open(path)
	require.ErrorIs(t, err, snug.ErrConfig)
}
