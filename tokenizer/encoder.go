package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// Sizes of an [Encoder].
const (
	encoderWindow = 64 << 10 // bytes that wait for what follows
	encoderAhead  = 4 << 10  // bytes behind a cut that a search may look at
	encoderTries  = 6        // places that are tried before more text is waited for
)

// Encoder encodes a text that comes in parts. The ids are those of [Tokenizer.Encode] of the whole text: the text is cut
// only where everything that follows is encoded independently of what comes before. That is proved for each cut: no added
// token, match of a pattern, composed character or merge reaches over it, whatever comes later.
//
// It holds about 64 KiB of text and their ids. A long stretch without such a place, such as a word of a megabyte, is
// held as a whole, up to the limit that [Tokenizer.Encoder] is given. So is all of the text where the Unigram of a tokenizer.json
// comes without a pre-tokenizer that cuts, because its sums round by everything before. In a tokenizer.model a text of Unigram is cut
// before spaces, if no piece has a space inside, and the sum goes on behind the cut.
type Encoder struct {
	t     *Tokenizer
	o     EncodeOptions
	limit int
	emit  func(ids []int32) error

	window, ahead int // encoderWindow and encoderAhead

	buf   []byte  // text that is not encoded yet
	want  int     // bytes of buf at which a cut is looked for
	inner bool    // buf begins where the text was cut
	sum   float64 // of the scores of the last word before buf
	err   error   // of an earlier call
}

// Encoder returns an [Encoder], which calls emit with the ids in their order, some at a time, in a slice that is valid
// until emit returns. It holds up to limit bytes of text, 64 KiB at least; a text with a longer stretch that cannot be cut is an error.
//
// Errors wrap [snug.ErrConfig]: for an Encoder of no Tokenizer, for the options Truncate and Pad, which need a text as a
// whole, and later as those of Encode do.
func (t *Tokenizer) Encoder(o EncodeOptions, limit int, emit func(ids []int32) error) (*Encoder, error) {
	if t == nil || t.model == nil || emit == nil {
		return nil, fmt.Errorf("tokenizer: an Encoder wants a Tokenizer that was opened, and a function for the ids: %w", snug.ErrConfig)
	}
	if o.Truncate || o.Pad {
		return nil, fmt.Errorf("tokenizer: an Encoder can neither truncate nor pad: %w", snug.ErrConfig)
	}
	e := &Encoder{t: t, o: o, limit: max(limit, encoderWindow), emit: emit, window: encoderWindow, ahead: encoderAhead}
	e.err = e.special(true)
	return e, e.err
}

// special emits the ids that the post-processor adds in front of a text, or behind it.
func (e *Encoder) special(front bool) error {
	if e.o.NoSpecial {
		return nil
	}
	var ids []int32
	for _, p := range e.t.post {
		for _, part := range p.(template) {
			switch {
			case part.text:
				if front {
					return e.give(ids)
				}
				ids = nil
			default:
				ids = append(ids, part.ids...)
			}
		}
	}
	if front {
		return nil
	}
	return e.give(ids)
}

func (e *Encoder) give(ids []int32) error {
	if len(ids) == 0 {
		return nil
	}
	if err := e.t.within(ids); err != nil {
		return err
	}
	return e.emit(ids)
}

// Write implements [io.Writer]. Errors are those of [Tokenizer.Encoder], of [Tokenizer.Encode] and of emit. After an error,
// calls return it again.
func (e *Encoder) Write(text []byte) (n int, err error) {
	for n < len(text) && e.err == nil {
		part := text[n:min(len(text), n+e.window)]
		e.buf = append(e.buf, part...)
		n += len(part)
		for len(e.buf) >= max(e.want, e.window) && e.err == nil {
			e.err = e.some()
		}
	}
	return n, e.err
}

// Close encodes the rest of the text. The Encoder is done then.
func (e *Encoder) Close() error {
	if e.err != nil {
		return e.err
	}
	if e.err = e.encode(repair(string(e.buf))); e.err == nil {
		e.err = e.special(false)
	}
	err := e.err
	e.buf, e.err = nil, fmt.Errorf("tokenizer: an Encoder that is closed: %w", snug.ErrConfig)
	return err
}

// some encodes a part of buf, or waits for more.
func (e *Encoder) some() error {
	raw := e.buf[:len(e.buf)-unfinished(e.buf)]
	text := repair(string(raw))
	at := 0
	if len(text) == len(raw) { // else places in text are not those of buf, and broken text is rare
		at = e.cutPlace(text)
	}
	if at == 0 {
		if len(e.buf) >= e.limit {
			return fmt.Errorf("tokenizer: %d bytes of text have no place at which this tokenizer cuts them, and %d is the limit: write spaces or line breaks into long words, or divide the text where they do not help: %w", len(e.buf), e.limit, snug.ErrConfig)
		}
		e.want = min(2*len(e.buf), max(e.limit, len(e.buf)+1))
		return nil
	}
	if err := e.encode(text[:at]); err != nil {
		return err
	}
	e.inner = true
	e.buf = append(e.buf[:0], e.buf[at:]...)
	e.want = e.window
	if cap(e.buf) > 4*e.window && len(e.buf) < e.window {
		e.buf = append(make([]byte, 0, 2*e.window), e.buf...)
	}
	return nil
}

// encode emits the ids of a part of the text.
func (e *Encoder) encode(text string) error {
	var ids []int32
	var failed error // of emit
	flush := func() error {
		failed = e.give(ids)
		ids = ids[:0]
		return failed
	}
	model := func(p piece) (err error) {
		if len(p.text) > encoderWindow {
			if err := flush(); err != nil {
				return err
			}
			return e.t.model.long(p, func(some []int32) error {
				failed = e.give(some)
				return failed
			})
		}
		if ids, err = e.t.model.encode(ids, p); err == nil && len(ids) >= encoderWindow {
			err = flush()
		}
		return err
	}
	err := e.t.each(walk{text: text, inner: e.inner, plain: e.o.PlainSpecial, sum: &e.sum}, func(id int32, _ Span) { ids = append(ids, id) }, model)
	if err == nil {
		err = flush()
	}
	if failed != nil {
		return failed
	}
	if err != nil {
		return ofText(err)
	}
	return nil
}

// Prefix returns a beginning of a text, of about n bytes, whose ids are the first ids of the text, except for those that the
// post-processor adds behind. It returns the whole text if it finds no place to cut it, as [Encoder] does, so that a caller who
// needs few tokens of a long text can encode these alone. It holds a copy or two of n bytes.
func (t *Tokenizer) Prefix(text string, n int, o EncodeOptions) string {
	if t == nil || t.model == nil || !utf8.ValidString(text) {
		return text
	}
	e := &Encoder{t: t, o: o, ahead: encoderAhead}
	for size := max(n, 1); size < len(text)-encoderAhead; size *= 2 {
		if at := e.cutPlace(text[:runeStart(text, size+encoderAhead)]); at > 0 {
			return text[:at]
		}
	}
	return text
}

// cutPlace returns a place at which the text that goes on can be cut, 0 if none is found.
func (e *Encoder) cutPlace(text string) int {
	for _, suits := range []func(before, after rune) bool{spaced, joined} {
		hi := len(text) - e.ahead
		for range encoderTries {
			at := lastPlace(text[:runeStart(text, hi)], suits)
			if at == 0 {
				break
			}
			if e.t.cuts(text, at, e.inner, e.o.PlainSpecial) {
				return at
			}
			hi = at - len(text)/(2*encoderTries)
		}
	}
	return 0
}

// runeStart returns the last place at or before a place at which a character begins, 0 if the place is negative.
func runeStart(text string, at int) int {
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return max(at, 0)
}
