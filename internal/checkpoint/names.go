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
// new one is there; what is unfinished or to be removed never counts.
const (
	stepPrefix       = "step-"
	replacedPrefix   = "replaced-"
	unfinishedPrefix = "unfinished-"
)

var (
	stepNames       = regexp.MustCompile(`^step-[0-9]{8}$`)
	replacedNames   = regexp.MustCompile(`^replaced-[0-9]{8}$`)
	unfinishedNames = regexp.MustCompile(`^unfinished-(step-|replaced-)?[0-9]{8}$`)
	partNames       = regexp.MustCompile(fmt.Sprintf(`^[a-z0-9][a-z0-9._-]{0,%d}$`, MaxName-1))
)

func stepDigits(step int) string        { return fmt.Sprintf("%08d", step) }
func stepName(step int) string          { return stepPrefix + stepDigits(step) }
func replacedName(step int) string      { return replacedPrefix + stepDigits(step) }
func unfinishedName(name string) string { return unfinishedPrefix + name }

func validName(name string) bool { return partNames.MatchString(name) }

// ours says whether an entry of a folder of checkpoints has a name of this package.
func ours(name string) bool {
	return strings.HasPrefix(name, stepPrefix) || replacedNames.MatchString(name) || unfinishedNames.MatchString(name)
}

// IsName reports whether a folder's name is that of a checkpoint, of one to be replaced,
// or of one that is not finished.
func IsName(name string) bool {
	return stepNames.MatchString(name) || replacedNames.MatchString(name) || unfinishedNames.MatchString(name)
}

// place is where a checkpoint is.
type place struct {
	step int
	name string // of the entry
	mode fs.FileMode
}

// list returns the checkpoints of a folder by ascending steps, without a look at them.
func list(dir files.Dir) ([]place, error) {
	entries, err := dir.List()
	if err != nil {
		return nil, err
	}
	var found []place
	for _, e := range entries {
		digits, is := strings.CutPrefix(e.Name, stepPrefix)
		if is && !stepNames.MatchString(e.Name) {
			return nil, fmt.Errorf("%s: want step- and eight digits; a checkpoint that is to stay aside wants a name without step-: %w",
				dir.Path(e.Name), snug.ErrConfig)
		}
		if !is && replacedNames.MatchString(e.Name) {
			digits = e.Name[len(replacedPrefix):]
			name := stepPrefix + digits
			is = !slices.ContainsFunc(entries, func(e files.Entry) bool { return e.Name == name })
		}
		if is {
			step, _ := strconv.Atoi(digits) // the expression grants eight digits
			found = append(found, place{step, e.Name, e.Type})
		}
	}
	slices.SortFunc(found, func(a, b place) int { return cmp.Compare(a.step, b.step) })
	return found, nil
}

// folder returns the folder of a checkpoint.
func (p place) folder(dir files.Dir) (files.Dir, error) {
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
