package offload

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/state"
)

// useStore changes a blob of the store in a folder and makes that durable.
func useStore(o Options, opened func()) func(dir string) error {
	return func(dir string) error {
		s, err := Open(dir, o)
		if err != nil {
			return err
		}
		opened()
		b, err := s.Acquire("used", 64)
		if err != nil {
			return errors.Join(err, s.Close())
		}
		b[0]++
		return errors.Join(s.Release("used", true), s.Commit(), s.Close())
	}
}

// folderCalls is every exported function that takes a folder.
func folderCalls() map[string]func(dir string) error {
	return map[string]func(string) error{
		"Open":         useStore(Options{}, func() {}),
		"Open, direct": useStore(Options{Direct: true}, func() {}),
		"Contents":     func(dir string) error { return second(Contents(dir)) },
		"Verify":       func(dir string) error { return second(Verify(dir)) },
		"MeasurePages": func(dir string) error {
			_, _, err := MeasurePages(dir, maxMeasured)
			return err
		},
	}
}

// inTime returns what a call returns, and fails the test if it hangs.
func inTime(t *testing.T, call func() error) error {
	result := make(chan error, 1)
	go func() { result <- call() }()
	select {
	case err := <-result:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
		return nil
	}
}

// plantedFolder is a committed store, one of whose files was replaced. What was planted
// there leads to a copy of that file elsewhere.
func plantedFolder(t *testing.T, name, kind string) (dir, elsewhere string) {
	dir, elsewhere = t.TempDir(), filepath.Join(t.TempDir(), "elsewhere")
	mem, _ := smallStore(t)
	for name, content := range map[string][]byte{
		dataName: mem.Bytes(dataName), indexName: mem.Bytes(indexName), lockName: nil, tempName: []byte("half an index"), openName: nil,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	content, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(elsewhere, content, 0o600))
	plant(t, filepath.Join(dir, name), elsewhere, kind)
	return dir, elsewhere
}

// plant replaces a file.
func plant(t *testing.T, path, elsewhere, kind string) {
	require.NoError(t, os.Remove(path))
	err := filestest.Planted(elsewhere)[kind](path)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err) // such as links on Windows
	}
	require.NoError(t, err)
}

// requireUntouched checks that elsewhere holds what it held, and has no new neighbours.
func requireUntouched(t *testing.T, elsewhere string, content []byte) {
	got, err := os.ReadFile(elsewhere)
	require.NoError(t, err)
	require.Equal(t, content, got)
	info, err := os.Stat(elsewhere)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	entries, err := os.ReadDir(filepath.Dir(elsewhere))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestPlanted puts links, pipes, folders and files that everybody may write in the place
// of each file of a store: every function refuses them or does its work beside them, none
// hangs, and none changes what they lead to.
func TestPlanted(t *testing.T) {
	for _, name := range []string{dataName, indexName, lockName, tempName, openName} {
		for kind := range filestest.Planted("") {
			for call, do := range folderCalls() {
				if call == "MeasurePages" && name != dataName { // it looks at no file of a store
					continue
				}
				t.Run(name+"/"+kind+"/"+call, func(t *testing.T) {
					dir, elsewhere := plantedFolder(t, name, kind)
					content, err := os.ReadFile(elsewhere)
					require.NoError(t, err)
					err = inTime(t, func() error { return do(dir) })
					requireUntouched(t, elsewhere, content)
					if !refuses(call, name, kind) {
						require.NoError(t, err)
						return
					}
					require.ErrorIs(t, err, snug.ErrConfig)
					require.ErrorContains(t, err, filepath.Join(dir, name))
				})
			}
		}
	}
}

// refuses reports whether a function must refuse what was planted, since it uses the file.
func refuses(call, name, kind string) bool {
	writes := call == "Open" || call == "Open, direct"
	switch {
	case call == "MeasurePages" || name == tempName || name == openName:
		return false // it is not used, or removed and made anew
	case kind == "hard link" && name != lockName:
		return writes && name == dataName // it is only read otherwise
	case call == "Contents":
		return name == indexName
	}
	return true
}

// TestPlantedWhileOpen replaces the files of a store that is open.
func TestPlantedWhileOpen(t *testing.T) {
	for _, name := range []string{dataName, indexName, lockName, openName} {
		for kind := range filestest.Planted("") {
			for _, direct := range []bool{false, true} {
				t.Run(name+"/"+kind, func(t *testing.T) {
					dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "elsewhere")
					require.NoError(t, useStore(Options{}, func() {})(dir))
					require.NoError(t, os.WriteFile(elsewhere, []byte("precious"), 0o600))
					use := useStore(Options{Direct: direct}, func() { plant(t, filepath.Join(dir, name), elsewhere, kind) })
					err := inTime(t, func() error { return use(dir) })
					switch {
					case name == dataName || name == lockName:
						require.ErrorIs(t, err, snug.ErrConfig, "what is committed now would be lost")
						require.ErrorContains(t, err, "while the store was open")
					case name != indexName || kind != "folder": // which no file replaces
						require.NoError(t, err)
					}
					requireUntouched(t, elsewhere, []byte("precious"))
				})
			}
		}
	}
}

// TestDirectFileIsTheSame: what has taken the place of the page file since it was opened
// is not written past the cache.
func TestDirectFileIsTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), dataName)
	plain, err := files.OS(filepath.Dir(path)).Open(dataName, create)
	require.NoError(t, err)
	if d := directFile(path, plain); d != nil {
		require.NoError(t, d.past.Close())
	} else {
		require.False(t, directHere(t), "nothing has taken its place")
	}
	require.NoError(t, os.Rename(path, path+"2"))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.Nil(t, directFile(path, plain))
	require.NoError(t, plain.Close())
}

// directHere reports whether the file system of temporary folders has direct I/O.
func directHere(t *testing.T) bool {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	f, err := openDirect(path)
	if err == nil {
		require.NoError(t, f.Close())
	}
	return err == nil
}

// TestNoFolder: an empty name is no folder, not the one that the process runs in.
func TestNoFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, call := range folderCalls() {
		require.ErrorIs(t, call(""), snug.ErrConfig, name)
	}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, entries)
}

// huge is a folder whose index claims a size.
type huge struct {
	*filestest.Dir
	size int64
}

type hugeFile struct {
	files.File
	size int64
}

func (f hugeFile) Size() (int64, error) { return f.size, nil }

func (h huge) Open(name string, flag int) (files.File, error) {
	f, err := h.Dir.Open(name, flag)
	if name == indexName && err == nil {
		f = hugeFile{f, h.size}
	}
	return f, err
}

// TestHugeIndex: an index with a hole of a terabyte, or of less, takes no memory.
func TestHugeIndex(t *testing.T) {
	dir, _ := smallStore(t)
	zeros := filestest.New()
	zeros.SetBytes(indexName, make([]byte, 1000))
	zeros.SetBytes(dataName, nil)
	for name, h := range map[string]huge{
		"a terabyte":      {dir, 1 << 40},
		"above the limit": {dir, state.MaxHeader + 1},
		"of zeros":        {zeros, state.MaxHeader},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, err := range []error{second(open(h, Options{})), second(inspect(h)), second(verify(h))} {
			require.ErrorIs(t, err, snug.ErrCorrupt, name)
			require.ErrorContains(t, err, indexName, name)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), name)
	}
}

// TestClaimedPage: a page of a gigabyte in a file of some bytes takes no memory.
func TestClaimedPage(t *testing.T) {
	dir := filestest.New()
	s := &Store{fs: dir, objects: map[string]*object{"blob": newBlob("blob", maxPage)}}
	p := &s.objects["blob"].pages[0]
	p.slot, p.uses = extent{0, maxPage}, lastCommit
	dir.SetBytes(indexName, indexOf(t, s))
	dir.SetBytes(dataName, make([]byte, 5000))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	v, err := verify(dir)
	require.NoError(t, err)
	require.Len(t, v.Damaged, 1)
	_, err = open(dir, Options{})
	require.ErrorIs(t, err, snug.ErrCorrupt)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}
