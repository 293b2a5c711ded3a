package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTuneDataOnDisk: a run with more tokens than stay in memory writes a temporary file, and leaves no file behind. If the
// file cannot be made, the error says what to do.
func TestTuneDataOnDisk(t *testing.T) {
	model, temporary, dir := publish(t), t.TempDir(), t.TempDir()
	data := filepath.Join(dir, "letters.txt")
	require.NoError(t, os.WriteFile(data, []byte(strings.Repeat(letters[:26], 1<<16)), 0o600))
	tune := func(out, folder string) (int, string, string) {
		t.Setenv("TMPDIR", folder)
		t.Setenv("TMP", folder)
		return snugged("tune", "-model", model, "-data", data, "-o", filepath.Join(dir, out), "-context", "48", "-batch", "4", "-steps", "2", "-held-out", "0.0002")
	}
	status, stdout, errs := tune("out", temporary)
	require.Zero(t, status, errs)
	require.Contains(t, stdout, "\n      tokens on disk: 6.50 MiB in a temporary file in "+temporary+"\n")
	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	require.Empty(t, left)

	variable := "TMPDIR"
	if runtime.GOOS == "windows" {
		variable = "TMP"
	}
	status, stdout, errs = tune("none", filepath.Join(temporary, "none"))
	require.Equal(t, 2, status)
	require.Empty(t, stdout)
	require.Contains(t, errs, "letters.txt: more than 4194304 bytes of tokens go to a temporary file: ")
	require.Contains(t, errs, "; set "+variable+" to a folder that can be written\n")
	require.NoDirExists(t, filepath.Join(dir, "none"))
}
