package checkpoint_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
)

// run is the ID of a run that was here before.
const run = "0123456789abcdef0123456789abcdef"

// TestScratch: leftovers of killed owners go when an owner asks for a folder, and its own
// when it closes; what else is there stays.
func TestScratch(t *testing.T) {
	path := t.TempDir()
	old := filepath.Join(path, "snug-scratch-"+run)
	pages := filepath.Join(path, "pages", "deep")
	for _, name := range []string{filepath.Join(old, "deep"), pages} {
		require.NoError(t, os.MkdirAll(name, 0o700))
	}
	f, err := checkpoint.OpenPath(path, checkpoint.Options{})
	require.NoError(t, err)
	got, err := f.Scratch()
	require.NoError(t, err)
	require.NoDirExists(t, old)
	require.True(t, checkpoint.IsScratch(filepath.Base(got)), got)
	require.Equal(t, path, filepath.Dir(got))
	require.NoDirExists(t, got, "the caller makes it")
	require.NoError(t, os.MkdirAll(filepath.Join(got, "more"), 0o700))
	another, err := f.Scratch()
	require.NoError(t, err)
	require.NotEqual(t, got, another)
	require.NoError(t, f.Save(1, anyAbout, partsOf(1)))
	require.DirExists(t, filepath.Join(got, "more"), "in use")
	require.NoError(t, f.Close())
	require.NoDirExists(t, got)
	require.DirExists(t, pages)
	_, err = f.Scratch()
	require.ErrorIs(t, err, snug.ErrConfig)
}

// foreign are names that a user may have given to folders, all but the last of which
// resemble ours.
var foreign = []string{
	"unfinished-00000009", "unfinished-step-00000008", "unfinished-replaced-00000008", "unfinished-novel", "replaced-00000001", "replaced-tyre",
	"unfinished-" + run, "unfinished-" + run + "-", "unfinished-" + run + "-9", "unfinished-" + run + "0-00000009", "unfinished-" + run[1:] + "-00000009",
	"unfinished-" + strings.ToUpper(run) + "-00000009", "unfinished-" + run + "-00000009.bak", "unfinished-" + run + "-backup-00000009",
	"replaced-" + run, "replaced-" + run + "-1", "x-replaced-" + run + "-00000001", "unfinished-replaced-" + run + "-00000001",
	"snug-scratch-", "snug-scratch-" + run[1:], "snug-scratch-" + run + "0", "snug-scratch-" + strings.ToUpper(run), "snug-scratch-" + run + "-old", "snug-scratch", "pages",
}

// TestNothingOfTheUserIsRemoved: not by any run, whatever it does in a folder.
func TestNothingOfTheUserIsRemoved(t *testing.T) {
	path := t.TempDir()
	for _, name := range foreign {
		require.NoError(t, os.MkdirAll(filepath.Join(path, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(path, name, "thesis.txt"), []byte("mine"), 0o600))
	}
	save(t, files.OS(path), checkpoint.Options{Keep: 1}, 1, 2, 2, 9)
	save(t, files.OS(path), checkpoint.Options{Keep: 1}, 9, 10)
	for _, name := range foreign {
		text, err := os.ReadFile(filepath.Join(path, name, "thesis.txt"))
		require.NoError(t, err)
		require.Equal(t, "mine", string(text))
	}
	require.Len(t, names(t, files.OS(path)), len(foreign)+2, "and a checkpoint and the lock")
}

// TestCheckpointsThatTheRunDidNotWrite: a folder that was put in the place of a checkpoint,
// and one with a file more, since the run began, stay when their turn comes to be removed.
func TestCheckpointsThatTheRunDidNotWrite(t *testing.T) {
	for what, put := range map[string]func(t *testing.T, path string){
		"a file more": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(filepath.Join(path, "step-00000002", "mine"), nil, 0o600))
		},
		"a folder": func(t *testing.T, path string) {
			require.NoError(t, os.RemoveAll(filepath.Join(path, "step-00000002")))
			require.NoError(t, os.Mkdir(filepath.Join(path, "step-00000002"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(path, "step-00000002", "mine"), nil, 0o600))
		},
		"another run": func(t *testing.T, path string) {
			require.NoError(t, os.RemoveAll(filepath.Join(path, "step-00000002")))
			save(t, files.OS(path+"2"), checkpoint.Options{}, 2)
			require.NoError(t, os.Rename(filepath.Join(path+"2", "step-00000002"), filepath.Join(path, "step-00000002")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			for _, next := range []int{2, 3} { // the same step, and one more
				path := filepath.Join(t.TempDir(), "run")
				require.NoError(t, os.Mkdir(path+"2", 0o700))
				f, err := checkpoint.OpenPath(path, checkpoint.Options{Keep: 1})
				require.NoError(t, err)
				require.NoError(t, f.Save(2, anyAbout, partsOf(2)))
				put(t, path)
				before := filesOf(t, filepath.Join(path, "step-00000002"))
				err = f.Save(next, anyAbout, partsOf(next))
				require.Error(t, err, what)
				require.ErrorContains(t, err, filepath.Join(path, "step-00000002")+" stays")
				require.NoError(t, f.Close())
				require.Equal(t, before, filesOf(t, filepath.Join(path, "step-00000002")), what)
				_, err = os.Stat(filepath.Join(path, "step-00000003", checkpoint.HeaderName))
				require.Equal(t, next == 3, err == nil, "the new one is whole")
			}
		})
	}
}

// filesOf returns the names and contents of the files of a folder.
func filesOf(t *testing.T, path string) map[string]string {
	all := map[string]string{}
	for _, name := range names(t, files.OS(path)) {
		b, err := os.ReadFile(filepath.Join(path, name))
		require.NoError(t, err)
		all[name] = string(b)
	}
	return all
}

// TestTidyWithoutSaving: what a run left that was killed while it removed a checkpoint, or
// replaced one, goes when the next owner closes the folder, also if it saves nothing. Who
// could not open the folder removes nothing.
func TestTidyWithoutSaving(t *testing.T) {
	path := t.TempDir()
	dir := files.OS(path)
	save(t, dir, checkpoint.Options{}, 1, 2)
	left := []string{"unfinished-" + run + "-step-00000001", "unfinished-" + run + "-00000003", "unfinished-" + run + "-replaced-00000002", "snug-scratch-" + run}
	for _, name := range left {
		require.NoError(t, os.MkdirAll(filepath.Join(path, name, "x"), 0o700))
	}
	whole := []string{"snug.lock", "step-00000001", "step-00000002"}
	require.NoError(t, os.Rename(filepath.Join(path, "step-00000002"), filepath.Join(path, "replaced-"+run+"-00000002")))

	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	require.Equal(t, 2, f.Newest().Step)
	_, err = checkpoint.Open(dir, checkpoint.Options{})
	require.ErrorIs(t, err, files.ErrLocked)
	require.Len(t, names(t, dir), len(whole)+len(left))
	require.NoError(t, f.Close())
	require.Equal(t, whole, names(t, dir))

	require.NoError(t, os.MkdirAll(filepath.Join(path, left[0], "x"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path, "step-00000002", "weights"), nil, 0o600))
	_, err = checkpoint.Open(dir, checkpoint.Options{})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.DirExists(t, filepath.Join(path, left[0]))
}
