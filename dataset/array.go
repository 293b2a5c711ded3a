package dataset

import (
	"fmt"
	"io"
)

// readArray gives the elements of a file that is one array of JSON as rows, one at a time.
func readArray(in io.Reader, limit int64, give func(row) error) error {
	d := newDecoder(in, limit)
	fail := func(err error) error { return fmt.Errorf("line %d: %w", d.line, err) }
	if err := d.space(); err != nil {
		return fail(err)
	}
	if d.peek() != '[' {
		return fail(d.unexpected("'[' of an array"))
	}
	d.at++
	last := 0 // line on which the element before this one begins
	for number := 1; ; number++ {
		more, err := d.another(number == 1, ']', fmt.Sprintf("',' or ']' after element %d of the file's array", number-1))
		if err == nil && !more {
			err = d.space()
		}
		switch {
		case err != nil:
			return fail(err)
		case !more && d.peek() >= 0:
			return fail(fmt.Errorf("%w: write one array, or one object a line", d.unexpected("the end of the file after its array")))
		case !more:
			return nil
		}
		line, element := fmt.Sprintf("line %d", d.line), fmt.Sprintf("element %d", number)
		if d.line == last { // several on one line, as most programs write them
			if err := d.row(element, give); err != nil {
				return err
			}
			continue
		}
		last = d.line
		if err := d.row(line, give); err != nil {
			return fmt.Errorf("%s: %w", element, err)
		}
	}
}
