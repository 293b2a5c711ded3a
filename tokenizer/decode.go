package tokenizer

import (
	"strconv"
	"strings"
)

// DecodeOptions says which tokens become text. The zero DecodeOptions takes all of them.
type DecodeOptions struct {
	// SkipSpecial leaves special tokens out.
	SkipSpecial bool
}

// Decode returns the text of tokens. Ids without a token are left out, as models may have
// more rows than there are tokens. Bytes that make no UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, o DecodeOptions) string {
	s := &Stream{tokenizer: t, options: o, whole: true}
	s.begin()
	for _, id := range ids {
		s.next(id)
	}
	return s.end()
}

// token returns what decoders get for an id.
func (t *Tokenizer) token(id int32, o DecodeOptions) (string, bool) {
	if !t.has(id) {
		return "", false
	}
	token := t.shown[id]
	return token, !o.SkipSpecial || !t.added.special[token]
}

// decoder is a step from tokens to text.
type decoder interface{ stream() step }

// replaceDecoder replaces in every token.
type replaceDecoder struct{ replace }

func (r replaceDecoder) token(token string) string {
	text, err := r.apply(token)
	if err != nil {
		return token // the pattern takes too long, and Decode has no errors
	}
	return text
}

// byteFallback joins tokens such as <0x0A> to characters.
type byteFallback struct{}

// fallbackByte returns the byte of a token such as <0x0A>.
func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	digits := token[3:5]
	if digits[0] == '+' { // the peer's integers may have a sign
		digits = digits[1:]
	}
	b, err := strconv.ParseUint(digits, 16, 8)
	return byte(b), err == nil
}

// fuse makes one text of all tokens.
type fuse struct{}

// stripDecoder takes a character off the ends of every token.
type stripDecoder struct {
	char        string
	start, stop int  // how often at most
	fused       bool // whether there is one token, the text
}

func (m metaspace) token(token string, first bool) string {
	if first && m.prepend != "never" {
		return strings.ReplaceAll(token, m.sign, "")
	}
	return strings.ReplaceAll(token, m.sign, " ")
}

// byteDecoder is the decoder ByteLevel.
type byteDecoder struct{}

// suffixDecoder replaces the suffix that ends a word by a space, and removes it from the
// last token.
type suffixDecoder struct{ suffix string }

func (s suffixDecoder) token(token string, last bool) string {
	if last {
		return strings.ReplaceAll(token, s.suffix, "")
	}
	return strings.ReplaceAll(token, s.suffix, " ")
}
