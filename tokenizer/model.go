package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// Ids may be this much larger than the number of tokens.
const (
	spreadTimes = 8
	spreadMore  = 1 << 16
)

func init() {
	modelKinds["BPE"] = modelKind{func() modelSource { return new(modelFile) }, []string{"vocab", "merges"}, 1}
}

func (f *modelFile) make(t *Tokenizer) (model, error) {
	m, err := f.build(t)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *bpe) id(token string) (int32, bool) {
	id, ok := m.named[token]
	if !ok {
		id, ok = m.vocab[token]
	}
	return id, ok
}

func (m *bpe) size() int { return len(m.vocab) + len(m.named) }

// build makes the model and enters its tokens in t.
func (f *modelFile) build(t *Tokenizer) (*bpe, error) {
	if f.Dropout != nil && *f.Dropout != 0 {
		return nil, refused("dropout %v, want 0: tokens would be random", *f.Dropout)
	}
	vocab, err := t.enter(f.Vocab)
	if err != nil {
		return nil, err
	}
	m := &bpe{
		vocab: vocab, merges: make(map[uint64]merged, len(f.Merges)),
		single: slices.Repeat([]int32{-1}, singles), cache: newCache(),
		prefix: text(f.Prefix), suffix: text(f.Suffix), unknown: f.Unknown,
		fuseUnknown: isSet(f.FuseUnknown), wholeWords: isSet(f.IgnoreMerges),
	}
	for token, id := range vocab {
		if r, size := utf8.DecodeRuneInString(token); size == len(token) && size > 0 && r < singles {
			m.single[r] = id
		}
	}
	if isSet(f.ByteFallback) {
		m.fallback = byteTokens(m.id)
	}
	return m, m.addMerges(f.Merges)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func isSet(b *bool) bool { return b != nil && *b }

// addMerges enters the merges of the file, in their order.
func (m *bpe) addMerges(list []mergeFile) error {
	m.joins = newPairs(len(list))
	if m.prefix != "" || m.suffix != "" {
		m.joins = nil // characters have other tokens at the borders of words
	}
	odd := map[int32]bool{} // tokens that stand for other text than their own
	if m.unknown != nil {
		odd[m.vocab[*m.unknown]] = true
	}
	if m.fallback != nil {
		for _, id := range m.fallback {
			odd[id] = true
		}
	}
	var whole []byte
	rank := uint32(0)
	for i, pair := range list {
		if pair.joined != list[0].joined {
			return damaged(`merges: [%d] has another form than [0]: "a b" or ["a","b"]`, i)
		}
		if pair.comment {
			continue
		}
		a, okA := m.vocab[pair.a]
		b, okB := m.vocab[pair.b]
		whole = append(whole[:0], pair.a...)
		if okB = okB && len(pair.b) >= len(m.prefix); okB {
			whole = append(whole, pair.b[len(m.prefix):]...)
		}
		id, ok := m.vocab[string(whole)]
		if !okA || !okB || !ok {
			return damaged("merges: [%d] joins %.100q and %.100q, which with their result must be in the vocabulary", i, pair.a, pair.b)
		}
		m.merges[pairKey(a, b)] = merged{rank, id}
		rank++
		if odd[a] || odd[b] {
			m.joins = nil
		}
		if m.joins != nil {
			before, _ := utf8.DecodeLastRuneInString(pair.a)
			after, _ := utf8.DecodeRuneInString(pair.b)
			m.joins.add(before, after)
		}
	}
	return nil
}

// taken returns the token that has an id already.
func (t *Tokenizer) taken(id int32) (token string, ok bool) {
	if int(id) >= len(t.known) {
		return "", false
	}
	return t.texts[id], t.known[id]
}
