package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/snug-ml/snug"
)

// Kind says what a file that is only read should hold: a file of a model, of an adapter or of data. It decides how
// large the file may be.
type Kind int

const (
	Description Kind = iota // JSON that describes something: config.json, tokenizer_config.json, adapter_config.json, ...
	Template                // a chat template
	Vocabulary              // tokenizer.json, vocab.json, merges.txt
	Index                   // the index of weights in shards
	Weights                 // safetensors: the readers limit the header, and read no more of it at once
	Image                   // PNG, JPEG and others
	Data                    // text, JSON Lines, tables: the readers limit what they hold of it at once
)

// Limit returns the largest number of bytes of a file that is read as a whole, and 0 if its size is free. The largest
// published files of these kinds have less than a fifth of it.
func (k Kind) Limit() int64 {
	switch k {
	case Description:
		return 16 << 20
	case Template:
		return 1 << 20
	case Vocabulary, Image:
		return 256 << 20
	case Index:
		return 64 << 20
	}
	return 0
}

// headBytes is how much of a file [NotTheFile] looks at.
const headBytes = 512

// OpenInput opens a file that is only read, and returns its size. It follows links, as people's folders and the caches
// of downloads have them, and accepts only a regular file within the limit of its kind. It never waits, as opening a
// pipe would, and allocates nothing. A file that is something else in the place of the wanted one, see [NotTheFile],
// is an error, and so is an empty one that is not Data.
//
// Errors wrap [snug.ErrConfig] for what is no regular file, [snug.ErrCorrupt] for contents that cannot be right and
// for a size beyond the limit, and the error of the operating system otherwise.
func OpenInput(path string, kind Kind) (*os.File, int64, error) {
	f, size, err := Open(path)
	if errors.Is(err, syscall.ENOTDIR) { // what is beside a model that is one file is not there
		err = fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	}
	if err != nil {
		return nil, 0, err
	}
	if err := checkInput(f, size, kind); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%s %w", path, err), f.Close())
	}
	return f, size, nil
}

// checkInput says what is wrong with an open file.
func checkInput(f io.ReaderAt, size int64, kind Kind) error {
	if limit := kind.Limit(); limit > 0 && size > limit {
		return fmt.Errorf("has %d bytes, want at most %d: %w", size, limit, snug.ErrCorrupt)
	}
	if size == 0 {
		if kind == Data || kind == Template {
			return nil
		}
		return fmt.Errorf("is empty: download it again: %w", snug.ErrCorrupt)
	}
	head := make([]byte, min(size, headBytes))
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("cannot be read: %w", err)
	}
	if kind == Data || kind == Template { // a page is a text to learn from, too
		return Pointer(head[:n])
	}
	return NotTheFile(head[:n])
}

// ReadInput returns the contents of a file that [OpenInput] opens. Its kind must have a limit.
func ReadInput(path string, kind Kind) (text []byte, err error) {
	f, size, err := OpenInput(path, kind)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if kind.Limit() == 0 {
		return nil, fmt.Errorf("%s: files of kind %d are not read as a whole: %w", path, kind, snug.ErrConfig)
	}
	text = make([]byte, size)
	n, err := f.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if int64(n) < size {
		return nil, fmt.Errorf("%s ended after %d of %d bytes while it was read: %w", path, n, size, snug.ErrCorrupt)
	}
	return text, nil
}

// pointers are the beginnings of files that stand for a file that was not fetched.
var pointers = []struct{ begin, what string }{
	{"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS, not the file: run git lfs pull, or download with hf download"},
	{"version https://hawser.github.com/spec/v1", "is a pointer of Git LFS, not the file: run git lfs pull, or download with hf download"},
	{"/annex/objects/", "is a pointer of git-annex, not the file: run git annex get"},
	{"# xet version 0", "is a pointer of Xet, not the file: download with hf download"},
}

// Pointer returns an error if a file with this beginning is what git keeps in the place of a large file that was not
// fetched. The error begins with a verb, to follow the name of the file, and wraps [snug.ErrCorrupt].
func Pointer(head []byte) error {
	for _, p := range pointers {
		if bytes.HasPrefix(head, []byte(p.begin)) {
			return fmt.Errorf("%s: %w", p.what, snug.ErrCorrupt)
		}
	}
	return nil
}

// answers are the beginnings of what a server sends in the place of a file.
var answers = []string{"Access to model ", "Access to dataset ", "Entry not found", "Repository not found", "Invalid username or password", "Invalid credentials", "404: Not Found"}

// NotTheFile returns an error if a file with this beginning is not what its name says: a [Pointer], a web page, the
// refusal of a server that was saved under the file's name, or zeros. The error begins with a verb, to follow the name of the
// file, and wraps [snug.ErrCorrupt].
func NotTheFile(head []byte) error {
	if err := Pointer(head); err != nil {
		return err
	}
	if zeros := len(head) - len(bytes.TrimLeft(head, "\x00")); zeros >= 8 {
		return fmt.Errorf("begins with zeros, as a download does that was not finished: download it again: %w", snug.ErrCorrupt)
	}
	begin := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	begin = bytes.ToLower(begin[:min(len(begin), 32)])
	for _, tag := range []string{"<!doctype", "<html", "<head", "<?xml"} {
		if bytes.HasPrefix(begin, []byte(tag)) {
			return fmt.Errorf("is a web page, not the file: download the file itself, with hf download: %w", snug.ErrCorrupt)
		}
	}
	for _, answer := range answers {
		if bytes.HasPrefix(head, []byte(answer)) {
			line, _, _ := bytes.Cut(head, []byte("\n"))
			return fmt.Errorf("has the answer of a server that refused the download, %.200q, not the file: log in with hf auth login, and download it again: %w", line, snug.ErrCorrupt)
		}
	}
	return nil
}

// missing returns a better error for a link that leads nowhere or in a circle.
func missing(path string, err error) error {
	to, bad := os.Readlink(path)
	if bad != nil {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is a link to %s, which is not there: %w: %w", path, to, snug.ErrConfig, errDangling)
	}
	return fmt.Errorf("%s is a link to %s: %w", path, to, err)
}

// errDangling is not fs.ErrNotExist, so that callers do not take the file for one that nobody wants to be there.
var errDangling = errors.New("fetch the file, or remove the link")
