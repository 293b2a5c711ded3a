package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// DecodeOptions says which tokens become text. The zero DecodeOptions takes all of them.
type DecodeOptions struct {
	// SkipSpecial leaves special tokens out.
	SkipSpecial bool
}

// Decode returns the text of tokens. Ids without a token are left out, as models may have
// more rows than there are tokens. Bytes that make no UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, o DecodeOptions) string {
	if t == nil {
		return ""
	}
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if token, ok := t.token(id, o); ok {
			tokens = append(tokens, token)
		}
	}
	if t.noDecoder {
		return strings.Join(tokens, " ")
	}
	for _, d := range t.decode {
		tokens = d.decode(tokens)
	}
	return strings.Join(tokens, "")
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
type decoder interface {
	// decode takes all tokens.
	decode(tokens []string) []string
	// stream returns the step for tokens that come one after the other.
	stream() step
}

// replaceDecoder replaces in every token.
type replaceDecoder struct{ replace }

func (r replaceDecoder) decode(tokens []string) []string {
	for i, token := range tokens {
		tokens[i] = r.token(token)
	}
	return tokens
}

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

func (byteFallback) decode(tokens []string) []string {
	var out []string
	var run []byte
	for _, token := range tokens {
		if b, ok := fallbackByte(token); ok {
			run = append(run, b)
			continue
		}
		out = append(appendRun(out, run), token)
		run = run[:0]
	}
	return appendRun(out, run)
}

// appendRun appends the text of bytes, or U+FFFD for each if they are no UTF-8.
func appendRun(tokens []string, run []byte) []string {
	if len(run) == 0 {
		return tokens
	}
	if utf8.Valid(run) {
		return append(tokens, string(run))
	}
	for range run {
		tokens = append(tokens, replacement)
	}
	return tokens
}

// fuse makes one text of all tokens.
type fuse struct{}

func (fuse) decode(tokens []string) []string { return []string{strings.Join(tokens, "")} }

// stripDecoder takes a character off the ends of every token.
type stripDecoder struct {
	char        string
	start, stop int  // how often at most
	fused       bool // whether there is one token, the text
}

func (s stripDecoder) decode(tokens []string) []string {
	for i, token := range tokens {
		for range s.start {
			rest, ok := strings.CutPrefix(token, s.char)
			if !ok {
				break
			}
			token = rest
		}
		for range s.stop {
			rest, ok := strings.CutSuffix(token, s.char)
			if !ok {
				break
			}
			token = rest
		}
		tokens[i] = token
	}
	return tokens
}

func (m metaspace) decode(tokens []string) []string {
	for i, token := range tokens {
		tokens[i] = m.token(token, i == 0)
	}
	return tokens
}

func (m metaspace) token(token string, first bool) string {
	if first && m.prepend != "never" {
		return strings.ReplaceAll(token, m.sign, "")
	}
	return strings.ReplaceAll(token, m.sign, " ")
}

// byteDecoder is the decoder ByteLevel.
type byteDecoder struct{}

func (byteDecoder) decode(tokens []string) []string {
	var b []byte
	for _, token := range tokens {
		b = unspell(b, token)
	}
	return []string{repair(string(b))}
}

// suffixDecoder replaces the suffix that ends a word by a space, and removes it from the
// last token.
type suffixDecoder struct{ suffix string }

func (s suffixDecoder) decode(tokens []string) []string {
	for i, token := range tokens {
		tokens[i] = s.token(token, i == len(tokens)-1)
	}
	return tokens
}

func (s suffixDecoder) token(token string, last bool) string {
	if last {
		return strings.ReplaceAll(token, s.suffix, "")
	}
	return strings.ReplaceAll(token, s.suffix, " ")
}
