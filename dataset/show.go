package dataset

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strings"

	"github.com/snug-ml/snug/tokenizer"
)

// Shown is a sample with what is learned of it.
type Shown struct {
	From  string // where it is, such as "chats.jsonl line 3"; empty beyond the first 1000 samples
	Texts []ShownText
}

// ShownText is a text of a sample: of a pair, the prompt with the chosen answer, and then with the rejected one; of other
// samples there is one.
type ShownText struct {
	Pieces []Piece
	Tokens int // tokens that are read, as Stats counts them: all but the last one, which is only predicted
	Labels int // tokens that are learned; a first token is none
}

// Piece is a part of a text that is learned whole, or not at all.
type Piece struct {
	Text    string
	Learned bool
}

// Marks around what is learned in the text of a ShownText.
const (
	LearnedBegin = "⟦"
	LearnedEnd   = "⟧"
)

// ownMarks writes marks that are in the data itself.
var ownMarks = strings.NewReplacer(LearnedBegin, `\u27e6`, LearnedEnd, `\u27e7`)

// String returns the piece, if it is learned between [LearnedBegin] and [LearnedEnd]. These are \u27e6 and \u27e7 in it.
func (p Piece) String() string {
	text := ownMarks.Replace(p.Text)
	if p.Learned {
		return LearnedBegin + text + LearnedEnd
	}
	return text
}

// String returns the text with the special tokens in it, as its pieces are written.
func (x ShownText) String() string {
	var b strings.Builder
	for _, p := range x.Pieces {
		b.WriteString(p.String())
	}
	return b.String()
}

// maxOrigins is of how many samples a set knows where they are from.
const maxOrigins = 1000

// origin notes where the samples since the last call are from.
func (s *Set) origin(from string) {
	for len(s.origins) < min(s.list.n, maxOrigins) {
		s.origins = append(s.origins, from)
	}
}

// Show yields the samples in the order of the files, those that are held out among them, as they are learned: after they
// are cut to the context. tok is the tokenizer of Open. It decodes one sample at a time, and ends after an error.
func (s *Set) Show(tok *tokenizer.Tokenizer) iter.Seq2[Shown, error] {
	return func(yield func(Shown, error) bool) {
		for n := range s.list.n {
			shown, err := s.show(tok, s.list.get(n))
			if n < len(s.origins) {
				shown.From = s.origins[n]
			}
			if !yield(shown, err) || err != nil {
				return
			}
		}
	}
}

func (s *Set) show(tok *tokenizer.Tokenizer, x sample) (shown Shown, err error) {
	stored, err := s.spool.read(x.at, int(x.n))
	if err != nil {
		return shown, err
	}
	ids, learned := make([]int32, x.n), make([]bool, x.n)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(stored[tokenBytes*i:]))
		if learned[i] = ids[i] >= 0; !learned[i] {
			ids[i] = ^ids[i]
		}
	}
	for _, text := range x.texts() {
		shown.Texts = append(shown.Texts, s.counted(tok, showText(tok, ids[text[0]:text[1]], learned[text[0]:text[1]])))
	}
	return shown, nil
}

// counted returns a text with a number in place of the placeholders of an image that follow the first: "<|image_pad|> × 256".
func (s *Set) counted(tok *tokenizer.Tokenizer, x ShownText) ShownText {
	if s.options.Images == nil {
		return x
	}
	for _, token := range []int32{s.options.Images.Token(), s.options.Images.VideoToken()} {
		name, _ := tok.Token(token)
		x.count(name)
	}
	return x
}

// count writes a number in place of a token's text that is there several times in a row.
func (x *ShownText) count(name string) {
	for i := range x.Pieces {
		var b strings.Builder
		rest := x.Pieces[i].Text
		for name != "" {
			before, after, found := strings.Cut(rest, name)
			if !found {
				break
			}
			n := 1
			for strings.HasPrefix(after, name) {
				n, after = n+1, after[len(name):]
			}
			b.WriteString(before + name)
			if n > 1 {
				fmt.Fprintf(&b, " × %d", n)
			}
			rest = after
		}
		x.Pieces[i].Text = b.String() + rest
	}
}

// showText divides the text of tokens where it changes whether they are learned. The first token is never a label.
func showText(tok *tokenizer.Tokenizer, ids []int32, learned []bool) (x ShownText) {
	x.Tokens = max(len(ids)-1, 0)
	whole := tok.Decode(ids, tokenizer.DecodeOptions{})
	at := 0
	for i := 0; i < len(ids); {
		is := learned[i] && i > 0
		n := i
		for n < len(ids) && (learned[n] && n > 0) == is {
			n++
		}
		end := len(whole)
		if n < len(ids) {
			end = max(at, commonPrefix([]byte(whole), []byte(tok.Decode(ids[:n], tokenizer.DecodeOptions{}))))
			for end < len(whole) && !startsRune(whole[end]) {
				end++
			}
		}
		if is {
			x.Labels += n - i
		}
		x.Pieces = append(x.Pieces, Piece{whole[at:end], is})
		at, i = end, n
	}
	return x
}
