package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"github.com/snug-ml/snug"
)

// model cuts words into tokens.
type model interface {
	// encode appends the tokens of a word.
	encode(dst []int32, p piece) ([]int32, error)
	// long calls emit with the tokens of a long word, some at a time.
	long(p piece, emit func(ids []int32) error) error
	// id returns the id of a token, and size how many tokens there are.
	id(token string) (id int32, ok bool)
	size() int
	// apart reports whether the halves of a word are encoded as words of their own. See cut.go.
	apart(h halves) bool
	// span returns how many bytes of a word, from at on, a token stands for, and 0 where that is not known.
	span(token string, id int32, word piece, at int, last bool) int
}

// modelSource is the section "model" of one kind.
type modelSource interface {
	// make makes the model and enters its tokens in t.
	make(t *Tokenizer) (model, error)
}

// modelKind is a kind of models.
type modelKind struct {
	source func() modelSource // to decode into
	keys   []string           // of sections without a type that are of this kind
	order  int                // of the kinds that such a section may be of, the first one counts, as for the peer
}

// modelKinds are the kinds of models by their types. The file of a kind adds it.
var modelKinds = map[string]modelKind{}

// kindOf returns the kind of a section, which old files leave out.
func kindOf(keys map[string]json.RawMessage) (string, error) {
	if raw, has := keys["type"]; has {
		var kind any
		_ = json.Unmarshal(raw, &kind) // the file is JSON
		if name, is := kind.(string); is && name != "" {
			return name, nil
		}
		return "", refused("type %.40q, want %s", fmt.Sprint(kind), names(modelKinds))
	}
	best := ""
	for name, kind := range modelKinds {
		all := true
		for _, key := range kind.keys {
			_, has := keys[key]
			all = all && has
		}
		if all && (best == "" || kind.order < modelKinds[best].order) {
			best = name
		}
	}
	if best == "" {
		return "", damaged("a section without a type and with the keys of no model")
	}
	return best, nil
}

// modelPart is the section "model" of a file.
type modelPart struct{ modelSource }

func (m *modelPart) UnmarshalJSON(text []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil || keys == nil {
		return damaged("model: %.100q, want an object", text)
	}
	name, err := kindOf(keys)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	kind, known := modelKinds[name]
	if !known {
		return fmt.Errorf("model: %w", refused("type %.40q, want %s", name, names(modelKinds)))
	}
	source := kind.source()
	if err := options.Unmarshal(text, source); err != nil {
		return fmt.Errorf("model.%w", err)
	}
	m.modelSource = source
	return nil
}

func (m modelPart) MarshalJSON() ([]byte, error) { return plainJSON(m.modelSource) }

// parsed is an error of decoding a file, which says the kind of the error if it does not.
func parsed(err error) error {
	if errors.Is(err, snug.ErrConfig) || errors.Is(err, snug.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
}

func newCache() *cache {
	return &cache{maphash.MakeSeed(), make([]atomic.Pointer[cached], cacheSlots)}
}

// cached appends the tokens of a word, or of a part of one, which add makes if the cache does not have them.
func (c *cache) cached(dst []int32, word string, part bool, add func(dst []int32) ([]int32, error)) ([]int32, error) {
	if len(word) > maxCached {
		return add(dst)
	}
	ids, slot := c.get(word, part)
	if ids != nil {
		return append(dst, ids...), nil
	}
	n := len(dst)
	dst, err := add(dst)
	if err == nil {
		put(slot, word, part, dst[n:])
	}
	return dst, err
}

// whole calls emit with all tokens of a word, for models that need all of it.
func encodeWhole(m model, p piece, emit func(ids []int32) error) error {
	ids, err := m.encode(nil, p)
	if err != nil {
		return err
	}
	return emit(ids)
}

// enter enters the tokens of a vocabulary in t.
func (t *Tokenizer) enter(vocab map[string]uint32) (map[string]int32, error) {
	ids := make(map[string]int32, len(vocab))
	most := uint32(spreadTimes*len(vocab) + spreadMore)
	for token, id := range vocab {
		if id >= most {
			return nil, damaged("vocab: id %d of %.100q among %d tokens, want less than %d", id, token, len(vocab), most)
		}
		if old, taken := t.taken(int32(id)); taken {
			return nil, damaged("vocab: %.100q and %.100q both have id %d", min(old, token), max(old, token), id)
		}
		ids[token] = int32(id)
		t.name(int32(id), token, token)
	}
	return ids, nil
}

// byteTokens returns the tokens of bytes, such as <0x0A>, -1 for none.
func byteTokens(id func(token string) (int32, bool)) *[256]int32 {
	all := new([256]int32)
	for b := range all {
		id, ok := id(fmt.Sprintf("<0x%02X>", b))
		if !ok {
			id = -1
		}
		all[b] = id
	}
	return all
}
