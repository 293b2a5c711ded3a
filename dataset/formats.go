package dataset

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
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

const (
	parquetMagic = "PAR1"
	secretMagic  = "PARE" // of a table whose footer is encrypted
)

// isParquet reports whether a file begins as a table of Parquet.
func isParquet(first []byte) bool {
	return strings.HasPrefix(string(first), parquetMagic) || strings.HasPrefix(string(first), secretMagic)
}

// parquet adds the rows of a table.
func (r *reader) parquet(in *input) error {
	switch {
	case in.size < 0:
		return fmt.Errorf("Parquet from a pipe, whose end must be read first: save it as a file: %w", snug.ErrConfig)
	case in.packed:
		return fmt.Errorf("a table of Parquet that is compressed as a whole: unpack it; its pages are compressed already: %w", snug.ErrConfig)
	case !isTable(in.file, in.size):
		return fmt.Errorf("the file does not begin and end as Parquet does: %w", snug.ErrCorrupt)
	}
	return r.table(in.file, in.size)
}

// isTable reports whether a file begins and ends as a table of Parquet.
func isTable(f io.ReaderAt, size int64) bool {
	var first, last [len(parquetMagic)]byte
	if size < 3*int64(len(parquetMagic)) {
		return false
	}
	if _, err := f.ReadAt(first[:], 0); err != nil || string(first[:]) != parquetMagic && string(first[:]) != secretMagic {
		return false
	}
	_, err := f.ReadAt(last[:], size-int64(len(last)))
	return err == nil && last == first
}

// rowsRead is how many rows are in memory at a time.
const rowsRead = 16

// table adds the rows of a table of Parquet, each as the line of JSON that has the same fields. It reads from the row
// groups as it goes, in the memory of a page of each column and of a few rows.
func (r *reader) table(f io.ReaderAt, size int64) (err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some damaged files
			err = fmt.Errorf("parquet: %v: %w", p, snug.ErrCorrupt)
		}
	}()
	file, err := parquet.OpenFile(f, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "no DecryptionConfig"):
		return fmt.Errorf("the table is encrypted: store it without encryption: %w", snug.ErrConfig)
	default:
		return fmt.Errorf("parquet: %w: %w", err, snug.ErrCorrupt)
	}
	columns, names := parquet.Group{}, []string(nil)
	for _, field := range file.Schema().Fields() {
		names = append(names, field.Name())
		if r.options.reads(field.Name()) {
			columns[field.Name()] = field
		} else {
			r.rows.ignore(field.Name())
		}
	}
	if len(columns) == 0 {
		return (&view{names: names}).unknown()
	}
	holds := func(g parquet.RowGroup) bool { return g.NumRows() != 0 }
	if file.NumRows() == 0 && !slices.ContainsFunc(file.RowGroups(), holds) {
		return nil // the library does not read a row group without rows
	}
	if err := checkLZ4(f, file, r.options.reads); err != nil {
		return fmt.Errorf("parquet: %w: %w", err, snug.ErrCorrupt)
	}
	in := parquet.NewGenericReader[any](file, parquet.NewSchema(file.Schema().Name(), columns))
	defer in.Close()
	rows := make([]any, rowsRead)
	for number := 1; ; {
		clear(rows)
		n, err := in.Read(rows)
		for _, x := range rows[:n] {
			v, err := valueOf(x)
			fields, ok := v.(object)
			if err == nil && !ok {
				err = fmt.Errorf("%s, want columns: %w", kindOf(v), snug.ErrCorrupt)
			}
			if err == nil {
				err = r.take(row{fmt.Sprintf("row %d", number), fields})
			}
			if err != nil {
				return fmt.Errorf("row %d: %w", number, err)
			}
			number++
		}
		switch {
		case err == io.EOF && int64(number-1) != file.NumRows():
			return fmt.Errorf("parquet: %d rows, want %d: %w", number-1, file.NumRows(), snug.ErrCorrupt)
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("parquet: row %d: %w: %w", number, err, snug.ErrCorrupt)
		}
	}
}

// valueOf returns a value of the library as one of JSON. Names of an object are in alphabetical order.
func valueOf(x any) (value, error) {
	switch x := x.(type) {
	case nil, bool:
		return x, nil
	case []byte:
		return valueOf(string(x))
	case string:
		if !utf8.ValidString(x) {
			return nil, fmt.Errorf("byte %d of a string is not UTF-8: %w", firstInvalid([]byte(x)), snug.ErrCorrupt)
		}
		return x, nil
	case []any:
		l := make(list, len(x))
		for i := range x {
			var err error
			if l[i], err = valueOf(x[i]); err != nil {
				return nil, err
			}
		}
		return l, nil
	case map[string]any:
		var o object
		for _, name := range slices.Sorted(maps.Keys(x)) {
			v, err := valueOf(x[name])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			o = append(o, member{name, v})
		}
		return o, nil
	case float32:
		return floatOf(float64(x), 32), nil
	case float64:
		return floatOf(x, 64), nil
	}
	text, err := json.Marshal(x)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	return newDecoder(bytes.NewReader(text), maxLine).next()
}

// floatOf returns a float as a value of JSON.
func floatOf(x float64, bits int) value {
	switch {
	case math.IsNaN(x):
		return literal("NaN")
	case math.IsInf(x, 1):
		return literal("Infinity")
	case math.IsInf(x, -1):
		return literal("-Infinity")
	}
	return json.Number(strconv.FormatFloat(x, 'g', -1, bits))
}
