package dataset

import (
	"fmt"
	"io"

	"github.com/snug-ml/snug"
)

// readLines gives the objects of JSON Lines as rows, and those of a file of JSON whose objects go over several lines. It
// passes over empty lines, and over a byte order mark at the beginning of a line.
func readLines(in io.Reader, limit int64, give func(row) error) error {
	d := newDecoder(in, limit)
	for {
		if err := d.space(); err != nil {
			return fmt.Errorf("line %d: %w", d.line, err)
		}
		if d.peek() < 0 {
			return nil
		}
		at := fmt.Sprintf("line %d", d.line)
		if err := d.row(at, give); err != nil {
			return err
		}
	}
}

// row reads the next value, which must be an object, and gives it.
func (d *decoder) row(at string, give func(row) error) error {
	v, err := d.next()
	if here := fmt.Sprintf("line %d", d.line); err != nil && here != at {
		return fmt.Errorf("%s: %w, in the row that begins at %s", here, err, at)
	} else if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	fields, ok := v.(object)
	if !ok {
		return fmt.Errorf("%s: %s, want an object with the fields of a sample%s: %w", at, kindOf(v), conversations(v), snug.ErrConfig)
	}
	if err := give(row{at, fields}); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}

// conversations says what makes rows of conversations that are arrays within an array.
func conversations(v value) string {
	if l, ok := v.(list); ok {
		if _, messages := inner("", l); messages {
			return ": jq -c '.[] | {messages: .}' FILE > rows.jsonl makes rows of conversations"
		}
	}
	return ""
}
