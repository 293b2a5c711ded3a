package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// options are those of JSON documents. Objects of tokenizer.json have no keys that this
// package does not know, as such a key may change the tokens; keys without omitempty must
// be there.
var options = strictjson.Options{Complete: true, MaxBytes: maxFile}

// file is tokenizer.json.
type file struct {
	Version       string          `json:"version,omitempty"`
	Truncation    *truncationFile `json:"truncation,omitempty"`
	Padding       *paddingFile    `json:"padding,omitempty"`
	AddedTokens   []addedFile     `json:"added_tokens,omitempty"`
	Normalizer    json.RawMessage `json:"normalizer,omitempty"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer,omitempty"`
	PostProcessor json.RawMessage `json:"post_processor,omitempty"`
	Decoder       json.RawMessage `json:"decoder,omitempty"`
	Model         modelPart       `json:"model"`
}

type truncationFile struct {
	Direction string `json:"direction,omitempty"`
	MaxLength uint32 `json:"max_length"`
	Strategy  string `json:"strategy"`
	Stride    uint32 `json:"stride"`
}

type paddingFile struct {
	Strategy  json.RawMessage `json:"strategy"`
	Direction string          `json:"direction"`
	Multiple  *uint32         `json:"pad_to_multiple_of,omitempty"`
	ID        uint32          `json:"pad_id"`
	TypeID    uint32          `json:"pad_type_id"`
	Token     string          `json:"pad_token"`
}

type addedFile struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// modelFile is a model of type BPE.
type modelFile struct {
	Type         string            `json:"type,omitempty"`
	Dropout      *float64          `json:"dropout,omitempty"`
	Unknown      *string           `json:"unk_token,omitempty"`
	Prefix       *string           `json:"continuing_subword_prefix,omitempty"`
	Suffix       *string           `json:"end_of_word_suffix,omitempty"`
	FuseUnknown  *bool             `json:"fuse_unk,omitempty"`
	ByteFallback *bool             `json:"byte_fallback,omitempty"`
	IgnoreMerges *bool             `json:"ignore_merges,omitempty"`
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       []mergeFile       `json:"merges"`
}

// mergeFile is a pair of tokens, in one of the forms "a b" and ["a","b"].
type mergeFile struct {
	a, b    string
	joined  bool // the form "a b"
	comment bool // a line that is none
}

// MarshalJSON returns the form ["a","b"], in which no line is taken for a comment.
func (m mergeFile) MarshalJSON() ([]byte, error) { return plainJSON([2]string{m.a, m.b}) }

func (m *mergeFile) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		pair, ok := plainPair(text)
		if !ok {
			if err := json.Unmarshal(text, &pair); err != nil || len(pair) != 2 {
				return fmt.Errorf("%.100q, want a pair of tokens", text)
			}
		}
		*m = mergeFile{a: pair[0], b: pair[1]}
		return nil
	}
	line, ok := plainString(text)
	if !ok {
		if err := json.Unmarshal(text, &line); err != nil {
			return fmt.Errorf("%.100q, want a pair of tokens", text)
		}
	}
	a, b, ok := strings.Cut(line, " ")
	comment := strings.HasPrefix(line, "#version")
	if !comment && (!ok || strings.Contains(b, " ")) {
		return fmt.Errorf("%.100q, want two tokens with a space between them", line)
	}
	*m = mergeFile{a: a, b: b, joined: true, comment: comment}
	return nil
}

// plainString returns a JSON string that has no escapes.
func plainString(text []byte) (string, bool) {
	n := len(text)
	if n < 2 || text[0] != '"' || text[n-1] != '"' || bytes.IndexByte(text, '\\') >= 0 {
		return "", false
	}
	return string(text[1 : n-1]), true
}

// plainPair returns the elements of ["a","b"] where they have no escapes and no quotes.
func plainPair(text []byte) ([]string, bool) {
	inner := bytes.TrimSpace(text[1 : len(text)-1])
	end := bytes.IndexByte(inner[min(1, len(inner)):], '"') + 2
	if end < 2 || end > len(inner) {
		return nil, false
	}
	a, okA := plainString(inner[:end])
	rest, okComma := bytes.CutPrefix(bytes.TrimSpace(inner[end:]), []byte(","))
	rest = bytes.TrimSpace(rest)
	b, okB := plainString(rest)
	return []string{a, b}, okA && okB && okComma && bytes.Count(rest, []byte(`"`)) == 2
}

// Parse reads the text of a tokenizer.json, as [Open] does. There is no [Config].
func Parse(data []byte) (*Tokenizer, error) { return parse("tokenizer.json", data) }

// parse is Parse of the contents of a file.
func parse(name string, data []byte) (*Tokenizer, error) {
	var f file
	if err := options.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", name, parsed(err))
	}
	t, err := f.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", name, err)
	}
	return t, nil
}

// refused is an error about something that this package does not have.
func refused(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, snug.ErrConfig)...)
}

// ofText is an error about a text, which wraps snug.ErrConfig.
func ofText(err error) error {
	if errors.Is(err, snug.ErrConfig) {
		return fmt.Errorf("tokenizer: %w", err)
	}
	return fmt.Errorf("tokenizer: %w: %w", err, snug.ErrConfig)
}

// damaged is an error about a file that contradicts itself.
func damaged(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, snug.ErrCorrupt)...)
}

func (f *file) build() (t *Tokenizer, err error) {
	if f.Version != "" && f.Version != "1.0" {
		return nil, refused("version %.40q, want 1.0", f.Version)
	}
	t = &Tokenizer{ids: map[string]int32{}}
	t.added.special = map[string]bool{}
	if t.model, err = f.Model.make(t); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if t.normalizer, err = section("normalizer", f.Normalizer, readNormalizer); err != nil {
		return nil, err
	}
	if t.split, err = section("pre_tokenizer", f.PreTokenizer, readPreTokenizer); err != nil {
		return nil, err
	}
	t.splitFile = f.PreTokenizer
	if n := len(t.split); n > 0 {
		if b, ok := t.split[n-1].(byteLevel); ok {
			b.last = true
			t.split[n-1] = b
		}
	}
	if t.post, err = section("post_processor", f.PostProcessor, readPostProcessor); err != nil {
		return nil, err
	}
	if len(t.post) > 1 {
		return nil, refused("post_processor: %d that add tokens, want one", len(t.post))
	}
	if t.decode, err = section("decoder", f.Decoder, readDecoder); err != nil {
		return nil, err
	}
	t.noDecoder = len(t.decode) == 0
	if err := f.add(t); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if t.truncation, err = f.Truncation.build(); err != nil {
		return nil, fmt.Errorf("truncation: %w", err)
	}
	if t.padding, err = f.Padding.build(); err != nil {
		return nil, fmt.Errorf("padding: %w", err)
	}
	return t, nil
}

// add enters the added tokens. A token that the model has keeps its id there, and others
// get the next free ones, as the peer numbers them: ids of the file must be these.
func (f *file) add(t *Tokenizer) error {
	next := int32(t.model.size())
	for i, a := range f.AddedTokens {
		id, ok := t.ID(a.Content)
		if !ok {
			id = next
			next++
		}
		if _, twice := t.ids[a.Content]; twice {
			return damaged("%.100q comes twice", a.Content)
		}
		if a.Content == "" || int64(id) != int64(a.ID) {
			return damaged("[%d] is %.100q with id %d, want id %d and some text", i, a.Content, a.ID, id)
		}
		shown := piece{text: a.Content}
		if a.Normalized {
			if err := t.normalizer.apply(&shown); err != nil {
				return refused("%.100q: %w", a.Content, err)
			}
		}
		t.ids[a.Content] = id
		t.name(id, a.Content, shown.text)
		if a.Special {
			t.added.special[a.Content] = true
		}
		m := &t.added.raw
		if a.Normalized {
			m = &t.added.normalized
		}
		if err := m.add(shown.text, addedToken{id, a.SingleWord, a.LStrip, a.RStrip, a.Special}); err != nil {
			return refused("%.100q: %w", a.Content, err)
		}
	}
	for _, m := range []*matcher{&t.added.raw, &t.added.normalized} {
		if err := m.done(); err != nil {
			return refused("%w", err)
		}
	}
	return nil
}

func (f *truncationFile) build() (*truncation, error) {
	if f == nil {
		return nil, nil
	}
	left := f.Direction == "Left"
	if !left && f.Direction != "" && f.Direction != "Right" {
		return nil, refused("direction %.40q, want Left or Right", f.Direction)
	}
	switch f.Strategy {
	case "LongestFirst", "OnlyFirst":
	default: // OnlySecond has no meaning for one text
		return nil, refused("strategy %.40q, want LongestFirst or OnlyFirst", f.Strategy)
	}
	if f.MaxLength > math.MaxInt32 {
		return nil, refused("max_length %d, want %d at most", f.MaxLength, math.MaxInt32)
	}
	return &truncation{int(f.MaxLength), left}, nil
}

func (f *paddingFile) build() (*padding, error) {
	if f == nil {
		return nil, nil
	}
	p := &padding{left: f.Direction == "Left", id: int32(f.ID)}
	if !p.left && f.Direction != "Right" {
		return nil, refused("direction %.40q, want Left or Right", f.Direction)
	}
	var fixed struct{ Fixed uint32 }
	switch {
	case bytes.Equal(f.Strategy, []byte(`"BatchLongest"`)):
	case options.Unmarshal(f.Strategy, &fixed) == nil:
		p.fixed = int(min(fixed.Fixed, math.MaxInt32))
	default:
		return nil, refused("strategy %.100s, want BatchLongest or Fixed", f.Strategy)
	}
	if f.Multiple != nil {
		p.multiple = int(min(*f.Multiple, math.MaxInt32))
	}
	if p.fixed > maxPadding || p.multiple > maxPadding || f.ID > math.MaxInt32 {
		return nil, refused("a length of %d, a multiple of %d and id %d, want %d, %d and %d at most", p.fixed, p.multiple, f.ID, maxPadding, maxPadding, math.MaxInt32)
	}
	return p, nil
}
