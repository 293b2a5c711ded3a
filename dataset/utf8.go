package dataset

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// notUTF8 is the error at a byte of a file that is not UTF-8.
type notUTF8 struct {
	at   int64
	zero bool // the byte is 0
}

func (e *notUTF8) Error() string {
	if e.zero {
		return fmt.Sprintf("byte %d is 0, as UTF-16 and binary files have them: save the file as text in UTF-8: %v", e.at, snug.ErrCorrupt)
	}
	return fmt.Sprintf("byte %d is not UTF-8: save the file as UTF-8: %v", e.at, snug.ErrCorrupt)
}

func (e *notUTF8) Unwrap() error { return snug.ErrCorrupt }

// validReader passes bytes through that are UTF-8 and not 0, without a byte order mark at the front. What is not is an error
// that comes after all bytes before it.
type validReader struct {
	in    io.Reader
	at    int64 // bytes that are passed
	begun bool
	tail  []byte
	err   error
}

// Read implements [io.Reader]. It ends between two characters unless b has less than 4 bytes.
func (v *validReader) Read(b []byte) (int, error) {
	if len(b) < utf8.UTFMax {
		return 0, io.ErrShortBuffer
	}
	for {
		n := copy(b, v.tail)
		v.tail = v.tail[:0]
		for v.err == nil && n < len(b) {
			m, err := v.in.Read(b[n:])
			n, v.err = n+m, err
			if m > 0 {
				break
			}
		}
		valid := n
		if !utf8.Valid(b[:n]) {
			valid = firstInvalid(b[:n])
			if rest := b[valid:n]; !utf8.FullRune(rest) && v.err == nil { // a character that goes on
				v.tail = append(v.tail, rest...)
			} else if v.err == nil || v.err == io.EOF {
				v.err = &notUTF8{at: v.at + int64(valid)}
			}
		}
		if zero := bytes.IndexByte(b[:valid], 0); zero >= 0 && (v.err == nil || v.err == io.EOF) {
			valid, v.tail, v.err = zero, nil, &notUTF8{v.at + int64(zero), true}
		}
		v.at += int64(valid)
		if !v.begun && valid > 0 {
			v.begun = true
			if rest, marked := bytes.CutPrefix(b[:valid], []byte("\ufeff")); marked {
				v.at -= int64(valid - len(rest)) // a mark is not counted
				valid = copy(b, rest)
			}
		}
		if valid > 0 || v.err != nil {
			if valid > 0 {
				return valid, nil
			}
			return 0, v.err
		}
	}
}
