package dataset

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/snug-ml/snug"
)

// maxWindow is the most that a stream of zstd may ask to look back, that of zstd --long.
const maxWindow = 128 << 20

// decompress returns a reader of what gzip or zstd compressed in f (packed), or of f itself. Errors of the reader that come of the
// bytes wrap [snug.ErrCorrupt].
func decompress(f io.Reader) (in io.Reader, packed bool, done func(), err error) {
	buffered := bufio.NewReaderSize(f, 64<<10)
	magic, _ := buffered.Peek(4) // an error shows again in the read
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, false, nil, fmt.Errorf("gzip: %w: %w", err, snug.ErrCorrupt)
		}
		return compressed{z, "gzip"}, true, func() { z.Close() }, nil
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, false, nil, fmt.Errorf("zstd: %w", err)
		}
		return compressed{z, "zstd"}, true, z.Close, nil
	}
	return buffered, false, func() {}, nil
}

// compressed names the method in errors.
type compressed struct {
	in   io.Reader
	name string
}

// Read implements [io.Reader].
func (c compressed) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	var system *os.PathError
	switch {
	case err == nil || err == io.EOF:
		return n, err
	case errors.As(err, &system):
		return n, err
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return n, fmt.Errorf("%s: the stream looks back more than %d bytes: %w", c.name, maxWindow, snug.ErrConfig)
	}
	return n, fmt.Errorf("%s: %w: %w", c.name, err, snug.ErrCorrupt)
}
