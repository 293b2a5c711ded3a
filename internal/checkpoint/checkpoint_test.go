package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// about is a description of a run.
type about struct {
	Steps int    `json:"steps"`
	Text  string `json:"text"`
}

var anyAbout = about{40, "<&> ünïcode"}

// payload is what a part of a step holds.
func payload(step int, name string) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%s of %d ", name, step), 9)
}

var partNames = []string{"weights", "optimizer", "empty"}

func partsOf(step int) (parts []checkpoint.Part) {
	for _, name := range partNames {
		parts = append(parts, checkpoint.Part{Name: name, Write: func(w io.Writer) error {
			if name == "empty" {
				return nil
			}
			_, err := w.Write(payload(step, name))
			return err
		}})
	}
	return parts
}

// tester is a test, also one of rapid.
type tester interface {
	require.TestingT
	Helper()
}

// save opens a folder, saves steps and closes it, as a run with pages does.
func save(t tester, dir files.Dir, o checkpoint.Options, steps ...int) {
	t.Helper()
	f, err := checkpoint.Open(dir, o)
	require.NoError(t, err)
	_, err = f.Scratch()
	require.NoError(t, err)
	for _, step := range steps {
		require.NoError(t, f.Save(step, anyAbout, partsOf(step)))
	}
	require.NoError(t, f.Close())
}

// load returns the step of the newest checkpoint, whose parts it reads; 0 if there is none.
func load(dir files.Dir) (step int, err error) {
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c := f.Newest()
	if c == nil {
		return 0, nil
	}
	var a about
	if err := json.Unmarshal(c.About, &a); err != nil || a != anyAbout {
		return 0, fmt.Errorf("%+v: %w", a, err)
	}
	for _, name := range partNames {
		var got []byte
		err := c.Read(name, func(r io.Reader) (err error) {
			got, err = io.ReadAll(r)
			return err
		})
		if err != nil {
			return 0, err
		}
		if want := payload(c.Step, name); name != "empty" && !bytes.Equal(got, want) || name == "empty" && len(got) > 0 {
			return 0, fmt.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	return c.Step, nil
}

// TestSaveAndRead on a folder of the system: a run is saved, gone on with by another
// process, and the newest two checkpoints are kept.
func TestSaveAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	f, err := checkpoint.OpenPath(path, checkpoint.Options{})
	require.NoError(t, err)
	require.Nil(t, f.Newest())
	run := f.Run()
	require.NotEqual(t, checkpoint.ID{}, run)
	require.NoError(t, f.Save(1, anyAbout, partsOf(1)))
	require.NoError(t, f.Close())
	require.NoError(t, f.Close(), "a second time")
	require.ErrorIs(t, f.Save(2, anyAbout, partsOf(2)), snug.ErrConfig)

	dir := files.OS(path)
	save(t, dir, checkpoint.Options{}, 2, 7, 12)
	step, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, 12, step)
	require.Equal(t, []string{"snug.lock", "step-00000007", "step-00000012"}, names(t, dir))
	f, err = checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	require.Equal(t, run, f.Run())
	require.Equal(t, filepath.Join(path, "step-00000012"), f.Newest().Path())
	require.NoError(t, f.Close())

	other := files.OS(t.TempDir())
	save(t, other, checkpoint.Options{Keep: 1}, 1, 2, 3)
	require.Equal(t, []string{"snug.lock", "step-00000003"}, names(t, other))
	results, err := checkpoint.Verify(other)
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.NoError(t, results[0].Err)
	require.NotEqual(t, run, results[0].Checkpoint.Run)
}

func names(t tester, dir files.Dir) (names []string) {
	t.Helper()
	entries, err := dir.List()
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// TestSaveTheSameStepAgain replaces the checkpoint, and only that.
func TestSaveTheSameStepAgain(t *testing.T) {
	dir := filestest.New()
	save(t, dir, checkpoint.Options{}, 1, 2)
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	for _, text := range []string{"first", "second"} {
		require.NoError(t, f.Save(2, text, partsOf(2)))
		require.Equal(t, []string{"step-00000001", "step-00000002"}, dir.Names())
	}
	require.ErrorIs(t, f.Save(1, anyAbout, partsOf(1)), snug.ErrConfig, "a step before the newest")
	require.NoError(t, f.Close())
	f, err = checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	require.Equal(t, `"second"`, string(f.Newest().About))
	require.NoError(t, f.Close())
}

// TestOneOwner: who does not get the lock reads and changes nothing, and the owner's
// scratch folder stays.
//
//check:in race
func TestOneOwner(t *testing.T) {
	dir := filestest.New()
	save(t, dir, checkpoint.Options{}, 1, 2)
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	_, before, _ := dir.Counts()
	_, err = checkpoint.Open(dir, checkpoint.Options{})
	require.ErrorIs(t, err, files.ErrLocked)
	_, after, _ := dir.Counts()
	require.Equal(t, before, after, "changes")
	results, err := checkpoint.Verify(dir)
	require.NoError(t, err, "in use")
	require.Len(t, results, 2)
	require.NoError(t, f.Close())
	step, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, 2, step)
}

// TestFolderThatWasTakenAway: who owned a folder that was moved, or lost its lock, changes
// nothing in the one that is there now.
func TestFolderThatWasTakenAway(t *testing.T) {
	for what, take := range map[string]func(path string) error{
		"moved":   func(path string) error { return os.Rename(path, path+"2") },
		"emptied": os.RemoveAll,
	} {
		path := filepath.Join(t.TempDir(), "run")
		f, err := checkpoint.OpenPath(path, checkpoint.Options{})
		require.NoError(t, err)
		require.NoError(t, f.Save(1, anyAbout, partsOf(1)))
		pages, err := f.Scratch()
		require.NoError(t, err)
		if take(path) != nil {
			require.NoError(t, f.Close(), "a system that does not take what is open")
			continue
		}
		require.ErrorIs(t, f.Save(2, anyAbout, partsOf(2)), snug.ErrConfig, what)
		other, err := checkpoint.OpenPath(path, checkpoint.Options{})
		require.NoError(t, err)
		require.NoError(t, other.Save(3, anyAbout, partsOf(3)))
		require.NoError(t, os.Mkdir(pages, 0o700))
		require.ErrorIs(t, f.Save(4, anyAbout, partsOf(4)), snug.ErrConfig, what)
		require.ErrorIs(t, f.Close(), snug.ErrConfig, what)
		require.Equal(t, []string{filepath.Base(pages), "snug.lock", "step-00000003"}, names(t, files.OS(path)))
		require.NoError(t, other.Close())
	}
}

// TestPanics: after a panic of a part's function nothing is left, and the folder can be
// used and given up.
//
//check:in race
func TestPanics(t *testing.T) {
	dir := filestest.New()
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	for at := range partNames {
		parts := partsOf(1)
		parts[at].Write = func(w io.Writer) error {
			_, _ = w.Write(make([]byte, 200<<10))
			panic("writer")
		}
		require.PanicsWithValue(t, "writer", func() { _ = f.Save(1, anyAbout, parts) })
		require.Empty(t, dir.Names())
	}
	require.NoError(t, f.Save(1, anyAbout, partsOf(1)))
	require.NoError(t, f.Close())
	f, err = checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	require.PanicsWithValue(t, "reader", func() {
		_ = f.Newest().Read("weights", func(io.Reader) error { panic("reader") })
	})
	require.NoError(t, f.Save(2, anyAbout, partsOf(2)))
	require.NoError(t, f.Close())
	step, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, 2, step)
}

// TestErrorsOfParts: an error of a part's function is the error of the call, also one of
// the writer that the function passes over, and nothing is left.
func TestErrorsOfParts(t *testing.T) {
	dir := filestest.New()
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	mine := errors.New("mine")
	parts := partsOf(1)
	parts[1].Write = func(io.Writer) error { return mine }
	require.ErrorIs(t, f.Save(1, anyAbout, parts), mine)
	require.Empty(t, dir.Names())
	require.NoError(t, f.Save(1, anyAbout, partsOf(1)))
	require.NoError(t, f.Close())

	f, err = checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	c := f.Newest()
	require.ErrorIs(t, c.Read("weights", func(io.Reader) error { return mine }), mine)
	err = c.Read("weights", func(r io.Reader) error { return nil })
	require.ErrorIs(t, err, snug.ErrCorrupt, "left of it")
	require.ErrorContains(t, err, "step-00000001/weights")
	err = c.Read("none", func(r io.Reader) error { return nil })
	require.ErrorIs(t, err, snug.ErrCorrupt)

	folder, err := dir.Sub("step-00000001")
	require.NoError(t, err)
	folder.Flip("weights", 100)
	err = c.Read("weights", func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
	require.ErrorIs(t, err, snug.ErrCorrupt, "changed since it was opened")
	require.NoError(t, f.Close())
}

// TestWrongSaves: what cannot be saved is refused before anything is written.
func TestWrongSaves(t *testing.T) {
	dir := filestest.New()
	_, err := checkpoint.Open(dir, checkpoint.Options{Keep: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	named := func(names ...string) (parts []checkpoint.Part) {
		for _, name := range names {
			parts = append(parts, checkpoint.Part{Name: name, Write: func(io.Writer) error { return nil }})
		}
		return parts
	}
	var many []string
	for i := range checkpoint.MaxParts + 1 {
		many = append(many, fmt.Sprint("p", i))
	}
	for what, c := range map[string]struct {
		step  int
		about any
		parts []checkpoint.Part
	}{
		"step 0":         {0, anyAbout, named("a")},
		"step -1":        {-1, anyAbout, named("a")},
		"a long step":    {checkpoint.MaxStep + 1, anyAbout, named("a")},
		"no parts":       {1, anyAbout, nil},
		"many parts":     {1, anyAbout, named(many...)},
		"no name":        {1, anyAbout, named("")},
		"a path":         {1, anyAbout, named("a/b")},
		"upper case":     {1, anyAbout, named("A")},
		"hidden":         {1, anyAbout, named(".a")},
		"a long name":    {1, anyAbout, named(string(bytes.Repeat([]byte("a"), checkpoint.MaxName+1)))},
		"twice":          {1, anyAbout, named("a", "b", "a")},
		"the header":     {1, anyAbout, named(checkpoint.HeaderName)},
		"no JSON":        {1, func() {}, named("a")},
		"a long text":    {1, string(make([]byte, checkpoint.MaxAbout)), named("a")},
		"broken message": {1, json.RawMessage("{"), named("a")},
		"a key twice":    {1, json.RawMessage(`{"a":1,"a":2}`), named("a")},
		"no Unicode":     {1, json.RawMessage("\"\xff\""), named("a")},
		"a deep text":    {1, json.RawMessage(strings.Repeat("[", 100) + strings.Repeat("]", 100)), named("a")},
		"too indented":   {1, json.RawMessage(strings.Repeat("[", 50) + strings.Repeat("1,", 20000) + "1" + strings.Repeat("]", 50)), named("a")},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, f.Save(c.step, c.about, c.parts), snug.ErrConfig, what)
			require.Empty(t, dir.Names(), what)
		})
	}
	// The largest of everything fits in a header.
	for i := range many {
		many[i] = fmt.Sprintf("%0*d", checkpoint.MaxName, i)
	}
	require.NoError(t, f.Save(1, slices.Repeat([]int{1}, checkpoint.MaxAbout/2-1), named("a")), "longer when it is indented")
	require.NoError(t, f.Save(checkpoint.MaxStep, string(bytes.Repeat([]byte("a"), checkpoint.MaxAbout-2)), named(many[1:]...)))
	require.NoError(t, f.Close())
	f, err = checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	require.Len(t, f.Newest().Parts, checkpoint.MaxParts)
	require.NoError(t, f.Close())
}

// TestForeignEntries: what a killed owner left goes, and what could be mistaken for a
// checkpoint is refused.
func TestForeignEntries(t *testing.T) {
	path := t.TempDir()
	dir := files.OS(path)
	save(t, dir, checkpoint.Options{}, 1)
	for _, name := range []string{"unfinished-" + run + "-00000009", "unfinished-" + run + "-step-00000008", "replaced-" + run + "-00000001"} {
		require.NoError(t, os.MkdirAll(filepath.Join(path, name, "x"), 0o700))
	}
	save(t, dir, checkpoint.Options{}, 2)
	require.Equal(t, []string{"snug.lock", "step-00000001", "step-00000002"}, names(t, dir))
	for _, name := range []string{"step-3", "step-00000003.bak", "step-000000003", "step-"} {
		require.NoError(t, os.Mkdir(filepath.Join(path, name), 0o700))
		_, err := load(dir)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, filepath.Join(path, name))
		_, err = checkpoint.Verify(dir)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.NoError(t, os.Remove(filepath.Join(path, name)))
	}
	step, err := load(dir)
	require.NoError(t, err)
	require.Equal(t, 2, step)
}

// TestVerifyWhileSaving: what a run removes meanwhile is not called damaged.
//
//check:in race
func TestVerifyWhileSaving(t *testing.T) {
	dir := files.OS(t.TempDir())
	f, err := checkpoint.Open(dir, checkpoint.Options{})
	require.NoError(t, err)
	require.NoError(t, f.Save(1, anyAbout, partsOf(1)))
	saved := make(chan error)
	go func() {
		var err error
		for step := 2; step < 30 && err == nil; step++ {
			err = f.Save(step, anyAbout, partsOf(step))
		}
		saved <- err
	}()
	for {
		select {
		case err := <-saved:
			require.NoError(t, err)
			require.NoError(t, f.Close())
			return
		default:
			results, err := checkpoint.Verify(dir)
			require.NoError(t, err)
			for _, r := range results {
				require.NoError(t, r.Err)
			}
		}
	}
}
