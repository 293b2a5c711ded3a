package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"unicode/utf8"

	"github.com/snug-ml/snug/internal/onig"
	"github.com/snug-ml/snug/internal/ucd"
)

// maxNested is how deep Sequences nest.
const maxNested = 16

// maxSection is the longest normalizer, pre-tokenizer, post-processor or decoder in bytes of JSON. Its patterns have 64 KiB
// each, and it is read again for each Sequence in a Sequence.
const maxSection = 1 << 20

// section reads a section that is not too long, whose parts do not make long text of a short one.
func section[T any](name string, text json.RawMessage, read func(json.RawMessage, int) ([]T, error)) (parts []T, err error) {
	if len(text) > maxSection {
		err = refused("%d bytes, want %d at most", len(text), maxSection)
	}
	if err == nil {
		parts, err = read(text, 0)
	}
	if err == nil {
		err = growth(parts)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return parts, nil
}

// typeOf returns the type of a part, nothing for null.
func typeOf(part json.RawMessage) (string, error) {
	if len(part) == 0 || string(part) == "null" {
		return "", nil
	}
	var all map[string]json.RawMessage // the file's keys have been checked
	if err := json.Unmarshal(part, &all); err != nil {
		return "", damaged("%.100q, want an object with a type", part)
	}
	var kind string
	if err := json.Unmarshal(all["type"], &kind); err != nil || kind == "" {
		return "", damaged("the type %.40q, want a name", all["type"])
	}
	return kind, nil
}

// read decodes a part of a known type.
func read(part json.RawMessage, into any) error {
	if err := options.Unmarshal(part, into); err != nil {
		return damaged("%w", err)
	}
	return nil
}

// sequence decodes the parts of a Sequence, which has them under one key.
func sequence[T any](part json.RawMessage, key string, depth int, one func(json.RawMessage, int) ([]T, error)) ([]T, error) {
	if depth == maxNested {
		return nil, refused("Sequences nested deeper than %d", maxNested)
	}
	var parts map[string]json.RawMessage
	var inner []json.RawMessage
	if err := json.Unmarshal(part, &parts); err != nil {
		return nil, damaged("%w", err)
	}
	list, ok := parts[key]
	if !ok || len(parts) != 2 {
		return nil, damaged("a Sequence with other keys than type and %s", key)
	}
	if err := json.Unmarshal(list, &inner); err != nil || inner == nil {
		return nil, damaged("%s: %.100q, want a list", key, list)
	}
	var all []T
	for i, p := range inner {
		some, err := one(p, depth+1)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", key, i, err)
		}
		if all = append(all, some...); len(all) > maxParts {
			return nil, refused("%s: more than %d parts", key, maxParts)
		}
	}
	return all, nil
}

// The parts of a section, and how many times as long they may make a text.
const (
	maxParts  = 64
	maxGrowth = 1 << 12
)

// grower is a part that may make a text longer.
type grower interface {
	growth() int // how many times as long at most
}

// growth refuses sections that would make long text of a short one.
func growth[T any](parts []T) error {
	if len(parts) > maxParts {
		return refused("%d parts, want %d at most", len(parts), maxParts)
	}
	times := 1
	for _, part := range parts {
		factor, p := 1, any(part)
		if w, ok := p.(whole); ok {
			p = w.decoder
		}
		if g, ok := p.(grower); ok {
			factor = g.growth()
		}
		if times *= factor; times > maxGrowth {
			return refused("parts that make the text more than %d times as long", maxGrowth)
		}
	}
	return nil
}

// simple decodes a part that has a type alone.
func simple[T any](part json.RawMessage, value T) ([]T, error) {
	var f struct {
		Type string `json:"type"`
	}
	if err := read(part, &f); err != nil {
		return nil, err
	}
	return []T{value}, nil
}

// patternFile is a text or a regular expression.
type patternFile struct {
	String *string `json:"String,omitempty"`
	Regex  *string `json:"Regex,omitempty"`
}

// build returns the text, or the pattern.
func (f patternFile) build() (string, *onig.Pattern, error) {
	if (f.String == nil) == (f.Regex == nil) || f.String != nil && *f.String == "" {
		return "", nil, damaged("a pattern that is not one of a String of some length and a Regex")
	}
	if f.String != nil {
		return *f.String, nil, nil
	}
	p, err := onig.Compile(*f.Regex)
	if err != nil {
		return "", nil, refused("%w", err)
	}
	return "", p, nil
}

func readReplace(part json.RawMessage) (r replace, err error) {
	var f struct {
		Type    string      `json:"type"`
		Pattern patternFile `json:"pattern"`
		Content string      `json:"content"`
	}
	if err := read(part, &f); err != nil {
		return r, err
	}
	r.content = f.Content
	r.text, r.pattern, err = f.Pattern.build()
	return r, err
}

var forms = map[string]ucd.Form{"NFC": ucd.NFC, "NFD": ucd.NFD, "NFKC": ucd.NFKC, "NFKD": ucd.NFKD}

func readNormalizer(part json.RawMessage, depth int) ([]normalizer, error) {
	return normalizerKinds.read(part, depth)
}

func init() {
	normalizerKinds.sequence("normalizers")
	for kind, form := range forms {
		normalizerKinds.add(kind, func(part json.RawMessage) ([]normalizer, error) { return simple[normalizer](part, unicodeForm{form}) })
	}
	normalizerKinds.add("Lowercase", func(part json.RawMessage) ([]normalizer, error) { return simple[normalizer](part, lowercase{}) })
	normalizerKinds.add("Strip", func(part json.RawMessage) ([]normalizer, error) {
		var f struct {
			Type  string `json:"type"`
			Left  bool   `json:"strip_left"`
			Right bool   `json:"strip_right"`
		}
		err := read(part, &f)
		return []normalizer{strip{f.Left, f.Right}}, err
	})
	normalizerKinds.add("Prepend", func(part json.RawMessage) ([]normalizer, error) {
		var f struct {
			Type    string `json:"type"`
			Prepend string `json:"prepend"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		if len(f.Prepend) > maxAdded {
			return nil, refused("prepend of %d bytes, want %d at most", len(f.Prepend), maxAdded)
		}
		return []normalizer{prepend{f.Prepend}}, nil
	})
	normalizerKinds.add("Replace", func(part json.RawMessage) ([]normalizer, error) {
		r, err := readReplace(part)
		return []normalizer{r}, err
	})
}

// gpt2 is the pattern of ByteLevel.
var gpt2 = sync.OnceValues(func() (*onig.Pattern, error) {
	return onig.Compile(`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`)
})

// byteLevelFile is ByteLevel in all its places.
type byteLevelFile struct {
	Type        string `json:"type"`
	PrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets bool   `json:"trim_offsets"` // there are no offsets here
	UseRegex    *bool  `json:"use_regex,omitempty"`
}

func readPreTokenizer(part json.RawMessage, depth int) ([]preTokenizer, error) {
	return preTokenizerKinds.read(part, depth)
}

func init() {
	preTokenizerKinds.sequence("pretokenizers")
	preTokenizerKinds.add("ByteLevel", func(part json.RawMessage) (all []preTokenizer, err error) {
		var f byteLevelFile
		if err := read(part, &f); err != nil {
			return nil, err
		}
		b := byteLevel{addSpace: f.PrefixSpace}
		if f.UseRegex == nil || *f.UseRegex {
			b.pattern, err = gpt2()
		}
		return []preTokenizer{b}, err
	})
	preTokenizerKinds.add("Split", readSplit)
	preTokenizerKinds.add("Digits", func(part json.RawMessage) ([]preTokenizer, error) {
		var f struct {
			Type       string `json:"type"`
			Individual bool   `json:"individual_digits"`
		}
		s := splitRunes("peer:numeric", contiguous)
		err := read(part, &f)
		if f.Individual {
			s.behavior = isolated
		}
		return []preTokenizer{s}, err
	})
	preTokenizerKinds.add("Metaspace", func(part json.RawMessage) ([]preTokenizer, error) {
		m, err := readMetaspace(part)
		return []preTokenizer{m}, err
	})
	preTokenizerKinds.add("Whitespace", func(part json.RawMessage) ([]preTokenizer, error) {
		return simple[preTokenizer](part, splitter{find: findWords, begin: beginWords, behavior: removed, invert: true})
	})
	preTokenizerKinds.add("WhitespaceSplit", func(part json.RawMessage) ([]preTokenizer, error) {
		return simple[preTokenizer](part, splitRunes("peer:space", removed))
	})
	preTokenizerKinds.add("Punctuation", func(part json.RawMessage) ([]preTokenizer, error) {
		var f struct {
			Type     string   `json:"type"`
			Behavior behavior `json:"behavior,omitempty"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		f.Behavior = cmp.Or(f.Behavior, isolated)
		if err := f.Behavior.check(); err != nil {
			return nil, refused("%w", err)
		}
		return []preTokenizer{splitRunes("peer:punct", f.Behavior)}, nil
	})
	preTokenizerKinds.add("CharDelimiterSplit", func(part json.RawMessage) ([]preTokenizer, error) {
		var f struct {
			Type      string `json:"type"`
			Delimiter string `json:"delimiter"`
		}
		if err := read(part, &f); err != nil {
			return nil, err
		}
		if utf8.RuneCountInString(f.Delimiter) != 1 {
			return nil, damaged("delimiter %.40q, want one character", f.Delimiter)
		}
		return []preTokenizer{splitter{findText(f.Delimiter), beginText(f.Delimiter), removed, false}}, nil
	})
}

// splitRunes cuts at the characters of a class.
func splitRunes(class string, b behavior) splitter {
	set := ucd.MustClass(class)
	return splitter{find: findRunes(set), begin: beginRunes(set), behavior: b}
}

func readSplit(part json.RawMessage) ([]preTokenizer, error) {
	var f struct {
		Type     string      `json:"type"`
		Pattern  patternFile `json:"pattern"`
		Behavior behavior    `json:"behavior"`
		Invert   bool        `json:"invert"`
	}
	if err := read(part, &f); err != nil {
		return nil, err
	}
	if err := f.Behavior.check(); err != nil {
		return nil, refused("%w", err)
	}
	text, pattern, err := f.Pattern.build()
	if err != nil {
		return nil, err
	}
	if pattern != nil {
		return []preTokenizer{splitter{pattern.Each, beginPattern(pattern), f.Behavior, f.Invert}}, nil
	}
	return []preTokenizer{splitter{findText(text), beginText(text), f.Behavior, f.Invert}}, nil
}

func readMetaspace(part json.RawMessage) (m metaspace, err error) {
	var f struct {
		Type        string  `json:"type"`
		Replacement string  `json:"replacement"`
		PrefixSpace *bool   `json:"add_prefix_space,omitempty"`
		Prepend     string  `json:"prepend_scheme,omitempty"`
		Split       *bool   `json:"split,omitempty"`
		StrRep      *string `json:"str_rep,omitempty"` // of older files, and without effect
	}
	if err := read(part, &f); err != nil {
		return m, err
	}
	f.Prepend = cmp.Or(f.Prepend, "always")
	m = metaspace{sign: f.Replacement, prepend: f.Prepend, cut: f.Split == nil || *f.Split}
	switch {
	case utf8.RuneCountInString(m.sign) != 1:
		return m, damaged("replacement %.40q, want one character", m.sign)
	case m.prepend != "always" && m.prepend != "first" && m.prepend != "never":
		return m, refused("prepend_scheme %.40q, want always, first or never", m.prepend)
	case f.PrefixSpace != nil && !*f.PrefixSpace && m.prepend != "never":
		return m, damaged("add_prefix_space false with prepend_scheme %s", m.prepend)
	}
	return m, nil
}

// pairFile is a token and its id.
type pairFile struct {
	id int32
}

func (p *pairFile) UnmarshalJSON(text []byte) error {
	var list []json.RawMessage
	var token string
	var id uint32
	if json.Unmarshal(text, &list) != nil || len(list) != 2 || json.Unmarshal(list[0], &token) != nil ||
		json.Unmarshal(list[1], &id) != nil || id > math.MaxInt32 {
		return fmt.Errorf("%.100q, want a token and its id", text)
	}
	p.id = int32(id)
	return nil
}

func readPostProcessor(part json.RawMessage, depth int) ([]postProcessor, error) {
	return postProcessorKinds.read(part, depth)
}

func init() {
	postProcessorKinds.sequence("processors")
	postProcessorKinds.add("ByteLevel", func(part json.RawMessage) ([]postProcessor, error) {
		return nil, read(part, new(byteLevelFile)) // it changes offsets alone
	})
	for _, kind := range []string{"BertProcessing", "RobertaProcessing"} {
		postProcessorKinds.add(kind, func(part json.RawMessage) ([]postProcessor, error) {
			var f struct {
				Type        string   `json:"type"`
				Sep         pairFile `json:"sep"`
				Cls         pairFile `json:"cls"`
				TrimOffsets *bool    `json:"trim_offsets,omitempty"`
				PrefixSpace *bool    `json:"add_prefix_space,omitempty"`
			}
			err := read(part, &f)
			return []postProcessor{template{{ids: []int32{f.Cls.id}}, {text: true}, {ids: []int32{f.Sep.id}}}}, err
		})
	}
	postProcessorKinds.add("TemplateProcessing", func(part json.RawMessage) ([]postProcessor, error) {
		t, err := readTemplate(part)
		return []postProcessor{t}, err
	})
}

// templateFile is a part of a template.
type templateFile struct {
	Sequence *templateItem `json:"Sequence,omitempty"`
	Special  *templateItem `json:"SpecialToken,omitempty"`
}

type templateItem struct {
	ID     string `json:"id"`
	TypeID uint32 `json:"type_id"`
}

// maxAround is how many tokens a post-processor may add to a text.
const maxAround = 256

func readTemplate(part json.RawMessage) (template, error) {
	var f struct {
		Type    string         `json:"type"`
		Single  []templateFile `json:"single"`
		Pair    []templateFile `json:"pair"` // of two texts, which Encode does not take
		Special map[string]struct {
			ID     string   `json:"id"`
			IDs    []uint32 `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
	}
	if err := read(part, &f); err != nil {
		return nil, err
	}
	ids := make(map[string][]int32, len(f.Special))
	for name, special := range f.Special {
		list := make([]int32, len(special.IDs))
		for i, id := range special.IDs {
			if id > math.MaxInt32 {
				return nil, damaged("id %d of %.40q, want %d at most", id, name, math.MaxInt32)
			}
			list[i] = int32(id)
		}
		ids[name] = list
	}
	var t template
	for i, p := range f.Single {
		switch {
		case (p.Sequence == nil) == (p.Special == nil):
			return nil, damaged("single[%d] is not one of a Sequence and a SpecialToken", i)
		case p.Sequence != nil && p.Sequence.ID != "A":
			return nil, damaged("single[%d] is sequence %.40q, want A", i, p.Sequence.ID)
		case p.Sequence != nil:
			t = append(t, templatePart{text: true})
			continue
		}
		list, ok := ids[p.Special.ID]
		if !ok {
			return nil, damaged("single[%d] is %.40q, which special_tokens lacks", i, p.Special.ID)
		}
		t = append(t, templatePart{ids: list})
		if n := t.adds(); n > maxAround || len(t) > maxAround {
			return nil, refused("single adds more than %d tokens to a text", maxAround)
		}
	}
	texts := 0
	for _, item := range t {
		if item.text {
			texts++
		}
	}
	if texts != 1 {
		return nil, refused("single has %d places for the text, want 1", texts)
	}
	return t, nil
}
