// Package tokenizer reads the tokenizer.json of a Hugging Face model and turns text into
// token ids and back. The ids are those of Hugging Face's own library tokenizers.
//
//	tok, err := tokenizer.Open("models/llama")             // a folder, or the file
//	if err != nil {
//		return err
//	}
//	ids, err := tok.Encode("How are you?", tokenizer.EncodeOptions{})
//	text := tok.Decode(ids, tokenizer.DecodeOptions{SkipSpecial: true})
//	end, ok := tok.ID("</s>")
//	s := tok.Stream(tokenizer.DecodeOptions{})             // text while tokens come
//	fmt.Print(s.Next(ids[0]), s.Next(ids[1]), s.Flush())
//
// A tokenizer is a chain of five parts. The normalizer rewrites the text, the
// pre-tokenizer cuts it into words, the model cuts the words into tokens, the
// post-processor adds special tokens, and the decoder makes text of tokens. Added tokens,
// such as <|endoftext|>, are found in the text before all that.
//
// The package knows the parts that decoder-only models use:
//
//	model           BPE
//	normalizers     NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, Sequence
//	pre-tokenizers  ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit,
//	                Punctuation, Sequence
//	post-processors TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence
//	decoders        ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder, Sequence
//
// Open refuses any other part by its name, and keys that it does not know.
//
// Text is UTF-8. Every other sequence of bytes counts as U+FFFD, one for each longest part
// that could begin a character, as bytes.decode("utf-8", "replace") does in Python.
package tokenizer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// Tokenizer is an open tokenizer. It does not change, and is safe for concurrent use.
type Tokenizer struct {
	config     Config
	added      added
	normalizer normalizers
	split      []preTokenizer
	model      *bpe
	post       []postProcessor
	decode     []decoder
	noDecoder  bool
	truncation *truncation
	padding    *padding

	texts []string         // by id: what Token returns
	shown []string         // by id: what decoders get
	known []bool           // by id
	ids   map[string]int32 // of added tokens, which are asked for first
}

// The longest files and text.
const (
	maxFile = 256 << 20
	maxText = 1 << 30
)

// Open reads tokenizer.json in a folder, and what lies beside it for [Config]; or the one
// file that path names. Errors wrap [snug.ErrCorrupt] where a file is damaged,
// [snug.ErrConfig] where it asks for what this package does not have, or are those of the
// file system.
func Open(path string) (*Tokenizer, error) {
	if path == "" {
		return nil, fmt.Errorf("tokenizer: an empty path: %w", snug.ErrConfig)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	folder, file := filepath.Dir(path), path
	if info.IsDir() {
		folder, file = path, filepath.Join(path, "tokenizer.json")
	}
	data, err := readFile(file)
	if err != nil {
		return nil, err
	}
	t, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if t.config, err = readConfig(folder); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("tokenizer: %s has more than %d bytes: %w", path, maxFile, snug.ErrConfig)
	}
	return data, nil
}

// readIf is readFile where there may be no file.
func readIf(path string) ([]byte, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// EncodeOptions says what Encode adds to the text's own tokens, and what it leaves out.
// The zero EncodeOptions encodes as the library tokenizers does by default, without its
// truncation and padding.
type EncodeOptions struct {
	// NoSpecial leaves out the tokens that the post-processor adds, such as <s> in front.
	NoSpecial bool
	// PlainSpecial encodes the names of special tokens in the text as text like any other.
	// Text that users write should not be able to end a turn.
	PlainSpecial bool
	// Truncate cuts the tokens as the file's section "truncation" says.
	Truncate bool
	// Pad adds padding tokens as the file's section "padding" says. A batch is this one text.
	Pad bool
}

// Encode returns the token ids of a text. Time is almost linear in the length of the text,
// which is 1 GiB at most. Words that come again are taken from a cache of some megabytes.
// Errors wrap [snug.ErrConfig] when the file has no token for a character and names an
// unknown token that is not in its vocabulary, has no section that o asks for, or has a
// pattern that takes quadratic time on this text; and [snug.ErrShape] for longer text.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	if t == nil || t.model == nil {
		return nil, fmt.Errorf("tokenizer: a Tokenizer that was not opened: %w", snug.ErrConfig)
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("tokenizer: a text of %d bytes, want %d at most: %w", len(text), maxText, snug.ErrShape)
	}
	if o.Truncate && t.truncation == nil || o.Pad && t.padding == nil {
		return nil, fmt.Errorf("tokenizer: EncodeOptions ask for truncation or padding, and the file's section for it is null: %w", snug.ErrConfig)
	}
	ids, err := t.tokens(repair(text), o.PlainSpecial)
	if err != nil {
		return nil, err
	}
	if o.Truncate {
		if ids, err = t.truncate(ids, !o.NoSpecial); err != nil {
			return nil, err
		}
	}
	if !o.NoSpecial {
		for _, p := range t.post {
			ids = p.apply(ids)
		}
	}
	if o.Pad {
		return t.padding.apply(ids)
	}
	return ids, nil
}

// tokens returns the ids of a text of UTF-8, without those of the post-processor.
func (t *Tokenizer) tokens(text string, plain bool) ([]int32, error) {
	ids := make([]int32, 0, len(text)/4+8)
	emit := func(p piece) (err error) {
		ids, err = t.model.encode(ids, p)
		return err
	}
	words := chain(t.split, emit)
	token := func(id int32) { ids = append(ids, id) }
	err := t.added.raw.each(text, plain, token, func(from, to int) error {
		part := piece{text: text[from:to]}
		if from == 0 {
			part.head = firstSize(part.text)
		}
		if err := t.normalizer.apply(&part); err != nil {
			return err
		}
		return t.added.normalized.each(part.text, plain, token, func(from, to int) error {
			return words(part.cut(from, to))
		})
	})
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w: %w", err, snug.ErrConfig)
	}
	return ids, nil
}

// ID returns the id of a token, which is spelled as in the file: ▁ or Ġ may stand for a
// space.
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	if t == nil || t.model == nil {
		return 0, false
	}
	if id, ok = t.ids[token]; ok {
		return id, true
	}
	id, ok = t.model.vocab[token]
	return id, ok
}

// Token returns the token of an id, as the file spells it.
func (t *Tokenizer) Token(id int32) (token string, ok bool) {
	if !t.has(id) {
		return "", false
	}
	return t.texts[id], true
}

// Len returns the number of rows that an embedding needs: the largest id and 1. Models may
// have more rows.
func (t *Tokenizer) Len() int {
	if t == nil {
		return 0
	}
	return len(t.texts)
}

// Special reports whether an id is a special token's, such as <s> or <|im_end|>.
func (t *Tokenizer) Special(id int32) bool {
	return t.has(id) && t.added.special[t.texts[id]]
}

// Config returns what the files beside tokenizer.json say. The zero Config means that
// there are none, or that Open was given the one file.
func (t *Tokenizer) Config() Config {
	if t == nil {
		return Config{}
	}
	c := t.config
	c.Templates = maps.Clone(c.Templates)
	return c
}

func (t *Tokenizer) has(id int32) bool {
	return t != nil && id >= 0 && int(id) < len(t.known) && t.known[id]
}

// name enters a token under its id.
func (t *Tokenizer) name(id int32, text, shown string) {
	if n := int(id) + 1; n > len(t.texts) {
		t.texts = slices.Grow(t.texts, n-len(t.texts))[:n]
		t.shown = slices.Grow(t.shown, n-len(t.shown))[:n]
		t.known = slices.Grow(t.known, n-len(t.known))[:n]
	}
	t.texts[id], t.shown[id], t.known[id] = text, shown, true
}

// firstSize returns the bytes of the first character.
func firstSize(s string) int {
	_, size := utf8.DecodeRuneInString(s)
	return size
}
