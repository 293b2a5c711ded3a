package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// replacement stands for bytes that are no UTF-8.
const replacement = "\uFFFD"

// repair returns s with U+FFFD for what is no UTF-8: one for each maximal subpart, as The
// Unicode Standard, section 3.9, recommends.
func repair(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && size == 1 {
			b.WriteString(replacement)
			size = max(1, begun(s))
		} else {
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

// begun returns how many bytes at the front of s, which is no character, begin one.
func begun(s string) int {
	lo, hi, want := byte(0x80), byte(0xBF), 0
	switch lead := s[0]; {
	case 0xC2 <= lead && lead <= 0xDF:
		want = 2
	case lead&0xF0 == 0xE0:
		want = 3
		switch lead {
		case 0xE0:
			lo = 0xA0
		case 0xED:
			hi = 0x9F
		}
	case 0xF0 <= lead && lead <= 0xF4:
		want = 4
		switch lead {
		case 0xF0:
			lo = 0x90
		case 0xF4:
			hi = 0x8F
		}
	default:
		return 0
	}
	n := 1
	for ; n < want && n < len(s) && lo <= s[n] && s[n] <= hi; n++ {
		lo, hi = 0x80, 0xBF
	}
	return n
}

// unfinished returns how many bytes at the end of b begin a character that more bytes
// could finish.
func unfinished(b []byte) int {
	for n := 1; n <= min(3, len(b)); n++ {
		if c := b[len(b)-n]; c&0xC0 != 0x80 { // no continuation
			tail := string(b[len(b)-n:])
			if !utf8.FullRuneInString(tail) && begun(tail) == n {
				return n
			}
			return 0
		}
	}
	return 0
}
