package tokenizer

import (
	"slices"
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
	send      func(token string) // to the first step
	flushes   []func()           // of the steps, the last one first
	text      []byte             // that is ready
	begun     bool
	whole     bool // the bytes of a run wait for its end, as for Decode
}

// step is a decoder's state.
type step interface {
	// next takes a token and sends what is ready, which may be nothing.
	next(token string, send func(string))
	// flush sends what next has kept back.
	flush(send func(string))
}

// Stream returns a new Stream. Its time is linear in the number of tokens, and it keeps nothing of the text that it
// returned.
func (t *Tokenizer) Stream(o DecodeOptions) *Stream {
	s := &Stream{tokenizer: t, options: o}
	s.begin()
	return s
}

// begin begins a text.
func (s *Stream) begin() {
	s.begun, s.flushes, s.text = false, nil, nil
	s.send = func(text string) { s.text = append(s.text, text...) }
	if s.tokenizer == nil {
		return
	}
	for _, d := range slices.Backward(s.tokenizer.decode) {
		one, send := d.stream(), s.send
		if f, ok := one.(*fallbackStream); ok {
			f.whole = s.whole
		}
		s.send = func(token string) { one.next(token, send) }
		s.flushes = append(s.flushes, func() { one.flush(send) })
	}
}

// next sends one more token.
func (s *Stream) next(id int32) {
	token, ok := s.tokenizer.token(id, s.options)
	if !ok {
		return
	}
	if s.begun && s.tokenizer.noDecoder {
		token = " " + token
	}
	s.begun = true
	s.send(token)
}

// end returns the text that is ready, with what steps keep back.
func (s *Stream) end() string {
	for _, flush := range slices.Backward(s.flushes) {
		flush()
	}
	return string(s.text)
}

// Next returns the text that is ready after one more token.
func (s *Stream) Next(id int32) string {
	if s == nil {
		return ""
	}
	s.next(id)
	text := string(s.text)
	s.text = s.text[:0]
	return text
}

// Flush returns the text that Next has kept back. Call it after the last token; the Stream then begins a new text.
func (s *Stream) Flush() string {
	if s == nil {
		return ""
	}
	defer s.begin()
	return s.end()
}

// each is a step that decodes every token by itself.
type each func(token string) string

func (f each) next(token string, send func(string)) { send(f(token)) }

func (each) flush(func(string)) {}

func (r replaceDecoder) stream() step { return each(r.token) }

func (fuse) stream() step { return each(func(token string) string { return token }) }

// whole is a decoder that needs the whole text at once.
type whole struct{ decoder }

func (w whole) stream() step { return &waiting{decoder: w.decoder} }

// waiting holds the text back to its end.
type waiting struct {
	decoder
	text []byte
}

func (w *waiting) next(token string, _ func(string)) { w.text = append(w.text, token...) }

func (w *waiting) flush(send func(string)) {
	s := w.decoder.stream()
	s.next(string(w.text), send)
	s.flush(send)
}

func (m metaspace) stream() step {
	begun := false
	return each(func(token string) string {
		text := m.token(token, !begun)
		begun = true
		return text
	})
}

func (byteDecoder) stream() step { return new(byteStream) }

// byteStream holds bytes back that begin a character.
type byteStream struct{ held []byte }

func (b *byteStream) next(token string, send func(string)) {
	b.held = unspell(b.held, token)
	if n := len(b.held) - unfinished(b.held); n > 0 {
		send(repair(string(b.held[:n])))
		b.held = append(b.held[:0], b.held[n:]...)
	}
}

func (b *byteStream) flush(send func(string)) { send(repair(string(b.held))) }

func (byteFallback) stream() step { return new(fallbackStream) }

// fallbackStream holds bytes back that begin a character, or the whole run of them.
type fallbackStream struct {
	run    []byte
	broken bool // the row of bytes is no UTF-8
	whole  bool
}

func (f *fallbackStream) next(token string, send func(string)) {
	b, ok := fallbackByte(token)
	if !ok {
		f.flush(send)
		send(token)
		return
	}
	f.run = append(f.run, b)
	if valid := utf8.Valid(f.run); f.whole || !f.broken && !valid && unfinished(f.run) == len(f.run) {
		return
	} else if f.broken = f.broken || !valid; f.broken {
		sendInvalid(send, len(f.run))
	} else {
		send(string(f.run))
	}
	f.run = f.run[:0]
}

func (f *fallbackStream) flush(send func(string)) {
	if len(f.run) > 0 && utf8.Valid(f.run) {
		send(string(f.run))
	} else {
		sendInvalid(send, len(f.run))
	}
	f.run, f.broken = f.run[:0], false
}

// sendInvalid sends U+FFFD for bytes that are no UTF-8.
func sendInvalid(send func(string), n int) {
	for range n {
		send(replacement)
	}
}

func (s stripDecoder) stream() step {
	if !s.fused {
		return each(func(token string) string { return (&stripStream{s, s.start, 0}).strip(token) })
	}
	return each((&stripStream{s, s.start, 0}).strip)
}

// stripStream strips a text that comes in parts.
type stripStream struct {
	stripDecoder
	left int // how many characters may still go at the front
	held int // characters at the end that may go
}

func (s *stripStream) strip(part string) string {
	for ; s.left > 0 && strings.HasPrefix(part, s.char); s.left-- {
		part = part[len(s.char):]
	}
	if part != "" {
		s.left = 0
	}
	text := strings.Repeat(s.char, s.held) + part
	for s.held = 0; s.held < s.stop && strings.HasSuffix(text, s.char); s.held++ {
		text = text[:len(text)-len(s.char)]
	}
	return text
}

func (s suffixDecoder) stream() step { return &suffixStream{suffixDecoder: s} }

// suffixStream holds one token back, which may be the last.
type suffixStream struct {
	suffixDecoder
	held  string
	holds bool
}

func (s *suffixStream) next(token string, send func(string)) {
	if s.holds {
		send(s.token(s.held, false))
	}
	s.held, s.holds = token, true
}

func (s *suffixStream) flush(send func(string)) {
	if s.holds {
		send(s.token(s.held, true))
	}
}
