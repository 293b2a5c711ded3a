package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/meter"
)

// checkpoints checks the checkpoints of a folder, or the folder itself if it is a checkpoint. It returns false, and has
// done nothing, if there is none.
func (v *verifier) checkpoints(path string) (is bool, err error) {
	whole, name, err := absolute(path)
	if err != nil {
		return true, v.note(path, "", err)
	}
	if checkpoint.IsUnfinished(name) || checkpoint.IsScratch(name) && path != v.root {
		return true, fs.SkipDir // what else the folder of a run has is temporary
	}
	switch named := checkpoint.IsName(name); {
	case named && v.runs[filepath.Dir(path)]:
		return true, fs.SkipDir
	case named, !holdsCheckpoints(path):
		if !named && !hasHeader(path) { // a checkpoint that was moved aside has any name
			return false, nil
		}
		return true, cmp.Or(v.checkpoint(path, whole), fs.SkipDir)
	}
	v.runs[path] = true
	results, err := checkpoint.Verify(files.OS(path))
	if err != nil {
		return true, v.note(path, "", err)
	}
	for _, r := range results {
		if err := v.note(filepath.Join(path, r.Name), checkpointText(r.Checkpoint), r.Err); err != nil {
			return true, err
		}
	}
	return true, nil
}

// header checks a file with the name of a checkpoint's header, which the user named or which lies in a folder of
// checkpoints. It skips files of other programs.
func (v *verifier) header(path string) error {
	switch dir, is, err := headerOf(path); {
	case err != nil:
		return v.note(path, "", err)
	case is:
		return v.checkpoint(path, dir)
	}
	return nil
}

// checkpoint checks the checkpoint in a folder, and notes the result for path.
func (v *verifier) checkpoint(path, dir string) error {
	c, err := checkpoint.Check(files.OS(filepath.Dir(dir)), filepath.Base(dir))
	return v.note(path, checkpointText(c), err)
}

// headerOf returns the folder of a file with the name of a header, and whether the file is the header of a checkpoint.
func headerOf(path string) (dir string, is bool, err error) {
	whole, _, err := absolute(path)
	if err != nil {
		return "", false, err
	}
	dir = filepath.Dir(whole)
	if checkpoint.IsName(filepath.Base(dir)) {
		return dir, true, nil
	}
	is, err = isHeader(path)
	return dir, is, err
}

// isHeader says whether a file looks like the header of a checkpoint.
func isHeader(path string) (bool, error) {
	f, _, err := files.Open(path)
	if err != nil {
		return false, err
	}
	text, err := io.ReadAll(io.LimitReader(f, checkpoint.MaxHeader))
	return checkpoint.IsHeader(text), errors.Join(err, f.Close())
}

// hasHeader says whether a folder has the header of a checkpoint. A folder that cannot be
// read has none.
func hasHeader(path string) bool {
	is, err := isHeader(filepath.Join(path, checkpoint.HeaderName))
	return is && err == nil
}

// absolute returns the path and the name of a file or folder that may be named as ".".
func absolute(path string) (whole, name string, err error) {
	whole, err = filepath.Abs(path)
	return whole, filepath.Base(whole), err
}

// holdsCheckpoints says whether a folder has entries with names of checkpoints.
func holdsCheckpoints(path string) bool {
	return holdsAny(path, checkpoint.IsName)
}

// holdsAny says whether a folder has an entry whose name is one of some.
func holdsAny(path string, is func(name string) bool) bool {
	entries, err := os.ReadDir(path)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return is(e.Name()) })
}

// checkpointText describes a checkpoint in a line.
func checkpointText(c *checkpoint.Checkpoint) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("checkpoint of run %v, step %d, %d parts, %s", c.Run, c.Step, len(c.Parts), meter.FormatBytes(c.Bytes()))
}

// inspectCheckpoint describes a checkpoint by its header. snug verify checks the sums of
// its parts.
func inspectCheckpoint(dir string) (*content, error) {
	found, err := checkpoint.DescribeOne(files.OS(filepath.Dir(dir)), filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	c := &content{
		Format: "checkpoint", Version: 1, Bytes: found.Bytes(), Run: found.Run.String(), Step: found.Step, About: found.About,
		Note: fmt.Sprintf("run %v, step %d", found.Run, found.Step), Entries: []entry{},
	}
	for _, p := range found.Parts {
		c.Entries = append(c.Entries, entry{Name: p.Name, DType: "part", Shape: []int{}, Bytes: p.Size, SHA256: p.SHA256.String()})
	}
	return c, nil
}

// inspectRun lists the checkpoints of a folder.
func inspectRun(path string) (*content, error) {
	results, err := checkpoint.Describe(files.OS(path))
	if err != nil {
		return nil, err
	}
	c := &content{Format: "folder of checkpoints", Entries: []entry{}}
	for _, r := range results {
		if r.Err != nil {
			return nil, r.Err
		}
		found := r.Checkpoint
		c.Run, c.Step, c.About = found.Run.String(), found.Step, found.About
		c.Bytes += found.Bytes()
		c.Entries = append(c.Entries, entry{Name: r.Name, DType: "checkpoint", Shape: []int{}, Bytes: found.Bytes()})
	}
	c.Note = fmt.Sprintf("run %v, the newest of step %d", c.Run, c.Step)
	return c, nil
}

// inspectPart describes a part of a checkpoint, and the saved state in it, if it is one.
func inspectPart(r io.ReaderAt, size int64) (*content, error) {
	p, err := checkpoint.ReadPart(r, size)
	if err != nil {
		return nil, fmt.Errorf("part of a checkpoint: %w", err)
	}
	c := &content{Format: "part " + p.Name + " of a checkpoint", Bytes: size, Run: p.Run.String(), Step: p.Step, Entries: []entry{}}
	c.Note = fmt.Sprintf("run %v, step %d, SHA-256 right", p.Run, p.Step)
	magic := make([]byte, min(p.Payload.Size(), int64(checkpoint.MagicSize)))
	if _, err := p.Payload.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if state.KindOf(magic) == nil {
		return c, nil
	}
	inner, err := inspectState(p.Payload, p.Payload.Size())
	if err != nil {
		return nil, fmt.Errorf("part of a checkpoint: %w", err)
	}
	c.Note += fmt.Sprintf(": %s, version %d", inner.Format, inner.Version)
	if inner.Note != "" {
		c.Note += ", " + inner.Note
	}
	c.Entries, c.States = inner.Entries, inner.States
	return c, nil
}

// description returns the lines in which a checkpoint describes its run.
func description(text json.RawMessage) (lines []string) {
	if text == nil {
		return nil // not a checkpoint
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return []string{printable(string(text))}
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		lines = append(lines, printable(fmt.Sprintf("%s: %.200s", key, compact(fields[key]))))
	}
	return lines
}

// compact returns JSON in one line.
func compact(text json.RawMessage) string {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return string(text)
	}
	if s, ok := value.(string); ok {
		return s
	}
	b, err := json.Marshal(text) // without spaces
	if err != nil {
		return string(text)
	}
	return string(b)
}
