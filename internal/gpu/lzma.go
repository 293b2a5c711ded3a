package gpu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// Codes are compressed by LZMA, which packs machine code in half of what DEFLATE takes, and in two thirds of Zstandard. A
// stream has its byte of properties, (pb·5 + lp)·9 + lc, and then what follows the header of a .lzma file. Its size is known,
// and its dictionary is its output, so that its beginning can be read alone.

// readAhead is more than what the reader decodes beyond what it is asked for, which is two matches.
const readAhead = 1 << 10

// stored is the first byte of a stream that is not compressed.
const stored = 0xff

var errLZMA = errors.New("no LZMA stream of this size")

// unpackLZMA fills out with the beginning of what a stream of size bytes holds.
func unpackLZMA(out, in []byte, size int) error {
	if len(in) == 0 {
		return errLZMA
	}
	if in[0] == stored {
		if len(in)-1 != size || copy(out, in[1:]) != len(out) {
			return errLZMA
		}
		return nil
	}
	le := binary.LittleEndian
	file := le.AppendUint64(le.AppendUint32(in[:1:1], uint32(max(len(out)+readAhead, lzma.MinDictCap))), uint64(size))
	r, err := lzma.NewReader(bytes.NewReader(append(file, in[1:]...)))
	if err == nil {
		_, err = io.ReadFull(r, out)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLZMA, err)
	}
	return nil
}
