package dataset

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// chunk is the part of a long string that is collected at a time.
const chunk = 64 << 10

// string reads a string in quotes.
func (d *decoder) string() (string, error) {
	d.at++ // the quote
	b := d.scratch[:0]
	var parts [][]byte // of a long string
	size := 0
	for {
		if !d.fill() {
			return "", d.unexpected("the end of a string")
		}
		rest := d.buffer[d.at:]
		n := 0
		for n < len(rest) && rest[n] != '"' && rest[n] != '\\' && rest[n] >= ' ' {
			n++
		}
		b = append(b, rest[:n]...)
		d.at += n
		if n == len(rest) || len(b) > chunk {
			if len(b) > chunk {
				if err := d.count(2 * int64(len(b))); err != nil {
					return "", err
				}
				parts, size = append(parts, b), size+len(b)
				b = make([]byte, 0, 2*chunk)
			}
			if n == len(rest) {
				continue
			}
		}
		switch c := d.buffer[d.at]; c {
		case '"':
			d.at++
			if parts == nil {
				d.scratch = b
			}
			return d.joined(parts, b, size)
		case '\\':
			var err error
			if b, err = d.escape(b); err != nil {
				return "", err
			}
		default:
			if c == '\n' {
				return "", d.damaged("the line ends within a string; write a line break in it as \\n")
			}
			return "", d.damaged("the control character %#x in a string; write it as \\u%04x", c, c)
		}
	}
}

// joined returns the string of its parts.
func (d *decoder) joined(parts [][]byte, last []byte, size int) (string, error) {
	if err := d.count(int64(len(last))); err != nil {
		return "", err
	}
	s := string(last)
	if parts != nil {
		var all strings.Builder
		all.Grow(size + len(last))
		for i, p := range parts {
			all.Write(p)
			parts[i] = nil
		}
		all.Write(last)
		s = all.String()
	}
	return s, nil
}

// escape appends the character of an escape.
func (d *decoder) escape(b []byte) ([]byte, error) {
	d.at++ // the backslash
	c := d.peek()
	if i := strings.IndexByte(`"\/bfnrt`, byte(max(c, 0))); c > 0 && i >= 0 {
		d.at++
		return append(b, "\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return b, d.unexpected(`one of " \ / b f n r t u after a backslash`)
	}
	r, err := d.hex()
	if err != nil {
		return b, err
	}
	if utf16.IsSurrogate(r) {
		const half = `\u%04x is half of a pair of surrogates, and its other half is not beside it: the text was cut within a character`
		if r >= 0xDC00 || d.peek() != '\\' {
			return b, d.damaged(half, r)
		}
		d.at++
		if d.peek() != 'u' {
			return b, d.damaged(half, r)
		}
		second, err := d.hex()
		if err != nil {
			return b, err
		}
		pair := utf16.DecodeRune(r, second)
		if pair == utf8.RuneError {
			return b, d.damaged(half, r)
		}
		r = pair
	}
	return utf8.AppendRune(b, r), nil
}

// hex reads u and the four digits of an escape.
func (d *decoder) hex() (r rune, err error) {
	d.at++ // the u
	for range 4 {
		c := d.peek()
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, d.unexpected(`four hexadecimal digits after \u`)
		}
		d.at++
		r = r<<4 | rune(c)
	}
	return r, nil
}
