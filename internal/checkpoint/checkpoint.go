// Package checkpoint keeps the state of a training run in a folder that one process at a
// time owns. A trainer opens the folder, restores the newest checkpoint if there is one,
// and saves:
//
//	folder, err := checkpoint.Open(dir, checkpoint.Options{})
//	defer folder.Close()
//	if c := folder.Newest(); c != nil {
//		err = c.Read("weights", model.ReadFrom) // and what c.About says
//	}
//	err = folder.Save(step, about, []checkpoint.Part{{Name: "weights", Write: model.WriteTo}})
//
// The folder holds
//
//	DIR/snug.lock                 held by the owner
//	DIR/step-00000025/run.json    the run, the step, and the list of the parts
//	DIR/step-00000025/weights     a part: whatever the trainer wrote
//	DIR/step-00000050/...
//	DIR/unfinished-RUN-...        what a killed owner left, with the 32 digits of a run
//	DIR/replaced-RUN-...
//	DIR/snug-scratch-...          pages and the like of the owner, with 32 random digits
//
// An owner removes what has exactly such a name, and nothing else that is in the folder.
//
// Every file of a checkpoint says to which run, step and name it belongs and ends with the
// SHA-256 of all that, and run.json lists exactly the parts, so that no bit can change, and
// no file can be missing, surplus or of another checkpoint, without an error.
//
// A checkpoint is written under another name and renamed when all of it is on disk; older
// ones are removed after that. A process that ends at any moment, and a machine that does,
// leave the checkpoint before or the new one.
package checkpoint

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Limits of what a checkpoint holds.
const (
	MaxStep   = 99_999_999
	MaxParts  = 1024
	MaxName   = 64       // bytes of a part's name
	MaxAbout  = 64 << 10 // bytes of JSON that describe the run
	MaxHeader = 1 << 20  // bytes of the header
)

// HeaderName is the file that describes a checkpoint.
const HeaderName = "run.json"

const lockName = "snug.lock"

// DefaultKeep is how many checkpoints are kept.
const DefaultKeep = 2

// Options configure [Open].
type Options struct {
	Keep int // the newest checkpoints to keep, DefaultKeep if 0
}

// ID is the identity of a run: random bytes that its first process draws, and that all of
// its checkpoints name.
type ID [16]byte

func (id ID) String() string               { return hex.EncodeToString(id[:]) }
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses what MarshalText wrote.
func (id *ID) UnmarshalText(text []byte) error { return fromHex(id[:], text) }

// Sum is a SHA-256.
type Sum [32]byte

func (s Sum) String() string               { return hex.EncodeToString(s[:]) }
func (s Sum) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses what MarshalText wrote.
func (s *Sum) UnmarshalText(text []byte) error { return fromHex(s[:], text) }

func fromHex(to, text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(to) {
		return fmt.Errorf("%.100q, want %d hexadecimal digits", text, 2*len(to))
	}
	copy(to, b)
	return nil
}

// Folder is a folder of checkpoints that this process owns. Its methods are not for
// concurrent use.
type Folder struct {
	dir     files.Dir
	keep    int
	lock    io.Closer // nil once closed
	run     ID
	newest  *Checkpoint
	scratch []string // names of folders that this owner uses, which Close removes
}

// OpenPath is [Open] for a folder of the operating system, which is made if it is missing.
func OpenPath(path string, o Options) (*Folder, error) {
	dir, err := files.Make(path)
	if err != nil {
		return nil, err
	}
	return Open(dir, o)
}

// Open makes this process the owner of a folder until [Folder.Close], and reads and
// checks all of the newest checkpoint. It changes nothing but the lock's file: what killed
// processes left is removed by the first [Folder.Scratch] or [Folder.Save], or else by
// [Folder.Close].
//
// Errors: [files.ErrLocked] when another owner is there; [snug.ErrCorrupt] when the newest
// checkpoint or the header of another one is damaged, or when checkpoints are of different
// runs: it names the file, and the step that can be gone on from instead;
// [snug.ErrConfig] for links in the place of files; errors of the file system.
func Open(dir files.Dir, o Options) (*Folder, error) {
	if o.Keep < 0 {
		return nil, fmt.Errorf("keep %d checkpoints: want 1 or more, or 0 for %d: %w", o.Keep, DefaultKeep, snug.ErrConfig)
	}
	lock, err := dir.Lock(lockName)
	if err != nil {
		return nil, err
	}
	f := &Folder{dir: dir, keep: o.Keep, lock: lock}
	if f.keep == 0 {
		f.keep = DefaultKeep
	}
	f.newest, err = newest(dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if f.newest != nil {
		f.run = f.newest.Run
	} else if _, err := rand.Read(f.run[:]); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return f, nil
}

// Newest returns the checkpoint that was the newest when the folder was opened; nil if
// there was none.
func (f *Folder) Newest() *Checkpoint { return f.newest }

// Run returns the identity of the run: of the newest checkpoint, or a new one.
func (f *Folder) Run() ID { return f.run }

// Close removes the scratch folders, and what killed processes left, and gives the folder
// up.
func (f *Folder) Close() error {
	if f.lock == nil {
		return nil
	}
	lock := f.lock
	defer func() { f.lock = nil }()
	f.scratch = nil
	err := f.owns()
	if err == nil {
		err = f.tidy()
	}
	return errors.Join(err, lock.Close())
}

// Scratch returns the path of a folder in this one for what need not outlive the owner,
// such as pages. The caller makes the folder, and Close removes it. Its name is
// snug-scratch- and 32 random hexadecimal digits: no folder of a user has it, and what a
// killed owner left under such a name is removed.
func (f *Folder) Scratch() (path string, err error) {
	if err := f.open(); err != nil {
		return "", err
	}
	if err := f.tidy(); err != nil {
		return "", err
	}
	var random ID
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	name := scratchPrefix + random.String()
	f.scratch = append(f.scratch, name)
	return f.dir.Path(name), nil
}

func (f *Folder) open() error {
	if f.lock == nil {
		return fmt.Errorf("the folder of checkpoints is closed: %w", snug.ErrConfig)
	}
	return f.owns()
}

// owns checks that the lock is still the one in the folder: when the folder was moved or
// removed since, what is there now may be another owner's.
func (f *Folder) owns() error {
	type statter interface{ Stat() (fs.FileInfo, error) }
	held, system := f.lock.(statter)
	if !system {
		return nil
	}
	file, err := f.dir.Open(lockName, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, snug.ErrConfig):
		return f.lost()
	case err != nil:
		return nil // where nobody else can open it, it is held still
	}
	defer file.Close()
	mine, err := held.Stat()
	if err != nil {
		return err
	}
	there, err := file.(statter).Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(mine, there) {
		return f.lost()
	}
	return nil
}

func (f *Folder) lost() error {
	return fmt.Errorf("%s was moved, removed or replaced while it was held: %w", f.dir.Path(lockName), snug.ErrConfig)
}

// Part is one file of a checkpoint.
type Part struct {
	// Name is 1 to MaxName letters from a to z, digits, dots, hyphens and underscores. The
	// first is a letter or a digit.
	Name string
	// Write writes the payload, which is not held in memory.
	Write func(w io.Writer) error
}

// Save writes the checkpoint of a step, then removes those beyond the newest Keep, and
// what killed processes left. about describes the run as JSON; Save writes what
// [json.Marshal] makes of it. A checkpoint of the same step is replaced.
//
// An error before the new checkpoint is whole, and a panic of Write, leave the older ones
// unchanged; after a later error the new one exists too. Either way Save can be called
// again. Errors: [snug.ErrConfig] for steps, names and descriptions out of range, for a
// step before the newest checkpoint's, and when the folder was moved or replaced after it
// was opened; ErrConfig and [snug.ErrCorrupt] when a checkpoint to be removed is not as this
// run wrote it, and then that checkpoint stays; the errors of Write and of the file system.
// Save takes some 100 KiB of memory, and on disk one checkpoint more than Keep.
func (f *Folder) Save(step int, about any, parts []Part) error {
	if err := f.open(); err != nil {
		return err
	}
	h := header{Format: format, Version: version, Run: f.run, Step: step}
	var err error
	if h.About, err = json.Marshal(about); err != nil {
		return fmt.Errorf("description of the run: %w: %w", err, snug.ErrConfig)
	}
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.Name
	}
	if err := h.fits(names); err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	if err := f.tidy(); err != nil {
		return err
	}
	found, err := list(f.dir)
	if err != nil {
		return err
	}
	if n := len(found); n > 0 {
		last := found[n-1]
		if last.step > step {
			return fmt.Errorf("save step %d: %s has step %d already: %w", step, f.dir.Path(""), last.step, snug.ErrConfig)
		}
		if last.step == step {
			if err := f.wrote(last); err != nil {
				return err
			}
		}
	}
	if err := f.write(&h, parts); err != nil {
		return err
	}
	return f.thin()
}

// write makes the new checkpoint durable.
func (f *Folder) write(h *header, parts []Part) error {
	temp, name := unfinishedName(h.Run, h.Step), stepName(h.Step)
	if err := f.dir.Mkdir(temp); err != nil {
		return err
	}
	renamed := false
	defer func() { // also when a part's function panics
		if !renamed {
			_ = files.RemoveAll(f.dir, temp) // the next Save removes what stays
		}
	}()
	folder, err := f.dir.Folder(temp)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriterSize(nil, bufferSize)
	for _, p := range parts {
		info, err := writePart(folder, buffer, h.Run, h.Step, p)
		if err != nil {
			return err
		}
		h.Parts = append(h.Parts, info)
	}
	text, err := h.encode()
	if err != nil {
		return err
	}
	err = files.Write(folder, HeaderName, 0o600, func(w files.File) error {
		_, err := w.WriteAt(text, 0)
		return err
	})
	if err != nil {
		return err
	}
	if err := folder.Sync(); err != nil {
		return err
	}
	// Until the second renaming the old checkpoint of this step has another name, under
	// which list finds it too.
	if err := f.dir.Rename(name, replacedName(h.Run, h.Step)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.dir.Rename(temp, name); err != nil {
		return err
	}
	renamed = true
	return f.dir.Sync()
}

// tidy removes what owners before this one left unfinished, and their scratch folders, and
// gives a checkpoint its name back that was to be replaced.
func (f *Folder) tidy() error {
	entries, err := f.dir.List()
	if err != nil {
		return err
	}
	var leftovers, replaced []string
	for _, e := range entries {
		switch {
		case IsUnfinished(e.Name), IsScratch(e.Name) && !slices.Contains(f.scratch, e.Name):
			leftovers = append(leftovers, e.Name)
		case replacedNames.MatchString(e.Name):
			replaced = append(replaced, e.Name)
		}
	}
	if err := f.discard(leftovers); err != nil {
		return err
	}
	leftovers = nil
	for _, name := range replaced {
		step := stepOf(name)
		if slices.ContainsFunc(entries, func(e files.Entry) bool { return e.Name == step }) {
			leftovers = append(leftovers, name)
		} else if err := f.dir.Rename(name, step); err != nil {
			return err
		}
	}
	return f.discard(leftovers)
}

// thin removes the checkpoints beyond those to keep, and one that was replaced.
func (f *Folder) thin() error {
	found, err := list(f.dir)
	if err != nil {
		return err
	}
	var surplus []string
	for _, p := range found[:max(0, len(found)-f.keep)] {
		if err := f.wrote(p); err != nil {
			return err
		}
		surplus = append(surplus, p.name)
	}
	if err := f.discard(surplus); err != nil {
		return err
	}
	return f.tidy()
}

// wrote checks that a folder holds a checkpoint of this run and nothing else before it is
// removed: somebody may have put it, or a file in it, there since the folder was opened.
func (f *Folder) wrote(p location) error {
	c, err := describe(f.dir, p)
	if err == nil && c.Run != f.run {
		err = fmt.Errorf("%s is of run %v, want %v: %w", c.folder.Path(HeaderName), c.Run, f.run, snug.ErrConfig)
	}
	if err != nil {
		return fmt.Errorf("%s stays, which is no checkpoint as this run wrote it: %w", f.dir.Path(p.name), err)
	}
	return nil
}

// discard removes entries. They get the name of something unfinished first, durably, so
// that what is half removed is never taken for a checkpoint.
func (f *Folder) discard(names []string) error {
	if len(names) == 0 {
		return nil
	}
	names = slices.Clone(names)
	for i, name := range names {
		if !IsName(name) {
			continue // nobody takes it for one
		}
		names[i] = discardedName(f.run, name)
		if err := f.dir.Rename(name, names[i]); err != nil {
			return err
		}
	}
	if err := f.dir.Sync(); err != nil {
		return err
	}
	for _, name := range names {
		if err := files.RemoveAll(f.dir, name); err != nil {
			return err
		}
	}
	return nil
}
