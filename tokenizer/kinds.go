package tokenizer

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// kinds are the parts of a section by their types. The file of a part adds it.
type kinds[T any] map[string]func(part json.RawMessage, depth int) ([]T, error)

// The parts of tokenizer.json.
var (
	normalizerKinds    = kinds[normalizer]{}
	preTokenizerKinds  = kinds[preTokenizer]{}
	postProcessorKinds = kinds[postProcessor]{}
	decoderKinds       = kinds[decoder]{}
)

// add enters a part. A part may become several, or none.
func (k kinds[T]) add(kind string, read func(part json.RawMessage) ([]T, error)) {
	k[kind] = func(part json.RawMessage, _ int) ([]T, error) { return read(part) }
}

// sequence enters the part that has others under a key.
func (k kinds[T]) sequence(key string) {
	k["Sequence"] = func(part json.RawMessage, depth int) ([]T, error) { return sequence(part, key, depth, k.read) }
}

// read reads a part; null is none.
func (k kinds[T]) read(part json.RawMessage, depth int) ([]T, error) {
	kind, err := typeOf(part)
	if err != nil || kind == "" {
		return nil, err
	}
	one, known := k[kind]
	if !known {
		return nil, refused("type %.40q, want %s", kind, names(k))
	}
	return one(part, depth)
}

// names lists what is known.
func names[T any](known map[string]T) string {
	all := slices.Sorted(maps.Keys(known))
	last := len(all) - 1
	if last < 1 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:last], ", ") + " or " + all[last]
}
