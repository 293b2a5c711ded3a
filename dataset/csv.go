package dataset

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// csv adds the rows of a file of comma-separated values, as RFC 4180 says: the first line has the names of the fields, and
// values in quotes may have line breaks. Quotes within a value that does not begin with one are a part of it, as for pandas. All values are strings. The fields of .tsv are separated by tabs, those of .csv by
// commas, or by semicolons or tabs where the first line has these and no comma.
func (r *reader) csv(in *input) error {
	comma := ','
	line, _, broken := strings.Cut(jsonStart(in.first), "\n")
	if !broken && strings.Contains(strings.TrimRight(line, "\r"), "\r") {
		return fmt.Errorf("the lines end with CR alone, as those of old Macs: write them with LF, such as with tr '\\r' '\\n': %w", snug.ErrCorrupt)
	}
	if said, ok := separator(line); ok {
		return r.separated(in, said)
	}
	switch {
	case ending(in.path) == ".tsv":
		comma = '\t'
	case strings.Contains(line, ","):
	case strings.Contains(line, ";"):
		comma = ';'
	case strings.Contains(line, "\t"):
		comma = '\t'
	}
	return readCSV(in, comma, 0, r.rowLimit(), r.take)
}

// separator returns the separator that a first line of Excel says, such as sep=;.
func separator(line string) (rune, bool) {
	said, ok := strings.CutPrefix(strings.TrimRight(line, "\r"), "sep=")
	r, size := utf8.DecodeRuneInString(said)
	return r, ok && size == len(said) && size > 0 && strings.ContainsRune(",;\t|", r)
}

// separated reads a file whose first line says its separator.
func (r *reader) separated(in *input, comma rune) error {
	b := bufio.NewReaderSize(in.Reader, firstBytes)
	line, err := b.ReadBytes('\n')
	lines := 1
	for ; err == nil && len(bytes.TrimSpace(line)) == 0; lines++ {
		line, err = b.ReadBytes('\n')
	}
	if err != nil && err != io.EOF {
		return err
	}
	return readCSV(b, comma, lines, r.rowLimit(), r.take)
}

// csvShare is how many times a row's bytes are held while it is read.
const csvShare = 4

// readCSV gives the rows of a file whose fields are separated by comma, after the lines that were read before.
func readCSV(in io.Reader, comma rune, before int, limit int64, give func(row) error) error {
	bounded := &boundedReader{in: &validReader{in: in}, limit: limit/csvShare + 8<<10, comma: byte(comma), line: before + 1, begun: before + 1} // which csv reads ahead
	c := csv.NewReader(bounded)
	c.Comma, c.ReuseRecord = comma, true
	c.LazyQuotes = true // quotes in values without quotes; boundedReader refuses the others that it allows
	c.FieldsPerRecord = -1
	names, err := c.Read()
	if err == io.EOF {
		return nil
	}
	if err != nil {
		return err
	}
	names = slices.Clone(names)
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("line %d: the first line is the names of the fields, and %.40q comes twice: %w", before+1, name, snug.ErrCorrupt)
		}
	}
	for {
		bounded.held = 0
		values, err := c.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		number, _ := c.FieldPos(0)
		at := fmt.Sprintf("line %d", before+number)
		if len(values) != len(names) {
			return fmt.Errorf("%s: %d fields, and the first line has %d names: %s. Put values with %q or line breaks into quotes: %w",
				at, len(values), len(names), shortened(strings.Join(names, string(comma))), comma, snug.ErrCorrupt)
		}
		x := row{at: at, fields: make(object, len(names))}
		for i, name := range names {
			x.fields[i] = member{Name: name, Value: strings.Clone(values[i])}
		}
		if err := give(x); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
}

// maxFields is the most fields of a row. The library takes some fifty bytes for each.
const maxFields = 10_000

// boundedReader reads up to limit bytes after each time that held is set to 0, and rows of up to maxFields fields. It refuses
// quotes about which programs differ.
type boundedReader struct {
	in          io.Reader
	limit, held int64
	comma       byte
	fields      int // of the row so far
	state       csvState
	line, begun int // the number of the line, and of that with which the row begins
	err         error
}

// csvState is where in a value the next byte is.
type csvState byte

const (
	valueStart  csvState = iota
	valueBlanks          // behind blanks at its start
	valuePlain           // within a value that does not begin with a quote; quotes in it are text
	valueQuoted          // within quotes
	valueQuote           // behind a quote within quotes, which ends them unless another follows
)

// Read implements [io.Reader].
func (b *boundedReader) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.held >= b.limit {
		return 0, fmt.Errorf("a row of more than %d bytes: cut it, or allow more memory; is a quote missing at its end? %w", b.limit, snug.ErrConfig)
	}
	n, err := b.in.Read(p)
	b.held += int64(n)
	for i, c := range p[:n] {
		if b.err = b.next(c); b.err != nil {
			return i, nil // the rows before it are read first
		}
	}
	if err == io.EOF && b.state == valueQuoted {
		err = b.quoteError("the file ends within quotes")
	}
	return n, err
}

// next follows one byte.
func (b *boundedReader) next(c byte) error {
	switch {
	case b.state == valueQuoted && c == '"':
		b.state = valueQuote
	case b.state == valueQuoted:
	case b.state == valueQuote && c == '"':
		b.state = valueQuoted
	case c == '\n':
		b.fields, b.state, b.begun = 0, valueStart, b.line+1
	case c == b.comma:
		b.fields++
		b.state = valueStart
	case b.state == valueQuote && c != '\r':
		return b.quoteError("a quote within a value that begins with a quote")
	case b.state == valueStart && c == '"':
		b.state = valueQuoted
	case b.state == valueBlanks && c == '"':
		return b.quoteError("blanks before a value in quotes")
	case b.state <= valueBlanks && c == ' ':
		b.state = valueBlanks
	case b.state <= valueBlanks:
		b.state = valuePlain
	}
	if c == '\n' {
		b.line++
	}
	if b.fields >= maxFields {
		return fmt.Errorf("a row of more than %d fields: %w", maxFields, snug.ErrConfig)
	}
	return nil
}

func (b *boundedReader) quoteError(what string) error {
	place := fmt.Sprintf("line %d", b.line)
	if b.line != b.begun {
		place += fmt.Sprintf(", in the row that begins at line %d", b.begun)
	}
	return fmt.Errorf("%s: %s: put the whole value into quotes, and double the quotes in it: %w", place, what, snug.ErrCorrupt)
}
