package dataset

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
	"github.com/snug-ml/snug"
)

// lz4Ratio is the most bytes that a byte of LZ4 can stand for.
const lz4Ratio = 255

// checkTable checks the pages of the columns that are read before the library reads them: they must not take more than
// limit bytes together, as their headers say, a page of each column and the one before it at a time. Pages of LZ4 are
// decompressed, because the library takes every error of LZ4 for a buffer that is too small, and allocates larger ones
// until no memory is left.
func checkTable(f io.ReaderAt, file *parquet.File, limit int64, reads func(column string) bool) error {
	for number, group := range file.Metadata().RowGroups {
		total := int64(0)
		if group.NumRows == 0 {
			continue
		}
		for _, column := range group.Columns {
			m := &column.MetaData
			if len(m.PathInSchema) == 0 || !reads(m.PathInSchema[0]) {
				continue
			}
			begin := m.DataPageOffset
			if m.DictionaryPageOffset > 0 && m.DictionaryPageOffset < begin {
				begin = m.DictionaryPageOffset
			}
			if begin < 0 || m.TotalCompressedSize < 0 || m.NumValues < 0 {
				return fmt.Errorf("parquet: row group %d: column %v lies at byte %d and has %d bytes: %w", number, m.PathInSchema, begin, m.TotalCompressedSize, snug.ErrCorrupt)
			}
			need, err := pagesNeed(io.NewSectionReader(f, begin, m.TotalCompressedSize), m)
			if err != nil {
				return fmt.Errorf("parquet: row group %d: column %s: %w: %w", number, strings.Join(m.PathInSchema, "."), err, snug.ErrCorrupt)
			}
			if total += need; need > limit || total > limit {
				return fmt.Errorf("the pages of column %s take %d bytes of memory, and %d are left for them: write the table with smaller pages, such as data_page_size=1<<20 and write_batch_size=16 of pyarrow, or allow more memory: %w",
					strings.Join(m.PathInSchema, "."), need, limit-(total-need), snug.ErrConfig)
			}
		}
		for _, column := range group.Columns {
			m := &column.MetaData
			if m.Codec != format.Lz4Raw || len(m.PathInSchema) == 0 || !reads(m.PathInSchema[0]) {
				continue
			}
			if err := checkLZ4(f, m); err != nil {
				return fmt.Errorf("parquet: %w: %w", err, snug.ErrCorrupt)
			}
		}
	}
	return nil
}

// What a value of a page takes besides its bytes: levels, an offset, and a number of the dictionary.
const pageValueBytes = 16

// pagesNeed returns how many bytes the pages of a column take in memory at a time: the dictionary, and twice the largest
// page. It reads the headers of the pages alone.
func pagesNeed(f *io.SectionReader, m *format.ColumnMetaData) (need int64, err error) {
	dictionary, page := int64(0), int64(0)
	for at, number := int64(0), 0; at < f.Size(); number++ {
		if number > maxPages {
			return 0, fmt.Errorf("more than %d pages", maxPages)
		}
		counted := &meter{in: io.NewSectionReader(f, at, f.Size()-at), progress: func(int64) {}}
		in := bufio.NewReaderSize(io.LimitReader(counted, maxHeader), 4<<10)
		var h format.PageHeader
		if err := thrift.NewDecoder(new(thrift.CompactProtocol).NewReader(in)).Decode(&h); err != nil && counted.n >= maxHeader {
			return 1 << 60, nil // its statistics have long values
		} else if err != nil {
			return 0, fmt.Errorf("page header: %w", err)
		}
		packed, whole := int64(h.CompressedPageSize), int64(h.UncompressedPageSize)
		if packed < 0 || whole < 0 {
			return 0, fmt.Errorf("a page of %d bytes, %d of them in the file", whole, packed)
		}
		header := counted.n - int64(in.Buffered())
		at += header + packed
		packed += header
		values, encoding := int64(0), format.Plain
		switch {
		case h.DataPageHeader.Valid:
			values, encoding = int64(h.DataPageHeader.V.NumValues), h.DataPageHeader.V.Encoding
		case h.DataPageHeaderV2.Valid:
			values, encoding = int64(h.DataPageHeaderV2.V.NumValues), h.DataPageHeaderV2.V.Encoding
		case h.DictionaryPageHeader.Valid:
			values = int64(h.DictionaryPageHeader.V.NumValues)
			dictionary = max(dictionary, packed+2*whole+values*pageValueBytes)
			continue
		}
		if values < 0 {
			return 0, fmt.Errorf("a page of %d values", values)
		}
		size := packed + 2*whole + values*pageValueBytes
		if encoding == format.DeltaByteArray { // a value may begin with all of the value before
			size += min(values, 1<<10) * whole
		}
		page = max(page, size)
	}
	return dictionary + 2*page, nil
}

// Limits of the headers of pages.
const (
	maxHeader = 16 << 20 // bytes of one, which may have the least and the largest value
	maxPages  = 1 << 20
)

// checkLZ4 decompresses the pages of LZ4 in a column.
func checkLZ4(f io.ReaderAt, m *format.ColumnMetaData) error {
	begin := m.DataPageOffset
	if m.DictionaryPageOffset > 0 {
		begin = m.DictionaryPageOffset
		if err := checkPages(io.NewSectionReader(f, begin, m.TotalCompressedSize), 1); err != nil {
			return err
		}
	}
	return checkPages(io.NewSectionReader(f, m.DataPageOffset, begin+m.TotalCompressedSize-m.DataPageOffset), -1)
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
