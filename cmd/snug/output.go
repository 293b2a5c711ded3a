package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
)

// unfinished is a file that lies in an output folder until all other files are written. The process that writes them
// holds a lock on it. If that process is killed, the file stays.
const unfinished = "snug.unfinished"

// written matches the names of the weights and configurations that a killed process may leave. Such a process may leave
// companions too.
var written = regexp.MustCompile(`^(adapter_model\.safetensors|adapters\.safetensors|adapter_config\.json(\.next)?|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|((video_)?(pre)?processor_)?config\.json)(\.\d+\.tmp)?$`)

// output is a folder that this process writes.
type output struct {
	path string
	made []string // folders that takeOutput made, inner ones first
	left int      // files of a killed process that takeOutput removed
	lock io.Closer
}

// emptyFolder returns an error unless a folder is missing, is empty, or has only what a killed process left, and that is
// not a whole result.
func emptyFolder(name string) error {
	entries, err := os.ReadDir(name)
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a link to nothing: %w", name, fs.ErrNotExist)
		}
		return nil
	}
	if err != nil {
		return err
	}
	left := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == unfinished })
	for _, e := range entries {
		if !left || !ours(e.Name()) {
			return fmt.Errorf("%s is not empty, and nothing is overwritten", name)
		}
	}
	if what := wholeResult(name); left && what != "" {
		return fmt.Errorf("%s has %s of a run that was stopped as it ended, and nothing is overwritten: to keep this result, remove %s; to train again, move the folder away",
			name, what, filepath.Join(name, unfinished))
	}
	return nil
}

// wholeResult says which whole weights a folder has, "" for none. Weights get their names only when they are complete.
func wholeResult(dir string) (what string) {
	for _, r := range []struct{ path, what string }{
		{filepath.Join(dir, adapterFile), "the adapter"}, {filepath.Join(dir, mlxFile), "the adapter"}, {dir, "the weights"},
	} {
		if w, err := amp.OpenWeights(r.path); err == nil {
			_ = w.Close() // which was only read
			return r.what
		}
	}
	return ""
}

func ours(name string) bool {
	return name == unfinished || name == moreTemplates || written.MatchString(name) || slices.Contains(companions, name)
}

// takeOutput makes the folder if it is missing, marks it as unfinished, and removes what a killed process left. A folder
// that cannot be written is thus found before hours of work. The caller ends with finish or drop.
func takeOutput(path string) (o *output, err error) {
	if err := emptyFolder(path); err != nil {
		return nil, err
	}
	o = &output{path: path}
	for p := filepath.Clean(path); ; p = filepath.Dir(p) {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(p) == p {
			break
		}
		o.made = append(o.made, p)
	}
	if err = os.MkdirAll(path, 0o777); err == nil {
		o.lock, err = files.OS(path).Lock(unfinished)
	}
	switch {
	case err != nil:
		if !errors.Is(err, files.ErrLocked) {
			o.unmake()
		}
		return nil, err
	case !o.marked(): // another process has finished meanwhile
		return nil, errors.Join(fmt.Errorf("%s is in use: %w", path, snug.ErrConfig), o.lock.Close())
	}
	if err = emptyFolder(path); err == nil {
		err = o.clear()
	}
	if err != nil {
		return nil, errors.Join(err, o.lock.Close())
	}
	return o, nil
}

// marked reports whether the mark is there.
func (o *output) marked() bool {
	_, err := os.Lstat(filepath.Join(o.path, unfinished))
	return err == nil
}

// clear removes what was written.
func (o *output) clear() error {
	entries, err := os.ReadDir(o.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != unfinished && ours(e.Name()) {
			o.left++
			err = errors.Join(err, o.remove(e))
		}
	}
	return err
}

// remove removes a file that was written, or the folder of templates.
func (o *output) remove(e fs.DirEntry) (err error) {
	path := filepath.Join(o.path, e.Name())
	if e.IsDir() {
		templates, bad := filepath.Glob(filepath.Join(escapePattern(path), "*.jinja"))
		err = bad
		for _, name := range templates {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return errors.Join(err, os.Remove(path))
}

// note says that takeOutput removed something.
func (o *output) note(w io.Writer) {
	if o.left > 0 {
		fmt.Fprintf(w, "snug: a run that was stopped before it had saved its result left %s in %s, which are removed\n", console.Count(o.left, "file"), o.path)
	}
}

// finish removes the mark: the folder is complete.
func (o *output) finish() error {
	if o.lock == nil {
		return nil
	}
	err := unlock(filepath.Join(o.path, unfinished), o.lock)
	o.lock = nil
	return err
}

// unlock removes the file on which this process holds a lock, and lets the lock go.
func unlock(path string, lock io.Closer) error {
	held := os.Remove(path) // before another process can take it; some systems do not remove open files
	err := lock.Close()
	if held != nil && err == nil {
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// drop removes what was written, and the folders that were made. After finish it does nothing.
func (o *output) drop() error {
	if o.lock == nil {
		return nil
	}
	err := errors.Join(o.clear(), o.finish())
	o.unmake()
	return err
}

// unmake removes the folders that were made, as long as they are empty.
func (o *output) unmake() {
	for _, dir := range o.made {
		if os.Remove(dir) != nil {
			return
		}
	}
}
