package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Stream decodes tokens that come one at a time, as a model generates them. It keeps the bytes of a character back
// until the character is complete. The texts that Next and Flush return make up the text that Decode returns, with one
// difference: for a run of tokens such as <0xE2> whose bytes are not UTF-8 as a whole, Decode returns U+FFFD for each
// token, and a Stream has already returned the characters with which the run began.
//
// A Stream is for one goroutine.
type Stream struct {
	tokenizer *Tokenizer
	options   DecodeOptions
	steps     []step
	begun     bool
}

// step is a decoder's state in a stream.
type step interface {
	// next takes a token and returns what is ready, which may be nothing.
	next(token string) []string
	// flush returns what next has kept back.
	flush() []string
}

// Stream returns a new Stream. Its time is linear in the number of tokens, and it keeps nothing of the text that it
// returned.
func (t *Tokenizer) Stream(o DecodeOptions) *Stream {
	s := &Stream{tokenizer: t, options: o}
	if t != nil {
		for _, d := range t.decode {
			s.steps = append(s.steps, d.stream())
		}
	}
	return s
}

// Next returns the text that is ready after one more token.
func (s *Stream) Next(id int32) string {
	if s == nil {
		return ""
	}
	token, ok := s.tokenizer.token(id, s.options)
	if !ok {
		return ""
	}
	if s.tokenizer.noDecoder {
		if s.begun {
			token = " " + token
		}
		s.begun = true
		return token
	}
	return strings.Join(send(s.steps, []string{token}), "")
}

// Flush returns the text that Next has kept back. Call it after the last token; the Stream then begins a new text.
func (s *Stream) Flush() string {
	if s == nil {
		return ""
	}
	var text []string
	for i, p := range s.steps {
		text = append(text, send(s.steps[i+1:], p.flush())...)
	}
	*s = *s.tokenizer.Stream(s.options)
	return strings.Join(text, "")
}

// send passes tokens through steps.
func send(steps []step, tokens []string) []string {
	for _, p := range steps {
		var out []string
		for _, token := range tokens {
			out = append(out, p.next(token)...)
		}
		tokens = out
	}
	return tokens
}

// each is a step that decodes every token by itself.
type each func(token string) string

func (f each) next(token string) []string { return []string{f(token)} }

func (each) flush() []string { return nil }

func (r replaceDecoder) stream() step { return each(r.token) }

func (fuse) stream() step { return each(func(token string) string { return token }) }

// whole is a decoder that needs the whole text at once.
type whole struct{ decoder }

func (w whole) stream() step { return &waiting{decoder: w.decoder} }

// waiting holds the text back to its end.
type waiting struct {
	decoder
	text []string
}

func (w *waiting) next(token string) []string {
	w.text = append(w.text, token)
	return nil
}

func (w *waiting) flush() []string { return w.decode([]string{strings.Join(w.text, "")}) }

func (m metaspace) stream() step { return &metaspaceStream{metaspace: m} }

type metaspaceStream struct {
	metaspace
	begun bool
}

func (m *metaspaceStream) next(token string) []string {
	text := m.token(token, !m.begun)
	m.begun = true
	return []string{text}
}

func (*metaspaceStream) flush() []string { return nil }

func (byteDecoder) stream() step { return new(byteStream) }

// byteStream holds bytes back that begin a character.
type byteStream struct{ held []byte }

func (b *byteStream) next(token string) []string {
	b.held = unspell(b.held, token)
	n := len(b.held) - unfinished(b.held)
	if n == 0 {
		return nil
	}
	text := repair(string(b.held[:n]))
	b.held = append(b.held[:0], b.held[n:]...)
	return []string{text}
}

func (b *byteStream) flush() []string { return []string{repair(string(b.held))} }

func (byteFallback) stream() step { return new(fallbackStream) }

// fallbackStream holds bytes back that begin a character.
type fallbackStream struct {
	run    []byte
	broken bool // the row of bytes is no UTF-8
}

func (f *fallbackStream) next(token string) []string {
	b, ok := fallbackByte(token)
	if !ok {
		out := append(f.flush(), token)
		return out
	}
	f.run = append(f.run, b)
	switch {
	case !f.broken && utf8.Valid(f.run):
		text := string(f.run)
		f.run = f.run[:0]
		return []string{text}
	case !f.broken && unfinished(f.run) == len(f.run):
		return nil
	}
	f.broken = true
	out := appendInvalid(nil, len(f.run))
	f.run = f.run[:0]
	return out
}

func (f *fallbackStream) flush() []string {
	out := appendInvalid(nil, len(f.run))
	f.run, f.broken = f.run[:0], false
	return out
}

func appendInvalid(tokens []string, n int) []string {
	for range n {
		tokens = append(tokens, replacement)
	}
	return tokens
}

func (s stripDecoder) stream() step {
	if !s.fused {
		return each(func(token string) string { return s.decode([]string{token})[0] })
	}
	return &stripStream{stripDecoder: s, left: s.start}
}

// stripStream strips a text that comes in parts.
type stripStream struct {
	stripDecoder
	left int // how many characters may still go at the front
	held int // characters at the end that may go
}

func (s *stripStream) next(part string) []string {
	for s.left > 0 && part != "" {
		rest, ok := strings.CutPrefix(part, s.char)
		if !ok {
			s.left = 0
			break
		}
		part = rest
		s.left--
	}
	text := strings.Repeat(s.char, s.held) + part
	s.held = 0
	for s.held < s.stop {
		rest, ok := strings.CutSuffix(text, s.char)
		if !ok {
			break
		}
		text = rest
		s.held++
	}
	return []string{text}
}

func (s *stripStream) flush() []string { return nil }

func (s suffixDecoder) stream() step { return &suffixStream{suffixDecoder: s} }

// suffixStream holds one token back, which may be the last.
type suffixStream struct {
	suffixDecoder
	held []string
}

func (s *suffixStream) next(token string) []string {
	out := s.held
	for i := range out {
		out[i] = s.token(out[i], false)
	}
	s.held = []string{token}
	return out
}

func (s *suffixStream) flush() []string {
	for i := range s.held {
		s.held[i] = s.token(s.held[i], true)
	}
	return s.held
}
