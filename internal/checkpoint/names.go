package checkpoint

import (
	"cmp"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Names of entries. A checkpoint to be replaced has its own, so that it counts until the
// new one is there; what is unfinished or to be removed never counts. What may be removed
// has 32 hexadecimal digits in its name, which nobody gives to a folder by hand:
//
//	step-00000025                         a checkpoint
//	replaced-RUN-00000025                 one that a new one of the same step replaces
//	unfinished-RUN-00000025               one that is being written
//	unfinished-RUN-step-00000025          one that is being removed
//	unfinished-RUN-replaced-00000025
//	snug-scratch-RANDOM                   see [Folder.Scratch]
const (
	stepPrefix       = "step-"
	replacedPrefix   = "replaced-"
	unfinishedPrefix = "unfinished-"
	scratchPrefix    = "snug-scratch-"
)

var (
	stepNames       = regexp.MustCompile(`^step-[0-9]{8}$`)
	replacedNames   = regexp.MustCompile(`^replaced-[0-9a-f]{32}-[0-9]{8}$`)
	unfinishedNames = regexp.MustCompile(`^unfinished-[0-9a-f]{32}-(step-|replaced-)?[0-9]{8}$`)
	scratchNames    = regexp.MustCompile(`^snug-scratch-[0-9a-f]{32}$`)
	partNames       = regexp.MustCompile(fmt.Sprintf(`^[a-z0-9][a-z0-9._-]{0,%d}$`, MaxName-1))
)

const digits = 8 // of a step at the end of a name

func stepName(step int) string { return fmt.Sprintf("%s%0*d", stepPrefix, digits, step) }
func replacedName(run ID, step int) string {
	return fmt.Sprintf("%s%v-%0*d", replacedPrefix, run, digits, step)
}
func unfinishedName(run ID, step int) string {
	return fmt.Sprintf("%s%v-%0*d", unfinishedPrefix, run, digits, step)
}

// discardedName is the name of a checkpoint, or of one that was replaced, while it is removed.
func discardedName(run ID, name string) string {
	kind := stepPrefix
	if replacedNames.MatchString(name) {
		kind = replacedPrefix
	}
	return fmt.Sprintf("%s%v-%s%s", unfinishedPrefix, run, kind, name[len(name)-digits:])
}

// stepOf returns the name that a checkpoint to be replaced had.
func stepOf(replaced string) string { return stepPrefix + replaced[len(replaced)-digits:] }

func validName(name string) bool { return partNames.MatchString(name) }

// IsName reports whether a folder's name is the name of a checkpoint, or of one to be
// replaced.
func IsName(name string) bool { return stepNames.MatchString(name) || replacedNames.MatchString(name) }

// IsUnfinished reports whether a folder's name says that its owner writes or removes it.
func IsUnfinished(name string) bool { return unfinishedNames.MatchString(name) }

// IsScratch reports whether a folder's name is one of [Folder.Scratch].
func IsScratch(name string) bool { return scratchNames.MatchString(name) }

// location is where a checkpoint is.
type location struct {
	step int    // anyStep where the name does not say it
	name string // of the entry
	mode fs.FileMode
}

const anyStep = -1

// locationOf returns the location of a checkpoint in an entry.
func locationOf(e files.Entry) location {
	if !IsName(e.Name) {
		return location{anyStep, e.Name, e.Type}
	}
	step, _ := strconv.Atoi(e.Name[len(e.Name)-digits:]) // the expressions grant eight digits
	return location{step, e.Name, e.Type}
}

// list returns the checkpoints of a folder by ascending steps, without a look at them.
func list(dir files.Dir) ([]location, error) {
	entries, err := dir.List()
	if err != nil {
		return nil, err
	}
	var found []location
	for _, e := range entries {
		is := strings.HasPrefix(e.Name, stepPrefix)
		if is && !stepNames.MatchString(e.Name) {
			return nil, fmt.Errorf("%s: want step- and eight digits; a checkpoint that is to stay aside wants a name without step-: %w",
				dir.Path(e.Name), snug.ErrConfig)
		}
		if replacedNames.MatchString(e.Name) {
			name := stepOf(e.Name)
			is = !slices.ContainsFunc(entries, func(e files.Entry) bool { return e.Name == name })
		}
		if is {
			found = append(found, locationOf(e))
		}
	}
	slices.SortFunc(found, func(a, b location) int { return cmp.Compare(a.step, b.step) })
	return found, nil
}

// folder returns the folder of a checkpoint.
func (p location) folder(dir files.Dir) (files.Dir, error) {
	if err := isFolder(dir.Path(p.name), p.mode); err != nil {
		return nil, err
	}
	return dir.Folder(p.name)
}

func isFolder(path string, mode fs.FileMode) error {
	switch {
	case mode&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link, want a folder: %w", path, snug.ErrConfig)
	case !mode.IsDir():
		return fmt.Errorf("%s is a file, want the folder of a checkpoint: %w", path, snug.ErrCorrupt)
	}
	return nil
}
