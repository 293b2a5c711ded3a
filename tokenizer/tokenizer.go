// Package tokenizer reads the tokenizer.json of a Hugging Face model, or else the files of Mistral's tekken, SentencePiece, BERT or
// tiktoken, or the tokenizer in a GGUF file of llama.cpp's, encodes text as token ids and decodes ids as text. The ids equal the ids
// of the library that the file is of: Hugging Face's tokenizers, or mistral_common, sentencepiece and tiktoken.
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
// A tokenizer is a chain of five parts. The normalizer rewrites the text, the pre-tokenizer cuts it into words, the
// model cuts the words into tokens, the post-processor adds special tokens, and the decoder makes text of tokens.
// Before the normalizer works, Encode looks for added tokens in the text, such as <|endoftext|>.
//
// The package knows these parts:
//
//	model           BPE, Unigram, WordPiece, WordLevel
//	normalizers     NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace,
//	                Precompiled, BertNormalizer, Sequence
//	pre-tokenizers  ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit,
//	                CharDelimiterSplit, Punctuation, BertPreTokenizer, Sequence
//	post-processors TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence
//	decoders        ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder,
//	                WordPiece, Sequence
//
// Open returns an error that names any other part, and any key that the package does not know.
//
// Text is UTF-8. Bytes that are not count as U+FFFD, as bytes.decode("utf-8", "replace") in Python replaces them: one
// for each longest sequence that could begin a character.
package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
)

// Tokenizer encodes and decodes text. It does not change, and is safe for concurrent use. Make one with [Open] or
// [Parse].
type Tokenizer struct {
	config     Config
	added      added
	normalizer normalizers
	split      []preTokenizer
	splitFile  json.RawMessage // of split
	model      model
	post       []postProcessor
	decode     []decoder
	noDecoder  bool
	truncation *truncation
	padding    *padding
	rows       int // of the model's embedding, 0 for enough

	texts []string         // by id: what Token returns
	shown []string         // by id: what decoders get
	known []bool           // by id
	ids   map[string]int32 // of added tokens, which ID looks for first
}

const (
	maxFile = 256 << 20 // bytes of tokenizer.json, the limit of files.Vocabulary
	maxText = 1 << 30   // bytes of a text
)

// Open reads tokenizer.json and the files of [Config] from a folder, or a tokenizer.json or a GGUF file from its path, through
// links if they lead to regular files. A tokenizer.json has at most 256 MiB, tokenizer_config.json 16 MiB, and
// chat_template.jinja 1 MiB.
//
// A folder without tokenizer.json may have, in this order:
//
//   - tekken.json, Mistral's. Texts begin with <s> unless tokenizer_config.json has add_bos_token false.
//   - tokenizer.model, a model of SentencePiece, Unigram or BPE. Its control symbols are special tokens, as are the pieces that
//     tokenizer_config.json calls special; its unknown token is decoded by its name. What is around the texts is that of transformers
//     5.24 for the folder: BOS and EOS are added where add_bos_token and add_eos_token are true, and BOS by default for
//     CodeLlamaTokenizer alone. The text behind a special token gets a space in front as "legacy" says, or else for all
//     classes but LlamaTokenizer and CodeLlamaTokenizer. The ids of the text are those of sentencepiece; transformers' own
//     conversion differs in places, and LlamaTokenizer there adds no space to a text that begins with one.
//   - vocab.json and merges.txt, of transformers' GPT2Tokenizer or Qwen2Tokenizer: tokenizer_config.json says which, or else
//     config.json by the type of its model.
//   - vocab.txt, of BertTokenizer, DistilBertTokenizer, ElectraTokenizer or MobileBertTokenizer, as tokenizer_config.json says, or
//     else config.json by the type of its model, with the options of tokenizer_config.json.
//   - qwen.tiktoken of QWenTokenizer, or a tiktoken.model (or tokenizer.model) whose special tokens tokenizer_config.json has.
//
// Added tokens are those of tokenizer_config.json and added_tokens.json, as transformers 5 adds them. For other files the error has
// the command that writes tokenizer.json of them.
//
// A file that begins with "GGUF" is read as one of llama.cpp's, or as the first of a model that is split: the tokens, their kinds,
// merges or scores, the pre-tokenizer, special tokens and chat templates of its metadata. Kinds of tokenizers are "gpt2", "llama"
// and "gemma4", and pre-tokenizers are those that models for text have. Tokens are those of the published tokenizer.json as far as
// the metadata tell it. They do not say the following. A normalizer: Qwen's, OLMo's, MPT's and Command R's names stand for NFC, which
// llama.cpp does not apply. Whether added tokens take the white space beside them: Phi-3's special tokens do. Whether ▁ in an added
// token is meant: it is a space. The order of the merges of "llama" is that of the scores, as in tokenizers that were converted from
// SentencePiece, and of equal scores that of transformers' converter, where llama.cpp takes the leftmost. Special tokens
// are as in [Config], with eot_token and eom_token, which end a turn and a message. A file has 2 million tokens at most.
// [FilesOfGGUF] makes a folder of it.
//
// Reading takes up to 40 times the file's size in memory, of a GGUF file that of its metadata, and 300 MiB: the normalizer, the pre-tokenizer, the
// post-processor and the decoder have 1 MiB of JSON and 64 parts at most, a pattern takes 1 MiB at most, and added tokens
// have 2 million different beginnings at most. The pieces of a tokenizer.model have 16 MiB at most: a file of that size takes 300 MB and some seconds.
//
// Errors wrap [snug.ErrCorrupt] for a damaged file and [snug.ErrConfig] for a part, a key or a value that
// this package does not support, or come from the file system.
func Open(path string) (*Tokenizer, error) {
	if path == "" {
		return nil, fmt.Errorf("tokenizer: an empty path: %w", snug.ErrConfig)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if !info.IsDir() {
		is, err := isGGUF(path)
		var t *Tokenizer
		if is {
			t, err = openGGUF(path)
		}
		if is || err != nil {
			return t, fault.Of(err, "tokenizer")
		}
		data, err := readFile(path, files.Vocabulary)
		if err != nil {
			return nil, err
		}
		return parse(path, data)
	}
	config, more, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(path, "tokenizer.json")
	data, err := readIf(file, files.Vocabulary)
	var t *Tokenizer
	switch {
	case err != nil:
		return nil, err
	case data != nil:
		if t, err = parse(file, data); err == nil {
			config.standard(classes[more.class()].standard, more, t)
		}
	default:
		t, err = openForm(path, &config, more)
	}
	if err != nil {
		return nil, err
	}
	t.config = config
	return t, nil
}

func readFile(path string, kind files.Kind) ([]byte, error) {
	data, err := files.ReadInput(path, kind)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return data, nil
}

// readIf returns nil for a file that does not exist.
func readIf(path string, kind files.Kind) ([]byte, error) {
	data, err := readFile(path, kind)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// EncodeOptions says which tokens Encode adds or leaves out. The zero EncodeOptions encodes as the library tokenizers
// does by default, without truncation and padding.
type EncodeOptions struct {
	// NoSpecial leaves out the tokens that the post-processor adds, such as <s> in front.
	NoSpecial bool
	// PlainSpecial encodes the names of special tokens, such as <|im_end|>, as plain text. Set it for text of users,
	// which must not end a turn.
	PlainSpecial bool
	// Truncate cuts the tokens as the file's section "truncation" says.
	Truncate bool
	// Pad adds padding tokens as the file's section "padding" says, for a batch of this one text.
	Pad bool
}

// Encode returns the token ids of a text of at most 1 GiB. Time is almost linear in its length. The search for
// added tokens and for the pieces that the authors of a tokenizer.model have defined takes a step for each byte of the longest of them that
// it is led to: texts and files that are made for it take 5 seconds a megabyte. A word of Unigram takes 16 bytes of
// memory for each of its bytes, and where nothing cuts a text into words, as in a tokenizer.model, the text is one word. A cache of some
// megabytes has the ids of words that were encoded before.
//
// Errors wrap [snug.ErrShape] for a longer text, and [snug.ErrConfig] in three cases: the text has a character without
// a token, and the file's unknown token is not in the vocabulary; the file lacks the section "truncation" or "padding"
// that o needs; or a pattern of the file takes more than some hundred
// steps for each byte of this text, or more than a million choices that it leaves open.
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
	ids, _, err := t.tokens(repair(text), o.PlainSpecial, false)
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
		if ids, err = t.padding.apply(ids); err != nil {
			return nil, err
		}
	}
	return ids, t.within(ids)
}

// Limit returns the tokenizer for a model whose embedding has a number of rows: Encode and EncodeSpans return an error
// that wraps [snug.ErrConfig] and names the token if a text has one whose id is no row. Models with fewer rows than the
// tokenizer has tokens are published; Gemma 3 without images lacks the row of its token for images. A tokenizer without
// such tokens is returned as it is. The tokenizers share their memory.
func (t *Tokenizer) Limit(rows int) *Tokenizer {
	if t.Len() <= rows || rows <= 0 {
		return t
	}
	limited := *t
	limited.rows = rows
	return &limited
}

// within returns an error for a token that the model has no row for.
func (t *Tokenizer) within(ids []int32) error {
	if t.rows == 0 {
		return nil
	}
	for _, id := range ids {
		if int(id) >= t.rows {
			token, _ := t.Token(id)
			return fmt.Errorf("tokenizer: the text has the token %.100q with id %d, and the model's embedding has %d rows: leave the token out of the text and of the chat template: %w", token, id, t.rows, snug.ErrConfig)
		}
	}
	return nil
}

// tokens returns the ids of a text of UTF-8 before the post-processor and, where placed is set, their places.
func (t *Tokenizer) tokens(text string, plain, placed bool) (ids []int32, places []Span, err error) {
	ids = make([]int32, 0, len(text)/4+8)
	err = t.each(walk{text: text, plain: plain, placed: placed}, func(id int32, place Span) {
		ids = append(ids, id)
		if placed {
			places = append(places, place)
		}
	}, func(p piece) (err error) {
		n := len(ids)
		if ids, err = t.model.encode(ids, p); err == nil && placed {
			places = t.place(places, ids[n:], p)
		}
		return err
	})
	if err != nil {
		return nil, nil, ofText(err)
	}
	return ids, places, nil
}

// walk is a text that is cut into words.
type walk struct {
	text   string // UTF-8
	inner  bool   // the text begins where an Encoder has cut it
	plain  bool   // special tokens are plain text
	placed bool   // pieces have their places
	sum    *float64
}

// each calls token with the added tokens of a text, and word with the words between them, in their order.
func (t *Tokenizer) each(w walk, token func(id int32, place Span), word func(piece) error) error {
	words := chain(t.split, word)
	return t.added.raw.each(w.text, w.plain, func(id int32, from, to int) { token(id, Span{from, to}) }, func(from, to int) error {
		part := piece{text: w.text[from:to], inner: w.inner && from == 0, sum: w.sum}
		if from == 0 && !w.inner {
			part.head = firstSize(part.text)
		}
		if w.placed {
			part.at = make([]Span, to-from)
			for i := range part.at {
				part.at[i] = Span{from + i, from + i + 1}
			}
		}
		if err := t.normalizer.apply(&part); err != nil {
			return err
		}
		return t.added.normalized.each(part.text, w.plain, func(id int32, from, to int) {
			token(id, part.place(from, to))
		}, func(from, to int) error {
			return words(part.cut(from, to))
		})
	})
}

// ID returns the id of a token. The token is spelled as in the file, where ▁ or Ġ may stand for a space.
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	if t == nil || t.model == nil {
		return 0, false
	}
	if id, ok = t.ids[token]; ok {
		return id, true
	}
	return t.model.id(token)
}

// Token returns the token of an id, as the file spells it.
func (t *Tokenizer) Token(id int32) (token string, ok bool) {
	if !t.has(id) {
		return "", false
	}
	return t.texts[id], true
}

// Len returns the number of rows that an embedding needs, the largest id plus 1. Models may have more rows.
func (t *Tokenizer) Len() int {
	if t == nil {
		return 0
	}
	return len(t.texts)
}

// Special reports whether an id is the id of a special token, such as <s> or <|im_end|>.
func (t *Tokenizer) Special(id int32) bool {
	return t.has(id) && t.added.special[t.texts[id]]
}

// Config returns what the other files of the folder, or the metadata of a GGUF file, say. It is the zero Config if there are none,
// and after [Parse] or an Open of tokenizer.json alone.
func (t *Tokenizer) Config() Config {
	if t == nil {
		return Config{}
	}
	c := t.config
	c.Templates, c.Special = maps.Clone(c.Templates), slices.Clone(c.Special)
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
