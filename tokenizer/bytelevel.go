package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteRunes is the character that stands for a byte in byte-level vocabularies, as GPT-2
// chose them: printable bytes of Latin-1 stand for themselves, the others, in order, for
// the characters from U+0100 on.
var byteRunes, runeBytes = func() (runes [256]rune, back map[rune]byte) {
	back = map[rune]byte{}
	next := rune(0x100)
	for b := range runes {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= 0xA1 && r <= 0xAC || r >= 0xAE) {
			r = next
			next++
		}
		runes[b] = r
		back[r] = byte(b)
	}
	return runes, back
}()

// spell returns the characters that stand for the bytes of s.
func spell(s string) string {
	var b strings.Builder
	b.Grow(len(s) + len(s)/4 + 4)
	for i := range len(s) {
		b.WriteRune(byteRunes[s[i]])
	}
	return b.String()
}

// unspell appends the bytes that the characters of a token stand for. A token with any
// other character stands for itself.
func unspell(dst []byte, token string) []byte {
	n := len(dst)
	for _, r := range token {
		if r < utf8.RuneSelf && r > ' ' && r < 0x7F {
			dst = append(dst, byte(r))
			continue
		}
		b, ok := runeBytes[r]
		if !ok {
			return append(dst[:n], token...)
		}
		dst = append(dst, b)
	}
	return dst
}
