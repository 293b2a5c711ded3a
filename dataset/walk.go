package dataset

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Limits of a folder.
const (
	maxFolders = 64      // one in the other
	maxNames   = 1 << 20 // files
	maxSkipped = 1000    // files of Stats.Files that are not read
)

// hubName matches the names of datasets of Hugging Face's hub.
var hubName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)

// read adds a file, or the files of a folder in the order of their names, or all that a pattern matches.
func (r *reader) read(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(path, "*?[") {
		names, bad := filepath.Glob(path)
		if bad != nil || len(names) == 0 {
			return fmt.Errorf("%s: no file has such a name: %w", path, err)
		}
		for _, name := range names {
			if err := r.read(name); err != nil {
				return err
			}
		}
		return nil
	}
	if url := strings.Contains(path, "://"); errors.Is(err, fs.ErrNotExist) && (url || hubName.MatchString(path) && ending(path) == "") {
		if url {
			return fmt.Errorf("%w; nothing is downloaded here: give a file, such as curl -LO %s writes it", err, path)
		}
		return fmt.Errorf("%w; a dataset of the hub is not downloaded here, but by hf download --repo-type dataset %s --local-dir %s, and given as a folder", err, path, filepath.Base(path))
	}
	if errors.Is(err, fs.ErrNotExist) && path == "-" {
		return fmt.Errorf("%w; standard input is /dev/stdin", err)
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return r.folder(path)
	}
	return r.file(path)
}

// folder adds the files of a folder.
func (r *reader) folder(path string) error {
	found, skipped, err := filesIn(path)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		what := ""
		for i, f := range skipped {
			if i == 5 {
				what += fmt.Sprintf(" and %d more", len(skipped)-i)
				break
			}
			what += fmt.Sprintf("; %s: %s", f.Path, f.Skipped)
		}
		return fmt.Errorf("%s: the folder has no files of %s%s: %w", path, Endings(), what, snug.ErrConfig)
	}
	for _, name := range found {
		err := r.file(name)
		if errors.Is(err, snug.ErrConfig) && len(found) > 1 {
			return fmt.Errorf("%s; all files of a folder that may be data are read: if this one is none, give the names of the others, or a pattern such as %s: %w",
				strings.TrimSuffix(err.Error(), ": "+snug.ErrConfig.Error()), filepath.Join(path, "*"+ending(found[0])), snug.ErrConfig)
		}
		if err != nil {
			return err
		}
	}
	for _, f := range skipped {
		if r.skipped++; r.skipped <= maxSkipped {
			r.stats.Files = append(r.stats.Files, f)
		}
	}
	return nil
}

// file adds a file. A pipe is read to its end.
func (r *reader) file(path string) error {
	in, err := open(path)
	if err != nil {
		return err
	}
	defer in.file.Close()
	if err := r.contents(in); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// open opens a file, through links, or a pipe.
func open(path string) (*input, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0 {
		f, err := os.Open(path) // which waits for a writer
		return &input{path: path, file: f, size: -1}, err
	}
	f, size, err := files.Open(path)
	return &input{path: path, file: f, size: size}, err
}

// filesIn returns the files of a folder that are read, and why others are not.
//
// Read are the files of one kind: of Parquet if there are some, or else of JSON, of CSV, or of text. Others beside them
// describe the data, or are the same data again. If some have "train" in their names, those with "test", "validation" and
// the like are not trained on.
func filesIn(folder string) (found []string, skipped []File, err error) {
	all, skipped, err := namesIn(folder, 0)
	if err != nil {
		return nil, nil, err
	}
	skip := func(path, why string) { skipped = append(skipped, File{Path: path, Skipped: why}) }
	best := len(sources)
	ranks := make([]int, len(all))
	for i, path := range all {
		ranks[i] = len(sources)
		for k := range sources {
			if slices.Contains(sources[k].endings, ending(path)) {
				ranks[i] = k
			}
		}
		best = min(best, ranks[i])
	}
	if best == len(sources) {
		for _, path := range all {
			skip(path, cmp.Or(remedies[ending(path)], "the ending is not one of data"))
		}
		return nil, skipped, nil
	}
	training := false
	for i, path := range all {
		training = training || ranks[i] == best && hasWord(folder, path, "train", "training")
	}
	for i, path := range all {
		switch {
		case ranks[i] != best:
			skip(path, "beside files of "+sources[best].name)
		case training && hasWord(folder, path, "test", "tests", "validation", "valid", "val", "dev", "eval", "evaluation", "heldout", "holdout") && !hasWord(folder, path, "train", "training"):
			skip(path, "for tests, beside files for training; give its name to train on it")
		default:
			found = append(found, path)
		}
	}
	return found, skipped, nil
}

// hasWord reports whether one of the words is in a path within a folder.
func hasWord(folder, path string, words ...string) bool {
	inner, err := filepath.Rel(folder, path)
	if err != nil {
		inner = filepath.Base(path)
	}
	parts := strings.FieldsFunc(strings.ToLower(inner), func(r rune) bool { return !unicode.IsLetter(r) })
	return slices.ContainsFunc(parts, func(part string) bool { return slices.Contains(words, part) })
}

// namesIn returns the files of a folder in the order of their names, but those that describe it, and hidden ones.
func namesIn(folder string, depth int) (all []string, skipped []File, err error) {
	if depth > maxFolders {
		return nil, nil, fmt.Errorf("%s: folders lie deeper than %d in one another: %w", folder, maxFolders, snug.ErrConfig)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		skip := func(why string) { skipped = append(skipped, File{Path: path, Skipped: why}) }
		info, err := os.Stat(path) // through links
		switch {
		case strings.HasPrefix(e.Name(), "."):
			skip("hidden")
		case err != nil && e.Type()&fs.ModeSymlink != 0:
			skip("a link that leads nowhere")
		case err != nil:
			return nil, nil, err
		case info.IsDir() && e.Type()&fs.ModeSymlink != 0:
			skip("a link to a folder; give its name to read it")
		case info.IsDir():
			inner, others, err := namesIn(path, depth+1)
			if err != nil {
				return nil, nil, err
			}
			all, skipped = append(all, inner...), append(skipped, others...)
		case !info.Mode().IsRegular():
			skip("not a regular file")
		case describes(e.Name()):
			skip("describes the data")
		default:
			all = append(all, path)
		}
		if len(all)+len(skipped) > maxNames {
			return nil, nil, fmt.Errorf("%s: more than %d files: %w", folder, maxNames, snug.ErrConfig)
		}
	}
	return all, skipped, nil
}

// describing are the names of files that describe a folder, in lower case and without endings.
var describing = []string{
	"readme", "license", "licence", "copying", "notice", "citation", "changelog", "contributing", "code_of_conduct", "security", "authors",
	"requirements", "dataset_info", "dataset_infos", "dataset_dict", "croissant", "state", "config", "package", "package-lock", "tsconfig", "metadata",
	"generation_config", "tokenizer", "tokenizer_config", "special_tokens_map", "vocab",
}

// describingJSON are such names of files of JSON, which are others where they are texts.
var describingJSON = []string{"meta", "index", "info", "stats", "statistics", "manifest", "schema", "features", "label_map"}

// describes reports whether a file of a folder describes the folder's data, by its name.
func describes(name string) bool {
	name = strings.ToLower(name)
	stem, end, _ := strings.Cut(name, ".")
	switch {
	case strings.HasSuffix(name, ".metadata"), strings.HasSuffix(name, ".lock"), strings.HasSuffix(name, ".crc"):
		return true
	case end == "json" && slices.Contains(describingJSON, stem):
		return true
	case !slices.Contains(describing, stem):
		return false
	}
	return !slices.Contains([]string{"jsonl", "ndjson", "jsonlines", "csv", "tsv", "parquet"}, end) // rows are data
}
