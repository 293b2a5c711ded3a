package dataset

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
)

// lz4Ratio is the most bytes that a byte of LZ4 can stand for.
const lz4Ratio = 255

// checkLZ4 decompresses the pages of LZ4 in the columns that are read. The library takes every error of LZ4 for a
// buffer that is too small, and allocates larger ones until no memory is left.
func checkLZ4(f io.ReaderAt, file *parquet.File, reads func(column string) bool) error {
	for _, group := range file.Metadata().RowGroups {
		for _, column := range group.Columns {
			m := &column.MetaData
			if m.Codec != format.Lz4Raw || len(m.PathInSchema) == 0 || !reads(m.PathInSchema[0]) {
				continue
			}
			begin := m.DataPageOffset
			if m.DictionaryPageOffset > 0 {
				begin = m.DictionaryPageOffset
				if err := checkPages(io.NewSectionReader(f, begin, m.TotalCompressedSize), 1); err != nil {
					return err
				}
			}
			if err := checkPages(io.NewSectionReader(f, m.DataPageOffset, begin+m.TotalCompressedSize-m.DataPageOffset), -1); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPages decompresses the first pages that follow one another, or all if most is negative.
func checkPages(f io.Reader, most int) error {
	in := bufio.NewReaderSize(f, 64<<10)
	decoder := thrift.NewDecoder(new(thrift.CompactProtocol).NewReader(in))
	var packed, plain []byte
	for number := 0; number != most; number++ {
		if _, err := in.Peek(1); err == io.EOF {
			return nil
		}
		var h format.PageHeader
		if err := decoder.Decode(&h); err != nil {
			return fmt.Errorf("page header: %w", err)
		}
		size, whole := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
		if size < 0 || whole < 0 {
			return fmt.Errorf("a page of %d bytes, %d in LZ4", whole, size)
		}
		var err error
		if packed, err = readPage(in, packed, size); err != nil {
			return fmt.Errorf("page %d: %w", number, err)
		}
		block := packed
		if v2 := h.DataPageHeaderV2; v2.Valid {
			levels := int64(v2.V.DefinitionLevelsByteLength) + int64(v2.V.RepetitionLevelsByteLength)
			if c := v2.V.IsCompressed; c.Valid && !c.V {
				continue
			}
			if levels < 0 || levels > size || levels > whole {
				return fmt.Errorf("page %d: levels of %d bytes", number, levels)
			}
			block, whole = packed[levels:], whole-levels
		}
		if whole > lz4Ratio*int64(len(block)) {
			return fmt.Errorf("page %d: %d bytes of LZ4 for %d", number, len(block), whole)
		}
		if int64(cap(plain)) < whole {
			plain = make([]byte, whole)
		}
		if n, err := lz4.UncompressBlock(block, plain[:whole]); err != nil || int64(n) != whole {
			return fmt.Errorf("page %d: %d of %d bytes: LZ4: %v", number, n, whole, err)
		}
	}
	return nil
}

// readPage reads the bytes of a page into a buffer, or into a larger one. Its size may be damaged, so the buffer grows as
// bytes arrive.
func readPage(in io.Reader, buffer []byte, size int64) ([]byte, error) {
	buffer = buffer[:0]
	for int64(len(buffer)) < size {
		lo := len(buffer)
		buffer = slices.Grow(buffer, int(min(size-int64(lo), 1<<20)))
		hi := min(int64(cap(buffer)), size)
		n, err := io.ReadFull(in, buffer[lo:hi])
		if buffer = buffer[:lo+n]; err != nil {
			return buffer, err
		}
	}
	return buffer, nil
}
