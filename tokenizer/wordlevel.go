package tokenizer

// wordLevel has a token for each word.
type wordLevel struct {
	ids     map[string]int32
	unknown string
}

// wordLevelFile is a model of type WordLevel.
type wordLevelFile struct {
	Type    string            `json:"type,omitempty"`
	Unknown string            `json:"unk_token"`
	Vocab   map[string]uint32 `json:"vocab"`
}

func init() {
	modelKinds["WordLevel"] = modelKind{func() modelSource { return new(wordLevelFile) }, []string{"vocab", "unk_token"}, 3}
}

func (f *wordLevelFile) make(t *Tokenizer) (model, error) {
	ids, err := t.enter(f.Vocab)
	if err != nil {
		return nil, err
	}
	return &wordLevel{ids, f.Unknown}, nil
}

func (m *wordLevel) id(token string) (int32, bool) {
	id, ok := m.ids[token]
	return id, ok
}

func (m *wordLevel) size() int { return len(m.ids) }

func (m *wordLevel) encode(dst []int32, p piece) ([]int32, error) {
	if p.text == "" {
		return dst, nil
	}
	word := spelled(p)
	id, ok := m.ids[word]
	if !ok {
		if id, ok = m.ids[m.unknown]; !ok {
			return dst, refused("no token for the word %.100q, and the unknown token %.100q is not in the vocabulary", word, m.unknown)
		}
	}
	return append(dst, id), nil
}

func (m *wordLevel) long(p piece, emit func(ids []int32) error) error { return encodeWhole(m, p, emit) }

func (m *wordLevel) apart(halves) bool { return false }

func (m *wordLevel) span(_ string, _ int32, word piece, at int, _ bool) int {
	return len(word.text) - at
}
