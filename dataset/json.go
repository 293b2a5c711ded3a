package dataset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// maxDepth is how deep arrays and objects of a row nest.
const maxDepth = 100

// What a decoded row takes besides the bytes of its strings.
const (
	valueBytes  = 32 // of an element, with the room that a growing list has
	memberBytes = 64 // of a member
	indexBytes  = 64 // of a name in the index of a large object
)

// decoder reads values of JSON one after the other. It takes what RFC 8259 says, and the words NaN, Infinity and
// -Infinity; it does not take repeated names in an object, strings that are not UTF-8, and halves of surrogate pairs.
// Values are decoded as their bytes arrive, and before memory is taken for a part of a value, its size is counted
// against a limit.
type decoder struct {
	in     io.Reader
	buffer []byte // what is read ahead
	at     int    // the next byte in buffer
	err    error  // of in

	comma bool // the last byte that is no white space is a comma

	line  int   // the number of the line at which the decoder is
	begin int64 // the byte of the file at which this line begins
	base  int64 // the byte of the file at which buffer begins

	budget
	scratch []byte
	known   map[string]string // names of members, which rows repeat
}

// newDecoder returns a decoder of values that may take limit bytes each.
func newDecoder(in io.Reader, limit int64) *decoder {
	return &decoder{in: &validReader{in: in}, buffer: make([]byte, 0, 64<<10), line: 1, budget: budget{limit: limit}, known: map[string]string{}}
}

// fill reads more bytes when all of the buffer are taken. It reports whether there are some.
func (d *decoder) fill() bool {
	if d.at < len(d.buffer) {
		return true
	}
	for d.err == nil {
		d.base += int64(len(d.buffer))
		d.at = 0
		n, err := d.in.Read(d.buffer[:cap(d.buffer)])
		d.buffer, d.err = d.buffer[:n], err
		if n > 0 {
			return true
		}
	}
	return false
}

// peek returns the next byte, or -1 at the end.
func (d *decoder) peek() int {
	if d.at < len(d.buffer) || d.fill() {
		return int(d.buffer[d.at])
	}
	return -1
}

// offset returns how many bytes of the file are taken.
func (d *decoder) offset() int64 { return d.base + int64(d.at) }

// space passes over white space, and over a byte order mark at the beginning of a line.
func (d *decoder) space() error {
	for {
		switch c := d.peek(); c {
		case '\n':
			d.at++
			d.line++
			d.begin = d.offset()
		case ' ', '\t', '\r':
			d.at++
		case 0xEF:
			if d.offset() != d.begin {
				return nil
			}
			if !bytes.HasPrefix(d.buffer[d.at:], []byte("\ufeff")) {
				return nil
			}
			d.at += len("\ufeff")
			d.begin = d.offset() // a mark is not counted
		case -1:
			return d.failed()
		default:
			return nil
		}
	}
}

// failed returns the error that keeps bytes from coming after those that are taken, nil at the end of the file.
func (d *decoder) failed() error {
	var bad *notUTF8
	switch {
	case d.at < len(d.buffer) || d.err == nil || d.err == io.EOF:
		return nil
	case errors.As(d.err, &bad):
		return &notUTF8{bad.at - d.begin, bad.zero}
	}
	return d.err
}

// damaged returns an error at the next byte.
func (d *decoder) damaged(format string, args ...any) error {
	return fmt.Errorf("byte %d: %s: %w", d.offset()-d.begin, fmt.Sprintf(format, args...), snug.ErrCorrupt)
}

// unexpected returns an error that names the next byte.
func (d *decoder) unexpected(want string) error {
	c := d.peek()
	switch {
	case d.failed() != nil:
		return d.failed()
	case c < 0:
		return d.damaged("the file ends here, want %s", want)
	case c == '\n':
		return d.damaged("the line ends here, want %s", want)
	case c == '\'':
		return d.damaged("%q, want %s: strings of JSON are in double quotes, as json.dumps writes them", rune(c), want)
	case c == '/' || c == '#':
		return d.damaged("%q, want %s: JSON has no comments, remove them", rune(c), want)
	case c == ',' && want == "a value of JSON":
		return d.damaged("%q, want %s: remove the comma, or put [ before the first row and ] behind the last", rune(c), want)
	case (c == ']' || c == '}') && d.comma:
		return d.damaged("%q after a comma, want %s: remove the comma", rune(c), want)
	case c >= utf8.RuneSelf:
		return d.damaged("byte %#x, want %s", c, want)
	}
	return d.damaged("%q, want %s", rune(c), want)
}

// budget is how many bytes a row may take, and how many this one takes.
type budget struct{ limit, held int64 }

// count adds bytes to what the row takes.
func (b *budget) count(n int64) error {
	if b.held += n; b.held > b.limit {
		return fmt.Errorf("the row takes more than %d bytes of memory: cut it, or allow more memory: %w", b.limit, snug.ErrConfig)
	}
	return nil
}

// next reads one value. What the previous one took no longer counts.
func (d *decoder) next() (value, error) {
	d.held = 0
	if len(d.known) > 1<<12 {
		clear(d.known)
	}
	v, err := d.value(0)
	var w *within
	if errors.As(err, &w) {
		return nil, w.wrapped()
	}
	return v, err
}

// value reads a value at a depth.
func (d *decoder) value(depth int) (value, error) {
	if err := d.space(); err != nil {
		return nil, err
	}
	if c := d.peek(); c != ']' && c != '}' {
		d.comma = false
	}
	switch c := d.peek(); {
	case c == '"':
		return d.string()
	case c == '{' || c == '[':
		if depth == maxDepth {
			return nil, d.damaged("objects and arrays nest deeper than %d", maxDepth)
		}
		d.at++
		if c == '{' {
			return d.object(depth + 1)
		}
		return d.list(depth + 1)
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		return d.word("")
	}
	return nil, d.unexpected("a value of JSON")
}

// another reports whether one more element or member follows, in front of which it takes the comma, or the end, which it takes.
func (d *decoder) another(first bool, end int, want string) (bool, error) {
	if err := d.space(); err != nil {
		return false, err
	}
	switch c := d.peek(); {
	case c == end:
		d.at++
		return false, nil
	case first:
		return true, nil
	case c == ',':
		d.at++
		d.comma = true
		return true, d.space()
	}
	return false, d.unexpected(want)
}

// list reads the elements of an array and its end.
func (d *decoder) list(depth int) (value, error) {
	l := list{}
	for {
		if more, err := d.another(len(l) == 0, ']', "',' or ']' of an array"); err != nil || !more {
			return l, err
		}
		if err := d.count(valueBytes); err != nil {
			return nil, err
		}
		v, err := d.value(depth)
		if err != nil {
			return nil, inside(fmt.Sprintf("[%d]", len(l)), err)
		}
		l = append(l, v)
	}
}

// object reads the members of an object and its end.
func (d *decoder) object(depth int) (value, error) {
	o := object{}
	var index map[string]bool // of a large object
	for {
		if more, err := d.another(len(o) == 0, '}', "',' or '}' of an object"); err != nil || !more {
			return o, err
		}
		if d.peek() != '"' {
			return nil, d.unexpected("the name of a member in quotes")
		}
		d.comma = false
		if err := d.count(memberBytes); err != nil {
			return nil, err
		}
		name, err := d.name()
		if err != nil {
			return nil, err
		}
		twice := false
		if len(o) < 16 {
			_, twice = o.Get(name)
		} else {
			if index == nil {
				index = map[string]bool{}
				for _, m := range o {
					index[m.Name] = true
				}
			}
			if err := d.count(indexBytes); err != nil {
				return nil, err
			}
			twice = index[name]
			index[name] = true
		}
		if twice {
			return nil, inside("."+shortened(name), fmt.Errorf("the name comes twice in one object, want it once: %w", snug.ErrCorrupt))
		}
		if err := d.space(); err != nil {
			return nil, err
		}
		if d.peek() != ':' {
			return nil, d.unexpected("':' after a name")
		}
		d.at++
		v, err := d.value(depth)
		if err != nil {
			return nil, inside("."+shortened(name), err)
		}
		o = append(o, member{Name: name, Value: v})
	}
}

// name reads the name of a member. Rows have the same names, so equal names share their memory.
func (d *decoder) name() (string, error) {
	s, err := d.string()
	if err != nil {
		return "", err
	}
	if old, ok := d.known[s]; ok {
		return old, nil
	}
	if len(s) <= 64 {
		d.known[s] = s
	}
	return s, nil
}

// number reads a number as it is written.
func (d *decoder) number() (value, error) {
	b := d.scratch[:0]
	if d.peek() == '-' {
		d.at++
		if d.peek() == 'I' {
			return d.word("-")
		}
		b = append(b, '-')
	}
	digits := func() error {
		n := len(b)
		for c := d.peek(); c >= '0' && c <= '9'; c = d.peek() {
			b = append(b, byte(c))
			d.at++
			if len(b) > 1<<10 {
				return d.damaged("a number of more than %d characters", 1<<10)
			}
		}
		if len(b) == n {
			return d.unexpected("a digit")
		}
		return nil
	}
	if d.peek() == '0' {
		b = append(b, '0')
		d.at++
	} else if err := digits(); err != nil {
		return nil, err
	}
	if d.peek() == '.' {
		b = append(b, '.')
		d.at++
		if err := digits(); err != nil {
			return nil, err
		}
	}
	if c := d.peek(); c == 'e' || c == 'E' {
		b = append(b, byte(c))
		d.at++
		if c := d.peek(); c == '+' || c == '-' {
			b = append(b, byte(c))
			d.at++
		}
		if err := digits(); err != nil {
			return nil, err
		}
	}
	d.scratch = b
	if err := d.count(int64(len(b))); err != nil {
		return nil, err
	}
	return json.Number(b), nil
}

// word reads a value that is a word.
func (d *decoder) word(sign string) (value, error) {
	b := append(d.scratch[:0], sign...)
	at := d.at
	for c := d.peek(); c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'; c = d.peek() {
		if b = append(b, byte(c)); len(b) > 16 {
			break
		}
		d.at++
	}
	d.scratch = b
	switch w := string(b); w {
	case "null":
		return nil, nil
	case "true", "false":
		return w == "true", nil
	case "NaN", "Infinity", "-Infinity":
		return literal(w), nil
	case "None", "True", "False":
		d.at = max(0, d.at-len(b)+len(sign))
		return nil, d.damaged("%s is Python's word, want null, true or false: write the file with json.dumps", w)
	}
	d.at = max(at, d.at-len(b)+len(sign))
	return nil, d.damaged("%.17q, want a value of JSON", b)
}

// within is an error in a part of a value.
type within struct {
	path string // from the value on, such as ".messages[0].content"
	err  error
}

func (w *within) Error() string { return w.wrapped().Error() }

func (w *within) wrapped() error { return fmt.Errorf("%s: %w", strings.TrimPrefix(w.path, "."), w.err) }

// inside adds a step to the path of an error.
func inside(step string, err error) error {
	if w, ok := err.(*within); ok {
		w.path = step + w.path
		return w
	}
	return &within{step, err}
}

// shortened returns a name as errors write it.
func shortened(name string) string {
	if len(name) > 40 {
		return fmt.Sprintf("%.40q", name)
	}
	return name
}
