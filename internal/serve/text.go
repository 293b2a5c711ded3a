package serve

import (
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug/tokenizer"
)

// writing is the text of an answer, while its tokens come. It holds back the bytes of a character until the character is complete, and
// what may be the beginning of a text that stops the answer.
type writing struct {
	stream  *tokenizer.Stream
	stops   []string
	held    string
	written int  // bytes that were returned
	chars   int  // characters of these
	stopped bool // one of the stops came
}

func newWriting(tok *tokenizer.Tokenizer, stops []string) *writing {
	return &writing{stream: tok.Stream(tokenizer.DecodeOptions{SkipSpecial: true}), stops: stops}
}

// next returns the text that is ready after one more token.
func (w *writing) next(token int32) string { return w.take(w.stream.Next(token), false) }

// end returns the rest of the text.
func (w *writing) end() string { return w.take(w.stream.Flush(), true) }

// length returns the bytes and the characters of the text so far, with what is held back for a stop.
func (w *writing) length() (bytes, chars int) {
	return w.written + len(w.held), w.chars + utf8.RuneCountInString(w.held)
}

func (w *writing) take(more string, last bool) (ready string) {
	if w.stopped {
		return ""
	}
	w.held += more
	cut := len(w.held)
	for _, stop := range w.stops {
		if at := strings.Index(w.held, stop); at >= 0 && at <= cut {
			cut, w.stopped = at, true
		}
	}
	switch {
	case w.stopped:
		ready, w.held = w.held[:cut], ""
	case last:
		ready, w.held = w.held, ""
	default:
		keep := 0
		for _, stop := range w.stops {
			for n := min(len(stop)-1, len(w.held)); n > keep; n-- {
				if strings.HasSuffix(w.held, stop[:n]) {
					keep = n
				}
			}
		}
		ready, w.held = w.held[:len(w.held)-keep], w.held[len(w.held)-keep:]
	}
	w.written += len(ready)
	w.chars += utf8.RuneCountInString(ready)
	return ready
}
