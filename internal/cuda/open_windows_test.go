//go:build (cuda || hip) && (amd64 || arm64)

package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"
)

// TestLibrariesOfTheSystemAlone: a library of the current folder or of PATH is not found.
func TestLibrariesOfTheSystemAlone(t *testing.T) {
	const name = "snug-planted.dll"
	system, err := windows.GetSystemDirectory()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(system, "version.dll"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	t.Chdir(dir)
	t.Setenv("PATH", dir)
	_, err = openLibrary(name)
	require.ErrorIs(t, err, windows.ERROR_MOD_NOT_FOUND)
	library, err := openLibrary("version.dll")
	require.NoError(t, err, "of System32")
	addr, err := lookUp(library, "GetFileVersionInfoSizeW")
	require.NoError(t, err)
	require.NotZero(t, addr)
}
