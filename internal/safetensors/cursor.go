package safetensors

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// cursor takes values off the front of a text, which is valid JSON: the only
// errors are values of the wrong kind. It keeps nothing of the text alive.
type cursor struct{ rest []byte }

const space = " \t\r\n"

// next returns the first byte that is not white space.
func (c *cursor) next() byte {
	c.rest = bytes.TrimLeft(c.rest, space)
	return c.rest[0]
}

// take takes the next byte if it is b.
func (c *cursor) take(b byte) bool {
	if c.next() != b {
		return false
	}
	c.rest = c.rest[1:]
	return true
}

// object takes an object and calls member after every key, to take its value.
func (c *cursor) object(member func(key string) error) error {
	if !c.take('{') {
		return c.wrongKind("an object")
	}
	for more := !c.take('}'); more; more = !c.take('}') {
		c.take(',')
		key, err := c.text()
		if err != nil {
			return err
		}
		c.take(':')
		if err := member(key); err != nil {
			return err
		}
	}
	return nil
}

// numbers takes an array of integers of 0 or more. what names it.
func numbers[T int | int64](c *cursor, what string) ([]T, error) {
	if !c.take('[') {
		return nil, c.wrongKind(what + " to be an array")
	}
	x := []T{}
	for more := !c.take(']'); more; more = !c.take(']') {
		c.take(',')
		c.next()
		token := c.token()
		n, err := strconv.ParseUint(string(token), 10, 63)
		if err != nil || uint64(T(n)) != n {
			return nil, corrupt("%s[%d] is %.32s, want an integer of 0 or more that fits in %T", what, len(x), token, T(0))
		}
		x = append(x, T(n))
	}
	return x, nil
}

// text takes a string.
func (c *cursor) text() (string, error) {
	if c.next() != '"' {
		return "", c.wrongKind("a string")
	}
	raw := c.quoted()
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), nil
	}
	s, valid := unescape(raw)
	if !valid {
		return "", corrupt("half of a surrogate pair in the string %.100s", raw)
	}
	return s, nil
}

// maxDepth is how deep objects and arrays nest at most, the header's included: the limit
// of the reference implementation.
const maxDepth = 127

// skip takes any value, at a depth. It refuses what the reference implementation does,
// which reads such values too: halves of surrogate pairs, numbers beyond a float64, and
// more than maxDepth.
func (c *cursor) skip(depth int) error {
	for start := depth; ; {
		switch c.next() {
		case '{', '[':
			if depth++; depth > maxDepth {
				return corrupt("values that nest deeper than %d", maxDepth)
			}
			c.rest = c.rest[1:]
			continue
		case ',', ':':
			c.rest = c.rest[1:]
			continue
		case '}', ']':
			depth--
			c.rest = c.rest[1:]
		case '"':
			if _, err := c.text(); err != nil {
				return err
			}
		case 't', 'f', 'n':
			c.token()
		default:
			if token := c.token(); !inRange(token) {
				return corrupt("the number %.32s is out of range", token)
			}
		}
		if depth == start {
			return nil
		}
	}
}

// inRange says whether a number fits in a float64.
func inRange(token []byte) bool {
	if len(token) < 300 && !bytes.ContainsAny(token, "eE") {
		return true
	}
	_, err := strconv.ParseFloat(string(token), 64) // below the smallest it is 0, without an error
	return err == nil
}

// token takes the bytes up to a delimiter: a number, true, false or null.
func (c *cursor) token() []byte {
	n := bytes.IndexAny(c.rest, ",:]}"+space)
	token := c.rest[:n]
	c.rest = c.rest[n:]
	return token
}

// quoted takes a string and returns what lies between its quotes.
func (c *cursor) quoted() []byte {
	n := 1
	for c.rest[n] != '"' {
		if c.rest[n] == '\\' {
			n++
		}
		n++
	}
	raw := c.rest[1:n]
	c.rest = c.rest[n+1:]
	return raw
}

func (c *cursor) wrongKind(want string) error {
	c.next()
	return corrupt("%.32q, want %s", c.rest[:min(len(c.rest), 32)], want)
}

// unescape returns what a string with escapes stands for. It is not valid when
// it holds half of a surrogate pair.
func unescape(raw []byte) (s string, valid bool) {
	b := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			break
		}
		b = append(b, raw[:i]...)
		code := raw[i+1]
		raw = raw[i+2:]
		switch code {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, n := rune4(raw), 4
			if utf16.IsSurrogate(r) {
				if !bytes.HasPrefix(raw[n:], []byte(`\u`)) {
					return "", false
				}
				if r = utf16.DecodeRune(r, rune4(raw[n+2:])); r == utf8.RuneError {
					return "", false
				}
				n += 2 + 4
			}
			b, raw = utf8.AppendRune(b, r), raw[n:]
		default: // a quote or a slash
			b = append(b, code)
		}
	}
	return string(append(b, raw...)), true
}

// rune4 returns the rune of the four hexadecimal digits at the front of b.
func rune4(b []byte) rune {
	r, _ := strconv.ParseUint(string(b[:4]), 16, 16) // which the syntax grants
	return rune(r)
}
