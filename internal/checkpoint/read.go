package checkpoint

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Checkpoint is the state of a run after a step.
type Checkpoint struct {
	Run   ID
	Step  int
	About json.RawMessage // as Save was given it; its bytes are checked, its fields are the caller's
	Parts []PartInfo

	header *header
	folder files.Dir
}

// Path returns the folder of the checkpoint, for messages.
func (c *Checkpoint) Path() string { return c.folder.Path("") }

// Bytes returns the size of its parts.
func (c *Checkpoint) Bytes() (sum int64) {
	for _, p := range c.Parts {
		sum += p.Size
	}
	return sum
}

// Read gives the payload of a part to a function, which reads it to its end. What was
// read is what was saved only if the error is nil: [Open] has checked the file, and Read
// checks again what the function gets. The error wraps [snug.ErrCorrupt] when there is no
// such part, when it changed, or when the function left some of it.
func (c *Checkpoint) Read(name string, read func(io.Reader) error) error {
	i := slices.IndexFunc(c.Parts, func(p PartInfo) bool { return p.Name == name })
	if i < 0 {
		return fmt.Errorf("%s has no part %.100q: %w", c.folder.Path(HeaderName), name, snug.ErrCorrupt)
	}
	info := c.Parts[i]
	f, err := openFile(c.folder, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.readPart(f, info, read); err != nil {
		return fmt.Errorf("%s: %w", c.folder.Path(name), err)
	}
	return nil
}

func (c *Checkpoint) readPart(f files.File, info PartInfo, read func(io.Reader) error) error {
	sum, err := c.header.startOf(f, info)
	if err != nil {
		return err
	}
	payload := io.NewSectionReader(f, prefixSize(info.Name), info.payload())
	r := bufio.NewReaderSize(io.TeeReader(payload, sum), bufferSize)
	if err := read(r); err != nil {
		return err
	}
	left, err := io.Copy(io.Discard, r)
	switch {
	case err != nil:
		return err
	case left > 0:
		return fmt.Errorf("%d bytes after the end of its data: %w", left, snug.ErrCorrupt)
	}
	return endOf(f, info, sum)
}

// newest reads and checks the newest checkpoint of a folder, and the headers of the
// others. It returns nil if there is none.
func newest(dir files.Dir) (*Checkpoint, error) {
	found, err := list(dir)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	last := len(found) - 1
	c, err := check(dir, found[last])
	if err != nil {
		return nil, advised(dir, found, err)
	}
	for _, p := range found[:last] {
		older, err := describe(dir, p)
		if err == nil {
			err = older.sameRun(c)
		}
		if err != nil {
			return nil, fmt.Errorf("an older checkpoint is damaged: %w; to go on from step %d, which is whole, move %s away", err, c.Step, dir.Path(p.name))
		}
	}
	return c, nil
}

// advised says what to do about the newest checkpoint.
func advised(dir files.Dir, found []location, err error) error {
	if !errors.Is(err, snug.ErrCorrupt) && !errors.Is(err, snug.ErrConfig) {
		return err // such as a disk that does not answer
	}
	last := len(found) - 1
	path := dir.Path(found[last].name)
	for _, p := range slices.Backward(found[:last]) {
		if c, errOlder := check(dir, p); errOlder == nil {
			return fmt.Errorf("the newest checkpoint is damaged: %w; to go on from step %d, which is whole, move %s away", err, c.Step, path)
		}
	}
	if last == 0 {
		return fmt.Errorf("the only checkpoint is damaged: %w; to start again, move %s away", err, path)
	}
	return fmt.Errorf("all checkpoints are damaged, the newest one: %w", err)
}

func (c *Checkpoint) sameRun(newer *Checkpoint) error {
	if c.Run == newer.Run {
		return nil
	}
	return fmt.Errorf("%s is of run %v, and step %d in the same folder is of run %v: %w", c.folder.Path(HeaderName), c.Run, newer.Step, newer.Run, snug.ErrCorrupt)
}

// describe reads the header of a checkpoint and looks which files are there.
func describe(dir files.Dir, p location) (*Checkpoint, error) {
	folder, err := p.folder(dir)
	if err != nil {
		return nil, err
	}
	entries, err := folder.List()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch {
		case e.Type&fs.ModeSymlink != 0:
			return nil, fmt.Errorf("%s is a symbolic link, want a file: %w", folder.Path(e.Name), snug.ErrConfig)
		case e.Type != 0:
			return nil, fmt.Errorf("%s is no file: %w", folder.Path(e.Name), snug.ErrCorrupt)
		}
	}
	h, err := readHeader(folder)
	if err != nil {
		return nil, err
	}
	if p.step != anyStep && h.Step != p.step {
		return nil, fmt.Errorf("%s is of step %d, its folder's name of step %d: %w", folder.Path(HeaderName), h.Step, p.step, snug.ErrCorrupt)
	}
	surplus := map[string]bool{}
	for _, e := range entries {
		surplus[e.Name] = true
	}
	delete(surplus, HeaderName)
	for _, part := range h.Parts {
		if !surplus[part.Name] {
			return nil, fmt.Errorf("%s is missing: %w", folder.Path(part.Name), snug.ErrCorrupt)
		}
		delete(surplus, part.Name)
	}
	for name := range surplus {
		return nil, fmt.Errorf("%s is none of the parts that %s lists: %w", folder.Path(name), HeaderName, snug.ErrCorrupt)
	}
	return &Checkpoint{h.Run, h.Step, h.About, h.Parts, h, folder}, nil
}

// check reads all of a checkpoint.
func check(dir files.Dir, p location) (*Checkpoint, error) {
	c, err := describe(dir, p)
	if err != nil {
		return nil, err
	}
	for _, info := range c.Parts {
		if err := c.header.checkPart(c.folder, info); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Result is what [Verify] or [Describe] found about one checkpoint.
type Result struct {
	Name       string // of the folder
	Checkpoint *Checkpoint
	Err        error // nil if it is whole, and of the newest checkpoint's run
}

// Verify reads all checkpoints of a folder, by ascending steps. It takes no lock and
// changes nothing, so the folder may be in use: a checkpoint that its owner removes
// meanwhile is left out.
func Verify(dir files.Dir) ([]Result, error) { return look(dir, check) }

// Describe is [Verify] without the sums of the parts: it reads the headers and looks which
// files are there.
func Describe(dir files.Dir) ([]Result, error) { return look(dir, describe) }

func look(dir files.Dir, look func(files.Dir, location) (*Checkpoint, error)) ([]Result, error) {
	found, err := list(dir)
	if err != nil {
		return nil, err
	}
	var results []Result
	for _, p := range found {
		c, err := look(dir, p)
		if err != nil {
			now, errNow := list(dir)
			if errNow == nil && !slices.Contains(now, p) {
				continue
			}
		}
		results = append(results, Result{p.name, c, err})
	}
	var last *Checkpoint
	for i, r := range slices.Backward(results) {
		switch {
		case r.Err != nil:
		case last == nil:
			last = r.Checkpoint
		default:
			results[i].Err = r.Checkpoint.sameRun(last)
		}
	}
	return results, nil
}

// Check is [Verify] of one checkpoint, by the name of its folder. The folder may have any
// name, as one that was moved aside; the name of a checkpoint must be of the right step.
func Check(dir files.Dir, name string) (*Checkpoint, error) { return check(dir, folderOf(name)) }

// DescribeOne is [Describe] of one checkpoint, as Check is Verify of one.
func DescribeOne(dir files.Dir, name string) (*Checkpoint, error) {
	return describe(dir, folderOf(name))
}

func folderOf(name string) location { return locationOf(files.Entry{Name: name, Type: fs.ModeDir}) }
