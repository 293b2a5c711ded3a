package dataset

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/snug-ml/snug"
)

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
	limit := int64(r.limit() / footerShare)
	switch footer := footerOf(in.file, in.size); {
	case in.size < 0:
		return fmt.Errorf("a table of Parquet from a pipe, whose end must be read first: save it as a file: %w", snug.ErrConfig)
	case in.packed:
		return fmt.Errorf("a table of Parquet that is compressed as a whole: unpack it; its pages are compressed already: %w", snug.ErrConfig)
	case footer < 0:
		return fmt.Errorf("the file does not begin and end as Parquet does: %w", snug.ErrCorrupt)
	case footer > limit:
		return fmt.Errorf("the description of the table has %d bytes, and %d may be read: write it in larger row groups, or allow more memory: %w", footer, limit, snug.ErrConfig)
	}
	return r.table(in.file, in.size)
}

// footerOf returns the length of a table's description, for which the library makes memory before it looks at it. It is
// negative if the file does not begin and end as a table of Parquet: the end is that length and the letters of the beginning.
func footerOf(f io.ReaderAt, size int64) int64 {
	const letters = int64(len(parquetMagic))
	var first [letters]byte
	var last [2 * letters]byte
	if size < 3*letters {
		return -1
	}
	if _, err := f.ReadAt(first[:], 0); err != nil || !isParquet(first[:]) {
		return -1
	}
	if _, err := f.ReadAt(last[:], size-int64(len(last))); err != nil || [letters]byte(last[letters:]) != first {
		return -1
	}
	if n := int64(binary.LittleEndian.Uint32(last[:letters])); n <= size-3*letters {
		return n
	}
	return -1
}

// table adds the rows of a table of Parquet, each as the object that has the row's columns as fields. It reads a page of
// each column that is used, whose sizes it checks before, and assembles one row at a time: Melnik et al., "Dremel:
// Interactive Analysis of Web-Scale Datasets", 2010. What a row takes is counted before it is copied from the pages.
func (r *reader) table(f io.ReaderAt, size int64) (err error) {
	number := int64(0) // of the row that is read
	defer func() {
		if p := recover(); p != nil { // the library panics on some damaged files
			if _, fault := p.(runtime.Error); fault {
				p = "the pages are damaged"
			}
			err = fmt.Errorf("row %d: parquet: %v: %w", number, p, snug.ErrCorrupt)
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
	var columns []*parquet.Column
	var names []string
	for _, column := range file.Root().Columns() {
		if slices.Contains(names, column.Name()) {
			return twice(column)
		}
		names = append(names, column.Name())
		if r.reads(column.Name()) {
			if err := once(column); err != nil {
				return err
			}
			columns = append(columns, column)
		} else {
			r.rows.ignore(column.Name())
		}
	}
	if r.other != nil {
		if err := r.other.begin(file.Lookup); err != nil {
			return err
		}
	} else if len(columns) == 0 {
		if err := (&view{names: names}).hint(r.options.Pairs); err != nil {
			return err
		}
		return (&view{names: names}).unknown(r.options.Template != nil)
	}
	if err := checkTable(f, file, int64(r.limit()), r.reads); err != nil {
		return err
	}
	types := leavesOf(file)
	for _, group := range file.RowGroups() {
		if group.NumRows() == 0 {
			continue
		}
		t := &tableRows{chunks: group.ColumnChunks(), types: types, budget: budget{limit: r.rowLimit()}}
		var fields []*columnNode
		for _, column := range columns {
			fields = append(fields, t.node(column))
		}
		err := func() error {
			defer t.close()
			for range group.NumRows() {
				number++
				if err := t.row(number, fields, r.take); err != nil {
					return fmt.Errorf("row %d: %w", number, err)
				}
				if r.options.Progress != nil && number%1024 == 0 {
					r.options.Progress(r.rows.found.Path, int64(float64(size)*float64(number)/float64(file.NumRows())), size)
				}
			}
			return t.end()
		}()
		if err != nil {
			return err
		}
	}
	if number != file.NumRows() {
		return fmt.Errorf("parquet: %d rows, want %d: %w", number, file.NumRows(), snug.ErrCorrupt)
	}
	return nil
}

// tableRows assembles the rows of a row group.
type tableRows struct {
	chunks []parquet.ColumnChunk
	types  []format.SchemaElement // of the columns of values
	leaves []*leaf
	budget
}

// leaf is a column of values, which are read some at a time.
type leaf struct {
	name   string
	scalar func(parquet.Value) value // of values that are numbers or bytes of a type of their own, else nil
	text   bool                      // bytes are UTF-8
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buffer [64]parquet.Value
	at, n  int
}

// columnNode is a node of the schema.
type columnNode struct {
	*parquet.Column
	leaves []*leaf // of the node and below, in order
	inner  []*columnNode
	kind   nodeKind
}

type nodeKind int

const (
	plainNode nodeKind = iota
	listNode           // a group that stands for its only child, which is repeated
	mapNode            // a group of pairs
)

// node makes a node of a column, and the nodes below it.
func (t *tableRows) node(c *parquet.Column) *columnNode {
	n := &columnNode{Column: c}
	if c.Leaf() {
		l := &leaf{name: strings.Join(c.Path(), "."), pages: t.chunks[c.Index()].Pages(), scalar: scalarOf(t.types[c.Index()]), text: isText(t.types[c.Index()])}
		t.leaves = append(t.leaves, l)
		n.leaves = []*leaf{l}
		return n
	}
	for _, column := range c.Columns() {
		inner := t.node(column)
		n.inner, n.leaves = append(n.inner, inner), append(n.leaves, inner.leaves...)
	}
	if kind := c.Type().LogicalType(); len(n.inner) == 1 && n.inner[0].Repeated() && kind != nil {
		switch kind.Value.(type) {
		case *format.ListType:
			n.kind = listNode
		case *format.MapType:
			if len(n.inner[0].inner) == 2 {
				n.kind = mapNode
			}
		}
	}
	return n
}

// row gives the next row.
func (t *tableRows) row(number int64, fields []*columnNode, give func(row) error) error {
	t.held = 0
	x := row{at: fmt.Sprintf("row %d", number)}
	for _, f := range fields {
		v, err := t.value(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		x.fields = append(x.fields, member{Name: f.Name(), Value: v})
	}
	return give(x)
}

// value reads the next value of a node: null, a list if the node is repeated, or what it holds.
func (t *tableRows) value(n *columnNode) (value, error) {
	switch {
	case n.Repeated():
		return t.repeated(n, n)
	case n.Optional():
		first, err := n.leaves[0].peek()
		if err != nil {
			return nil, err
		}
		if first.DefinitionLevel() < n.MaxDefinitionLevel() {
			return nil, skip(n)
		}
	}
	return t.present(n)
}

// skip passes over the one value that each leaf has for what is missing.
func skip(n *columnNode) error {
	for _, l := range n.leaves {
		if _, err := l.next(); err != nil {
			return err
		}
	}
	return nil
}

// repeated reads the elements of a repeated node, each as one of another node.
func (t *tableRows) repeated(n, element *columnNode) (value, error) {
	l := list{}
	first, err := n.leaves[0].peek()
	if err != nil {
		return nil, err
	}
	if first.DefinitionLevel() < n.MaxDefinitionLevel() {
		return l, skip(n)
	}
	for {
		if err := t.count(valueBytes); err != nil {
			return nil, err
		}
		var v value
		if element == n {
			v, err = t.present(n)
		} else {
			v, err = t.value(element)
		}
		if err != nil {
			return nil, err
		}
		l = append(l, v)
		next, err := n.leaves[0].peek()
		if err == io.EOF || err == nil && next.RepetitionLevel() < n.MaxRepetitionLevel() {
			return l, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// present reads a value of a node that is there.
func (t *tableRows) present(n *columnNode) (value, error) {
	switch {
	case n.Leaf():
		v, err := n.leaves[0].next()
		if err != nil {
			return nil, err
		}
		if f := n.leaves[0].scalar; f != nil && !v.IsNull() {
			return f(v), nil
		}
		return t.scalar(v, n.leaves[0].text)
	case n.kind == listNode:
		// The element is the only child of the repeated group, unless the group is the element, as old writers have it.
		element := n.inner[0]
		if name := element.Name(); len(element.inner) == 1 && name != "array" && !strings.HasSuffix(name, "_tuple") {
			return t.repeated(element, element.inner[0])
		}
		return t.repeated(element, element)
	case n.kind == mapNode:
		return t.pairs(n.inner[0])
	}
	if err := t.count(int64(len(n.inner)) * memberBytes); err != nil {
		return nil, err
	}
	o := make(object, 0, len(n.inner))
	for _, inner := range n.inner {
		v, err := t.value(inner)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", inner.Name(), err)
		}
		o = append(o, member{Name: inner.Name(), Value: v})
	}
	return o, nil
}

// pairs reads a map: an object, if all keys are strings.
func (t *tableRows) pairs(n *columnNode) (value, error) {
	v, err := t.repeated(n, n)
	if err != nil {
		return nil, err
	}
	o := object{}
	for _, pair := range v.(list) {
		pair := pair.(object)
		name, ok := pair[0].Value.(string)
		if !ok {
			return v, nil
		}
		if _, twice := o.Get(name); twice {
			return nil, fmt.Errorf("%s: the name comes twice in one map, want it once: %w", shortened(name), snug.ErrCorrupt)
		}
		if len(o) > 1<<10 {
			return v, nil
		}
		o = append(o, member{Name: name, Value: pair[1].Value})
	}
	return o, nil
}

// scalar returns a value of a column as one of JSON.
// text says that bytes of the column are UTF-8.
func (t *tableRows) scalar(v parquet.Value, text bool) (value, error) {
	if v.IsNull() {
		return nil, nil
	}
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean(), nil
	case parquet.Float:
		return floatOf(float64(v.Float()), 32), nil
	case parquet.Double:
		return floatOf(v.Double(), 64), nil
	case parquet.ByteArray, parquet.FixedLenByteArray:
		b := v.ByteArray()
		if err := t.count(int64(len(b))); err != nil {
			return nil, err
		}
		if !utf8.Valid(b) {
			if !text {
				return blob(slices.Clone(b)), nil
			}
			return nil, fmt.Errorf("byte %d of a string is not UTF-8: %w", firstInvalid(b), snug.ErrCorrupt)
		}
		return string(b), nil
	}
	return json.Number(v.String()), nil
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
	text := strconv.FormatFloat(x, 'g', -1, bits)
	if !strings.ContainsAny(text, ".e") {
		text += ".0" // 2.0 is no integer
	}
	return json.Number(text)
}

// end returns an error unless all values were read.
func (t *tableRows) end() error {
	for _, l := range t.leaves {
		if _, err := l.peek(); err == nil {
			return fmt.Errorf("parquet: column %s has more values than its row group has rows: %w", l.name, snug.ErrCorrupt)
		} else if err != io.EOF {
			return err
		}
	}
	return nil
}

func (t *tableRows) close() {
	for _, l := range t.leaves {
		parquet.Release(l.page)
		_ = l.pages.Close() // nothing was written
	}
}

// peek returns the next value, or [io.EOF]. It is valid until the next call.
func (l *leaf) peek() (parquet.Value, error) {
	for l.at == l.n {
		if l.values == nil {
			parquet.Release(l.page)
			l.page = nil
			page, err := l.pages.ReadPage()
			if err != nil {
				if err != io.EOF {
					err = fmt.Errorf("parquet: %w: %w", err, snug.ErrCorrupt)
				}
				return parquet.Value{}, err
			}
			l.page, l.values = page, page.Values()
		}
		n, err := l.values.ReadValues(l.buffer[:])
		l.at, l.n = 0, n
		if err != nil {
			l.values = nil
			if err != io.EOF {
				return parquet.Value{}, fmt.Errorf("parquet: column %s: %w: %w", l.name, err, snug.ErrCorrupt)
			}
		}
	}
	return l.buffer[l.at], nil
}

// next takes the next value.
func (l *leaf) next() (parquet.Value, error) {
	v, err := l.peek()
	if err == io.EOF {
		err = fmt.Errorf("parquet: column %s ends before its row group: %w", l.name, snug.ErrCorrupt)
	}
	l.at++
	return v, err
}
