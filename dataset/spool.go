package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/snug-ml/snug"
)

// inMemory is the most bytes of tokens that stay in memory.
const inMemory = 4 << 20

// tokenBytes is the size of a token, in memory and in the file.
const tokenBytes = 4

// spool holds tokens in the order in which they come, 4 bytes each. While they take no more than limit bytes, buffer has
// them. After that all of them go to a temporary file, and buffer has those that wait to be written. It is freed by end.
//
// The file is in the folder of $TMPDIR. Without that it is in /var/tmp, because many systems keep /tmp in memory, or else
// where the system has its temporary files. Each spool has a file of its own, which other users cannot read. It is
// removed as soon as it is open, so that nothing is left of it when the process ends, in whatever way. On systems that
// remove no open files, such as Windows, close removes it, and a process that is killed leaves it behind.
type spool struct {
	limit   int // bytes of buffer
	buffer  []byte
	file    file   // nil while all tokens are in memory
	left    string // the name of the file, if it could not be removed
	written int64  // bytes in the file
	sample  []byte // what the last call of read has returned
}

// file is what a spool needs of an [os.File].
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Name() string
}

// len returns the number of tokens.
func (s *spool) len() int64 { return (s.written + int64(len(s.buffer))) / tokenBytes }

// add appends tokens.
func (s *spool) add(tokens []int32) error {
	for _, t := range tokens {
		if len(s.buffer)+tokenBytes > s.limit {
			if err := s.flush(); err != nil {
				return err
			}
		}
		s.buffer = binary.LittleEndian.AppendUint32(s.buffer, uint32(t))
	}
	return nil
}

// flush moves the tokens in memory to the file, which it makes if there is none.
func (s *spool) flush() error {
	if s.file == nil {
		f, left, err := temporaryFile()
		if err != nil {
			return fmt.Errorf("more than %d bytes of tokens go to a temporary file: %w; set %s to a folder that can be written", s.limit, err, tempVariable())
		}
		s.file, s.left = f, left
	}
	n, err := s.file.Write(s.buffer)
	if err != nil {
		return fmt.Errorf("a temporary file has %d bytes of tokens and wants %d more, for the data up to here: %w; set %s to a folder with more space",
			s.written+int64(n), len(s.buffer)-n, err, tempVariable())
	}
	s.written += int64(n)
	s.buffer = s.buffer[:0]
	return nil
}

// end says that no tokens follow.
func (s *spool) end() error {
	if s.file == nil {
		return nil
	}
	err := s.flush()
	s.buffer = nil
	return err
}

// read returns n tokens from number at on, as bytes in little-endian order, which the next call overwrites.
func (s *spool) read(at int64, n int) ([]byte, error) {
	at *= tokenBytes
	n *= tokenBytes
	if s.file == nil {
		return s.buffer[at : at+int64(n)], nil
	}
	if len(s.sample) < n {
		s.sample = make([]byte, n)
	}
	b := s.sample[:n]
	if got, err := s.file.ReadAt(b, at); got < n {
		if err == io.EOF {
			err = fmt.Errorf("read %s: the file is shorter than what was written: %w", s.file.Name(), snug.ErrCorrupt)
		}
		return nil, fmt.Errorf("dataset: %d bytes of tokens at byte %d of %d of a temporary file: %w", n, at, s.written, err)
	}
	return b, nil
}

// close removes the file. Closing twice does nothing.
func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	if s.left != "" {
		err = errors.Join(err, os.Remove(s.left))
	}
	return err
}

// temporaryFile opens a new file and removes it. If the system removes no open files, it returns the name that is left.
func temporaryFile() (f *os.File, left string, err error) {
	const name = "snug-tokens-*"
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
