package dataset

import (
	"encoding/binary"
	"fmt"
)

// inMemory is the most bytes of tokens that stay in memory.
const inMemory = 4 << 20

// tokenBytes is the size of a token, in memory and in the file.
const tokenBytes = 4

// spool holds tokens in the order in which they come, 4 bytes each. While they take no more than limit bytes, buffer has
// them. After that all of them go to a temporary file, and buffer has those that wait to be written. It is freed by end.
type spool struct {
	limit     int // bytes of buffer
	buffer    []byte
	temporary        // has a file once not all tokens are in memory
	sample    []byte // what the last call of read has returned
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

// flush moves the tokens in memory to the file.
func (s *spool) flush() error {
	if err := s.write(s.buffer, fmt.Sprintf("more than %d bytes of tokens", s.limit), "tokens"); err != nil {
		return err
	}
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
	return s.sample[:n], s.readAt(s.sample[:n], at, "tokens")
}
