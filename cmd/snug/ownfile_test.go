package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/files"
)

// Two runs do not write one report or trace, and a run removes what a killed one left of it and nothing else.
func TestOwnFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run.html")
	stay := []string{"run.html", "run.html.x.tmp", "other.html.12.tmp", "run.html.12.tmp.txt"}
	for _, name := range append(stay, "run.html.12.tmp", "run.html.18446744073709551615.tmp") {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	release, err := ownFile(path)
	require.NoError(t, err)
	_, err = ownFile(path)
	require.ErrorIs(t, err, files.ErrLocked)
	require.ErrorContains(t, err, path+": another run writes this file")
	require.NoError(t, release())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.ElementsMatch(t, stay, names)
	release, err = ownFile(path)
	require.NoError(t, err)
	require.NoError(t, release())
}

// A second run with the report or the trace of the first is refused before it trains, and a folder that is missing is
// named as the user wrote it.
//
//check:not bits32
func TestTuneSharesNoFiles(t *testing.T) {
	model, data, dir := publish(t), chats(t, 8), t.TempDir()
	for _, c := range []struct{ flag, name string }{{"-report", "run.html"}, {"-trace", "run.json"}} {
		t.Run(c.flag, func(t *testing.T) {
			path := filepath.Join(dir, c.name)
			args := []string{"tune", "-model", model, "-data", data, "-steps", "1", "-o", filepath.Join(dir, "out"+c.flag), c.flag}
			release, err := ownFile(path)
			require.NoError(t, err)
			status, _, errs := snugged(append(args, path)...)
			require.Equal(t, 2, status)
			require.Contains(t, errs, "tune: "+c.flag+": "+path+": another run writes this file")
			require.NoDirExists(t, filepath.Join(dir, "out"+c.flag))
			require.NoError(t, release())
			missing := filepath.Join(dir, "none", c.name)
			status, _, errs = snugged(append(args, missing)...)
			require.Equal(t, 2, status)
			require.Equal(t, "snug: tune: "+c.flag+": "+missing+": the folder "+filepath.Dir(missing)+" does not exist\n", errs)
			status, _, errs = snugged(append(args, path)...)
			require.Zero(t, status, errs)
			require.NoFileExists(t, path+".lock")
		})
	}
}
