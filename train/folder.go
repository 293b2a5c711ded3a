package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/strictjson"
)

// Folder is a folder of checkpoints that this process owns, for Options.Folder. A program opens it before it makes a
// model, and can read from the newest checkpoint what the run needs.
type Folder struct {
	folder *checkpoint.Folder
	about  *about // of the newest checkpoint, nil if there is none
}

// OpenFolder makes this process the owner of a folder until [Folder.Close], and verifies the newest checkpoint. It
// makes a missing folder. keep is how many of the newest checkpoints to keep; 0 is 2.
//
// The error wraps [snug.ErrConfig] for a negative keep and [snug.ErrCorrupt] for a damaged checkpoint, or comes from
// the file system, for example because another process owns the folder.
func OpenFolder(dir string, keep int) (_ *Folder, err error) {
	defer fault.Named(&err, "train: OpenFolder")
	owned, err := checkpoint.OpenPath(dir, checkpoint.Options{Keep: keep})
	if err != nil {
		return nil, err
	}
	f := &Folder{folder: owned}
	if found := owned.Newest(); found != nil {
		f.about = &about{}
		if err := (strictjson.Options{Complete: true}).Unmarshal(found.About, f.about); err != nil {
			err = fmt.Errorf("the checkpoint %s: %w: %w", found.Path(), err, snug.ErrCorrupt)
			return nil, errors.Join(err, owned.Close())
		}
	}
	return f, nil
}

// resumes reports whether there was a checkpoint when the folder was opened.
func (f *Folder) resumes() bool { return f != nil && f.about != nil }

// Newest returns the step, the notes as JSON, see [Trainer.SetNotes], and the path of the checkpoint that was the
// newest when the folder was opened. notes is nil if there was none.
func (f *Folder) Newest() (step int, notes json.RawMessage, path string) {
	if !f.resumes() {
		return 0, nil, ""
	}
	found := f.folder.Newest()
	return found.Step, f.about.Notes, found.Path()
}

// About returns Options.About, as JSON, of the checkpoint that was the newest when the folder was opened, nil if there was
// none.
func (f *Folder) About() json.RawMessage {
	if !f.resumes() {
		return nil
	}
	return f.about.Run
}

// Matches returns an error if the newest checkpoint belongs to another run: if its Options.About differs from about.
// The error wraps [snug.ErrConfig] and names what differs. Without a checkpoint it returns nil.
func (f *Folder) Matches(about any) error {
	if !f.resumes() {
		return nil
	}
	want, err := toJSON(about)
	if err != nil {
		return fmt.Errorf("train: Matches: %w", err)
	}
	if err := sameRun(f.about.Run, want); err != nil {
		return fmt.Errorf("train: the checkpoint %s: %w", f.folder.Newest().Path(), err)
	}
	return nil
}

func toJSON(what any) (json.RawMessage, error) {
	text, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("a description of the run: %w: %w", err, snug.ErrConfig)
	}
	return text, nil
}

// sameRun compares two descriptions of a run, JSON objects member by member.
func sameRun(saved, want json.RawMessage) error {
	if bytes.Equal(saved, want) {
		return nil
	}
	differ := []string{fmt.Sprintf("%.300s there, %.300s here", saved, want)}
	var a, b map[string]json.RawMessage
	if json.Unmarshal(saved, &a) == nil && json.Unmarshal(want, &b) == nil && len(a) > 0 && len(b) > 0 {
		differ = nil
		all := maps.Clone(a)
		maps.Copy(all, b)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !bytes.Equal(a[name], b[name]) {
				differ = append(differ, fmt.Sprintf("%s is %s there, %s here", name, orUnset(a[name]), orUnset(b[name])))
			}
		}
	}
	return fmt.Errorf("it is of another run: %s: %w", strings.Join(differ, "; "), snug.ErrConfig)
}

// orUnset returns the text of a value, or "not set" for a missing one.
func orUnset(value json.RawMessage) string {
	if value == nil {
		return "not set"
	}
	return fmt.Sprintf("%.100s", value)
}

// Scratch returns the path of a folder within this one for files that need not outlive the process, such as pages. The
// caller makes the folder. Close removes it, and the next owner removes the scratch folder of a killed process.
func (f *Folder) Scratch() (path string, err error) {
	defer fault.Named(&err, "train: Scratch")
	if f == nil || f.folder == nil {
		return "", fmt.Errorf("OpenFolder did not make the Folder: %w", snug.ErrConfig)
	}
	return f.folder.Scratch()
}

// Close removes scratch folders, and ends the ownership of the folder. Closing twice does nothing.
func (f *Folder) Close() error {
	if f == nil || f.folder == nil {
		return nil
	}
	return f.folder.Close()
}
