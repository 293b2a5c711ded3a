//go:build unix

package files_test

import (
	"net"
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

// TestInputsThatAreNoFiles: pipes, devices and sockets are refused at once, also behind links, and not opened.
func TestInputsThatAreNoFiles(t *testing.T) {
	dir := t.TempDir()
	pipe, socket := filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	for _, row := range []struct{ to, want string }{
		{pipe, "is a pipe, want a regular file"}, {"/dev/zero", "is a device, want a regular file"},
		{socket, "is a socket, want a regular file"}, {dir, "is a folder, want a file"},
	} {
		t.Run(row.to, func(t *testing.T) {
			link := filepath.Join(dir, "link")
			require.NoError(t, os.Symlink(row.to, link))
			for _, path := range []string{row.to, link} {
				for _, kind := range []files.Kind{files.Description, files.Weights, files.Data} {
					_, _, err := files.OpenInput(path, kind)
					require.ErrorIs(t, err, snug.ErrConfig)
					require.ErrorContains(t, err, path+" "+row.want)
				}
			}
			require.NoError(t, os.Remove(link))
		})
	}
}
