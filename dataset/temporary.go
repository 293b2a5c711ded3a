package dataset

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/snug-ml/snug"
)

// temporary is a file that is written at its end and read anywhere. The first write makes it.
//
// The file is in the folder of $TMPDIR. Without that it is in /var/tmp, because many systems keep /tmp in memory, or else
// where the system has its temporary files. Other users cannot read it. It is removed as soon as it is open, so that nothing is left of
// it when the process ends, in whatever way. On systems that remove no open files, such as Windows, close removes it, and a process that
// is killed leaves it behind.
type temporary struct {
	file    file   // nil while there is none
	left    string // the name of the file, if it could not be removed
	written int64  // bytes in the file
}

// file is what a temporary needs of an [os.File].
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Name() string
}

// write appends bytes. The error says why there is a file, and what it has.
func (t *temporary) write(b []byte, why, what string) error {
	if t.file == nil {
		f, left, err := temporaryFile()
		if err != nil {
			return fmt.Errorf("%s go to a temporary file: %w; set %s to a folder that can be written", why, err, tempVariable())
		}
		t.file, t.left = f, left
	}
	n, err := t.file.Write(b)
	if err != nil {
		return fmt.Errorf("a temporary file has %d bytes of %s and wants %d more, for the data up to here: %w; set %s to a folder with more space",
			t.written+int64(n), what, len(b)-n, err, tempVariable())
	}
	t.written += int64(n)
	return nil
}

// readAt reads bytes from a place.
func (t *temporary) readAt(b []byte, at int64, what string) error {
	got, err := t.file.ReadAt(b, at)
	if got == len(b) {
		return nil
	}
	if err == io.EOF {
		err = fmt.Errorf("read %s: the file is shorter than what was written: %w", t.file.Name(), snug.ErrCorrupt)
	}
	return fmt.Errorf("dataset: %d bytes of %s at byte %d of %d of a temporary file: %w", len(b), what, at, t.written, err)
}

// close removes the file. Closing twice does nothing.
func (t *temporary) close() error {
	if t.file == nil {
		return nil
	}
	err := t.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	if t.left != "" {
		err = errors.Join(err, os.Remove(t.left))
	}
	return err
}

// temporaryFile opens a new file and removes it. If the system removes no open files, it returns the name that is left.
func temporaryFile() (f *os.File, left string, err error) {
	const name = "snug-data-*"
	if os.Getenv("TMPDIR") == "" && runtime.GOOS != "windows" {
		f, err = os.CreateTemp("/var/tmp", name)
	}
	if f == nil {
		f, err = os.CreateTemp("", name)
	}
	if err != nil {
		return nil, "", err
	}
	if os.Remove(f.Name()) != nil {
		left = f.Name()
	}
	return f, left, nil
}

// tempVariable is the variable of the environment that says where temporary files are.
func tempVariable() string {
	if runtime.GOOS == "windows" {
		return "TMP"
	}
	return "TMPDIR"
}
